// SPDX-License-Identifier: Apache-2.0
//
// The loop of sparse_copy against a loop of three lines, in every way to split it and for any number of parts.
#include "cpu/copy_rows.h"

#include <algorithm>
#include <optional>
#include <set>

#include "check.h"
#include "cpu/split.h"
#include "error.h"
#include "random_bytes.h"

namespace {

using namespace torch_offload;
using check::Random;

// An index of either width at any stride, with garbage between the values; or none.
class Index {
 public:
  Index(Random& random, const std::vector<int64_t>& values, bool is_int64, int64_t stride) {
    view_ = {nullptr, stride, is_int64};
    const size_t length = values.size() * static_cast<size_t>(stride) + 1;
    for (size_t i = 0; i < length; ++i) {
      wide_.push_back(random.in(INT64_MIN, INT64_MAX));
      narrow_.push_back(static_cast<int32_t>(random.in(INT32_MIN, INT32_MAX)));
    }
    for (size_t i = 0; i < values.size(); ++i) {
      wide_[i * stride] = values[i];
      narrow_[i * stride] = static_cast<int32_t>(values[i]);
    }
  }
  IndexView view() const {
    IndexView view = view_;
    view.data = view.is_int64 ? static_cast<const void*>(wide_.data()) : static_cast<const void*>(narrow_.data());
    return view;
  }

 private:
  IndexView view_;
  std::vector<int64_t> wide_;
  std::vector<int32_t> narrow_;
};

struct Buffers {
  std::vector<std::byte> dst;
  std::vector<std::byte> src;
  int64_t dst_offset = 0;
  int64_t src_offset = 0;
  Component shape;  // all but the addresses

  Component at(std::vector<std::byte>& memory) const {
    Component component = shape;
    component.dst = memory.data() + dst_offset;
    component.src = src.data() + src_offset;
    return component;
  }
};

Buffers make_buffers(Random& random, int64_t dst_rows, int64_t src_rows, int64_t row_bytes) {
  Buffers buffers;
  buffers.shape = {nullptr, nullptr, row_bytes + random.one_of<int64_t>({0, 0, 1, 64}),
                   row_bytes + random.one_of<int64_t>({0, 0, 3, 77}), row_bytes};
  buffers.dst_offset = random.one_of<int64_t>({0, 1, 3, 5, 7});
  buffers.src_offset = random.one_of<int64_t>({0, 1, 3, 5, 7});
  buffers.dst = random.bytes(buffers.dst_offset + (dst_rows - 1) * buffers.shape.dst_stride + row_bytes);
  buffers.src = random.bytes(buffers.src_offset + (src_rows - 1) * buffers.shape.src_stride + row_bytes);
  return buffers;
}

// One random copy, its memory and its expected result.
class Case {
 public:
  Case(Random& random, int64_t dst_rows, int64_t src_rows, int64_t entries, bool repeats,
       const std::vector<int64_t>& row_bytes)
      : dst_rows_(dst_rows), src_rows_(src_rows), dst_values_(entries), src_values_(entries) {
    for (int64_t& value : dst_values_) value = random.in(0, dst_rows - 1);
    for (int64_t& value : src_values_) value = random.in(0, src_rows - 1);
    if (!repeats) {
      std::vector<int64_t> rows(dst_rows);
      for (int64_t i = 0; i < dst_rows; ++i) rows[i] = i;
      for (int64_t i = dst_rows - 1; i > 0; --i) std::swap(rows[i], rows[random.in(0, i)]);
      std::copy_n(rows.begin(), entries, dst_values_.begin());
      if (random.chance(40)) std::sort(dst_values_.begin(), dst_values_.end());
    }
    for (int64_t i = 0; i < entries; ++i) {
      if (random.chance(5)) dst_values_[i] = -random.in(1, 9);
      if (random.chance(5)) src_values_[i] = -random.in(1, 9);
      // What stands beside a negative value is never looked at.
      if (src_values_[i] < 0 && random.chance(50)) dst_values_[i] = INT32_MAX;
    }
    for (const int64_t bytes : row_bytes) buffers_.push_back(make_buffers(random, dst_rows, src_rows, bytes));
    dst_index_.emplace(random, dst_values_, random.chance(50), random.in(1, 3));
    src_index_.emplace(random, src_values_, random.chance(50), random.in(1, 3));
  }

