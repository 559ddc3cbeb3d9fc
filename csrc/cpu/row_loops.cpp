// SPDX-License-Identifier: Apache-2.0
#include "cpu/row_loops.h"

#include <algorithm>
#include <cstring>

#include "cpu/split.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace torch_offload {
namespace {

// Rows of scattered memory are fetched ahead: this many bytes of them.
constexpr int64_t kPrefetchBytes = 12 << 10;

// From this row size on the hardware's own prefetcher follows a row; only its beginning is fetched ahead.
constexpr int64_t kPrefetchRowBytes = 4 << 10;

// Up to this row size a loop of our own is faster than memcpy, whatever the row's place in the caches.
constexpr int64_t kMaxLoopBytes = 32 << 10;

int64_t rows_ahead(const RowBlock& block) {
  return std::clamp<int64_t>(kPrefetchBytes / block.bytes, 1, kMaxRowsAhead);
}

// Entries that may be fetched: those to copy and those that come next.
int64_t known(const RowBlock& block) { return block.count + block.upcoming; }

const std::byte* source_row(const RowBlock& block, int64_t i) {
  return block.src + block.entries[i].src * block.src_stride;
}

std::byte* destination_row(const RowBlock& block, int64_t i) {
  return block.dst + block.entries[i].dst * block.dst_stride;
}

void prefetch_row(const std::byte* row, int64_t bytes) {
  const std::byte* end = row + std::min(bytes, kPrefetchRowBytes);
  for (; row < end; row += kCacheLine) __builtin_prefetch(row);
}

// What the loop itself comes too late for.
void prefetch_first_rows(const RowBlock& block, int64_t ahead) {
  if (block.fetched) return;
  for (int64_t i = 0; i < std::min(ahead, known(block)); ++i) prefetch_row(source_row(block, i), block.bytes);
}

}  // namespace

void copy_rows_portable(const RowBlock& block) {
  const int64_t ahead = rows_ahead(block);
  prefetch_first_rows(block, ahead);
  for (int64_t i = 0; i < block.count; ++i) {
    if (i + ahead < known(block)) prefetch_row(source_row(block, i + ahead), block.bytes);
    std::memcpy(destination_row(block, i), source_row(block, i), static_cast<size_t>(block.bytes));
  }
}

#if defined(__x86_64__)

__attribute__((target("avx2"))) static inline void copy_line_avx2(std::byte* dst, const std::byte* src) {
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src));
  const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + 32));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst), low);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst + 32), high);
}

// Whole lines to aligned places, with stores that need not read the line first.
__attribute__((target("avx2"))) static inline void stream_line_avx2(std::byte* dst, const std::byte* src) {
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src));
  const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + 32));
  _mm256_stream_si256(reinterpret_cast<__m256i*>(dst), low);
  _mm256_stream_si256(reinterpret_cast<__m256i*>(dst + 32), high);
}

static bool can_stream(const RowBlock& block) {
  return block.streaming && block.bytes % kCacheLine == 0 && block.dst_stride % sizeof(__m256i) == 0 &&
         reinterpret_cast<uintptr_t>(block.dst) % sizeof(__m256i) == 0;
}

__attribute__((target("avx2"))) static void stream_rows_avx2(const RowBlock& block) {
  const int64_t ahead = rows_ahead(block);
  prefetch_first_rows(block, ahead);
  for (int64_t i = 0; i < block.count; ++i) {
    std::byte* dst = destination_row(block, i);
    const std::byte* src = source_row(block, i);
    const std::byte* later = i + ahead < known(block) ? source_row(block, i + ahead) : src;
    for (int64_t at = 0; at < block.bytes; at += kCacheLine) {
      __builtin_prefetch(later + at);
      stream_line_avx2(dst + at, src + at);
    }
  }
  _mm_sfence();  // what other threads do next comes after these stores
}

__attribute__((target("avx2"))) void copy_rows_avx2(const RowBlock& block) {
  const int64_t bytes = block.bytes;
  if (can_stream(block)) return stream_rows_avx2(block);
  if (bytes < kCacheLine || bytes > kMaxLoopBytes) return copy_rows_portable(block);
  const int64_t ahead = rows_ahead(block);
  prefetch_first_rows(block, ahead);
  for (int64_t i = 0; i < block.count; ++i) {
    std::byte* dst = destination_row(block, i);
    const std::byte* src = source_row(block, i);
    // Behind the last row there is nothing to fetch: the row itself is in the cache and costs nothing.
    const std::byte* later = i + ahead < known(block) ? source_row(block, i + ahead) : src;
    int64_t at = 0;
    for (; at + kCacheLine <= bytes; at += kCacheLine) {
      __builtin_prefetch(later + at);
      copy_line_avx2(dst + at, src + at);
    }
    // The rest as a whole line that ends with the row. The last byte's line is a line of its own when the row is not
    // aligned to lines.
    __builtin_prefetch(later + bytes - 1);
    if (at < bytes) copy_line_avx2(dst + bytes - kCacheLine, src + bytes - kCacheLine);
  }
}

#endif

RowLoop best_row_loop() {
#if defined(__x86_64__)
  static const RowLoop best = __builtin_cpu_supports("avx2") ? &copy_rows_avx2 : &copy_rows_portable;
  return best;
#else
  return &copy_rows_portable;
#endif
}

}  // namespace torch_offload
