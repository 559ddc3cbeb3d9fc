// SPDX-License-Identifier: Apache-2.0
#include "cpu/resident_set.h"

#include <algorithm>
#include <bit>
#include <type_traits>

#include "error.h"

namespace torch_offload {
namespace {

constexpr int32_t kNone = -1;

// The sign of it is set for a number that is neither negative nor below `limit`. Sums over signs instead of
// comparisons: that much every vector unit has, and compilers see it.
template <typename Number>
constexpr Number beyond(Number number, Number limit) {
  static_assert(std::is_unsigned_v<Number>);
  return static_cast<Number>((limit - 1 - number) & ~number);
}

// Whether each number is negative or below `limit`.
template <typename Number>
bool all_below(const Number* numbers, int64_t count, int64_t limit) {
  using Bits = std::make_unsigned_t<Number>;
  Bits bad = 0;
  for (int64_t i = 0; i < count; ++i) bad |= beyond(static_cast<Bits>(numbers[i]), static_cast<Bits>(limit));
  return static_cast<Number>(bad) >= 0;
}

// Open addressing with linear probing over the buckets of one request. Loops end whatever the buckets hold.
class Buckets {
 public:
  explicit Buckets(const ResidentRow& row)
      : row_(row), count_(residency_buckets(row.slots)), shift_(64 - std::countr_zero(static_cast<uint64_t>(count_))) {}

  // The slot in a token's first bucket if it holds that token, else a negative number. Most tokens are found there, and
  // no branch can be guessed wrong: all bits are set where the token is another one.
  int32_t find_at_home(int32_t token) const {
    const int32_t slot = row_.buckets[home(token)];
    const int32_t other = row_.tokens[slot & ~(slot >> 31)] ^ token;
    return slot | ((other | -other) >> 31);
  }

  int16_t find(int32_t token) const {
    const int64_t at = find_bucket(token);
    return at == kNone ? int16_t{kNone} : row_.buckets[at];
  }

  // The bucket that holds a token, or the empty one to put it into; -1 if there is neither.
  int64_t find_bucket(int32_t token) const {
    int64_t at = home(token);
    for (int64_t probes = 0; probes < count_; ++probes, at = next(at)) {
      const int16_t slot = row_.buckets[at];
      if (slot < 0 || row_.tokens[slot] == token) return at;
    }
    return kNone;
  }

  // Gives `slot` to a token whose bucket, an empty one, find_bucket has found; forgets the token that it held.
  void replace(int16_t slot, int32_t token, int64_t bucket) {
    const int32_t old = row_.tokens[slot];
    row_.tokens[slot] = token;
    row_.buckets[bucket] = slot;
    if (old >= 0) erase(slot, home(old), bucket);
  }

  void erase(int16_t slot) { erase(slot, home(row_.tokens[slot]), kNone); }

  void clear() { std::fill_n(row_.buckets, count_, int16_t{kNone}); }

  // Whether every entry is a slot: what lies in the state's tensors may be anything.
  bool valid() const { return all_below(row_.buckets, count_, row_.slots); }

 private:
  int64_t home(int32_t token) const {
    return static_cast<int64_t>(static_cast<uint64_t>(token) * 0x9E3779B97F4A7C15u >> shift_);
  }
  int64_t next(int64_t at) const { return (at + 1) & (count_ - 1); }

