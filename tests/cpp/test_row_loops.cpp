// SPDX-License-Identifier: Apache-2.0
//
// Every variant of the innermost loop against memcpy row by row, with guard bytes around each row.
#include "cpu/row_loops.h"

#include <cstring>
#include <utility>
#include <vector>

#include "check.h"
#include "random_bytes.h"

namespace {

using namespace torch_offload;
using check::Random;

std::vector<std::pair<const char*, RowLoop>> variants() {
  std::vector<std::pair<const char*, RowLoop>> loops{{"portable", &copy_rows_portable}, {"best", best_row_loop()}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) loops.emplace_back("avx2", &copy_rows_avx2);
#endif
  return loops;
}

void check_rows(int64_t bytes, int64_t count, Random& random) {
  const int64_t rows = count + 3;
  const int64_t dst_stride = bytes + random.in(0, 70);
  const int64_t src_stride = bytes + random.in(0, 70);
  const int64_t offset = random.in(0, 65);
  std::vector<std::byte> src(static_cast<size_t>(offset + rows * src_stride));
  for (auto& byte : src) byte = static_cast<std::byte>(random.in(0, 255));
  const std::vector<std::byte> before(static_cast<size_t>(offset + rows * dst_stride), std::byte{0xA5});
  std::vector<Entry> entries;
  for (int64_t i = 0; i < count; ++i) entries.push_back({random.in(0, rows - 1), random.in(0, rows - 1)});

  std::vector<std::byte> expected = before;
  for (const Entry& entry : entries) {
    std::memcpy(expected.data() + offset + entry.dst * dst_stride, src.data() + offset + entry.src * src_stride,
                static_cast<size_t>(bytes));
  }
  for (const auto& [name, loop] : variants()) {
    std::vector<std::byte> dst = before;
    loop({dst.data() + offset, src.data() + offset, dst_stride, src_stride, bytes, entries.data(), count});
    if (dst != expected) std::fprintf(stderr, "%s: %ld rows of %ld bytes\n", name, long{count}, long{bytes});
    EXPECT(dst == expected);

    // The same in two blocks, the first of which knows what comes next: it must fetch it, not copy it.
    dst = before;
    const int64_t first = random.in(0, count);
    loop({dst.data() + offset, src.data() + offset, dst_stride, src_stride, bytes, entries.data(), first,
          count - first});
    std::vector<std::byte> half = before;
    for (int64_t i = 0; i < first; ++i) {
      std::memcpy(half.data() + offset + entries[static_cast<size_t>(i)].dst * dst_stride,
                  src.data() + offset + entries[static_cast<size_t>(i)].src * src_stride, static_cast<size_t>(bytes));
    }
    EXPECT(dst == half);
    loop({dst.data() + offset, src.data() + offset, dst_stride, src_stride, bytes, entries.data() + first,
          count - first, 0, true});
    EXPECT(dst == expected);
  }
}

TEST(every_row_size_up_to_four_lines) {
  Random random(1);
  for (int64_t bytes = 1; bytes <= 256; ++bytes) check_rows(bytes, 1 + bytes % 40, random);
}

TEST(row_sizes_around_the_limits_of_the_loops) {
  Random random(2);
  for (const int64_t bytes : {584, 656, 1152, 4095, 4096, 4097, 12287, 12288, 12289, 65537}) {
    for (const int64_t count : {1, 2, 3, 50}) check_rows(bytes, count, random);
  }
}

// Streaming is for aligned rows of whole lines; any others are copied all the same.
TEST(rows_streamed_past_the_caches) {
  Random random(4);
  for (const int64_t bytes : {1, 63, 64, 128, 132, 640, 4096, 65536}) {
    for (const int64_t shift : {0, 1, 16, 32}) {
      for (const int64_t gap : {0, 32, 33}) {
        constexpr int64_t kRows = 50;
        const int64_t stride = bytes + gap;
        std::vector<std::byte> src(static_cast<size_t>(kRows * bytes));
        for (auto& byte : src) byte = static_cast<std::byte>(random.in(0, 255));
        std::vector<std::byte> dst(static_cast<size_t>(kRows * stride + 128), std::byte{0xA5});
        const auto place = reinterpret_cast<uintptr_t>(dst.data());
        const auto begin = static_cast<int64_t>((place + 31) / 32 * 32 - place) + shift;
        std::vector<std::byte> expected = dst;
        std::vector<Entry> entries;
        for (int64_t i = 0; i < kRows; ++i) {
          entries.push_back({random.in(0, kRows - 1), random.in(0, kRows - 1)});
          std::memcpy(expected.data() + begin + entries.back().dst * stride, src.data() + entries.back().src * bytes,
                      static_cast<size_t>(bytes));
        }
        for (const auto& [name, loop] : variants()) {
          std::vector<std::byte> out(dst.size() + 32);
          // The same alignment as dst had.
          std::byte* const base = out.data() + (place - reinterpret_cast<uintptr_t>(out.data())) % 32;
          std::memcpy(base, dst.data(), dst.size());
          loop({base + begin, src.data(), stride, bytes, bytes, entries.data(), kRows, 0, false, true});
          EXPECT(std::memcmp(base, expected.data(), expected.size()) == 0);
        }
      }
    }
  }
}

TEST(more_rows_than_are_fetched_ahead) {
  Random random(3);
  for (const int64_t bytes : {8, 64, 132, 640}) check_rows(bytes, 700, random);
}

}  // namespace

CHECK_MAIN()
