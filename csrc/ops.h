// SPDX-License-Identifier: Apache-2.0
//
// The kernels that op_registration.cpp registers, one declaration a backend and operator.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>

#include "residency_args.h"
#include "sparse_copy_args.h"

namespace torch_offload {

// csrc/cpu: checks everything, then copies on the calling thread and torch's intra-op threads.
void sparse_copy_cpu(at::TensorList dst, at::TensorList src, const OptionalTensor& dst_index,
                     const OptionalTensor& src_index, const OptionalTensor& count, const CallLimits& limits);
void sparse_copy_ptrs_cpu(const at::Tensor& src_ptrs, const at::Tensor& dst_ptrs, const at::Tensor& lengths,
                          const at::Tensor& count, at::Tensor& status, std::optional<int64_t> cores);

// Changes the state of nobody before the requests of all have been checked.
void plan_residency_cpu(const ResidencyTensors& tensors);

// csrc/meta.cpp: the same checks, as far as they need no data.
void sparse_copy_meta(at::TensorList dst, at::TensorList src, const OptionalTensor& dst_index,
                      const OptionalTensor& src_index, const OptionalTensor& count, const CallLimits& limits);
void sparse_copy_ptrs_meta(const at::Tensor& src_ptrs, const at::Tensor& dst_ptrs, const at::Tensor& lengths,
                           const at::Tensor& count, at::Tensor& status, std::optional<int64_t> cores);
void plan_residency_meta(const ResidencyTensors& tensors);

// csrc/npu (the module _C_npu): launches on the current stream of the destinations' device; defined in _C_npu alone.
void sparse_copy_npu(at::TensorList dst, at::TensorList src, const OptionalTensor& dst_index,
                     const OptionalTensor& src_index, const OptionalTensor& count, const CallLimits& limits);
void sparse_copy_ptrs_npu(const at::Tensor& src_ptrs, const at::Tensor& dst_ptrs, const at::Tensor& lengths,
                          const at::Tensor& count, at::Tensor& status, std::optional<int64_t> cores);
// A request with a mistake that the host cannot see is refused by itself, and recorded in the device's status.
void plan_residency_npu(const ResidencyTensors& tensors);

// csrc/autograd.cpp: for every operator that mutates arguments and returns nothing.
void refuse_grad(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
void bump_versions(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

}  // namespace torch_offload