  SparseCopyParams params(std::vector<Component>& components, std::vector<std::vector<std::byte>>& memory) const {
    components.clear();
    for (size_t c = 0; c < buffers_.size(); ++c) components.push_back(buffers_[c].at(memory[c]));
    SparseCopyParams params;
    params.components = components.data();
    params.num_components = static_cast<int64_t>(components.size());
    params.dst_index = dst_index_->view();
    params.src_index = src_index_->view();
    params.n = static_cast<int64_t>(dst_values_.size());
    params.dst_rows = dst_rows_;
    params.src_rows = src_rows_;
    return params;
  }

  std::vector<std::vector<std::byte>> memory() const {
    std::vector<std::vector<std::byte>> memory;
    for (const Buffers& buffers : buffers_) memory.push_back(buffers.dst);
    return memory;
  }

  std::vector<std::vector<std::byte>> expected() const {
    auto result = memory();
    for (size_t c = 0; c < buffers_.size(); ++c) {
      const Component component = buffers_[c].at(result[c]);
      for (size_t i = 0; i < dst_values_.size(); ++i) {
        if (dst_values_[i] < 0 || src_values_[i] < 0) continue;
        std::copy_n(component.src + src_values_[i] * component.src_stride, component.row_bytes,
                    component.dst + dst_values_[i] * component.dst_stride);
      }
    }
    return result;
  }

  IndexScan model_scan() const {
    IndexScan scan;
    std::set<int64_t> seen;
    for (size_t i = 0; i < dst_values_.size(); ++i) {
      if (dst_values_[i] < 0 || src_values_[i] < 0) continue;
      ++scan.copied;
      scan.dst_repeats |= !seen.insert(dst_values_[i]).second;
    }
    return scan;
  }

