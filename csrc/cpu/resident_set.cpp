// SPDX-License-Identifier: Apache-2.0
#include "cpu/resident_set.h"

#include <algorithm>
#include <bit>

#include "error.h"

namespace torch_offload {
namespace {

constexpr int32_t kNone = -1;

// A plain loop, which the compiler vectorizes; std::max_element, which also says where, it does not.
template <typename Number>
Number greatest_of(const Number* numbers, int64_t count) {
  Number greatest = numbers[0];
  for (int64_t i = 1; i < count; ++i) greatest = std::max(greatest, numbers[i]);
  return greatest;
}

// Open addressing with linear probing over the buckets of one request. Loops end whatever the buckets hold.
class Buckets {
 public:
  explicit Buckets(const ResidentRow& row)
      : row_(row), count_(residency_buckets(row.slots)), shift_(64 - std::countr_zero(static_cast<uint64_t>(count_))) {}

  int16_t find(int32_t token) const {
    int64_t at = home(token);
    for (int64_t probes = 0; probes < count_; ++probes, at = next(at)) {
      const int16_t slot = row_.buckets[at];
      if (slot < 0) return kNone;
      if (row_.tokens[slot] == token) return slot;
    }
    return kNone;
  }

  void insert(int16_t slot) {
    int64_t at = home(row_.tokens[slot]);
    for (int64_t probes = 0; probes < count_ && row_.buckets[at] >= 0; ++probes) at = next(at);
    row_.buckets[at] = slot;
  }

  void erase(int16_t slot) {
    int64_t hole = home(row_.tokens[slot]);
    for (int64_t probes = 0; row_.buckets[hole] != slot; ++probes, hole = next(hole)) {
      if (probes == count_) return;
    }
    // Entries behind the hole that could not have been placed before it move up, so that no search ends at it.
    int64_t at = next(hole);
    for (int64_t probes = 0; probes < count_ && row_.buckets[at] >= 0; ++probes, at = next(at)) {
      const int64_t wanted = home(row_.tokens[row_.buckets[at]]);
      if (((at - wanted) & (count_ - 1)) < ((at - hole) & (count_ - 1))) continue;
      row_.buckets[hole] = row_.buckets[at];
      hole = at;
    }
    row_.buckets[hole] = kNone;
  }

  void clear() { std::fill_n(row_.buckets, count_, int16_t{kNone}); }

  // Whether every entry is a slot: what lies in the state's tensors may be anything.
  bool valid() const { return greatest_of(row_.buckets, count_) < row_.slots; }

 private:
  int64_t home(int32_t token) const {
    return static_cast<int64_t>(static_cast<uint64_t>(token) * 0x9E3779B97F4A7C15u >> shift_);
  }
  int64_t next(int64_t at) const { return (at + 1) & (count_ - 1); }

  const ResidentRow row_;
  const int64_t count_;
  const int shift_;
};

[[noreturn]] void throw_bad_state(int64_t number, const char* found) {
  throw ValueError(join("plan_residency: expected the state of request ", number,
                        " to be what new_residency_state or an earlier step left, got ", found));
}

void check_state(const ResidentRow& row, int64_t number) {
  int16_t least = 0;
  for (int64_t i = 0; i < row.slots; ++i) least = std::min(least, row.lru[i]);
  if (least < 0 || greatest_of(row.lru, row.slots) >= row.slots || !Buckets(row).valid()) {
    throw_bad_state(number, "numbers that are no slots");
  }
}

template <typename Token>
int64_t read_tokens(const Token* from, int64_t stride, int64_t k, int32_t* to) {
  int64_t greatest = kNone;
  for (int64_t i = 0; i < k; ++i) {
    const int64_t token = from[i * stride];
    greatest = std::max(greatest, token);
    to[i] = static_cast<int32_t>(std::max<int64_t>(token, kNone));
  }
  return greatest;
}

[[noreturn]] void throw_beyond(const ResidencyStep& step, int64_t number, int64_t limit, const char* what) {
  int64_t i = 0;
  while (step.topk[i] < limit) ++i;
  throw ValueError(join("plan_residency: expected topk[", number, "][", i, "] to be negative or below ", limit, " (",
                        what, "), got ", step.topk[i]));
}

int64_t host_row(const ResidencyStep& step, int64_t token) {
  if (!step.has_blocks) return token;
  return step.block_table[token / step.block_size] * step.block_size + token % step.block_size;
}

void check_blocks(const ResidencyStep& step, int64_t number, const ResidencyPlan& plan) {
  if (!step.has_blocks) return;
  for (const int32_t position : plan.missed) {
    const int64_t token = plan.tokens[position];
    const int64_t block = step.block_table[token / step.block_size];
    if (block < 0 || block > INT64_MAX / step.block_size - 1) {
      throw ValueError(join("plan_residency: expected block_table[", number, "][", token / step.block_size,
                            "] to be a block (token ", token, " needs it), got ", block));
    }
  }
}

// Slots in the order in which they are taken, into plan.order: those that this step does not read, then those that it
// does, each least recently used first.
void sort_slots(const ResidentRow& row, ResidencyPlan& plan) {
  plan.order.resize(2 * row.slots);
  int16_t* const unused = plan.order.data();
  int16_t* const used = unused + row.slots;
  int64_t unused_count = 0;
  int64_t used_count = 0;
  for (int64_t i = 0; i < row.slots; ++i) {  // no branch
    const int16_t slot = plan.fresh ? static_cast<int16_t>(i) : row.lru[i];
    const auto is_used = static_cast<int64_t>(plan.used[slot >> 6] >> (slot & 63) & 1);
    unused[unused_count] = slot;
    used[used_count] = slot;
    unused_count += 1 - is_used;
    used_count += is_used;
  }
  std::copy_n(used, used_count, unused + unused_count);
  plan.unused = unused_count;
}

void check_room(const ResidentRow& row, int64_t number, const ResidencyPlan& plan) {
  if (static_cast<int64_t>(plan.missed.size()) <= plan.unused) return;
  std::vector<int32_t> distinct;
  for (const int32_t position : plan.missed) distinct.push_back(plan.tokens[position]);
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  if (static_cast<int64_t>(distinct.size()) > plan.unused) {
    throw ValueError(join("plan_residency: expected at least as many slots as distinct tokens in topk[", number,
                          "], which are ", static_cast<int64_t>(distinct.size()) + plan.hits, ", got ", row.slots));
  }
}

void reset(const ResidentRow& row, int64_t request) {
  *row.owner = request;
  std::fill_n(row.tokens, row.slots, kNone);
  for (int64_t i = 0; i < row.slots; ++i) row.lru[i] = static_cast<int16_t>(i);
  Buckets(row).clear();
}

void drop_unstable(const ResidentRow& row, Buckets& buckets, int64_t stable_prefix) {
  if (greatest_of(row.tokens, row.slots) < stable_prefix) return;
  for (int64_t slot = 0; slot < row.slots; ++slot) {
    if (row.tokens[slot] < 0 || row.tokens[slot] < stable_prefix) continue;
    buckets.erase(static_cast<int16_t>(slot));
    row.tokens[slot] = kNone;
  }
}

}  // namespace

int64_t residency_buckets(int64_t slots) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(slots, 1)) * 4));
}

