// SPDX-License-Identifier: Apache-2.0
// The state that plan_residency keeps from step to step, the same for the CPU's kernel and the device's: plain
// numbers, no other header of the project, C++17.
//
// For S requests with C slots each, all tensors contiguous:
//
//   owners       [S]     int64  id of the request that the rest of the row belongs to; negative: nobody's
//   slot_tokens  [S, C]  int32  token in each slot; negative: empty
//   lru          [S, C]  int16  every slot once, least recently used first
//   buckets      [S, B]  int16  an index of slot_tokens, which only the CPU keeps: csrc/cpu/resident_set.cpp says how.
//                               A device builds none and needs none (it looks the tokens of its slots up in the step's
//                               top-k instead), so there B is 0: a state does not move between the two
//
// A row whose owner is not the request of a step counts as empty, whatever else stands in it: slot_tokens all empty,
// lru 0, 1, 2, ...
#ifndef RESIDENCY_STATE_H
#define RESIDENCY_STATE_H

#include <cstdint>

constexpr int32_t RESIDENCY_EMPTY = -1;

// Slots are numbered by int16: the state of a request with 4096 slots is 24 KiB beside the index.
constexpr int64_t RESIDENCY_MAX_SLOTS = INT16_MAX;

// Tokens are kept as int32; this one and greater ones are refused.
constexpr int64_t RESIDENCY_TOKEN_LIMIT = INT32_MAX;

#endif  // RESIDENCY_STATE_H
