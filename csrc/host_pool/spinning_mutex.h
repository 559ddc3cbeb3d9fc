// SPDX-License-Identifier: Apache-2.0
//
// A mutex for sections that are shorter than putting a thread to sleep and waking it.
#pragma once

#include <mutex>

namespace torch_offload {

class SpinningMutex {
 public:
  void lock() {
    for (int i = 0; i < kSpins; ++i) {
      if (mutex_.try_lock()) return;
      for (int pause = 0; pause < kPauses; ++pause) relax();
    }
    mutex_.lock();
  }
  bool try_lock() { return mutex_.try_lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  static constexpr int kSpins = 30;
  static constexpr int kPauses = 8;  // trying more often would only take the cache line from the owner

  static void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield" ::: "memory");
#endif
  }

  std::mutex mutex_;
};

}  // namespace torch_offload
