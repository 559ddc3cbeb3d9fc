// SPDX-License-Identifier: Apache-2.0
// One call of the pointer form, run through tiling, launch and both kernels, and compared with a slow
// reference.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "ascendc_sim.h"

namespace test {

struct PointerCase {
  std::vector<int64_t> lengths;
  std::vector<uint8_t> null_src, null_dst;  // 1 where the address is null; empty: nowhere
  uint32_t length_width = 8;
  uint64_t stride = 1;  // of all three tables, in entries
  std::optional<int64_t> count;
  uint32_t count_width = 8;
  uint32_t cores = 48;
  uint32_t ub_bytes = 196608;
  int order = kAscendcSimLatest;
  uint64_t seed = 1;
  uint32_t threads = 2;
};

struct PointerResult {
  uint64_t payload = 0;
  uint64_t heaviest = 0;  // bytes that one core stored, without its record
  uint64_t cores = 0;
  AscendcSimCounters sum{};  // over the cores
};

PointerResult runPointerCase(const PointerCase& what);

}  // namespace test
