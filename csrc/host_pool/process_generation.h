// SPDX-License-Identifier: Apache-2.0
//
// Tells a process from its forked children without a system call.
#pragma once

#include <atomic>
#include <cstdint>

#include "visibility.h"

namespace torch_offload {

// A number that changes, in the child only, with every fork. Safe to call in any state, takes no lock.
OFFLOAD_CORE_API uint64_t process_generation() noexcept;

// A value that a forked child finds fresh instead of in whatever state the parent's threads had it in. The parent's is
// leaked in the child on purpose: its mutexes may be locked by threads that the child does not have. Never destroyed,
// so that it is valid at process exit in any order.
template <typename T>
class PerProcess {
 public:
  T& get() {
    Node* node = node_.load(std::memory_order_acquire);
    const uint64_t generation = process_generation();
    if (node != nullptr && node->generation == generation) return node->value;
    Node* const fresh = new Node{generation, {}};
    if (node_.compare_exchange_strong(node, fresh, std::memory_order_acq_rel)) return fresh->value;
    delete fresh;  // another thread was faster
    return node->value;
  }

 private:
  struct Node {
    uint64_t generation;
    T value;
  };
  std::atomic<Node*> node_{nullptr};
};

}  // namespace torch_offload
