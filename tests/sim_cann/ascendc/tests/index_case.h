// SPDX-License-Identifier: Apache-2.0
// One call of the index form, run through the tiling, the launch and the kernel, and compared byte by byte
// with a slow reference that knows nothing of them.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ascendc_sim.h"

namespace test {

struct ComponentCase {
  uint64_t row_bytes;
  uint64_t src_rows, dst_rows;
  uint64_t src_gap = 0, dst_gap = 0;      // bytes between the end of a row and the next row
  uint64_t src_shift = 0, dst_shift = 0;  // of the base address against a multiple of 512
};

struct IndexCase {
  std::vector<ComponentCase> components;
  // Values; without them the rows are 0, 1, 2, ... and `entries` says how many.
  std::optional<std::vector<int64_t>> src_index, dst_index;
  uint64_t entries = 0;
  uint32_t src_width = 8, dst_width = 8;    // bytes of a table entry
  uint64_t src_stride = 1, dst_stride = 1;  // in entries; 0: one entry for all
  std::optional<int64_t> count;
  uint32_t count_width = 8;
  uint32_t cores = 48;
  uint32_t ub_bytes = 196608;
  int order = kAscendcSimLatest;
  uint64_t seed = 1;
  uint32_t threads = 2;
  bool duplicates = false;  // destination rows occur twice: do not compare them

  uint64_t length() const { return src_index ? src_index->size() : dst_index ? dst_index->size() : entries; }
};

// What the launch did, for tests that look at counters.
struct IndexResult {
  uint32_t cores = 0;
  std::string fault;
  uint64_t src_table = 0, dst_table = 0;  // addresses
  uint64_t src_table_bytes = 0, dst_table_bytes = 0;
  uint64_t copied = 0, skipped = 0, out_of_range = 0, first_bad = 0;  // first_bad: 1 + position
  uint64_t clamped_counts = 0;
  int64_t last_clamped_count = 0;
};

// Checks result, neighbours, guards and status. Failures name the case.
IndexResult runIndexCase(const IndexCase& what);

// Distinct rows in random order.
std::vector<int64_t> shuffledRows(uint64_t rows, uint64_t taken, uint64_t seed);

}  // namespace test
