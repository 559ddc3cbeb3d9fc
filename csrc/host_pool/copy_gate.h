// SPDX-License-Identifier: Apache-2.0
//
// Lets copies pass until it is closed; closing waits for those that have passed to end.
#pragma once

#include <atomic>
#include <cstdint>

namespace torch_offload {

// Lock free. The top bit says closed, the others count the copies under way.
class CopyGate {
 public:
  // False once the gate is closed; else leave() must follow.
  bool enter() noexcept {
    uint32_t state = state_.load(std::memory_order_relaxed);
    do {
      if (state & kClosed) return false;
    } while (!state_.compare_exchange_weak(state, state + 1, std::memory_order_acquire, std::memory_order_relaxed));
    return true;
  }

  void leave() noexcept {
    if (state_.fetch_sub(1, std::memory_order_acq_rel) == (kClosed | 1)) state_.notify_all();
  }

  // May be called several times, by several threads; each of them waits.
  void close_and_wait() noexcept {
    state_.fetch_or(kClosed, std::memory_order_acq_rel);
    for (uint32_t state = state_.load(std::memory_order_acquire); state != kClosed;
         state = state_.load(std::memory_order_acquire)) {
      state_.wait(state, std::memory_order_acquire);
    }
  }

 private:
  static constexpr uint32_t kClosed = uint32_t{1} << 31;
  std::atomic<uint32_t> state_{0};
};

}  // namespace torch_offload
