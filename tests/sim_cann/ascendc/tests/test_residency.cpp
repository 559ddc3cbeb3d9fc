// SPDX-License-Identifier: Apache-2.0
// plan_residency's kernels over cores, DMA orders, sizes, layouts of the tables and mistakes; and what they cost.
#include "check.h"
#include "op_host/plan_residency_tiling.h"
#include "residency_case.h"

using namespace test;

namespace {

constexpr int kOrders[] = {kAscendcSimLatest, kAscendcSimEarliest, kAscendcSimRandom, kAscendcSimLoadsEarly,
                           kAscendcSimStoresEarly};

ResidencyCase everything(uint64_t seed) {
  ResidencyCase c;
  c.seed = seed;
  c.stable = c.nobody = c.owners_change = true;
  c.block_size = seed % 3 ? 16 : 0;
  c.topk_width = seed % 2 ? 4 : 8;
  c.id_width = seed % 4 < 2 ? 8 : 4;
  c.table_width = seed % 5 < 2 ? 4 : 8;
  c.count_width = seed % 2 ? 8 : 4;
  return c;
}

}  // namespace

TEST(residency_by_cores_by_orders) {
  for (uint32_t requests : {1, 3, 16, 50})
    for (uint32_t cores : {1, 2, 7, 48, 64})
      for (int order : kOrders) {
        ResidencyCase c = everything(requests + cores);
        c.requests = requests;
        c.cores = cores;
        c.order = order;
        c.steps = 2;
        runResidencyCase(c);
      }
}

TEST(residency_random_orders) {
  for (uint64_t seed = 1; seed <= 30; seed++) {
    ResidencyCase c = everything(seed);
    c.order = kAscendcSimRandom;
    c.requests = 4;
    c.cores = 2;
    runResidencyCase(c);
  }
}

TEST(residency_sizes) {
  for (uint32_t slots : {1, 2, 31, 32, 33, 100, 257})
    for (uint32_t top_k : {1, 2, 16, 33, 300}) {
      ResidencyCase c = everything(slots + top_k);
      c.slots = slots;
      c.top_k = top_k;
      c.tokens = 3 * slots + 2;
      c.order = kOrders[(slots + top_k) % 5];
      runResidencyCase(c);
    }
}

TEST(residency_more_misses_than_a_chunk) {
  for (uint32_t top_k : {127, 128, 129, 256, 700})
    for (uint32_t block_size : {0, 1, 128}) {
      ResidencyCase c;
      c.top_k = top_k;
      c.slots = 800;
      c.tokens = 5000;
      c.block_size = block_size;
      c.order = kAscendcSimRandom;
      runResidencyCase(c);
    }
}

TEST(residency_strided_tokens) {
  for (uint64_t stride : {2, 5, 20}) {
    ResidencyCase c = everything(stride);
    c.topk_stride = stride;
    c.top_k = 300;
    c.slots = 400;
    c.tokens = 2000;
    runResidencyCase(c);
  }
}

TEST(residency_mistakes) {
  uint64_t refused = 0;
  for (uint64_t seed = 1; seed <= 20; seed++) {
    ResidencyCase c = everything(seed);
    c.bad = 0.3;
    c.requests = 9;
    c.slots = seed % 2 ? 20 : 32;
    c.cores = seed % 3 ? 4 : 48;
    c.order = kOrders[seed % 5];
    refused += runResidencyCase(c).refused;
  }
  CHECK(refused > 50);
}

TEST(residency_nothing_to_plan) {
  for (uint32_t requests : {0, 3})
    for (uint32_t top_k : {0, 4}) {
      ResidencyCase c;
      c.requests = requests;
      c.top_k = top_k;
      runResidencyCase(c);
    }
}

TEST(residency_many_requests) {
  ResidencyCase c = everything(4);
  c.requests = 300;  // more than one piece of their records
  c.top_k = 8;
  c.slots = 10;
  c.steps = 2;
  runResidencyCase(c);
}

TEST(residency_largest_sizes) {
  using plan_residency_tiling::BufferBytes;
  CHECK(BufferBytes(2048, 8192) <= 196608);
  CHECK(BufferBytes(2048, 16384) <= 196608);
  CHECK(BufferBytes(8192, 8192) <= 196608);
  CHECK(BufferBytes(4096, 16384) > 196608);
  CHECK(BufferBytes(4096, 16384) <= 253952);
  CHECK(BufferBytes(1, 32767) > 253952);
  plan_residency_tiling::Request request;
  request.requests = 3;
  request.topK = request.slotCount = 8;
  plan_residency_tiling::Launches launches;
  CHECK(!plan_residency_tiling::Tile(request, {0, 196608}, launches));
  CHECK(!plan_residency_tiling::Tile(request, {48, BufferBytes(8, 8) - 1}, launches));
  CHECK(plan_residency_tiling::Tile(request, {48, BufferBytes(8, 8)}, launches));
  CHECK_EQ(launches.plan.blockDim, 3u);
  for (auto [top_k, slots] : {std::pair{2048u, 8192u}, {2048u, 16384u}, {8192u, 8192u}}) {
    ResidencyCase c;
    c.requests = 1;
    c.top_k = top_k;
    c.slots = slots;
    c.tokens = 100000;
    c.block_size = 128;
    c.steps = 2;
    runResidencyCase(c);
  }
}

TEST(residency_cost_of_16_requests) {
  ResidencyCase c;
  c.requests = 16;
  c.top_k = 2048;
  c.slots = 4096;
  c.tokens = 6000;
  c.block_size = 128;
  c.table_width = 4;
  c.steps = 3;
  const ResidencyResult result = runResidencyCase(c);
  CHECK_EQ(result.plan_cores, 16u);
  for (const AscendcSimCounters* counters : {&result.plan, &result.list}) {
    CHECK_EQ(counters->scalar_global_loads + counters->scalar_global_stores, 0u);
    CHECK_EQ(counters->all_barriers, 0u);
  }
  CHECK(result.plan.pipe_barriers <= 3u * 16);  // between vector instructions
  CHECK_EQ(result.list.pipe_barriers, 0u);
  // Per request: the state in and out (24 KiB each way), the tokens in, the slots out, what is missing.
  CHECK(result.plan.load_bytes / 16 < 26 * 1024 + 2048 * 8 + 2048 * 4);
  CHECK(result.plan.store_bytes / 16 < 26 * 1024 + 2048 * 4 + 2048 * 16);
  printf("    per request: loads %llu of %llu bytes, stores %llu of %llu, scalar UB accesses %llu; list: loads %llu\n",
         (unsigned long long)result.plan.load_instructions / 16, (unsigned long long)result.plan.load_bytes / 16,
         (unsigned long long)result.plan.store_instructions / 16, (unsigned long long)result.plan.store_bytes / 16,
         (unsigned long long)(result.plan.scalar_ub_loads + result.plan.scalar_ub_stores) / 16,
         (unsigned long long)result.list.load_instructions);
}