  // Empties the bucket of `slot` that is found from `hole` on and is not `other`.
  void erase(int16_t slot, int64_t hole, int64_t other) {
    for (int64_t probes = 0; row_.buckets[hole] != slot || hole == other; ++probes, hole = next(hole)) {
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

  const ResidentRow row_;
  const int64_t count_;
  const int shift_;
};

[[noreturn]] void throw_bad_state(int64_t number, const char* found) {
  throw ValueError(join("plan_residency: expected the state of request ", number,
                        " to be what new_residency_state or an earlier step left, got ", found));
}

void check_state(const ResidentRow& row, int64_t number) {
  int16_t signs = 0;
  for (int64_t i = 0; i < row.slots; ++i) signs |= row.lru[i];
  if (signs < 0 || !all_below(row.lru, row.slots, row.slots) || !Buckets(row).valid()) {
    throw_bad_state(number, "numbers that are no slots");
  }
}

// Reads tokens, padding as -1, and finds out whether there is any; returns whether all are below `limit`.
template <typename Token>
bool read_tokens(const Token* from, int64_t stride, int64_t k, int64_t limit, int32_t* to, bool& padding) {
  uint64_t bad = 0;
  uint64_t all = 0;
  const auto read = [&](int64_t i, int64_t token) {
    const auto bits = static_cast<uint64_t>(token);
    bad |= beyond<uint64_t>(bits, limit);
    all |= bits;
    to[i] = static_cast<int32_t>(bits | (0 - (bits >> 63)));
  };
  if (stride == 1) {
    for (int64_t i = 0; i < k; ++i) read(i, from[i]);
  } else {
    for (int64_t i = 0; i < k; ++i) read(i, from[i * stride]);
  }
  padding = all >> 63 != 0;
  return bad >> 63 == 0;
}

[[noreturn]] void throw_beyond(const ResidencyStep& step, int64_t number, int64_t in_blocks) {
  const auto first_beyond = [&](int64_t limit) {
    int64_t i = 0;
    while (i < step.k && step.topk[i] < limit) ++i;
    return i;
  };
  int64_t limit = INT32_MAX;
  const char* what = "tokens are kept as int32";
  int64_t i = first_beyond(limit);
  if (i == step.k) {
    limit = in_blocks;
    what = "the blocks of block_table";
    i = first_beyond(limit);
  }
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

// Finds the tokens that lie in their first bucket: fills in `slots` and marks them in `used`. The positions of the
// others, padding aside, go to `others`; returns their number. No branch depends on what is found. Without `kAll`,
// tokens may be padding, and only those below `stable` are resident.
template <bool kAll>
int64_t find_at_home(const Buckets& buckets, const int32_t* tokens, int64_t k, int32_t stable, int16_t* slots,
                     uint8_t* used, int32_t* others) {
  int64_t count = 0;
  for (int64_t i = 0; i < k; ++i) {
    const int32_t token = tokens[i];
    int32_t slot = buckets.find_at_home(token);
    int32_t padding = 0;
    if (!kAll) {
      padding = token >> 31;  // all bits set
      slot |= (stable - 1 - token) >> 31 | padding;
    }
    const int32_t absent = slot >> 31;
    slots[i] = static_cast<int16_t>(slot | absent);
    used[slot | absent] = 1;
    others[count] = static_cast<int32_t>(i);
    count += absent & ~padding & 1;
  }
  return count;
}

// Fills in plan.slots, plan.missed and plan.used.
void find_resident(const ResidentRow& row, int64_t stable_prefix, ResidencyPlan& plan) {
  plan.missed.resize(plan.tokens.size());
  // Local pointers: whatever is written could be a member of `plan` otherwise, to be read again each time.
  const Buckets buckets(row);
  const int32_t* const tokens = plan.tokens.data();
  int16_t* const slots = plan.slots.data();
  int32_t* const missed = plan.missed.data();
  uint8_t* const used = plan.used.data() + 1;
  const auto k = static_cast<int64_t>(plan.tokens.size());
  const auto stable = static_cast<int32_t>(std::clamp<int64_t>(stable_prefix, 0, INT32_MAX));
  const bool all = stable == INT32_MAX && !plan.padding;
  const int64_t others = all ? find_at_home<true>(buckets, tokens, k, stable, slots, used, missed)
                             : find_at_home<false>(buckets, tokens, k, stable, slots, used, missed);
  int64_t count = 0;
  for (int64_t other = 0; other < others; ++other) {
    const int32_t i = missed[other];
    const int16_t slot = tokens[i] < stable ? buckets.find(tokens[i]) : int16_t{kNone};
    slots[i] = slot;
    used[slot] = 1;
    missed[count] = i;
    count += slot < 0;
  }
  plan.missed.resize(count);
}

// Slots in the order in which they are taken, into plan.order: those that this step does not read, then those that it
// does, each least recently used first. Counts both.
void sort_slots(const ResidentRow& row, ResidencyPlan& plan) {
  plan.order.resize(2 * row.slots);
  int16_t* const unused = plan.order.data();
  int16_t* const used = unused + row.slots;
  const uint8_t* const used_flags = plan.used.data() + 1;
  int64_t unused_count = 0;
  int64_t used_count = 0;
  for (int64_t i = 0; i < row.slots; ++i) {  // no branch
    const int16_t slot = plan.fresh ? static_cast<int16_t>(i) : row.lru[i];
    const int64_t is_used = used_flags[slot];
    unused[unused_count] = slot;
    used[used_count] = slot;
    unused_count += 1 - is_used;
    used_count += is_used;
  }
  std::copy_n(used, used_count, unused + unused_count);
  plan.unused = unused_count;
  plan.hits = used_count;
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
  if (stable_prefix > INT32_MAX || all_below(row.tokens, row.slots, std::max<int64_t>(stable_prefix, 0))) return;
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
  plan.slots.resize(step.k);
  plan.missed.clear();
  plan.src_rows.clear();
  plan.dst_slots.clear();
  plan.used.assign(row.slots + 1, 0);
  plan.hits = 0;
  if (step.request < 0 || step.k == 0) {
    std::fill(plan.slots.begin(), plan.slots.end(), kNone);
    return;
  }

  const IndexView& topk = step.topk;
  const int64_t in_blocks = step.has_blocks ? step.blocks * step.block_size : INT64_MAX;
  const int64_t limit = std::min<int64_t>(in_blocks, INT32_MAX);
  const auto read = [&](const auto* from) {
    return read_tokens(from, topk.stride, step.k, limit, plan.tokens.data(), plan.padding);
  };
  const bool in_range =
      topk.is_int64 ? read(static_cast<const int64_t*>(topk.data)) : read(static_cast<const int32_t*>(topk.data));
  if (!in_range) throw_beyond(step, number, in_blocks);
  plan.fresh = *row.owner != step.request;
  if (!plan.fresh) check_state(row, number);

  find_resident(row, plan.fresh ? 0 : step.stable_prefix, plan);
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
    const int64_t bucket = buckets.find_bucket(token);
    if (bucket < 0) throw_bad_state(number, "a table without room");
    int16_t slot = row.buckets[bucket];  // an earlier position may have loaded it
    if (slot < 0) {
      // Only where a token in the buckets cannot be found again.
      if (next == end_of_unused) throw_bad_state(number, "a table that is not that of its tokens");
      slot = *next++;
      buckets.replace(slot, token, bucket);
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
