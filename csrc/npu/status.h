// SPDX-License-Identifier: Apache-2.0
//
// Where the kernels record what they have copied, skipped and refused. Launches that may run at the same time must not
// share records, so every stream has an array of its own (a record for each core), and so has every stream in every
// graph: a graph may be replayed anywhere.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "npu/acl_api.h"

namespace torch_offload::npu {

// Sums over all records of a device.
struct StatusTotals {
  uint64_t copied = 0;
  uint64_t skipped = 0;
  uint64_t out_of_range = 0;
  int64_t first_bad = -1;  // the smallest position of an entry that was out of range
  uint64_t clamped_counts = 0;
  int64_t clamped_count = 0;      // one of the counts that were out of range
  uint64_t refused_requests = 0;  // by plan_residency
  uint64_t refusal = 0;           // of one of them, as in SparseCopyStatusRecord
};

// Device address of the records for what is launched on the stream now, for up to `cores` cores. The current device
// must be `device`. The first use by a stream or a graph may allocate device memory, outside of torch_npu's allocator,
// and fill it on a stream of its own: that is fine inside a capture. The memory is kept until the process ends, since
// graphs refer to it; a stream or graph that is gone leaves its array to a later one at the same handle. Any thread.
uint64_t status_address(c10::DeviceIndex device, uint32_t cores, aclrtStream stream);

// The same for records that hold only from one launch to the next one on the stream: no sum counts them.
uint64_t scratch_address(c10::DeviceIndex device, uint32_t cores, aclrtStream stream);

// Reads, or fills with zeros, all records of the current device, which must be `device` and idle: no launch may be
// under way or queued. Copies synchronously.
StatusTotals read_status(c10::DeviceIndex device);
void reset_status(c10::DeviceIndex device);

}  // namespace torch_offload::npu
