// SPDX-License-Identifier: Apache-2.0
//
// Which of a request's rows have to move: an exact LRU set of resident tokens per request. The work for one step is
// O(top-k + slots), whatever the length of the context.
//
// A step has two phases, so that nothing is written before everything has been checked: `look_up` reads the state of
// one request and finds hits and misses, `commit` changes it. Both may run for different requests at the same time.
// All memory belongs to the caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../../op_kernel/residency_state.h"
#include "sparse_copy_params.h"
#include "visibility.h"

namespace torch_offload {

constexpr int64_t kMaxResidentSlots = RESIDENCY_MAX_SLOTS;

// Buckets of the table from token to slot: a power of two, at most half full.
OFFLOAD_CORE_API int64_t residency_buckets(int64_t slots);

// What one request keeps from step to step: its row of the state that residency_state.h describes.
struct ResidentRow {
  int64_t* owner;    // id of the request that the rest belongs to; negative: none
  int32_t* tokens;   // [slots] token in each slot; negative: empty
  int16_t* lru;      // [slots] every slot once, least recently used first
  int16_t* buckets;  // [residency_buckets(slots)] slot of a token, open addressing; negative: empty
  int64_t slots;
};

// What one request asks for in a step.
struct ResidencyStep {
  int64_t request;        // negative: nobody; the state stays as it is, every slot is -1
  IndexView topk;         // token ids; negative ones are padding
  int64_t k;              // their number
  int64_t stable_prefix;  // tokens at or beyond it are loaded again
  IndexView block_table;  // used if has_blocks; else the host row is the token
  int64_t blocks;         // entries of the block table
  int64_t block_size;
  bool has_blocks = false;
};

// What a step found; reused from step to step to keep its memory.
struct ResidencyPlan {
  std::vector<int32_t> tokens;     // [k] as asked, padding as -1
  std::vector<int16_t> slots;      // [k] the slot of each token, -1 for padding
  std::vector<int32_t> missed;     // positions of tokens that are not resident, repeated ones too; ascending
  std::vector<int64_t> src_rows;   // host rows to load, each once
  std::vector<int16_t> dst_slots;  // where they go
  std::vector<uint8_t> used;       // [1 + slots] 1 for each slot that this step reads; the first stands for no slot
  std::vector<int16_t> order;      // [2 * slots] slots in the order in which they are taken; the rest is scratch
  int64_t unused = 0;              // how many of them this step does not read
  bool padding = false;            // there is some among the tokens
  bool fresh = false;              // the state belongs to another request
  int64_t hits = 0;                // distinct tokens that were resident
};

// Finds hits and misses and checks everything; changes nothing but `plan`. `number` is the request's row in messages.
// @throws ValueError a token without a block, more distinct tokens than slots, a state that no step has left behind
OFFLOAD_CORE_API void look_up(const ResidentRow& row, const ResidencyStep& step, int64_t number, ResidencyPlan& plan);

// Takes slots for the misses, least recently used first, and renews the LRU order: unused slots as they were, then
// those loaded now, then those read again as they were.
// @throws ValueError a state that no step has left behind and that look_up could not tell; it stays garbage
OFFLOAD_CORE_API void commit(const ResidentRow& row, const ResidencyStep& step, int64_t number, ResidencyPlan& plan);

}  // namespace torch_offload
