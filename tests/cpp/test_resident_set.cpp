// SPDX-License-Identifier: Apache-2.0
//
// The core of plan_residency by itself, so that the sanitizers see it: what holds after every step, for many requests
// at once, and states of garbage, which must be refused or survived.
#include "cpu/resident_set.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "check.h"
#include "error.h"

namespace {

using namespace torch_offload;

// One request's state in memory of exactly its size.
struct State {
  explicit State(int64_t slots)
      : tokens(slots, -1), lru(slots), buckets(residency_buckets(slots), int16_t{-1}), slots(slots) {
    for (int64_t slot = 0; slot < slots; ++slot) lru[slot] = static_cast<int16_t>(slot);
  }
  ResidentRow row() { return {&owner, tokens.data(), lru.data(), buckets.data(), slots}; }

  int64_t owner = -1;
  std::vector<int32_t> tokens;
  std::vector<int16_t> lru, buckets;
  int64_t slots;
};

ResidencyStep step_of(const std::vector<int32_t>& topk, int64_t request, int64_t stable_prefix = INT64_MAX) {
  return {request, {topk.data(), 1, false}, static_cast<int64_t>(topk.size()), stable_prefix, {}, 0, 1};
}

void run(State& state, const ResidencyStep& step, ResidencyPlan& plan) {
  look_up(state.row(), step, 0, plan);
  commit(state.row(), step, 0, plan);
}

void random_steps(int64_t slots, unsigned seed, int steps) {
  std::mt19937 random(seed);
  State state(slots);
  ResidencyPlan plan;
  std::vector<int64_t> holds(slots, -1);  // the token whose row each slot would hold
  for (int i = 0; i < steps; ++i) {
    std::vector<int32_t> topk(random() % (slots + 1));
    const int32_t middle = static_cast<int32_t>(random() % (4 * slots));
    for (int32_t& token : topk) token = middle + static_cast<int32_t>(random() % (2 * slots)) - 3;
    const int64_t stable_prefix = random() % 3 == 0 ? middle : INT64_MAX;
    run(state, step_of(topk, static_cast<int64_t>(random() % 8 == 0), stable_prefix), plan);
    for (size_t load = 0; load < plan.src_rows.size(); ++load) holds[plan.dst_slots[load]] = plan.src_rows[load];
    std::set<int32_t> distinct;
    for (size_t at = 0; at < topk.size(); ++at) {
      EXPECT_EQ(plan.slots[at] < 0, topk[at] < 0);
      if (topk[at] < 0) continue;
      distinct.insert(topk[at]);
      EXPECT_EQ(holds[plan.slots[at]], topk[at]);
      EXPECT_EQ(state.tokens[plan.slots[at]], topk[at]);
    }
    EXPECT_EQ(plan.hits + static_cast<int64_t>(plan.src_rows.size()), static_cast<int64_t>(distinct.size()));
    std::vector<int16_t> order = state.lru;
    std::sort(order.begin(), order.end());
    for (int64_t slot = 0; slot < slots; ++slot) EXPECT_EQ(order[slot], slot);
    std::set<int32_t> resident;
    for (const int32_t token : state.tokens) EXPECT(token < 0 || resident.insert(token).second);
  }
}

TEST(what_holds_after_every_step) {
  for (const int64_t slots : {1, 2, 3, 63, 64, 65, 300}) random_steps(slots, static_cast<unsigned>(slots), 400);
}

TEST(requests_at_the_same_time) {
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) threads.emplace_back([seed] { random_steps(50, seed, 200); });
  for (std::thread& thread : threads) thread.join();
}

TEST(garbage_is_refused_or_survived) {
  std::mt19937 random(1);
  for (int i = 0; i < 3000; ++i) {
    State state(1 + random() % 40);
    const bool wild = i % 2 == 0;
    const auto any = [&] { return static_cast<int16_t>(wild ? random() : random() % state.slots); };
    state.owner = 1;
    for (int16_t& slot : state.lru) slot = any();
    for (int16_t& slot : state.buckets) slot = random() % 4 == 0 ? int16_t{-1} : any();
    for (int32_t& token : state.tokens) token = static_cast<int32_t>(wild ? random() : random() % 60);
    ResidencyPlan plan;
    for (int step = 0; step < 4; ++step) {
      std::vector<int32_t> topk(random() % (state.slots + 1));
      for (int32_t& token : topk) token = static_cast<int32_t>(random() % 60);
      try {
        run(state, step_of(topk, 1, 40), plan);
      } catch (const ValueError&) {
        continue;
      }
      for (const int16_t slot : plan.slots) EXPECT(slot >= 0 && slot < state.slots);
    }
  }
}

TEST(errors_change_nothing) {
  State state(4);
  ResidencyPlan plan;
  run(state, step_of({1, 2, 3}, 7), plan);
  const State before = state;
  EXPECT_THROWS(ValueError, "distinct tokens in topk[0], which are 5, got 4",
                run(state, step_of({1, 5, 6, 7, 8}, 7), plan));
  EXPECT_THROWS(ValueError, "topk[0][1] to be negative or below 2147483647",
                run(state, step_of({1, INT32_MAX}, 7), plan));
  const std::vector<int64_t> blocks = {3, -1};
  const std::vector<int32_t> topk = {1, 20};
  ResidencyStep step = step_of(topk, 7);
  step.block_table = {blocks.data(), 1, true};
  step.blocks = 2;
  step.has_blocks = true;
  step.block_size = 16;
  EXPECT_THROWS(ValueError, "block_table[0][1] to be a block (token 20 needs it), got -1", run(state, step, plan));
  step.block_size = 8;
  EXPECT_THROWS(ValueError, "topk[0][1] to be negative or below 16 (the blocks of block_table), got 20",
                run(state, step, plan));
  EXPECT(before.tokens == state.tokens && before.lru == state.lru && before.buckets == state.buckets);
}

}  // namespace

CHECK_MAIN()
