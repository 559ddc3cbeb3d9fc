// SPDX-License-Identifier: Apache-2.0
//
// The argument contract of the copy operators, the same for every backend: checks the tensors and turns them
// into plain parameters. Checks of the structure (kinds, dtypes, shapes, strides) never look at data and
// understand symbolic sizes, so that the Meta kernels raise what the real ones raise.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <optional>
#include <string_view>

#include "sparse_copy_params.h"

namespace torch_offload {

using OptionalTensor = std::optional<at::Tensor>;

// Checks the arguments of sparse_copy without reading data. Every tensor must be on a device of type
// `device`. Returns whether two destinations share bytes: then the components are to be copied one after
// another. Errors: TypeError (kind or dtype), ValueError (shape, stride, overlap, device).
bool check_sparse_copy(at::TensorList dst, at::TensorList src, const OptionalTensor& dst_index,
                       const OptionalTensor& src_index, const OptionalTensor& count, c10::DeviceType device);

// The same for sparse_copy_ptrs.
void check_sparse_copy_ptrs(const at::Tensor& src_ptrs, const at::Tensor& dst_ptrs, const at::Tensor& lengths,
                            const at::Tensor& count, const at::Tensor& status, c10::DeviceType device);

// Checked arguments as addresses and numbers. They belong to the tensors, which must outlive this object.
// Not copyable: `params` points into `components`.
class SparseCopyArgs {
 public:
  // Expects what check_sparse_copy has accepted. `n` stays the length of the index tensors: `count` is
  // applied by the backend, which alone knows whether it may read it.
  SparseCopyArgs(at::TensorList dst, at::TensorList src, const OptionalTensor& dst_index,
                 const OptionalTensor& src_index);
  SparseCopyArgs(const SparseCopyArgs&) = delete;
  SparseCopyArgs& operator=(const SparseCopyArgs&) = delete;

  SparseCopyParams params;

 private:
  c10::SmallVector<Component, 8> components_;
};

// The table of a one-dimensional tensor of int32, int64 or uint64.
IndexView index_view(const at::Tensor& table);

// The value of a one-element host tensor `count`, or `n` without one. ValueError outside [0, n].
int64_t read_count(std::string_view op, const OptionalTensor& count, int64_t n);

}  // namespace torch_offload
