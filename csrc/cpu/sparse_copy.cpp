// SPDX-License-Identifier: Apache-2.0
//
// The CPU kernels: tensors to parameters, parts to torch's threads.
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include "cpu/copy_ranges.h"
#include "cpu/copy_rows.h"
#include "error.h"
#include "ops.h"

namespace torch_offload {
namespace {

// Threads that a copy may use: one inside a parallel region, as for torch's own kernels.
int max_parts() { return at::in_parallel_region() ? 1 : at::get_num_threads(); }

template <typename CopyPart>
void run_parts(int parts, const CopyPart& copy_part) {
  if (parts == 1) return copy_part(0);
  at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) copy_part(static_cast<int>(part));
  });
}

void copy_rows(const SparseCopyParams& params, const IndexScan& scan) {
  const CopyPlan plan = plan_copy(params, scan, max_parts());
  run_parts(plan.parts, [&](int part) { copy_part(params, plan, part); });
}

}  // namespace

void sparse_copy_cpu(at::TensorList dst, at::TensorList src, const OptionalTensor& dst_index,
                     const OptionalTensor& src_index, const OptionalTensor& count, const CallLimits& limits) {
  const Placement cpu(c10::DeviceType::CPU);
  const bool dst_components_overlap = check_sparse_copy(dst, src, dst_index, src_index, count, cpu, limits);
  SparseCopyArgs args(dst, src, dst_index, src_index, cpu, limits);
  SparseCopyParams& params = args.params;
  params.n = read_count("sparse_copy", count, params.n);
  IndexScan scan;
  try {
    scan = scan_indices(params);
  } catch (const IndexError& error) {
    TORCH_CHECK_INDEX(false, error.what());
  }
  if (!dst_components_overlap) return copy_rows(params, scan);
  for (int64_t c = 0; c < args.params.num_components; ++c) {
    SparseCopyParams one = params;
    one.components = &params.components[c];
    one.num_components = 1;
    copy_rows(one, scan);
  }
}

void sparse_copy_ptrs_cpu(const at::Tensor& src_ptrs, const at::Tensor& dst_ptrs, const at::Tensor& lengths,
                          const at::Tensor& count, at::Tensor& status, std::optional<int64_t> cores) {
  check_cores("sparse_copy_ptrs", cores);
  const Placement cpu(c10::DeviceType::CPU);
  check_sparse_copy_ptrs(src_ptrs, dst_ptrs, lengths, count, status, cpu);
  PointerCopyParams params;
  params.src = index_view({"sparse_copy_ptrs", "src_ptrs"}, src_ptrs, cpu);
  params.dst = index_view({"sparse_copy_ptrs", "dst_ptrs"}, dst_ptrs, cpu);
  params.lengths = index_view({"sparse_copy_ptrs", "lengths"}, lengths, cpu);
  params.n = read_count("sparse_copy_ptrs", count, src_ptrs.size(0));
  const RangeScan scan = scan_ranges(params);
  const RangePlan plan = plan_ranges(scan, max_parts());
  run_parts(plan.parts, [&](int part) { copy_ranges_part(params, plan, part); });

  auto* out = status.mutable_data_ptr<int64_t>();
  const int64_t stride = status.stride(0);
  const PointerCopyStatus& result = scan.status;
  for (const int64_t value : {result.copied, result.skipped, result.refused, result.first_refused}) {
    *out = value;
    out += stride;
  }
}

}  // namespace torch_offload
