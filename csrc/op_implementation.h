// SPDX-License-Identifier: Apache-2.0
//
// How a backend's kernels become the implementations of all operators: `implement` is called once per dispatch key.
#pragma once

#include <torch/library.h>

#include <array>
#include <string>
#include <utility>

#include "residency_args.h"
#include "sparse_copy_args.h"

namespace torch_offload {

constexpr size_t kMaxFixedArity = 4;

// `_sparse_copy_N`: sparse_copy with N plain mutable tensors, which graphs can handle without copying one.
// The kernel takes N destinations, N sources, the three optional tensors and the optional limits.
template <size_t>
using TensorRef = const at::Tensor&;

template <auto kSparseCopy, typename Indices>
struct FixedArity;

template <auto kSparseCopy, size_t... I>
struct FixedArity<kSparseCopy, std::index_sequence<I...>> {
  static void call(TensorRef<I>... dst, TensorRef<I>... src, const OptionalTensor& dst_index,
                   const OptionalTensor& src_index, const OptionalTensor& count, std::optional<c10::SymInt> dst_rows,
                   std::optional<c10::SymInt> src_rows, std::optional<int64_t> cores,
                   std::optional<at::TensorList> other_dst, std::optional<at::TensorList> other_src) {
    kSparseCopy(
        std::array{dst...}, std::array{src...}, dst_index, src_index, count,
        {dst_rows, src_rows, cores, other_dst.value_or(at::TensorList{}), other_src.value_or(at::TensorList{})});
  }
};

template <auto kSparseCopy, size_t... I>
void implement_fixed_arities(torch::Library& m, std::index_sequence<I...>) {
  (m.impl(("_sparse_copy_" + std::to_string(I + 1)).c_str(),
          &FixedArity<kSparseCopy, std::make_index_sequence<I + 1>>::call),
   ...);
}

// The public operators have no limits: all components are here, on all cores. Their twins with a number of cores:
template <auto kSparseCopy>
void call_list(at::TensorList dst, at::TensorList src, const OptionalTensor& dst_index, const OptionalTensor& src_index,
               const OptionalTensor& count) {
  kSparseCopy(dst, src, dst_index, src_index, count, {});
}

template <auto kSparseCopy>
void call_list_cores(at::TensorList dst, at::TensorList src, const OptionalTensor& dst_index,
                     const OptionalTensor& src_index, const OptionalTensor& count, int64_t cores) {
  kSparseCopy(dst, src, dst_index, src_index, count, {std::nullopt, std::nullopt, cores, {}, {}});
}

template <auto kSparseCopyPtrs>
void call_ptrs(const at::Tensor& src_ptrs, const at::Tensor& dst_ptrs, const at::Tensor& lengths,
               const at::Tensor& count, at::Tensor& status) {
  kSparseCopyPtrs(src_ptrs, dst_ptrs, lengths, count, status, std::nullopt);
}

template <auto kSparseCopyPtrs>
void call_ptrs_cores(const at::Tensor& src_ptrs, const at::Tensor& dst_ptrs, const at::Tensor& lengths,
                     const at::Tensor& count, at::Tensor& status, int64_t cores) {
  kSparseCopyPtrs(src_ptrs, dst_ptrs, lengths, count, status, cores);
}

// plan_residency: its many tensors travel under their names.
template <auto kPlanResidency>
void call_plan_residency(const at::Tensor& topk, const at::Tensor& request_ids, at::Tensor& owners,
                         at::Tensor& slot_tokens, at::Tensor& lru, at::Tensor& buckets, at::Tensor& slots,
                         at::Tensor& src_index, at::Tensor& dst_index, at::Tensor& count, at::Tensor& totals,
                         const OptionalTensor& stable_prefix, const OptionalTensor& block_table, int64_t block_size) {
  kPlanResidency({topk, request_ids, owners, slot_tokens, lru, buckets, slots, src_index, dst_index, count, totals,
                  stable_prefix, block_table, block_size});
}

template <auto kSparseCopy, auto kSparseCopyPtrs, auto kPlanResidency>
void implement(torch::Library& m) {
  m.impl("sparse_copy", &call_list<kSparseCopy>);
  m.impl("_sparse_copy_cores", &call_list_cores<kSparseCopy>);
  m.impl("sparse_copy_ptrs", &call_ptrs<kSparseCopyPtrs>);
  m.impl("_sparse_copy_ptrs_cores", &call_ptrs_cores<kSparseCopyPtrs>);
  m.impl("plan_residency", &call_plan_residency<kPlanResidency>);
  implement_fixed_arities<kSparseCopy>(m, std::make_index_sequence<kMaxFixedArity>());
}

}  // namespace torch_offload
