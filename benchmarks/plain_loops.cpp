// SPDX-License-Identifier: Apache-2.0
//
// What bench_sparse_copy.py compares with beside torch: the loop that one would write first, and the reading of the
// rows alone, which no copy can be faster than.
#include <algorithm>
#include <cstdint>
#include <cstring>

namespace {

constexpr int64_t kLine = 64;
constexpr int64_t kBytesAhead = 12 << 10;

int64_t part_begin(int64_t rows, int thread, int threads) { return rows * thread / threads; }

// One word of each cache line, behind prefetches of rows to come.
uint64_t read_part(const char* src, const int64_t* index, int64_t rows, int64_t bytes) {
  const int64_t ahead = std::clamp<int64_t>(kBytesAhead / bytes, 1, 32);
  uint64_t sum = 0;
  for (int64_t i = -ahead; i < rows; ++i) {
    const char* later = i + ahead < rows ? src + index[i + ahead] * bytes : nullptr;
    const char* row = i < 0 ? nullptr : src + index[i] * bytes;
    for (int64_t at = 0; at + 8 <= bytes; at += kLine) {
      if (later != nullptr) __builtin_prefetch(later + at);
      if (row == nullptr) continue;
      uint64_t word;
      std::memcpy(&word, row + at, sizeof(word));
      sum += word;
    }
  }
  return sum;
}

}  // namespace

extern "C" {

// Row index[i] of `src` to row i of `dst`, rows of `bytes` bytes, one memcpy each.
void memcpy_rows(char* dst, const char* src, const int64_t* index, int64_t rows, int64_t bytes, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int thread = 0; thread < threads; ++thread) {
    for (int64_t i = part_begin(rows, thread, threads); i < part_begin(rows, thread + 1, threads); ++i) {
      std::memcpy(dst + i * bytes, src + index[i] * bytes, static_cast<size_t>(bytes));
    }
  }
}

// The same rows, read and not written. The sum is there so that the reading is.
uint64_t read_rows(const char* src, const int64_t* index, int64_t rows, int64_t bytes, int threads) {
  uint64_t sum = 0;
#pragma omp parallel for num_threads(threads) schedule(static, 1) reduction(+ : sum)
  for (int thread = 0; thread < threads; ++thread) {
    const int64_t begin = part_begin(rows, thread, threads);
    sum += read_part(src, index + begin, part_begin(rows, thread + 1, threads) - begin, bytes);
  }
  return sum;
}
}
