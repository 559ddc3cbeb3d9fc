// SPDX-License-Identifier: Apache-2.0
//
// Times the torch-free core: allocate/free pairs of HostPool and of malloc on one trace of random sizes, with 1 and 2
// threads, and prefaulting against a first touch by one thread. The sides of a comparison take turns. Prints one JSON
// object a line; `benchmarks/bench_host_pool.py` builds, runs and reads it.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
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

// Runs a trace of its own in each of `threads` threads at once; returns seconds for each pair.
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
  return seconds_since(begin) / (threads * kPairs);
}

struct Side {
  std::string name;
  std::function<double()> seconds;
};

// `per_second`: how much one second would do, for a measurement of 1 s.
void compare(const char* what, int repeats, double per_second, const std::vector<Side>& sides) {
  std::vector<std::vector<double>> values(sides.size());
  for (int i = -1; i < repeats; ++i) {
    for (size_t side = 0; side < sides.size(); ++side) {
      const double seconds = sides[side].seconds();
      if (i >= 0) values[side].push_back(per_second / seconds);  // the first round warms up
    }
  }
  for (size_t side = 0; side < sides.size(); ++side) {
    std::sort(values[side].begin(), values[side].end());
    std::printf(R"({"what": "%s", "side": "%s", "median": %.6g, "low": %.6g, "high": %.6g})"
                "\n",
                what, sides[side].name.c_str(), values[side][repeats / 2], values[side].front(), values[side].back());
  }
  std::fflush(stdout);
}

double create(PoolOptions options, int threads) {
  options.prefault_threads = threads;
  const auto begin = Clock::now();
  const auto pool = HostPool::create(options);
  return seconds_since(begin);
}

// What a program does that does not prefault: one thread writes to every page.
double first_touch(const PoolOptions& options) {
  const auto begin = Clock::now();
  const auto pool = HostPool::create(options);
  for (uint64_t at = 0; at < pool->capacity(); at += 4096) pool->base()[at] = std::byte{1};
  return seconds_since(begin);
}

}  // namespace

int main(int argc, char** argv) {
  const int repeats = argc > 1 ? std::atoi(argv[1]) : 5;
  const double gib = argc > 2 ? std::atof(argv[2]) : 1.0;
  PoolOptions options;
  options.capacity = uint64_t{1} << 30;
  options.huge_pages = HugePages::kNever;
  const auto pool = HostPool::create(options);
  for (int threads : {1, 2}) {
    const std::string what = "pairs/s, " + std::to_string(threads) + " thread" + (threads == 1 ? "" : "s");
    const auto allocate = [&](size_t size) { return pool->allocate_raw(size); };
    compare(what.c_str(), repeats, 1,
            {{"HostPool", [&] { return run(threads, allocate, [&](void* block) { pool->free_raw(block); }); }},
             {"malloc", [&] { return run(threads, std::malloc, std::free); }}});
  }
  options.capacity = static_cast<uint64_t>(gib * (1 << 30));
  for (const bool huge : {false, true}) {
    options.huge_pages = huge ? HugePages::kAuto : HugePages::kNever;
    compare(huge ? "prefault, bytes/s, huge pages" : "prefault, bytes/s, normal pages", repeats,
            static_cast<double>(options.capacity),
            {{"first touch", [&] { return first_touch(options); }},
             {"1 thread", [&] { return create(options, 1); }},
             {"2 threads", [&] { return create(options, 2); }}});
  }
  return 0;
}
