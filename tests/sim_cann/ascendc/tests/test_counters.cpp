// SPDX-License-Identifier: Apache-2.0
// What the kernel costs in figures that need no hardware: instructions, bytes, balance, rows in flight,
// shared lines.
#include <algorithm>
#include <cstdio>

#include "check.h"
#include "index_case.h"

using namespace test;

namespace {

struct Cost {
  AscendcSimCounters sum{};
  double bytes_over_payload = 0;
  double heaviest_over_mean = 0;  // payload stored
  uint64_t least_rows_in_flight = UINT64_MAX;
  uint64_t idle_cores = 0;
  uint64_t shared_table_lines = 0;
};

Cost costOf(const IndexCase& c, const IndexResult& result) {
  Cost cost;
  uint64_t payload = 0, heaviest = 0;
  for (const auto& component : c.components) payload += component.row_bytes * result.copied;
  const uint32_t cores = ascendcSimCores();
  for (uint32_t core = 0; core < cores; core++) {
    AscendcSimCounters counters;
    ascendcSimCountersOfCore(core, &counters);
    for (size_t i = 0; i < sizeof counters / 8; i++)
      reinterpret_cast<uint64_t*>(&cost.sum)[i] += reinterpret_cast<uint64_t*>(&counters)[i];
    const uint64_t stored = counters.store_bytes - std::min<uint64_t>(counters.store_bytes, 64);  // without the status
    heaviest = std::max(heaviest, stored);
    cost.idle_cores += stored == 0;
    cost.least_rows_in_flight =
        std::min(cost.least_rows_in_flight, counters.peak_bytes_in_flight / c.components[0].row_bytes);
  }
  cost.bytes_over_payload = static_cast<double>(std::max(cost.sum.load_bytes, cost.sum.store_bytes)) / payload;
  cost.heaviest_over_mean = static_cast<double>(heaviest) * cores / payload;
  for (auto [address, bytes] :
       {std::pair{result.src_table, result.src_table_bytes}, std::pair{result.dst_table, result.dst_table_bytes}}) {
    uint64_t lines, excess;
    ascendcSimSharedLines(0, address, bytes, &lines, &excess);
    cost.shared_table_lines += lines;
  }
  return cost;
}

Cost measure(const char* name, IndexCase c) {
  c.order = kAscendcSimLoadsEarly;
  const IndexResult result = runIndexCase(c);
  const Cost cost = costOf(c, result);
  printf(
      "    %-34s %u cores: loads %llu stores %llu, bytes/payload %.4f, heaviest/mean %.3f, in flight %llu "
      "rows, "
      "scalar loads %llu, shared table lines %llu, barriers %llu, UB %llu\n",
      name, result.cores, (unsigned long long)cost.sum.load_instructions,
      (unsigned long long)cost.sum.store_instructions, cost.bytes_over_payload, cost.heaviest_over_mean,
      (unsigned long long)cost.least_rows_in_flight, (unsigned long long)cost.sum.scalar_global_loads,
      (unsigned long long)cost.shared_table_lines, (unsigned long long)(cost.sum.all_barriers + cost.sum.pipe_barriers),
      (unsigned long long)(cost.sum.ub_high_water / ascendcSimCores()));
  return cost;
}

IndexCase gather(uint64_t entries, uint64_t row_bytes, bool scatter = false) {
  IndexCase c;
  c.components = {{row_bytes, entries * 2, entries}};
  c.src_index = shuffledRows(entries * 2, entries, 11);
  if (scatter) c.dst_index = shuffledRows(entries, entries, 12);
  return c;
}

}  // namespace

TEST(cost_of_4096_rows_of_1152_bytes) {
  for (bool scatter : {false, true}) {
    const Cost cost =
        measure(scatter ? "4096 x 1152, two tables" : "4096 x 1152, one table", gather(4096, 1152, scatter));
    CHECK(cost.sum.scalar_global_loads <= 128);
    CHECK(cost.bytes_over_payload <= 1.03);
    CHECK(cost.heaviest_over_mean <= 1.05);
    CHECK(cost.least_rows_in_flight >= 8);
    CHECK(cost.shared_table_lines <= (scatter ? 80 : 40));
    CHECK_EQ(cost.sum.all_barriers + cost.sum.pipe_barriers, 0u);
  }
}

TEST(cost_of_three_components) {
  IndexCase c = gather(2048, 1024);
  for (uint64_t bytes : {128, 132}) {
    c.components.push_back(c.components[0]);
    c.components.back().row_bytes = bytes;
  }
  const Cost cost = measure("2048 x (1024 + 128 + 132)", c);
  CHECK(cost.heaviest_over_mean <= 1.05);
}

TEST(cost_of_few_large_rows) {
  const Cost three = measure("3 x 1 MiB", gather(3, 1 << 20));
  CHECK(three.heaviest_over_mean <= 1.05);
  CHECK_EQ(three.idle_cores, 0u);
  CHECK(measure("48 x 1 MiB", gather(48, 1 << 20)).heaviest_over_mean <= 1.05);
  measure("97 x 656", gather(97, 656));
}

TEST(cost_of_skipped_rows) {
  IndexCase c = gather(2048, 1152, true);
  for (size_t i = 0; i < 2048; i++)
    if (i % 20) (*c.src_index)[i] = -1;
  CHECK(measure("2048 x 1152, 95 % skipped", c).heaviest_over_mean <= 1.3);
  for (size_t i = 0; i < 2048; i++) (*c.src_index)[i] = i < 500 ? static_cast<int64_t>(i * 2) : -1;
  CHECK(measure("2048 x 1152, padded behind 500", c).heaviest_over_mean <= 1.1);
}

TEST(cost_of_neighbouring_rows) {
  IndexCase c = gather(4096, 1152);
  for (size_t i = 0; i < 4096; i++) (*c.src_index)[i] = static_cast<int64_t>(i);
  const Cost cost = measure("4096 x 1152, neighbours", c);
  CHECK(cost.sum.load_instructions < 4096 / 4);
}
