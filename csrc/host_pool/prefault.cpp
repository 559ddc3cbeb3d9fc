// SPDX-License-Identifier: Apache-2.0
#include "host_pool/prefault.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "error.h"
#include "host_pool/memory_info.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace torch_offload {

namespace {

// Large enough that a call costs nothing, small enough for even work and a timely cancellation.
constexpr uint64_t kChunk = uint64_t{16} << 20;
constexpr auto kProgressInterval = std::chrono::milliseconds(100);

class Prefaulter {
 public:
  Prefaulter(const PrefaultRequest& request, const Progress& progress, const SystemCalls& calls)
      : request_(request), progress_(progress), calls_(calls) {}

  PrefaultResult run() {
    const uint64_t chunks = (request_.length + kChunk - 1) / kChunk;
    const uint64_t threads = std::min<uint64_t>(std::max(request_.threads, 1), chunks);
    if (threads <= 1 && !progress_) {
      work();
    } else {
      start(threads);
      wait();
    }
    if (cancelled_) throw StateError("HostPool: creation cancelled while its memory was being prefaulted");
    return result_;
  }

 private:
  // Joins whatever happens: `progress_` may throw.
  struct Joiner {
    Prefaulter& self;
    ~Joiner() {
      self.stop_ = true;
      for (std::thread& worker : self.workers_) worker.join();
      self.workers_.clear();
    }
  };

  void start(uint64_t threads) {
    for (uint64_t i = 0; i < threads; ++i) {
      try {
        workers_.emplace_back([this] {
          work();
          const std::lock_guard<std::mutex> lock(mutex_);
          ++finished_;
          ended_.notify_one();
        });
      } catch (const std::system_error&) {  // no more threads to be had
        break;
      }
    }
    if (workers_.empty()) work();
  }

  void wait() {
    const Joiner joiner{*this};
    while (true) {
      {
        std::unique_lock<std::mutex> lock(mutex_);
        if (ended_.wait_until(lock, std::chrono::system_clock::now() + kProgressInterval,
                              [this] { return finished_ == workers_.size(); })) {
          break;
        }
      }
      report();
    }
    report();
  }

  void report() {
    // Not again after a cancellation or a failure, while the workers finish their chunks.
    if (progress_ && !stop_ && !progress_(done_, request_.length)) {
      cancelled_ = true;
      stop_ = true;
    }
  }

  void work() noexcept {
    while (!stop_) {
      const uint64_t begin = next_.fetch_add(kChunk);
      if (begin >= request_.length) return;
      const uint64_t length = std::min(kChunk, request_.length - begin);
      const PrefaultResult result = populate(request_.base + begin, length);
      if (result != PrefaultResult::kDone) {
        result_ = result;
        stop_ = true;
        return;
      }
      done_ += length;
    }
  }

  PrefaultResult populate(std::byte* begin, uint64_t length) noexcept {
    while (calls_.madvise(begin, length, MADV_POPULATE_WRITE) != 0) {
      if (errno == EINTR || errno == EAGAIN) continue;
      // Everything else (ENOMEM, EFAULT, EHWPOISON) stands for a fault that would have raised a signal.
      if (errno != EINVAL && errno != ENOSYS && errno != EPERM) return PrefaultResult::kNoMemory;
      if (!request_.may_touch) return PrefaultResult::kUnsupported;
      touch(begin, length);
      break;
    }
    return PrefaultResult::kDone;
  }

  static void touch(std::byte* begin, uint64_t length) noexcept {
    for (uint64_t at = 0; at < length; at += small_page_size()) {
      volatile std::byte* const page = begin + at;
      *page = *page;
    }
  }

  const PrefaultRequest request_;
  const Progress& progress_;
  const SystemCalls& calls_;
  std::atomic<uint64_t> next_{0};
  std::atomic<uint64_t> done_{0};
  std::atomic<bool> stop_{false};
  std::atomic<PrefaultResult> result_{PrefaultResult::kDone};
  bool cancelled_ = false;  // only the creating thread uses it
  std::vector<std::thread> workers_;
  std::mutex mutex_;  // guards finished_
  std::condition_variable ended_;
  size_t finished_ = 0;
};

}  // namespace

PrefaultResult prefault(const PrefaultRequest& request, const Progress& progress, const SystemCalls& calls) {
  return Prefaulter(request, progress, calls).run();
}

}  // namespace torch_offload
