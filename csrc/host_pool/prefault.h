// SPDX-License-Identifier: Apache-2.0
//
// Backs a mapping with memory in parallel, before anybody uses it, and without a signal when there is none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "host_pool/system_calls.h"

namespace torch_offload {

// Called by the thread that creates the pool, at most ten times a second and once at the end. False cancels; so does
// an exception, which reaches the caller.
using Progress = std::function<bool(uint64_t bytes_done, uint64_t bytes_total)>;

struct PrefaultRequest {
  std::byte* base;
  uint64_t length;
  int threads;     // at least 1; fewer are used where the system starts no more
  bool may_touch;  // whether pages may be touched where the kernel lacks MADV_POPULATE_WRITE (before 5.14)
};

enum class PrefaultResult {
  kDone,
  kUnsupported,  // the kernel lacks MADV_POPULATE_WRITE and touching was not allowed
  kNoMemory,
};

// Contents are kept. Owns no memory; all threads have ended when it returns or throws.
// @throws StateError when cancelled, and what `progress` throws
PrefaultResult prefault(const PrefaultRequest& request, const Progress& progress, const SystemCalls& calls);

}  // namespace torch_offload
