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

// Calls `use(values)` with a function from position to index that has no choice left to make at each call.
template <typename Use>
auto with_values(const IndexView& index, const Use& use) {
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

// The same for both sides at once: calls `use(dst, src)`.
template <typename Use>
auto with_pairs(const SparseCopyParams& params, const Use& use) {
  return with_values(params.dst_index,
                     [&](auto dst) { return with_values(params.src_index, [&](auto src) { return use(dst, src); }); });
}

// The first bad entry, found once it is known that there is one.
[[noreturn]] void throw_first_out_of_range(const SparseCopyParams& params) {
  for (int64_t i = 0;; ++i) {
    const int64_t dst = params.dst_index[i];
    const int64_t src = params.src_index[i];
    if (dst < 0 || src < 0) continue;
    if (dst >= params.dst_rows) throw_out_of_range("dst", params.dst_index, i, dst, params.dst_rows);
    if (src >= params.src_rows) throw_out_of_range("src", params.src_index, i, src, params.src_rows);
  }
}

// The scans are sums over sign bits, without a branch or a comparison: that much every vector unit has for 64 bits.
constexpr uint64_t sign(uint64_t value) { return value >> 63; }

// Its sign is set for a row that is neither negative nor below `rows`.
constexpr uint64_t beyond(uint64_t row, int64_t rows) { return (static_cast<uint64_t>(rows) - 1 - row) & ~row; }

// Destinations 0, 1, 2, ... inside the rows: only the sources can be bad.
template <typename Src>
IndexScan scan_sources(const SparseCopyParams& params, const Src& src) {
  uint64_t bad = 0;
  uint64_t skipped = 0;
  for (int64_t i = 0; i < params.n; ++i) {
    const auto from = static_cast<uint64_t>(src(i));
    bad |= beyond(from, params.src_rows);
    skipped += sign(from);
  }
  if (sign(bad)) throw_first_out_of_range(params);
  IndexScan scan;
  scan.copied = params.n - static_cast<int64_t>(skipped);
  return scan;
}

// Whether each destination row, those of skipped entries aside, is greater than the one before.
template <typename Dst, typename Src>
bool increases(const SparseCopyParams& params, const Dst& dst, const Src& src) {
  int64_t last = -1;
  for (int64_t i = 0; i < params.n; ++i) {
    if (dst(i) < 0 || src(i) < 0) continue;
    if (dst(i) <= last) return false;
    last = dst(i);
  }
  return true;
}

// Whether two entries write one row, as far as the rows lie close enough together to tell; else true.
template <typename Dst, typename Src>
bool may_repeat(const SparseCopyParams& params, const Dst& dst, const Src& src) {
  int64_t least = INT64_MAX;
  int64_t greatest = -1;
  for (int64_t i = 0; i < params.n; ++i) {
    if (dst(i) < 0 || src(i) < 0) continue;
    least = std::min(least, dst(i));
    greatest = std::max(greatest, dst(i));
  }
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
  uint64_t bad = 0;
  uint64_t skipped = 0;
  uint64_t falls = 0;  // sign: some row is not greater than the one before; tells where nothing is skipped
  for (int64_t i = 0; i < params.n; ++i) {
    const auto to = static_cast<uint64_t>(dst(i));
    const auto from = static_cast<uint64_t>(src(i));
    bad |= (beyond(to, params.dst_rows) & ~from) | (beyond(from, params.src_rows) & ~to);
    skipped += sign(to | from);
    if (i > 0) falls |= to - 1 - static_cast<uint64_t>(dst(i - 1));
  }
  if (sign(bad)) throw_first_out_of_range(params);
  IndexScan scan;
  scan.copied = params.n - static_cast<int64_t>(skipped);
  const bool increasing = skipped == 0 ? !sign(falls) : increases(params, dst, src);
  scan.dst_repeats = !increasing && may_repeat(params, dst, src);
  return scan;
}

// Entries that one part of a copy works on, read one after another.
class EntryReader {
 public:
  EntryReader(const SparseCopyParams& params, const CopyPlan& plan, int part)
      : params_(params),
        part_(part),
        owners_(plan.split == Split::kOwners ? plan.parts : 1),
        next_(plan.split == Split::kEntries ? part_begin(params.n, part, plan.parts) : 0),
        end_(plan.split == Split::kEntries ? part_begin(params.n, part + 1, plan.parts) : params.n) {}

  // Reads up to `room` entries that are not skipped; fewer only at the end.
  int64_t read(Entry* entries, int64_t room) {
    return with_pairs(params_, [&](auto dst, auto src) {
      int64_t count = 0;
      for (; next_ < end_ && count < room; ++next_) {
        const Entry entry{dst(next_), src(next_)};
        if (entry.dst < 0 || entry.src < 0) continue;
        if (owners_ > 1 && owner_of(entry.dst >> kOwnerRowsShift, owners_) != part_) continue;
        entries[count++] = entry;
      }
      return count;
    });
  }

 private:
  const SparseCopyParams& params_;
  const int part_;
  const int owners_;
  int64_t next_;
  const int64_t end_;
};

// What an entry costs beside its bytes, in bytes: small rows are worth a second thread before their bytes alone are.
constexpr int64_t kEntryCost = 64;

// A copy of this many bytes leaves little of itself in a cache.
constexpr int64_t kStreamingBytes = 32 << 20;

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
  return with_pairs(params, [&](auto dst, auto src) { return scan_pairs(params, dst, src); });
}

CopyPlan plan_copy(const SparseCopyParams& params, const IndexScan& scan, int max_parts) {
  const int64_t row_bytes = row_bytes_of_all(params);
  const int64_t cost = row_bytes == 0 ? 0 : std::min(row_bytes, INT64_MAX - kEntryCost) + kEntryCost;
  const bool overflows = cost != 0 && scan.copied > INT64_MAX / cost;  // repeated rows have no bound
  const int parts = parts_for(overflows ? INT64_MAX : cost * scan.copied, max_parts);
  const bool streaming = overflows || row_bytes * scan.copied >= kStreamingBytes;
  if (row_bytes / parts >= kMinColumnBytes) return {Split::kColumns, parts, streaming};
  return {scan.dst_repeats ? Split::kOwners : Split::kEntries, parts, streaming};
}

void copy_part(const SparseCopyParams& params, const CopyPlan& plan, int part) noexcept {
  EntryReader reader(params, plan, part);
  Entry entries[kBlockEntries + kMaxRowsAhead];
  int64_t held = 0;
  for (bool fetched = false;; fetched = true) {
    held += reader.read(entries + held, std::ssize(entries) - held);
    if (held == 0) return;
    const int64_t count = std::min(held, kBlockEntries);
    for (int64_t c = 0; c < params.num_components; ++c) {
      const Component& component = params.components[c];
      const auto [begin, end] = columns_of(component, plan, part);
      if (begin == end) continue;
      best_row_loop()({component.dst + begin, component.src + begin, component.dst_stride, component.src_stride,
                       end - begin, entries, count, held - count, fetched, plan.streaming});
    }
    held -= count;
    std::copy_n(entries + count, held, entries);
  }
}

}  // namespace torch_offload
