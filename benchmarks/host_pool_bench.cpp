// SPDX-License-Identifier: Apache-2.0
//
// Allocate/free pairs per second of HostPool and of malloc on one trace of random sizes, with 1 and 2 threads, and
// prefaulting with 1 and 2 threads. `make -C tests/cpp bench` builds it; it prints one line for each measurement.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "host_pool/host_pool.h"

namespace {

using namespace torch_offload;
using Clock = std::chrono::steady_clock;

constexpr int kLive = 1000;  // blocks that each thread holds
constexpr int kPairs = 400000;
constexpr int kRepeats = 5;

struct Step {
  uint32_t slot;  // whose block is freed and made anew
  uint32_t size;
};

std::vector<Step> make_trace(uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Step> trace(kPairs);
  for (Step& step : trace) {
    const uint32_t span = 64u << random() % 13;  // 64 B to 512 KiB, small ones as often as large ones
    step = {static_cast<uint32_t>(random() % kLive), 1 + static_cast<uint32_t>(random() % span)};
  }
  return trace;
}

// Runs the trace in each of `threads` threads at once and returns pairs per second.
template <typename Allocate, typename Free>
double run(int threads, Allocate allocate, Free free) {
  std::vector<std::vector<Step>> traces;
  for (int t = 0; t < threads; ++t) traces.push_back(make_trace(t + 1));
  std::vector<std::thread> workers;
  const auto begin = Clock::now();
  for (int t = 0; t < threads; ++t) {
    workers.emplace_back([&, t] {
      std::vector<void*> live(kLive, nullptr);
      for (const Step& step : traces[t]) {
        if (live[step.slot] != nullptr) free(live[step.slot]);
        live[step.slot] = allocate(step.size);
      }
      for (void* block : live) {
        if (block != nullptr) free(block);
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  return threads * kPairs / std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Spread {
  double median, low, high;
};

template <typename Measure>
Spread repeat(Measure measure) {
  measure();  // warm up
  std::vector<double> values;
  for (int i = 0; i < kRepeats; ++i) values.push_back(measure());
  std::sort(values.begin(), values.end());
  return {values[kRepeats / 2], values.front(), values.back()};
}

void print(const char* what, int threads, const Spread& value, const char* unit) {
  std::printf("%-28s %d thread(s)  %8.2f %s  (%.2f to %.2f)\n", what, threads, value.median, unit, value.low,
              value.high);
}

}  // namespace

int main() {
  PoolOptions options;
  options.capacity = uint64_t{1} << 30;
  options.huge_pages = HugePages::kNever;
  const auto pool = HostPool::create(options);
  for (int threads : {1, 2}) {
    print("HostPool allocate + free", threads, repeat([&] {
            return run(
                       threads, [&](size_t size) { return pool->allocate_raw(size); },
                       [&](void* block) { pool->free_raw(block); }) /
                   1e6;
          }),
          "M pairs/s");
    print("malloc + free", threads, repeat([&] { return run(threads, std::malloc, std::free) / 1e6; }), "M pairs/s");
  }
  for (int threads : {1, 2}) {
    print("prefault of 1 GiB", threads, repeat([&] {
            PoolOptions wanted = options;
            wanted.prefault_threads = threads;
            const auto begin = Clock::now();
            HostPool::create(wanted);
            return 1.073741824 / std::chrono::duration<double>(Clock::now() - begin).count();
          }),
          "GB/s");
  }
  return 0;
}
