// SPDX-License-Identifier: Apache-2.0
#include "cpu/copy_rows.h"

#include <algorithm>
#include <bitset>

#include "cpu/row_loops.h"
#include "cpu/split.h"
#include "error.h"

namespace torch_offload {
namespace {

// Entries are resolved in blocks of this many, on the stack, so that the copy loop knows which rows come
// next.
constexpr int64_t kBlockEntries = 512;

// Rows are cut into columns when each part of a row is at least this long: long enough for full-speed copies.
constexpr int64_t kMinColumnBytes = 16 << 10;

// Neighbouring destination rows share an owner, so that two threads seldom write one page or cache line.
constexpr int kOwnerRowsShift = 3;

// Destination rows, counted from the least one written, among which repeated ones are looked for: 8 KiB of bits.
constexpr int64_t kTrackedRows = 64 << 10;

// Reads entry i; false if it is skipped.
bool read_entry(const SparseCopyParams& params, int64_t i, Entry& entry) {
  entry = {params.dst_index[i], params.src_index[i]};
  return entry.dst >= 0 && entry.src >= 0;
}

[[noreturn]] void throw_out_of_range(const char* side, const IndexView& index, int64_t position, int64_t value,
                                     int64_t rows) {
  if (index.is_identity()) {
    throw IndexError(join("sparse_copy: expected ", side, " to have a row for entry ", position, " (", side,
                          "_index is None), got ", rows, " rows"));
  }
  throw IndexError(join("sparse_copy: expected ", side, "_index[", position, "] to be negative or below the ", rows,
                        " rows of ", side, ", got ", value));
}

// The bytes of a row that a part copies: [begin, end) of every row of the component.
struct Columns {
  int64_t begin;
  int64_t end;
};

Columns columns_of(const Component& component, const CopyPlan& plan, int part) {
  if (plan.split != Split::kColumns) return {0, component.row_bytes};
  const auto cut = [&](int p) {
    if (p == plan.parts) return component.row_bytes;
    return part_begin(component.row_bytes, p, plan.parts) / kCacheLine * kCacheLine;
  };
  return {cut(part), cut(part + 1)};
}

void copy_block(const Component& component, Columns columns, const Entry* entries, int64_t count) {
  const int64_t bytes = columns.end - columns.begin;
  if (bytes == 0 || count == 0) return;
  best_row_loop()({component.dst + columns.begin, component.src + columns.begin, component.dst_stride,
                   component.src_stride, bytes, entries, count});
}

// Calls `use(values)` with a function from position to index that has no choice left to make at each call.
template <typename Use>
IndexScan with_values(const IndexView& index, const Use& use) {
  if (index.is_identity()) return use([](int64_t i) { return i; });
  const int64_t stride = index.stride;
  if (index.is_int64) {
    const auto* data = static_cast<const int64_t*>(index.data);
    if (stride == 1) return use([data](int64_t i) { return data[i]; });
    return use([data, stride](int64_t i) { return data[i * stride]; });
  }
  const auto* data = static_cast<const int32_t*>(index.data);
  if (stride == 1) return use([data](int64_t i) { return int64_t{data[i]}; });
  return use([data, stride](int64_t i) { return int64_t{data[i * stride]}; });
}

// The first bad entry, found once it is known that there is one.
[[noreturn]] void throw_first_out_of_range(const SparseCopyParams& params) {
  for (int64_t i = 0;; ++i) {
    Entry entry;
    if (!read_entry(params, i, entry)) continue;
    if (entry.dst >= params.dst_rows) throw_out_of_range("dst", params.dst_index, i, entry.dst, params.dst_rows);
    if (entry.src >= params.src_rows) throw_out_of_range("src", params.src_index, i, entry.src, params.src_rows);
  }
}

// Destinations 0, 1, 2, ... inside the rows: only the sources can be bad. No branch in the loop.
template <typename Src>
IndexScan scan_sources(const SparseCopyParams& params, const Src& src) {
  int64_t greatest = -1;
  int64_t skipped = 0;
  for (int64_t i = 0; i < params.n; ++i) {
    const int64_t value = src(i);
    greatest = std::max(greatest, value);
    skipped += value < 0;
  }
  if (greatest >= params.src_rows) throw_first_out_of_range(params);
  IndexScan scan;
  scan.copied = params.n - skipped;
  return scan;
}

// Whether two entries write one row, as far as the rows lie close enough together to tell; else true.
template <typename Dst, typename Src>
bool may_repeat(const SparseCopyParams& params, const Dst& dst, const Src& src, int64_t least, int64_t greatest) {
  if (greatest - least >= kTrackedRows) return true;
  std::bitset<kTrackedRows> seen;
  for (int64_t i = 0; i < params.n; ++i) {
    if (dst(i) < 0 || src(i) < 0) continue;
    auto row = seen[static_cast<size_t>(dst(i) - least)];
    if (row) return true;
    row = true;
  }
  return false;
}

template <typename Dst, typename Src>
IndexScan scan_pairs(const SparseCopyParams& params, const Dst& dst, const Src& src) {
  IndexScan scan;
  bool bad = false;
  bool increasing = true;
  int64_t last = -1;
  int64_t least = INT64_MAX;
  int64_t greatest = -1;
  for (int64_t i = 0; i < params.n; ++i) {
    const int64_t to = dst(i);
    const int64_t from = src(i);
    if (to < 0 || from < 0) continue;
    bad |= to >= params.dst_rows || from >= params.src_rows;
    increasing &= to > last;
    last = to;
    least = std::min(least, to);
    greatest = std::max(greatest, to);
    ++scan.copied;
  }
  if (bad) throw_first_out_of_range(params);
  scan.dst_repeats = !increasing && may_repeat(params, dst, src, least, greatest);
  return scan;
}

int64_t row_bytes_of_all(const SparseCopyParams& params) {
  int64_t bytes = 0;
  for (int64_t c = 0; c < params.num_components; ++c) bytes += params.components[c].row_bytes;
  return bytes;
}

}  // namespace

IndexScan scan_indices(const SparseCopyParams& params) {
  if (params.n > 0 && params.dst_index.is_identity() && (params.n <= params.dst_rows)) {
    return with_values(params.src_index, [&](auto src) { return scan_sources(params, src); });
  }
  return with_values(params.dst_index, [&](auto dst) {
    return with_values(params.src_index, [&](auto src) { return scan_pairs(params, dst, src); });
  });
}

CopyPlan plan_copy(const SparseCopyParams& params, const IndexScan& scan, int max_parts) {
  const int64_t row_bytes = row_bytes_of_all(params);
  const bool overflows = row_bytes != 0 && scan.copied > INT64_MAX / row_bytes;  // repeated rows have no bound
  const int parts = parts_for(overflows ? INT64_MAX : row_bytes * scan.copied, max_parts);
  if (row_bytes / parts >= kMinColumnBytes) return {Split::kColumns, parts};
  return {scan.dst_repeats ? Split::kOwners : Split::kEntries, parts};
}

void copy_part(const SparseCopyParams& params, const CopyPlan& plan, int part) noexcept {
  const bool by_entries = plan.split == Split::kEntries;
  const bool by_owner = plan.split == Split::kOwners && plan.parts > 1;
  int64_t i = by_entries ? part_begin(params.n, part, plan.parts) : 0;
  const int64_t end = by_entries ? part_begin(params.n, part + 1, plan.parts) : params.n;
  Entry entries[kBlockEntries];
  while (i < end) {
    int64_t count = 0;
    for (; i < end && count < kBlockEntries; ++i) {
      if (!read_entry(params, i, entries[count])) continue;
      if (by_owner && owner_of(entries[count].dst >> kOwnerRowsShift, plan.parts) != part) continue;
      ++count;
    }
    for (int64_t c = 0; c < params.num_components; ++c) {
      copy_block(params.components[c], columns_of(params.components[c], plan, part), entries, count);
    }
  }
}

}  // namespace torch_offload
