// SPDX-License-Identifier: Apache-2.0
//
// The loop of sparse_copy_ptrs against a loop over the entries, in every way to split it.
#include "cpu/copy_ranges.h"

#include <algorithm>
#include <cstring>

#include "check.h"
#include "random_bytes.h"

namespace {

using namespace torch_offload;
using check::Random;

int64_t address_of(const std::byte* pointer) { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(pointer)); }

// Entries as offsets into a source and a destination, which may be one buffer.
struct Entries {
  std::vector<int64_t> src;
  std::vector<int64_t> dst;
  std::vector<int64_t> lengths;

  void add(int64_t from, int64_t to, int64_t length) {
    src.push_back(from);
    dst.push_back(to);
    lengths.push_back(length);
  }
};

class Case {
 public:
  Case(Random& random, Entries entries, int64_t size, bool one_buffer)
      : entries_(std::move(entries)), target_(random.bytes(size)), one_buffer_(one_buffer) {
    if (!one_buffer) source_ = random.bytes(size);
  }

  // Copies with the plan, or with the one that the scan leads to, and compares.
  void check_with(int max_parts, const RangePlan* forced = nullptr) const {
    auto target = target_;
    const std::byte* source = one_buffer_ ? target.data() : source_.data();
    std::vector<int64_t> src;
    std::vector<int64_t> dst;
    for (const int64_t offset : entries_.src) src.push_back(address_of(source + offset));
    for (const int64_t offset : entries_.dst) dst.push_back(address_of(target.data() + offset));
    const PointerCopyParams params{{src.data(), 1, true},
                                   {dst.data(), 1, true},
                                   {entries_.lengths.data(), 1, true},
                                   static_cast<int64_t>(src.size())};
    const RangeScan scan = scan_ranges(params);
    const RangePlan plan =
        forced != nullptr ? RangePlan{forced->split, forced->parts, scan.bytes} : plan_ranges(scan, max_parts);
    check::run_in_threads(plan.parts, [&](int part) { copy_ranges_part(params, plan, part); });
    EXPECT(target == expected());
  }

 private:
  std::vector<std::byte> expected() const {
    auto target = target_;
    const std::vector<std::byte>& source = one_buffer_ ? target : source_;
    for (size_t i = 0; i < entries_.src.size(); ++i) {
      if (entries_.lengths[i] <= 0) continue;
      const auto begin = source.begin() + entries_.src[i];
      const std::vector<std::byte> taken(begin, begin + entries_.lengths[i]);
      std::copy(taken.begin(), taken.end(), target.begin() + entries_.dst[i]);
    }
    return target;
  }

  Entries entries_;
  std::vector<std::byte> target_;
  std::vector<std::byte> source_;
  bool one_buffer_;
};

constexpr int kParts[] = {1, 2, 3, 5, 16};

Entries anywhere(Random& random, int64_t entries, int64_t longest, int64_t size) {
  Entries result;
  for (int64_t i = 0; i < entries; ++i) {
    const int64_t length = random.chance(10) ? 0 : random.in(0, longest);
    result.add(random.in(0, size - length), random.in(0, size - length), random.chance(5) ? -length : length);
  }
  return result;
}

TEST(entries_that_overlap_are_copied_in_order) {
  Random random(1);
  for (int round = 0; round < check::kRounds / 3; ++round) {
    const int64_t size = random.in(1, 600'000);
    const int64_t longest = random.in(0, std::min<int64_t>(size, random.one_of<int64_t>({50, 5000, 300'000})));
    const Case one(random, anywhere(random, random.in(0, 60), longest, size), size, random.chance(50));
    for (const int parts : kParts) one.check_with(parts);
  }
}

TEST(both_splits_with_any_number_of_parts) {
  Random random(2);
  for (int round = 0; round < check::kRounds / 3; ++round) {
    const int64_t size = random.in(1, 400'000);
    const int64_t longest = random.in(0, std::min<int64_t>(size, random.one_of<int64_t>({50, 5000, 200'000})));
    const Case repeats(random, anywhere(random, random.in(0, 60), longest, size), size, false);
    Entries increasing;
    for (int64_t at = random.in(0, 100); at < size;) {
      const int64_t length = random.in(0, std::min(longest, size - at));
      increasing.add(random.in(0, size - length), at, length);
      at += length + random.in(1, 5000);
    }
    const Case disjoint(random, increasing, size, false);
    for (const int parts : kParts) {
      const RangePlan granules{RangeSplit::kGranules, parts, 0};
      const RangePlan bytes{RangeSplit::kBytes, parts, 0};
      repeats.check_with(parts, &granules);
      disjoint.check_with(parts, &granules);
      disjoint.check_with(parts, &bytes);
      disjoint.check_with(parts);
    }
  }
}

TEST(status_counts_every_entry) {
  std::byte memory[64] = {};
  const int64_t here = address_of(memory);
  const std::vector<int64_t> src{here, 0, here, here, 0, here, here, 0};
  const std::vector<int64_t> dst{here + 32, here, 0, here + 40, 0, here, here + 48, 0};
  const std::vector<int64_t> lengths{4, 0, 8, -1, 9, INT64_MIN, 1, 0};
  PointerCopyParams params{{src.data(), 1, true}, {dst.data(), 1, true}, {lengths.data(), 1, true}, 8};
  PointerCopyStatus status = scan_ranges(params).status;
  EXPECT_EQ(status.copied, 2);
  EXPECT_EQ(status.skipped, 2);
  EXPECT_EQ(status.refused, 4);
  EXPECT_EQ(status.first_refused, 2);
  params.n = 2;
  status = scan_ranges(params).status;
  EXPECT_EQ(status.copied, 1);
  EXPECT_EQ(status.first_refused, -1);
  params.n = 0;
  EXPECT_EQ(scan_ranges(params).bytes, 0);
}

TEST(what_may_alias_gets_one_part) {
  std::vector<std::byte> memory(4 << 20);
  const auto plan = [&](int64_t from, int64_t to, int64_t length) {
    const std::vector<int64_t> src{address_of(memory.data() + from)};
    const std::vector<int64_t> dst{address_of(memory.data() + to)};
    const std::vector<int64_t> lengths{length};
    return plan_ranges(scan_ranges({{src.data()}, {dst.data()}, {lengths.data()}, 1}), 16);
  };
  EXPECT_EQ(plan(0, 2 << 20, 1 << 20).parts, 16);
  EXPECT_EQ(plan(2 << 20, 0, 1 << 20).parts, 16);
  EXPECT_EQ(plan(0, (1 << 20) - 1, 1 << 20).parts, 1);
  EXPECT_EQ(plan(1 << 20, 1, 1 << 20).parts, 1);
  EXPECT_EQ(plan(0, 0, 1 << 20).parts, 1);
  EXPECT_EQ(plan(0, 2 << 20, 1 << 10).parts, 1);
}

}  // namespace

CHECK_MAIN()