void look_up(const ResidentRow& row, const ResidencyStep& step, int64_t number, ResidencyPlan& plan) {
  plan.tokens.resize(step.k);
  plan.slots.assign(step.k, kNone);
  plan.missed.clear();
  plan.src_rows.clear();
  plan.dst_slots.clear();
  plan.used.assign((row.slots + 63) / 64, 0);
  plan.hits = 0;
  if (step.request < 0 || step.k == 0) return;

  const IndexView& topk = step.topk;
  const int64_t greatest =
      topk.is_int64 ? read_tokens(static_cast<const int64_t*>(topk.data), topk.stride, step.k, plan.tokens.data())
                    : read_tokens(static_cast<const int32_t*>(topk.data), topk.stride, step.k, plan.tokens.data());
  if (greatest >= INT32_MAX) throw_beyond(step, number, INT32_MAX, "tokens are kept as int32");
  const int64_t limit = step.blocks * step.block_size;
  if (step.has_blocks && greatest >= limit) {
    throw_beyond(step, number, limit, "the blocks of block_table");
  }
  plan.fresh = *row.owner != step.request;
  if (!plan.fresh) check_state(row, number);

  plan.missed.resize(step.k);
  int64_t missed = 0;
  // Local pointers: whatever is written could be a member of `plan` otherwise, to be read again each time.
  const Buckets buckets(row);
  const int32_t* const tokens = plan.tokens.data();
  int16_t* const slots = plan.slots.data();
  int32_t* const missed_at = plan.missed.data();
  uint64_t* const used = plan.used.data();
  const int64_t trusted = plan.fresh ? 0 : step.stable_prefix;
  for (int64_t i = 0; i < step.k; ++i) {
    const int32_t token = tokens[i];
    if (token < 0) continue;
    const int16_t slot = token < trusted ? buckets.find(token) : int16_t{kNone};
    slots[i] = slot;
    if (slot < 0) {
      missed_at[missed++] = static_cast<int32_t>(i);
    } else {
      used[slot >> 6] |= uint64_t{1} << (slot & 63);
    }
  }
  plan.missed.resize(missed);
  for (const uint64_t bits : plan.used) plan.hits += std::popcount(bits);
  sort_slots(row, plan);
  check_room(row, number, plan);
  check_blocks(step, number, plan);
}

void commit(const ResidentRow& row, const ResidencyStep& step, int64_t number, ResidencyPlan& plan) {
  if (step.request < 0 || step.k == 0) return;
  if (plan.fresh) reset(row, step.request);
  Buckets buckets(row);
  drop_unstable(row, buckets, step.stable_prefix);

  const int16_t* const unused = plan.order.data();
  const int16_t* const end_of_unused = unused + plan.unused;
  const int16_t* next = unused;
  for (const int32_t position : plan.missed) {
    const int32_t token = plan.tokens[position];
    int16_t slot = buckets.find(token);  // an earlier position may have loaded it
    if (slot < 0) {
      // Only where a token in the buckets cannot be found again.
      if (next == end_of_unused) throw_bad_state(number, "a table that is not that of its tokens");
      slot = *next++;
      if (row.tokens[slot] >= 0) buckets.erase(slot);
      row.tokens[slot] = token;
      buckets.insert(slot);
      plan.src_rows.push_back(host_row(step, token));
      plan.dst_slots.push_back(slot);
    }
    plan.slots[position] = slot;
  }
  int16_t* lru = std::copy(next, end_of_unused, row.lru);
  lru = std::copy(unused, next, lru);
  std::copy(end_of_unused, unused + row.slots, lru);
}

}  // namespace torch_offload