 private:
  int64_t dst_rows_;
  int64_t src_rows_;
  std::vector<int64_t> dst_values_;
  std::vector<int64_t> src_values_;
  std::vector<Buffers> buffers_;
  std::optional<Index> dst_index_;
  std::optional<Index> src_index_;
};

void expect_copied(const Case& one, const CopyPlan& plan) {
  auto memory = one.memory();
  std::vector<Component> components;
  const SparseCopyParams params = one.params(components, memory);
  check::run_in_threads(plan.parts, [&](int part) { copy_part(params, plan, part); });
  EXPECT(memory == one.expected());
}

TEST(every_split_with_any_number_of_parts) {
  Random random(1);
  for (int round = 0; round < check::kRounds; ++round) {
    const int64_t dst_rows = random.in(1, 900);
    const bool repeats = random.chance(50);
    const int64_t entries = repeats ? random.in(0, 1500) : random.in(0, dst_rows);
    std::vector<int64_t> row_bytes;
    for (int64_t c = random.in(1, 4); c > 0; --c) {
      row_bytes.push_back(random.one_of<int64_t>({0, 1, 2, 3, 15, 17, 63, 65, 132, 584, 656, 1152}));
    }
    const Case one(random, dst_rows, random.in(1, 300), entries, repeats, row_bytes);
    const int parts = random.one_of({1, 2, 3, 5, 16});
    expect_copied(one, {Split::kOwners, parts});
    expect_copied(one, {Split::kColumns, parts});
    if (!repeats || parts == 1) expect_copied(one, {Split::kEntries, parts});
  }
}

TEST(large_rows) {
  Random random(2);
  for (const int64_t row_bytes : {4097, 65536, 300'001}) {
    for (const int parts : {1, 2, 3, 5, 16}) {
      const Case one(random, 7, 5, 12, true, {row_bytes, 1, row_bytes / 3});
      expect_copied(one, {Split::kOwners, parts});
      expect_copied(one, {Split::kColumns, parts});
    }
  }
}

TEST(the_plan_for_what_the_scan_has_found) {
  Random random(3);
  for (int round = 0; round < check::kRounds / 4; ++round) {
    const bool repeats = random.chance(50);
    const int64_t dst_rows = random.in(1, 3000);
    const Case one(random, dst_rows, 100, repeats ? random.in(0, 3000) : random.in(0, dst_rows), repeats,
                   {random.one_of<int64_t>({1, 132, 656, 1500})});
    auto memory = one.memory();
    std::vector<Component> components;
    const SparseCopyParams params = one.params(components, memory);
    const IndexScan scan = scan_indices(params);
    EXPECT_EQ(scan.copied, one.model_scan().copied);
    EXPECT_EQ(scan.dst_repeats, one.model_scan().dst_repeats);
    const CopyPlan plan = plan_copy(params, scan, random.one_of({1, 2, 3, 5, 16}));
    EXPECT(plan.split != Split::kEntries || !scan.dst_repeats || plan.parts == 1);
    expect_copied(one, plan);
  }
}

// Parameters over tables alone, for what looks at indices only.
SparseCopyParams tables(const std::vector<int64_t>* dst, const std::vector<int64_t>* src, int64_t dst_rows,
                        int64_t src_rows) {
  SparseCopyParams params;
  if (dst != nullptr) params.dst_index.data = dst->data();
  if (src != nullptr) params.src_index.data = src->data();
  params.n = static_cast<int64_t>(dst != nullptr ? dst->size() : src->size());
  params.dst_rows = dst_rows;
  params.src_rows = src_rows;
  return params;
}

TEST(repeated_rows_far_apart_are_never_missed) {
  constexpr int64_t kFar = int64_t{1} << 40;
  const std::vector<int64_t> src(4, 0);
  for (const std::vector<int64_t>& dst : {std::vector<int64_t>{kFar, 0, kFar, 1}, std::vector<int64_t>{5, kFar, 3, 5},
                                          std::vector<int64_t>{0, 65535, 1, 65535}}) {
    EXPECT(scan_indices(tables(&dst, &src, kFar + 1, 1)).dst_repeats);
  }
  const std::vector<int64_t> increasing{0, 1, 65536, kFar};
  EXPECT(!scan_indices(tables(&increasing, &src, kFar + 1, 1)).dst_repeats);
  const std::vector<int64_t> skipped{3, -1, 2, 4};  // 3 and 3 would repeat, but one is skipped
  const std::vector<int64_t> sources{0, 0, 0, -1};
  EXPECT(!scan_indices(tables(&skipped, &sources, 5, 1)).dst_repeats);
}

TEST(first_entry_outside_the_rows_is_named) {
  std::vector<int64_t> dst{-1, 3, 9, 0, INT64_MAX};
  std::vector<int64_t> src{99, 1, -1, 4, 7};
  EXPECT_THROWS(IndexError, "expected src_index[3] to be negative or below the 4 rows of src, got 4",
                scan_indices(tables(&dst, &src, 9, 4)));
  src[3] = 3;
  EXPECT_THROWS(IndexError, "expected dst_index[4] to be negative or below the 9 rows of dst, got 9223372036854775807",
                scan_indices(tables(&dst, &src, 9, 8)));
  src[0] = 6;
  EXPECT_THROWS(IndexError, "expected src_index[4] to be negative or below the 7 rows of src, got 7",
                scan_indices(tables(nullptr, &src, 5, 7)));
  EXPECT_THROWS(IndexError, "expected dst to have a row for entry 3 (dst_index is None), got 2 rows",
                scan_indices(tables(nullptr, &src, 2, 100)));
  dst[2] = 1;
  EXPECT_THROWS(IndexError, "expected src to have a row for entry 2 (src_index is None), got 2 rows",
                scan_indices(tables(&dst, nullptr, 9, 2)));
  SparseCopyParams few = tables(&dst, &src, 9, 8);
  few.n = 4;
  EXPECT_EQ(scan_indices(few).copied, 2);
  few.n = 0;
  EXPECT_EQ(scan_indices(few).copied, 0);
}

TEST(no_indices_stand_for_the_positions) {
  SparseCopyParams params;
  params.n = params.dst_rows = params.src_rows = 12;
  EXPECT_EQ(scan_indices(params).copied, 12);
  EXPECT(!scan_indices(params).dst_repeats);
  params.src_rows = 11;
  EXPECT_THROWS(IndexError, "a row for entry 11 (src_index is None), got 11 rows", scan_indices(params));
}

TEST(null_pointers_of_no_bytes) {
  const std::vector<int64_t> dst{0, 3, -1};
  const std::vector<int64_t> src{5, 0, 2};
  const Component nothing{nullptr, nullptr, 7, 9, 0};
  SparseCopyParams params = tables(&dst, &src, 4, 6);
  params.components = &nothing;
  params.num_components = 1;
  for (const int parts : {1, 3}) {
    for (const Split split : {Split::kEntries, Split::kColumns, Split::kOwners}) {
      for (int part = 0; part < parts; ++part) copy_part(params, {split, parts}, part);
    }
  }
  // Rows that have bytes, but every entry is skipped.
  const std::vector<int64_t> skipped(3, -1);
  const Component unused{nullptr, nullptr, 132, 132, 132};
  params = tables(&skipped, &src, 0, 6);
  params.components = &unused;
  params.num_components = 1;
  EXPECT_EQ(scan_indices(params).copied, 0);
  for (const Split split : {Split::kEntries, Split::kColumns, Split::kOwners}) {
    for (int part = 0; part < 2; ++part) copy_part(params, {split, 2}, part);
  }
}

TEST(plans) {
  Component component;
  SparseCopyParams params;
  params.components = &component;
  params.num_components = 1;
  const auto plan = [&](int64_t row_bytes, int64_t copied, bool repeats, int max_parts) {
    component.row_bytes = row_bytes;
    return plan_copy(params, {repeats, copied}, max_parts);
  };
  EXPECT_EQ(plan(132, 10, true, 16).parts, 1);
  EXPECT_EQ(plan(0, 1'000'000, true, 16).parts, 1);
  EXPECT_EQ(plan(132, 0, false, 16).parts, 1);
  EXPECT_EQ(plan(1152, 100'000, false, 16).parts, 16);
  EXPECT_EQ(plan(1152, 100'000, false, 1).parts, 1);
  EXPECT_EQ(plan(1152, 100'000, false, 0).parts, 1);
  EXPECT(plan(1152, 100'000, false, 16).split == Split::kEntries);
  EXPECT(plan(1152, 100'000, true, 16).split == Split::kOwners);
  EXPECT(plan(1 << 20, 10, true, 16).split == Split::kColumns);
  EXPECT(plan(int64_t{1} << 40, int64_t{1} << 40, true, 16).split == Split::kColumns);  // 2^80 bytes in all
}

TEST(parts_cover_everything_once) {
  for (const int parts : {1, 2, 3, 5, 16}) {
    for (const int64_t total : {int64_t{0}, int64_t{1}, int64_t{15}, int64_t{1'000'003}, INT64_MAX}) {
      EXPECT_EQ(part_begin(total, 0, parts), 0);
      EXPECT_EQ(part_begin(total, parts, parts), total);
      for (int part = 0; part < parts; ++part) {
        EXPECT(part_begin(total, part, parts) <= part_begin(total, part + 1, parts));
      }
    }
    std::vector<int> owned(parts);
    for (int64_t block = 0; block < 16'000; ++block) {
      const int owner = owner_of(block * 4, parts);
      EXPECT(0 <= owner && owner < parts);
      ++owned[owner];
    }
    for (const int blocks : owned) EXPECT(blocks > 16'000 / parts / 2);
    EXPECT(owner_of(INT64_MAX, parts) < parts);
  }
}

}  // namespace

CHECK_MAIN()
