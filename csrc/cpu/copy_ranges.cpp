// SPDX-License-Identifier: Apache-2.0
#include "cpu/copy_ranges.h"

#include <algorithm>
#include <bitset>
#include <cstring>

#include "cpu/split.h"

namespace torch_offload {
namespace {

// Destination memory is dealt out to owners in aligned pieces of this size.
constexpr int kGranuleShift = 16;

// Entries ahead whose source is fetched, and how much of it.
constexpr int64_t kPrefetchEntries = 8;
constexpr int64_t kPrefetchBytes = 2 << 10;

enum class Kind { kCopied, kSkipped, kRefused };

struct Range {
  uint64_t src;
  uint64_t dst;
  int64_t bytes;

  Kind kind() const {
    if (bytes == 0) return Kind::kSkipped;
    return bytes < 0 || src == 0 || dst == 0 ? Kind::kRefused : Kind::kCopied;
  }
};

Range read_range(const PointerCopyParams& params, int64_t i) {
  return {static_cast<uint64_t>(params.src[i]), static_cast<uint64_t>(params.dst[i]), params.lengths[i]};
}

// memmove, because a range that overlaps itself must still come out right.
void move_bytes(uint64_t dst, uint64_t src, int64_t bytes) {
  std::memmove(reinterpret_cast<void*>(dst), reinterpret_cast<const void*>(src), static_cast<size_t>(bytes));
}

void prefetch_source(const PointerCopyParams& params, int64_t i) {
  const Range range = read_range(params, i);
  if (range.kind() != Kind::kCopied) return;
  const auto* line = reinterpret_cast<const char*>(range.src);
  const char* end = line + std::min(range.bytes, kPrefetchBytes);
  for (; line < end; line += kCacheLine) __builtin_prefetch(line);
}

// The least and greatest address of a set of ranges.
struct Hull {
  uint64_t begin = UINT64_MAX;
  uint64_t end = 0;

  void add(uint64_t address, int64_t bytes) {
    begin = std::min(begin, address);
    end = std::max(end, address + static_cast<uint64_t>(bytes));
  }
  bool meets(const Hull& other) const { return begin < other.end && other.begin < end; }
};

// Whether a source and a destination may share a page, asked of a small set of page hashes: never a wrong
// "no".
class PageSets {
 public:
  explicit PageSets(const PointerCopyParams& params) {
    for (int64_t i = 0; i < params.n; ++i) {
      const Range range = read_range(params, i);
      if (range.kind() == Kind::kCopied) mark(written_, range.dst, range.bytes);
    }
    for (int64_t i = 0; i < params.n && !meet_; ++i) {
      const Range range = read_range(params, i);
      if (range.kind() == Kind::kCopied) mark(read_, range.src, range.bytes);
    }
    meet_ = (written_ & read_).any();
  }
  bool meet() const { return meet_; }

 private:
  static constexpr int kPageShift = 12;
  static constexpr int kBits = 1 << 14;
  using Set = std::bitset<kBits>;

  static void mark(Set& set, uint64_t address, int64_t bytes) {
    const uint64_t first = address >> kPageShift;
    const uint64_t last = (address + static_cast<uint64_t>(bytes) - 1) >> kPageShift;
    if (last - first >= kBits) {
      set.set();
      return;
    }
    for (uint64_t page = first; page <= last; ++page) set.set(owner_of(static_cast<int64_t>(page), kBits));
  }

  Set written_;
  Set read_;
  bool meet_ = false;
};

// Part of the stream of all bytes, taken in the order of the entries: balanced whatever the lengths are.
void copy_bytes_part(const PointerCopyParams& params, const RangePlan& plan, int part) {
  const int64_t begin = part_begin(plan.bytes, part, plan.parts);
  const int64_t end = part_begin(plan.bytes, part + 1, plan.parts);
  int64_t at = 0;
  for (int64_t i = 0; i < params.n && at < end; ++i) {
    const Range range = read_range(params, i);
    if (range.kind() != Kind::kCopied) continue;
    const int64_t from = std::max(begin - at, int64_t{0});
    const int64_t to = std::min(end - at, range.bytes);
    if (from < to) {
      if (i + kPrefetchEntries < params.n) prefetch_source(params, i + kPrefetchEntries);
      move_bytes(range.dst + from, range.src + from, to - from);
    }
    at += range.bytes;
  }
}

// Every destination byte has one owner, which sees the entries in order: the last one wins.
void copy_granules_part(const PointerCopyParams& params, const RangePlan& plan, int part) {
  for (int64_t i = 0; i < params.n; ++i) {
    const Range range = read_range(params, i);
    if (range.kind() != Kind::kCopied) continue;
    for (int64_t from = 0; from < range.bytes;) {
      const uint64_t granule = (range.dst + from) >> kGranuleShift;
      const uint64_t granule_end = (granule + 1) << kGranuleShift;
      const int64_t to = std::min<int64_t>(static_cast<int64_t>(granule_end - range.dst), range.bytes);
      if (owner_of(static_cast<int64_t>(granule), plan.parts) == part) {
        move_bytes(range.dst + from, range.src + from, to - from);
      }
      from = to;
    }
  }
}

}  // namespace

RangeScan scan_ranges(const PointerCopyParams& params) {
  RangeScan scan;
  Hull sources;
  Hull destinations;
  for (int64_t i = 0; i < params.n; ++i) {
    const Range range = read_range(params, i);
    switch (range.kind()) {
      case Kind::kSkipped:
        ++scan.status.skipped;
        continue;
      case Kind::kRefused:
        if (scan.status.refused++ == 0) scan.status.first_refused = i;
        continue;
      case Kind::kCopied:
        break;
    }
    ++scan.status.copied;
    scan.bytes += range.bytes;
    scan.dst_increasing &= range.dst >= destinations.end;
    sources.add(range.src, range.bytes);
    destinations.add(range.dst, range.bytes);
  }
  scan.may_alias = sources.meets(destinations) && PageSets(params).meet();
  return scan;
}

RangePlan plan_ranges(const RangeScan& scan, int max_parts) {
  const int parts = scan.may_alias ? 1 : parts_for(scan.bytes, max_parts);
  const bool by_bytes = scan.dst_increasing || parts == 1;
  return {by_bytes ? RangeSplit::kBytes : RangeSplit::kGranules, parts, scan.bytes};
}

void copy_ranges_part(const PointerCopyParams& params, const RangePlan& plan, int part) noexcept {
  if (plan.split == RangeSplit::kBytes) {
    copy_bytes_part(params, plan, part);
  } else {
    copy_granules_part(params, plan, part);
  }
}

}  // namespace torch_offload
