// SPDX-License-Identifier: Apache-2.0
#include "index_case.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <set>

#include "check.h"
#include "run_launch.h"
#include "stand_in.h"

namespace test {
namespace {

using stand_in::DeviceMemory;

constexpr uint32_t kMostCores = 64;

std::string nameOf(const IndexCase& c) {
  std::ostringstream text;
  text << c.length() << " entries of";
  for (const auto& component : c.components) text << " " << component.row_bytes;
  text << " bytes, " << c.cores << " cores, order " << c.order << ", seed " << c.seed;
  if (c.count) text << ", count " << *c.count;
  if (c.src_stride != 1 || c.dst_stride != 1) text << ", table strides " << c.src_stride << " " << c.dst_stride;
  return text.str();
}

// A table whose gaps hold row numbers that would be seen if they were taken.
std::unique_ptr<DeviceMemory> makeTable(const std::optional<std::vector<int64_t>>& values, uint32_t width,
                                        uint64_t stride) {
  if (!values || values->empty()) return nullptr;
  const uint64_t entries = (values->size() - 1) * stride + 1;
  auto memory = std::make_unique<DeviceMemory>(entries * width);
  memset(memory->host(), 0x11, memory->bytes());
  for (uint64_t i = 0; i < values->size(); i++) memcpy(memory->host() + i * stride * width, &(*values)[i], width);
  return memory;
}

struct Buffers {
  std::unique_ptr<DeviceMemory> src, dst;
  std::vector<uint8_t> expected;
};

Buffers makeBuffers(const ComponentCase& c, std::mt19937_64& random) {
  auto bytes = [&](uint64_t rows, uint64_t gap) { return rows ? rows * c.row_bytes + (rows - 1) * gap : 0; };
  Buffers buffers;
  buffers.src = std::make_unique<DeviceMemory>(bytes(c.src_rows, c.src_gap), c.src_shift);
  buffers.dst = std::make_unique<DeviceMemory>(bytes(c.dst_rows, c.dst_gap), c.dst_shift);
  for (uint64_t i = 0; i < buffers.src->bytes(); i++) buffers.src->host()[i] = static_cast<uint8_t>(random());
  memset(buffers.dst->host(), 0xC3, buffers.dst->bytes());
  buffers.expected.assign(buffers.dst->host(), buffers.dst->host() + buffers.dst->bytes());
  return buffers;
}

// The contract, entry by entry.
void expect(const IndexCase& c, std::vector<Buffers>& buffers, IndexResult& status, std::set<int64_t>& twice) {
  uint64_t n = c.length();
  if (c.count && (*c.count < 0 || static_cast<uint64_t>(*c.count) > n)) {
    status.clamped_counts = 1;
    status.last_clamped_count = *c.count;
  }
  if (c.count) n = *c.count < 0 ? 0 : std::min<uint64_t>(n, static_cast<uint64_t>(*c.count));
  std::set<int64_t> seen;
  for (uint64_t i = 0; i < n; i++) {
    int64_t src = c.src_index ? (*c.src_index)[i] : static_cast<int64_t>(i);
    int64_t dst = c.dst_index ? (*c.dst_index)[i] : static_cast<int64_t>(i);
    if (src < 0 || dst < 0) {
      status.skipped++;
      continue;
    }
    bool inside = true;
    for (const auto& component : c.components)
      inside &= static_cast<uint64_t>(src) < component.src_rows && static_cast<uint64_t>(dst) < component.dst_rows;
    if (!inside) {
      if (!status.out_of_range++) status.first_bad = i + 1;
      continue;
    }
    status.copied++;
    if (!seen.insert(dst).second) twice.insert(dst);
    for (size_t k = 0; k < buffers.size(); k++) {
      const auto& component = c.components[k];
      if (component.row_bytes == 0) continue;
      memcpy(buffers[k].expected.data() + static_cast<uint64_t>(dst) * (component.row_bytes + component.dst_gap),
             buffers[k].src->host() + static_cast<uint64_t>(src) * (component.row_bytes + component.src_gap),
             component.row_bytes);
    }
  }
}

std::string compare(const IndexCase& c, std::vector<Buffers>& buffers, const std::set<int64_t>& twice) {
  for (size_t k = 0; k < buffers.size(); k++) {
    const auto& component = c.components[k];
    if (component.row_bytes == 0) continue;
    const uint64_t stride = component.row_bytes + component.dst_gap;
    uint8_t* dst = buffers[k].dst->host();
    for (int64_t row : twice)  // their content is unspecified
      memcpy(buffers[k].expected.data() + static_cast<uint64_t>(row) * stride,
             dst + static_cast<uint64_t>(row) * stride, component.row_bytes);
    if (memcmp(dst, buffers[k].expected.data(), buffers[k].expected.size()) != 0) {
      uint64_t at = 0;
      while (dst[at] == buffers[k].expected[at]) at++;
      return "component " + std::to_string(k) + ": wrong byte " + std::to_string(at % stride) + " of row " +
             std::to_string(at / stride);
    }
    if (!buffers[k].dst->guardsIntact()) return "component " + std::to_string(k) + ": written outside of the tensor";
  }
  return "";
}

void readStatus(const DeviceMemory& status, IndexResult& seen) {
  for (uint32_t core = 0; core < kMostCores; core++) {
    SparseCopyStatusRecord record;
    memcpy(&record, status.host() + core * SPARSE_COPY_STATUS_PITCH, sizeof record);
    seen.copied += record.copied;
    seen.skipped += record.skipped;
    seen.out_of_range += record.outOfRange;
    if (record.firstBad && (!seen.first_bad || record.firstBad < seen.first_bad)) seen.first_bad = record.firstBad;
    seen.clamped_counts += record.clampedCounts;
    if (record.clampedCounts) seen.last_clamped_count = record.lastClampedCount;
  }
}

}  // namespace

std::vector<int64_t> shuffledRows(uint64_t rows, uint64_t taken, uint64_t seed) {
  std::vector<int64_t> all(rows);
  std::iota(all.begin(), all.end(), 0);
  std::mt19937_64 random(seed);
  std::shuffle(all.begin(), all.end(), random);
  all.resize(taken);
  return all;
}

IndexResult runIndexCase(const IndexCase& c) {
  std::mt19937_64 random(c.seed + 7);
  auto src_table = makeTable(c.src_index, c.src_width, c.src_stride);
  auto dst_table = makeTable(c.dst_index, c.dst_width, c.dst_stride);
  DeviceMemory count(c.count_width), status(kMostCores * SPARSE_COPY_STATUS_PITCH);
  memset(status.host(), 0, status.bytes());
  if (c.count) memcpy(count.host(), &*c.count, c.count_width);

  std::vector<Buffers> buffers;
  sparse_copy_tiling::Request request;
  request.entryCount = c.length();
  if (src_table) request.srcIndex = {src_table->address(), c.src_stride * c.src_width, c.src_width};
  if (dst_table) request.dstIndex = {dst_table->address(), c.dst_stride * c.dst_width, c.dst_width};
  if (c.count) request.countAddress = count.address(), request.countBytes = c.count_width;
  request.statusAddress = status.address();
  for (const auto& component : c.components) {
    buffers.push_back(makeBuffers(component, random));
    const auto& made = buffers.back();
    request.components.push_back({made.src->address(), made.dst->address(), component.row_bytes + component.src_gap,
                                  component.row_bytes + component.dst_gap, component.src_rows, component.dst_rows,
                                  component.row_bytes});
  }

  IndexResult seen, expected;
  std::set<int64_t> twice;
  sparse_copy_tiling::Launch launch;
  const auto result = sparse_copy_tiling::Tile(request, {c.cores, c.ub_bytes}, launch);
  if (result == sparse_copy_tiling::Result::LAUNCH) {
    seen.fault = runLaunch(sparse_copy_sim, launch, {c.order, c.threads, c.seed, c.ub_bytes, c.duplicates, 0});
    expect(c, buffers, expected, twice);
  }
  seen.cores = launch.blockDim;
  readStatus(status, seen);

  std::string wrong = seen.fault;
  if (wrong.empty()) wrong = compare(c, buffers, twice);
  if (wrong.empty() && !status.guardsIntact()) wrong = "status: written outside";
  auto key = [](const IndexResult& r) {
    std::ostringstream text;
    text << r.copied << " copied, " << r.skipped << " skipped, " << r.out_of_range << " out of range from "
         << r.first_bad << ", " << r.clamped_counts << " counts clamped, last " << r.last_clamped_count;
    return text.str();
  };
  if (wrong.empty() && key(seen) != key(expected)) wrong = "expected " + key(expected) + ", got " + key(seen);
  if (!wrong.empty()) failed(__FILE__, __LINE__, nameOf(c) + ": " + wrong);
  if (src_table) seen.src_table = src_table->address(), seen.src_table_bytes = src_table->bytes();
  if (dst_table) seen.dst_table = dst_table->address(), seen.dst_table_bytes = dst_table->bytes();
  return seen;
}

}  // namespace test
