// SPDX-License-Identifier: Apache-2.0
#include "cpu/copy_rows.h"

#include <algorithm>
#include <cstring>

#include "cpu/split.h"
#include "error.h"

namespace torch_offload {
namespace {

// Entries are resolved in blocks of this many, on the stack, so that the copy loop knows which rows come
// next.
constexpr int64_t kBlockEntries = 512;

// Rows of scattered memory are fetched ahead: at least this many bytes of them, and at most this many rows.
constexpr int64_t kPrefetchBytes = 8 << 10;
constexpr int64_t kMaxPrefetchRows = 32;

// From this row size on the hardware's own prefetcher follows a row; only its beginning is fetched ahead.
constexpr int64_t kPrefetchRowBytes = 4 << 10;

// Rows are cut into columns when each part of a row is at least this long: long enough for full-speed copies.
constexpr int64_t kMinColumnBytes = 16 << 10;

// Neighbouring destination rows share an owner, so that two threads seldom write one page or cache line.
constexpr int kOwnerRowsShift = 3;

struct Entry {
  int64_t dst;
  int64_t src;
};

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

void prefetch_row(const std::byte* row, int64_t bytes) {
  const std::byte* end = row + std::min(bytes, kPrefetchRowBytes);
  for (; row < end; row += kCacheLine) __builtin_prefetch(row);
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
  if (bytes == 0) return;
  std::byte* dst = component.dst + columns.begin;
  const std::byte* src = component.src + columns.begin;
  const int64_t ahead = std::clamp<int64_t>(kPrefetchBytes / bytes, 1, kMaxPrefetchRows);
  for (int64_t i = 0; i < std::min(ahead, count); ++i) {
    prefetch_row(src + entries[i].src * component.src_stride, bytes);
  }
  for (int64_t i = 0; i < count; ++i) {
    if (i + ahead < count) prefetch_row(src + entries[i + ahead].src * component.src_stride, bytes);
    std::memcpy(dst + entries[i].dst * component.dst_stride, src + entries[i].src * component.src_stride,
                static_cast<size_t>(bytes));
  }
}

int64_t row_bytes_of_all(const SparseCopyParams& params) {
  int64_t bytes = 0;
  for (int64_t c = 0; c < params.num_components; ++c) bytes += params.components[c].row_bytes;
  return bytes;
}

}  // namespace

IndexScan scan_indices(const SparseCopyParams& params) {
  IndexScan scan;
  int64_t last_dst = -1;
  for (int64_t i = 0; i < params.n; ++i) {
    Entry entry;
    if (!read_entry(params, i, entry)) continue;
    if (entry.dst >= params.dst_rows) throw_out_of_range("dst", params.dst_index, i, entry.dst, params.dst_rows);
    if (entry.src >= params.src_rows) throw_out_of_range("src", params.src_index, i, entry.src, params.src_rows);
    scan.dst_increasing &= entry.dst > last_dst;
    last_dst = entry.dst;
    ++scan.copied;
  }
  return scan;
}

CopyPlan plan_copy(const SparseCopyParams& params, const IndexScan& scan, int max_parts) {
  const int64_t row_bytes = row_bytes_of_all(params);
  const bool overflows = row_bytes != 0 && scan.copied > INT64_MAX / row_bytes;  // repeated rows have no bound
  const int parts = parts_for(overflows ? INT64_MAX : row_bytes * scan.copied, max_parts);
  if (row_bytes / parts >= kMinColumnBytes) return {Split::kColumns, parts};
  return {scan.dst_increasing ? Split::kEntries : Split::kOwners, parts};
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
