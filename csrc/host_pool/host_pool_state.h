// SPDX-License-Identifier: Apache-2.0
//
// What a pool's mutex guards. For the files that implement HostPool.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "host_pool/block_allocator.h"
#include "host_pool/device_backend.h"
#include "host_pool/host_pool.h"

namespace torch_offload {

// A block that is live for the allocator, although its holder has given it back.
struct HostPool::Deferred {
  const void* data;
  BlockOwner owner;
  std::function<bool()> ready;
};

// Streams that a live block was handed to.
struct BlockUses {
  std::vector<StreamUse> streams;
  bool freed = false;  // and now deferred
};

inline void add_uses(std::vector<StreamUse>& uses, const std::vector<StreamUse>& more) {
  for (const StreamUse& use : more) {
    if (std::find(uses.begin(), uses.end(), use) == uses.end()) uses.push_back(use);
  }
}

struct HostPool::State {
  State(uint64_t capacity, uint64_t alignment, std::vector<uint64_t> seams)
      : allocator(capacity, alignment, std::move(seams)) {}

  std::mutex mutex;
  BlockAllocator allocator;
  std::vector<Deferred> deferred;
  std::atomic<bool> has_deferred{false};  // written under the mutex
  uint64_t being_polled = 0;              // deferred blocks that a thread has taken out to ask for
  uint64_t deferred_raw_blocks = 0;
  std::map<uint64_t, BlockUses> uses;  // by the block's offset
  std::vector<StreamUse> other_uses;   // of memory that is no block of this process
  uint64_t double_frees = 0;
  uint64_t foreign_frees = 0;
  uint64_t page_size = 0;
  uint64_t huge_bytes = 0;
  std::chrono::steady_clock::time_point last_measured;
  bool closed = false;
  std::shared_ptr<HostPool> keep_alive;  // set while raw blocks are held
};

}  // namespace torch_offload
