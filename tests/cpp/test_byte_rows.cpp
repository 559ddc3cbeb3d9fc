// SPDX-License-Identifier: Apache-2.0
#include "byte_rows.h"

#include <set>

#include "check.h"
#include "random_bytes.h"

namespace {

using namespace torch_offload;
using check::Random;

bool share_a_byte(const ByteRows& a, const ByteRows& b) {
  std::set<int64_t> touched;
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t k = 0; k < a.row_bytes; ++k) touched.insert(a.begin + i * a.stride + k);
  }
  for (int64_t i = 0; i < b.rows; ++i) {
    for (int64_t k = 0; k < b.row_bytes; ++k) {
      if (touched.count(b.begin + i * b.stride + k) != 0) return true;
    }
  }
  return false;
}

ByteRows random_rows(Random& random) {
  ByteRows rows;
  rows.row_bytes = random.in(0, 9);
  // Also strides of zero (an expanded row) and below the row (rows that overlap each other).
  rows.stride = random.one_of<int64_t>({0, 3, rows.row_bytes, random.in(0, 40), 2 * random.in(1, 15), 24});
  rows.rows = random.in(0, 8);
  rows.begin = random.in(-150, 150);
  return rows;
}

TEST(agrees_with_a_set_of_bytes) {
  Random random(1);
  int overlapping = 0;
  for (int round = 0; round < 100 * check::kRounds; ++round) {
    const ByteRows a = random_rows(random);
    const ByteRows b = random_rows(random);
    const bool expected = share_a_byte(a, b);
    EXPECT_EQ(rows_overlap(a, b), expected);
    EXPECT_EQ(rows_overlap(b, a), expected);
    EXPECT(extents_overlap(a, b) || !expected);
    overlapping += expected;
  }
  EXPECT(overlapping > 10 * check::kRounds);
}

TEST(far_addresses) {
  constexpr int64_t kBase = int64_t{1} << 46;
  const ByteRows keys{kBase, 2 << 20, 1'000'000, 1 << 20};
  ByteRows values = keys;
  values.begin += 1 << 20;
  EXPECT(!rows_overlap(keys, values));
  values.begin -= 1;
  EXPECT(rows_overlap(keys, values));
  EXPECT(rows_overlap(keys, {kBase + (int64_t{999'999} << 21) + (1 << 20) - 1, 5, 1, 1}));
  EXPECT(!rows_overlap(keys, {kBase + (int64_t{999'999} << 21) + (1 << 20), 5, 1, 1}));
}

}  // namespace

CHECK_MAIN()
