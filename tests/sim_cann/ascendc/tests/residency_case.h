// SPDX-License-Identifier: Apache-2.0
// One run of plan_residency's kernels over several steps, compared with a planner that searches lists.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "ascendc_sim.h"

namespace test {

// What a request asks for in a step, and the mistakes that it may hold.
struct ResidencyAsk {
  int64_t request = 1;  // negative: nobody
  std::vector<int64_t> tokens;
  int64_t stable = INT64_MAX;
};

struct ResidencyCase {
  uint32_t requests = 2, top_k = 24, slots = 32;
  int64_t tokens = 100;  // ids below it are asked for
  uint32_t steps = 4;
  uint32_t block_size = 0;  // 0: no block table
  uint32_t topk_width = 8, id_width = 8, table_width = 8, count_width = 4;
  uint64_t topk_stride = 1;  // elements from a token to the next
  bool stable = false;       // a stable prefix for each request, different at each step
  bool nobody = false;       // some requests are nobody's
  bool owners_change = false;
  double bad = 0;  // share of requests with a mistake
  uint32_t cores = 48;
  int order = kAscendcSimLatest;
  uint64_t seed = 1;
  uint32_t ub_bytes = 196608;
};

struct ResidencyResult {
  AscendcSimCounters plan{}, list{};  // sums over the cores in the last step
  uint32_t plan_cores = 0;
  uint64_t misses = 0, hits = 0, refused = 0;  // over all steps
};

// Fails the running test if anything is not as the slow planner says, guards and untouched entries included.
ResidencyResult runResidencyCase(const ResidencyCase& c);

}  // namespace test
