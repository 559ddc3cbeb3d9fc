// SPDX-License-Identifier: Apache-2.0
//
// The argument contract of plan_residency, the same for every backend. Nothing here looks at data.
#pragma once

#include "tensor_checks.h"

namespace torch_offload {

// R requests, K tokens each, S >= R rows of state with C slots each, B blocks. Owned by the caller.
struct ResidencyTensors {
  const at::Tensor& topk;                          // [R, K] int32 or int64
  const at::Tensor& request_ids;                   // [R] int32 or int64
  const at::Tensor& owners;                        // [S] int64, state
  const at::Tensor& slot_tokens;                   // [S, C] int32, state
  const at::Tensor& lru;                           // [S, C] int16, state
  const at::Tensor& buckets;                       // [S, residency_buckets(C)] int16, state; on a device [S, 0]
  const at::Tensor& slots;                         // [R, K] int32, out
  const at::Tensor& src_index;                     // [at least R * K] int64, out
  const at::Tensor& dst_index;                     // the same
  const at::Tensor& count;                         // one int32 or int64, out
  const at::Tensor& totals;                        // [2] int64, hits and misses are added
  const std::optional<at::Tensor>& stable_prefix;  // [R] int32 or int64
  const std::optional<at::Tensor>& block_table;    // [R, B] int32 or int64
  int64_t block_size;
};

// Who keeps an index in `buckets`: the CPU does, a device has no columns there. A fake tensor does not tell.
enum class BucketsOf : uint8_t { CPU, DEVICE, EITHER };

// TypeError (kind or dtype), ValueError (shape, stride, device, two tensors that share bytes, of which one is written).
void check_plan_residency(const ResidencyTensors& tensors, const Placement& placement, BucketsOf buckets);

// ValueError if the entries could be more than `count` can hold. Sizes must be known.
void check_count_holds_entries(const ResidencyTensors& tensors);

}  // namespace torch_offload
