// SPDX-License-Identifier: Apache-2.0
#include "npu/status.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "../op_kernel/sparse_copy_tiling_data.h"

namespace torch_offload::npu {
namespace {

// Arrays that are allocated at once: a process has a few streams and some dozens of graphs.
constexpr uint64_t kArraysPerSlab = 32;

struct DeviceRecords {
  uint64_t array_bytes = 0;
  std::vector<uint64_t> slabs;                                  // device addresses
  uint64_t unused_arrays = 0;                                   // at the end of the last slab
  std::map<std::pair<aclrtStream, aclmdlRI>, uint64_t> arrays;  // by stream and by the graph that it is captured into

  uint64_t slab_bytes() const { return kArraysPerSlab * array_bytes; }
};

struct AllRecords {
  std::mutex mutex;  // guards `by_device`
  std::map<c10::DeviceIndex, DeviceRecords> by_device;
};

AllRecords& all_records() {
  static auto* instance = new AllRecords;
  return *instance;
}

AllRecords& all_scratch() {
  static auto* instance = new AllRecords;
  return *instance;
}

uint64_t allocate_slab(uint64_t bytes) {
  const RelaxedCapture relaxed;
  void* slab = nullptr;
  OFFLOAD_ACL(aclrtMalloc, &slab, bytes, ACL_MEM_MALLOC_NORMAL_ONLY);
  aclrtStream stream = nullptr;
  try {
    OFFLOAD_ACL(aclrtCreateStream, &stream);
    OFFLOAD_ACL(aclrtMemsetAsync, slab, bytes, 0, bytes, stream);
    OFFLOAD_ACL(aclrtSynchronizeStream, stream);
    OFFLOAD_ACL(aclrtDestroyStream, stream);
  } catch (...) {
    if (stream != nullptr) aclrtDestroyStream(stream);
    aclrtFree(slab);
    throw;
  }
  return reinterpret_cast<uint64_t>(slab);
}

void add(const SparseCopyStatusRecord& record, StatusTotals& totals) {
  totals.copied += record.copied;
  totals.skipped += record.skipped;
  totals.out_of_range += record.outOfRange;
  if (record.firstBad != 0) {
    const auto position = static_cast<int64_t>(record.firstBad - 1);
    totals.first_bad = totals.first_bad < 0 ? position : std::min(totals.first_bad, position);
  }
  totals.clamped_counts += record.clampedCounts;
  if (record.clampedCounts != 0) totals.clamped_count = record.lastClampedCount;
  totals.refused_requests += record.refusedRequests;
  if (record.refusedRequests != 0) totals.refusal = record.refusal;
}

// The array of the stream, or of the stream in the graph that it is captured into.
uint64_t array_of(AllRecords& all, c10::DeviceIndex device, uint32_t cores, aclrtStream stream) {
  const aclmdlRI graph = captured_graph(stream);
  const std::lock_guard<std::mutex> lock(all.mutex);
  DeviceRecords& records = all.by_device[device];
  const auto found = records.arrays.find({stream, graph});
  if (found != records.arrays.end()) return found->second;
  records.array_bytes = uint64_t{cores} * SPARSE_COPY_STATUS_PITCH;
  if (records.unused_arrays == 0) {
    records.slabs.push_back(allocate_slab(records.slab_bytes()));
    records.unused_arrays = kArraysPerSlab;
  }
  const uint64_t position = kArraysPerSlab - records.unused_arrays--;
  return records.arrays[{stream, graph}] = records.slabs.back() + position * records.array_bytes;
}

}  // namespace

uint64_t status_address(c10::DeviceIndex device, uint32_t cores, aclrtStream stream) {
  return array_of(all_records(), device, cores, stream);
}

uint64_t scratch_address(c10::DeviceIndex device, uint32_t cores, aclrtStream stream) {
  return array_of(all_scratch(), device, cores, stream);
}

StatusTotals read_status(c10::DeviceIndex device) {
  StatusTotals totals;
  AllRecords& all = all_records();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const DeviceRecords& records = all.by_device[device];
  std::vector<char> bytes(records.slab_bytes());
  for (const uint64_t slab : records.slabs) {
    OFFLOAD_ACL(aclrtMemcpy, bytes.data(), bytes.size(), reinterpret_cast<const void*>(slab), bytes.size(),
                ACL_MEMCPY_DEVICE_TO_HOST);
    for (uint64_t offset = 0; offset < bytes.size(); offset += SPARSE_COPY_STATUS_PITCH) {
      SparseCopyStatusRecord record;
      std::memcpy(&record, bytes.data() + offset, sizeof(record));
      add(record, totals);
    }
  }
  return totals;
}

void reset_status(c10::DeviceIndex device) {
  AllRecords& all = all_records();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const DeviceRecords& records = all.by_device[device];
  for (const uint64_t slab : records.slabs) {
    OFFLOAD_ACL(aclrtMemset, reinterpret_cast<void*>(slab), records.slab_bytes(), 0, records.slab_bytes());
  }
}

}  // namespace torch_offload::npu
