// SPDX-License-Identifier: Apache-2.0
//
// A mutex for sections of less than a microsecond: it looks again for a moment before it lets the thread sleep. To be
// put to sleep and woken costs more than ten such sections.
#pragma once

#include <mutex>

namespace torch_offload {

class AdaptiveMutex {
 public:
  void lock() {
    for (int i = 0; i < kTries; ++i) {
      if (mutex_.try_lock()) return;
      for (int j = 0; j < kPauses; ++j) pause();
    }
    mutex_.lock();
  }
  void unlock() { mutex_.unlock(); }

 private:
  static constexpr int kTries = 60;
  static constexpr int kPauses = 20;

  static void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  std::mutex mutex_;
};

}  // namespace torch_offload
