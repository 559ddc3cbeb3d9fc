// SPDX-License-Identifier: Apache-2.0
#include "ops.h"

namespace torch_offload {

void sparse_copy_meta(at::TensorList dst, at::TensorList src, const OptionalTensor& dst_index,
                      const OptionalTensor& src_index, const OptionalTensor& count, const CallLimits& limits) {
  check_sparse_copy(dst, src, dst_index, src_index, count, Placement(c10::DeviceType::Meta), limits);
}

void sparse_copy_ptrs_meta(const at::Tensor& src_ptrs, const at::Tensor& dst_ptrs, const at::Tensor& lengths,
                           const at::Tensor& count, at::Tensor& status, std::optional<int64_t> cores) {
  check_cores("sparse_copy_ptrs", cores);
  check_sparse_copy_ptrs(src_ptrs, dst_ptrs, lengths, count, status, Placement(c10::DeviceType::Meta));
}

void plan_residency_meta(const ResidencyTensors& tensors) {
  check_plan_residency(tensors, Placement(c10::DeviceType::Meta), BucketsOf::EITHER);
}

}  // namespace torch_offload
