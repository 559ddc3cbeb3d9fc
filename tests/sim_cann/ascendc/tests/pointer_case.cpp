// SPDX-License-Identifier: Apache-2.0
#include "pointer_case.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "check.h"
#include "run_launch.h"
#include "stand_in.h"

namespace test {
namespace {

using stand_in::DeviceMemory;

std::string nameOf(const PointerCase& c) {
  std::ostringstream text;
  text << c.lengths.size() << " entries of";
  for (size_t i = 0; i < std::min<size_t>(c.lengths.size(), 4); i++) text << " " << c.lengths[i];
  text << " ... bytes, " << c.cores << " cores, order " << c.order << ", seed " << c.seed;
  if (c.count) text << ", count " << *c.count;
  return text.str();
}

// Places for the entries, in another order than that of the table, at any byte, with gaps between them.
std::vector<uint64_t> places(const PointerCase& c, uint64_t seed, uint64_t* bytes) {
  std::vector<size_t> order(c.lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(seed);
  std::shuffle(order.begin(), order.end(), random);
  std::vector<uint64_t> offsets(order.size());
  uint64_t end = 0;
  for (size_t i : order) {
    offsets[i] = end + random() % 3;
    end = offsets[i] + static_cast<uint64_t>(std::max<int64_t>(0, c.lengths[i]));
  }
  *bytes = end;
  return offsets;
}

void fill(DeviceMemory& table, const std::vector<int64_t>& values, uint32_t width, uint64_t stride) {
  memset(table.host(), 0x11, table.bytes());
  for (size_t i = 0; i < values.size(); i++) memcpy(table.host() + i * stride * width, &values[i], width);
}

}  // namespace

PointerResult runPointerCase(const PointerCase& c) {
  const uint64_t n = c.lengths.size();
  uint64_t src_bytes = 0, dst_bytes = 0;
  const auto src_offsets = places(c, c.seed + 1, &src_bytes), dst_offsets = places(c, c.seed + 2, &dst_bytes);
  DeviceMemory src(src_bytes, c.seed % 32), dst(dst_bytes, c.seed % 7);
  std::mt19937_64 random(c.seed);
  for (uint64_t i = 0; i < src_bytes; i++) src.host()[i] = static_cast<uint8_t>(random());
  memset(dst.host(), 0xC3, dst_bytes);
  std::vector<uint8_t> expected(dst.host(), dst.host() + dst_bytes);

  std::vector<int64_t> src_pointers(n), dst_pointers(n);
  for (uint64_t i = 0; i < n; i++) {
    src_pointers[i] = c.null_src.empty() || !c.null_src[i] ? static_cast<int64_t>(src.address() + src_offsets[i]) : 0;
    dst_pointers[i] = c.null_dst.empty() || !c.null_dst[i] ? static_cast<int64_t>(dst.address() + dst_offsets[i]) : 0;
  }
  const uint64_t span = n ? (n - 1) * c.stride + 1 : 0;
  DeviceMemory src_table(span * 8), dst_table(span * 8), length_table(span * c.length_width), count(c.count_width);
  fill(src_table, src_pointers, 8, c.stride);
  fill(dst_table, dst_pointers, 8, c.stride);
  fill(length_table, c.lengths, c.length_width, c.stride);
  if (c.count) memcpy(count.host(), &*c.count, c.count_width);
  DeviceMemory records(64 * SPARSE_COPY_STATUS_PITCH), status(8 * (3 * c.stride + 1));
  memset(status.host(), 0x77, status.bytes());

  int64_t sum[4] = {0, 0, 0, -1};
  PointerResult result;
  const uint64_t entries = !c.count ? n : *c.count < 0 ? 0 : std::min<uint64_t>(n, static_cast<uint64_t>(*c.count));
  for (uint64_t i = 0; i < entries; i++) {
    if (c.lengths[i] == 0) {
      sum[1]++;
    } else if (c.lengths[i] < 0 || !src_pointers[i] || !dst_pointers[i]) {
      if (!sum[2]++) sum[3] = static_cast<int64_t>(i);
    } else {
      sum[0]++;
      const auto bytes = static_cast<uint64_t>(c.lengths[i]);
      memcpy(expected.data() + dst_offsets[i], src.host() + src_offsets[i], bytes);
      result.payload += bytes;
    }
  }

  sparse_copy_tiling::PointerRequest request;
  request.entryCount = n;
  request.srcPointers = {src_table.address(), 8 * c.stride, 8};
  request.dstPointers = {dst_table.address(), 8 * c.stride, 8};
  request.lengths = {length_table.address(), c.length_width * c.stride, c.length_width};
  if (c.count) request.countAddress = count.address(), request.countBytes = c.count_width;
  request.recordsAddress = records.address();
  sparse_copy_tiling::Launch launch;
  const AscendcSimSettings settings{c.order, c.threads, c.seed, c.ub_bytes, 0, 0};
  std::string wrong;
  if (sparse_copy_tiling::TilePointers(request, {c.cores, c.ub_bytes}, launch) == sparse_copy_tiling::Result::LAUNCH) {
    wrong = runLaunch(sparse_copy_ptrs_sim, launch, settings);
    result.cores = ascendcSimCores();
    for (uint32_t core = 0; core < result.cores; core++) {
      AscendcSimCounters counters;
      ascendcSimCountersOfCore(core, &counters);
      result.heaviest = std::max(result.heaviest, counters.store_bytes - sizeof(SparseCopyStatusRecord));
      for (size_t i = 0; i < sizeof counters / 8; i++)
        reinterpret_cast<uint64_t*>(&result.sum)[i] += reinterpret_cast<uint64_t*>(&counters)[i];
    }
  }
  if (wrong.empty()) {
    SparseCopyPtrsStatusArguments arguments{records.address(), launch.blockDim, status.address(), 8 * c.stride};
    wrong = runLaunch(sparse_copy_ptrs_status_sim, sparse_copy_tiling::TilePointerStatus(arguments), settings);
  }
  if (wrong.empty() && dst_bytes && memcmp(dst.host(), expected.data(), dst_bytes) != 0) {
    uint64_t at = 0;
    while (dst.host()[at] == expected[at]) at++;
    wrong = "wrong byte at " + std::to_string(at);
  }
  if (wrong.empty() && !(dst.guardsIntact() && status.guardsIntact() && records.guardsIntact()))
    wrong = "written outside";
  DeviceMemory expected_status(status.bytes());
  memset(expected_status.host(), 0x77, status.bytes());
  int64_t seen[4];
  for (uint64_t i = 0; i < 4; i++) {
    memcpy(expected_status.host() + 8 * c.stride * i, &sum[i], 8);
    memcpy(&seen[i], status.host() + 8 * c.stride * i, 8);
  }
  if (wrong.empty() && memcmp(status.host(), expected_status.host(), status.bytes()) != 0) {
    std::ostringstream text;
    text << "expected status";
    for (int64_t value : sum) text << " " << value;
    text << ", got";
    for (int64_t value : seen) text << " " << value;
    wrong = text.str();
  }
  if (!wrong.empty()) failed(__FILE__, __LINE__, nameOf(c) + ": " + wrong);
  return result;
}

}  // namespace test
