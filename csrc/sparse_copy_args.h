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
#include "tensor_checks.h"

namespace torch_offload {

using OptionalTensor = std::optional<at::Tensor>;

// What some of the operators say beside their tensors.
struct CallLimits {
  // A call that a graph holds as several operators. The least row counts of all: each refuses what any of them would
  // refuse. The components that the others copy, for the first one: it refuses what overlaps, before any of them
  // writes. None and empty for a call that is whole.
  std::optional<c10::SymInt> dst_rows;
  std::optional<c10::SymInt> src_rows;
  std::optional<int64_t> cores;  // of a device, to be used at most; the CPU has its threads
  at::TensorList other_dst;
  at::TensorList other_src;
};

// Checks the arguments of sparse_copy without reading data. Every tensor must be where `placement` allows. Returns
// whether two destinations share bytes: then the components are to be copied one after
// another. Errors: TypeError (kind or dtype), ValueError (shape, stride, overlap, device).
bool check_sparse_copy(at::TensorList dst, at::TensorList src, const OptionalTensor& dst_index,
                       const OptionalTensor& src_index, const OptionalTensor& count, const Placement& placement,
                       const CallLimits& limits);

// The same for sparse_copy_ptrs.
void check_sparse_copy_ptrs(const at::Tensor& src_ptrs, const at::Tensor& dst_ptrs, const at::Tensor& lengths,
                            const at::Tensor& count, const at::Tensor& status, const Placement& placement);

// ValueError below 1.
void check_cores(std::string_view op, const std::optional<int64_t>& cores);

// Checked arguments as numbers and addresses of `placement`. They belong to the tensors, which must outlive this
// object. Not copyable: `params` points into `components`.
class SparseCopyArgs {
 public:
  // Expects what check_sparse_copy has accepted. `n` stays the length of the index tensors: `count` is
  // applied by the backend, which alone knows whether it may read it.
  SparseCopyArgs(at::TensorList dst, at::TensorList src, const OptionalTensor& dst_index,
                 const OptionalTensor& src_index, const Placement& placement, const CallLimits& limits);
  SparseCopyArgs(const SparseCopyArgs&) = delete;
  SparseCopyArgs& operator=(const SparseCopyArgs&) = delete;

  SparseCopyParams params;

 private:
  c10::SmallVector<Component, 8> components_;
};

// The table of a one-dimensional tensor of int32, int64 or uint64, named `arg` in messages.
IndexView index_view(const ArgName& arg, const at::Tensor& table, const Placement& placement);

// The value of a one-element host tensor `count`, or `n` without one. ValueError outside [0, n].
int64_t read_count(std::string_view op, const OptionalTensor& count, int64_t n);

}  // namespace torch_offload
