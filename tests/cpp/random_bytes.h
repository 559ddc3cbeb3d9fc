// SPDX-License-Identifier: Apache-2.0
//
// What the tests of the two copy loops share: random memory, and parts run by threads of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <thread>
#include <vector>

namespace check {

#ifdef OFFLOAD_TEST_SMALL
constexpr int kRounds = 150;
#else
constexpr int kRounds = 600;
#endif

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  // A number in [low, high].
  int64_t in(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(engine_); }
  bool chance(int percent) { return in(1, 100) <= percent; }
  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return *(values.begin() + in(0, static_cast<int64_t>(values.size()) - 1));
  }
  // No more bytes than asked for are allocated, so that AddressSanitizer sees what reaches beyond them.
  std::vector<std::byte> bytes(int64_t size) {
    std::vector<std::byte> result(static_cast<size_t>(size));
    for (std::byte& value : result) value = static_cast<std::byte>(engine_());
    return result;
  }

 private:
  std::mt19937_64 engine_;
};

// Runs every part at the same time, each in a thread.
template <typename CopyPart>
void run_in_threads(int parts, const CopyPart& copy_part) {
  std::vector<std::thread> threads;
  for (int part = 0; part < parts; ++part) threads.emplace_back([&copy_part, part] { copy_part(part); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace check
