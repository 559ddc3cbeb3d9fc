// SPDX-License-Identifier: Apache-2.0
//
// Allocate/free pairs per second of HostPool and of malloc on one trace of random sizes, with 1 and 2 threads, and
// prefaulting with 1 and 2 threads against touching the pages one after another. `make -C tests/cpp bench` builds it;
// it prints one line for each measurement, with `--json` as JSON. The sides of a comparison take turns.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "host_pool/host_pool.h"

namespace {

using namespace torch_offload;
using Clock = std::chrono::steady_clock;

constexpr int kLive = 1000;  // blocks that each thread holds
constexpr int kPairs = 400000;
constexpr int kRepeats = 5;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

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
  return threads * kPairs / seconds_since(begin);
}

// Creation only: giving the memory back is single-threaded in the kernel.
double prefault_gb_per_s(PoolOptions options, int threads) {
  options.prefault_threads = threads;
  const auto begin = Clock::now();
  const auto pool = HostPool::create(options);
  return options.capacity / 1e9 / seconds_since(begin);
}

double first_touch_gb_per_s(uint64_t length) {
  const auto begin = Clock::now();
  void* const memory = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  madvise(memory, length, MADV_NOHUGEPAGE);
  for (uint64_t at = 0; at < length; at += 4096) static_cast<volatile char*>(memory)[at] = 0;
  const double speed = length / 1e9 / seconds_since(begin);
  munmap(memory, length);
  return speed;
}

struct Side {
  std::string what;
  int threads;
  std::function<double()> measure;
  std::vector<double> values = {};
};

void compare(std::vector<Side> sides, const char* unit, bool json) {
  for (int round = 0; round <= kRepeats; ++round) {
    for (Side& side : sides) {
      const double value = side.measure();
      if (round > 0) side.values.push_back(value);  // the first one warms up
    }
  }
  for (Side& side : sides) {
    std::sort(side.values.begin(), side.values.end());
    std::printf(json ? "{\"what\": \"%s\", \"threads\": %d, \"median\": %.4f, \"unit\": \"%s\", \"low\": %.4f, "
                       "\"high\": %.4f}\n"
                     : "%-24s %d thread(s)  %8.2f %s  (%.2f to %.2f)\n",
                side.what.c_str(), side.threads, side.values[kRepeats / 2], unit, side.values.front(),
                side.values.back());
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool json = argc > 1 && std::strcmp(argv[1], "--json") == 0;
  PoolOptions options;
  options.capacity = uint64_t{1} << 30;
  options.huge_pages = HugePages::kNever;
  const auto pool = HostPool::create(options);
  for (int threads : {1, 2}) {
    const auto allocate = [&](size_t size) { return pool->allocate_raw(size); };
    const auto free = [&](void* block) { pool->free_raw(block); };
    compare({{"HostPool allocate + free", threads, [&] { return run(threads, allocate, free) / 1e6; }},
             {"malloc + free", threads, [&] { return run(threads, std::malloc, std::free) / 1e6; }}},
            "M pairs/s", json);
  }
  compare({{"first touch of 1 GiB", 1, [&] { return first_touch_gb_per_s(options.capacity); }},
           {"prefault of 1 GiB", 1, [&] { return prefault_gb_per_s(options, 1); }},
           {"prefault of 1 GiB", 2, [&] { return prefault_gb_per_s(options, 2); }}},
          "GB/s", json);
  return 0;
}
