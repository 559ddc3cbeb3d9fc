// SPDX-License-Identifier: Apache-2.0
#include "host_pool/prefault.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
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

// The creating thread works too, and reports between two chunks.
class Prefaulter {
 public:
  Prefaulter(const PrefaultRequest& request, const Progress& progress, const SystemCalls& calls)
      : request_(request), progress_(progress), calls_(calls) {}

  PrefaultResult run() {
    {
      const Joiner joiner{*this};
      const uint64_t chunks = (request_.length + kChunk - 1) / kChunk;
      start(std::min<uint64_t>(std::max(request_.threads, 1), chunks) - 1);
      auto next_report = Clock::now() + kProgressInterval;
      while (populate_chunk()) {
        if (Clock::now() < next_report) continue;
        report();
        next_report = Clock::now() + kProgressInterval;
      }
      joiner.wait();
    }
    // Not after a failure, and not again after a cancellation.
    if (!stop_) report();
    if (cancelled_) throw StateError("HostPool: creation cancelled while its memory was being prefaulted");
    return result_;
  }

 private:
  using Clock = std::chrono::steady_clock;

  // Ends the workers whatever happens: `progress_` may throw.
  struct Joiner {
    Prefaulter& self;
    void wait() const {
      for (std::thread& worker : self.workers_) worker.join();
      self.workers_.clear();
    }
    ~Joiner() {
      if (self.workers_.empty()) return;
      self.stop_ = true;
      wait();
    }
  };

  void start(uint64_t threads) {
    try {
      for (uint64_t i = 0; i < threads; ++i) {
        workers_.emplace_back([this] {
          while (populate_chunk()) continue;
        });
      }
    } catch (const std::system_error&) {  // no more threads to be had: those that there are do it
    }
  }

  void report() {
    if (progress_ && !progress_(done_, request_.length)) {
      cancelled_ = true;
      stop_ = true;
    }
  }

  // False when there is nothing more to do.
  bool populate_chunk() noexcept {
    if (stop_) return false;
    const uint64_t begin = next_.fetch_add(kChunk);
    if (begin >= request_.length) return false;
    const uint64_t length = std::min(kChunk, request_.length - begin);
    const PrefaultResult result = populate(request_.base + begin, length);
    if (result != PrefaultResult::kDone) {
      result_ = result;
      stop_ = true;
      return false;
    }
    done_ += length;
    return true;
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
};

}  // namespace

PrefaultResult prefault(const PrefaultRequest& request, const Progress& progress, const SystemCalls& calls) {
  return Prefaulter(request, progress, calls).run();
}

}  // namespace torch_offload
