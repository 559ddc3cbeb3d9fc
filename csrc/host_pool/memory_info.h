// SPDX-License-Identifier: Apache-2.0
//
// What /proc and /sys tell about memory. Every function copes with files that are missing or unreadable.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "host_pool/system_calls.h"

namespace torch_offload {

inline constexpr uint64_t kHugePageSize = uint64_t{2} << 20;

// The system's ordinary page size.
uint64_t small_page_size();

struct AvailableMemory {
  uint64_t bytes;      // UINT64_MAX when nothing limits it
  std::string source;  // what sets the limit, for messages
};

// Bytes of ordinary pages that can still be taken: the least of /proc/meminfo (MemAvailable, which leaves reserved huge
// pages out) and the memory limits of all control groups above this process (v1 and v2).
AvailableMemory available_memory(const SystemCalls& calls);

// The same for one NUMA node.
AvailableMemory available_on_node(const SystemCalls& calls, int node);

// Bytes of explicit 2 MiB huge pages that nobody has reserved yet.
uint64_t available_huge_pages(const SystemCalls& calls);

// Whether the kernel gives transparent huge pages to memory that asks for them. True when it does not say.
bool transparent_huge_pages_enabled(const SystemCalls& calls, bool shared);

// The NUMA nodes that are online; empty when the system does not say.
std::vector<int> online_numa_nodes(const SystemCalls& calls);

// How much of [begin, begin + length) is backed by huge pages right now (/proc/self/smaps).
uint64_t huge_page_bytes(const SystemCalls& calls, const void* begin, uint64_t length);

}  // namespace torch_offload
