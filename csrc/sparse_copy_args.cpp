// SPDX-License-Identifier: Apache-2.0
#include "sparse_copy_args.h"

#include <algorithm>

#include "overlap.h"
#include "tensor_checks.h"

namespace torch_offload {
namespace {

constexpr std::string_view kSparseCopy = "sparse_copy";
constexpr std::string_view kSparseCopyPtrs = "sparse_copy_ptrs";

// Dimensions 1.. are laid out as contiguous() would lay them out.
bool row_is_contiguous(const at::Tensor& tensor) {
  c10::SymInt expected = 1;
  for (int64_t d = tensor.dim() - 1; d >= 1; --d) {
    const c10::SymInt size = tensor.sym_size(d);
    if (!tensor.sym_stride(d).sym_eq(expected).guard_or_false(__FILE__, __LINE__) &&
        !size.sym_eq(1).guard_or_false(__FILE__, __LINE__)) {
      return false;
    }
    expected = expected * size;
  }
  return true;
}

// Dimensions 1.. of both are dense in the same order, whatever the order is: a permuted row.
bool rows_are_permuted_alike(const at::Tensor& dst, const at::Tensor& src) {
  c10::SmallVector<std::pair<int64_t, int64_t>, 8> dims;  // stride, size
  for (int64_t d = 1; d < dst.dim(); ++d) {
    const int64_t size = dst.sym_size(d).guard_int(__FILE__, __LINE__);
    if (size == 1) continue;
    const int64_t stride = dst.sym_stride(d).guard_int(__FILE__, __LINE__);
    if (src.sym_stride(d).guard_int(__FILE__, __LINE__) != stride) return false;
    dims.emplace_back(stride, size);
  }
  std::sort(dims.begin(), dims.end());
  int64_t expected = 1;
  for (const auto& [stride, size] : dims) {
    if (stride != expected) return false;
    expected *= size;
  }
  return true;
}

c10::SymInt row_numel(const at::Tensor& tensor) {
  c10::SymInt numel = 1;
  for (int64_t d = 1; d < tensor.dim(); ++d) numel = numel * tensor.sym_size(d);
  return numel;
}

// The layout rules of one pair whose shapes agree.
void check_layout(const ArgName& dst_arg, const at::Tensor& dst, const ArgName& src_arg, const at::Tensor& src) {
  const bool no_bytes = dst.sym_numel().sym_eq(0).guard_or_false(__FILE__, __LINE__) ||
                        src.sym_numel().sym_eq(0).guard_or_false(__FILE__, __LINE__);
  if (no_bytes) return;
  const bool dst_contiguous = row_is_contiguous(dst);
  const bool src_contiguous = row_is_contiguous(src);
  if (!(dst_contiguous && src_contiguous) && !rows_are_permuted_alike(dst, src)) {
    const ArgName& arg = dst_contiguous ? src_arg : dst_arg;
    TORCH_CHECK_VALUE(false, arg, " to have dense rows, laid out alike in dst and src, got strides ", dst.sym_strides(),
                      " in dst and ", src.sym_strides(), " in src");
  }
  OFFLOAD_SYM_CHECK(ValueError, dst.sym_size(0).sym_le(1).sym_or(dst.sym_stride(0).sym_ge(row_numel(dst))), dst_arg,
                    " to have rows that do not overlap each other, got row stride ", dst.sym_stride(0), " for rows of ",
                    row_numel(dst), " elements");
}

void check_pair(int64_t c, const at::Tensor& dst, const at::Tensor& src, const Placement& placement) {
  const ArgName dst_arg{kSparseCopy, "dst", c};
  const ArgName src_arg{kSparseCopy, "src", c};
  check_plain(dst_arg, dst, placement);
  check_plain(src_arg, src, placement);
  TORCH_CHECK_TYPE(src.scalar_type() == dst.scalar_type(), src_arg, " to have the dtype of dst, ", dst.scalar_type(),
                   ", got ", src.scalar_type());
  TORCH_CHECK_VALUE(dst.dim() >= 1, dst_arg, " to have at least 1 dimension, got 0");
  TORCH_CHECK_VALUE(src.dim() == dst.dim(), src_arg, " to have ", dst.dim(), " dimensions like dst, got ", src.dim());
  for (int64_t d = 1; d < dst.dim(); ++d) {
    OFFLOAD_SYM_CHECK(ValueError, src.sym_size(d).sym_eq(dst.sym_size(d)), src_arg, " to have the row shape ",
                      dst.sym_sizes().slice(1), " of dst, got ", src.sym_sizes().slice(1));
  }
  check_layout(dst_arg, dst, src_arg, src);
}

void check_row_counts_equal(at::TensorList dst, at::TensorList src) {
  const c10::SymInt rows = dst[0].sym_size(0);
  for (size_t c = 0; c < dst.size(); ++c) {
    for (const auto& [name, tensor] : {std::pair("dst", &dst[c]), std::pair("src", &src[c])}) {
      OFFLOAD_SYM_CHECK(ValueError, tensor->sym_size(0).sym_eq(rows),
                        (ArgName{kSparseCopy, name, static_cast<int64_t>(c)}), " to have the ", rows,
                        " rows of dst[0] when dst_index and src_index are None, got ", tensor->sym_size(0));
    }
  }
}

// Calls `visit(arg, tensor)` for the components of an operator and those of the call's others, which come behind them.
template <typename Visit>
void for_each_component(const char* side, at::TensorList tensors, at::TensorList others, const Visit& visit) {
  int64_t c = 0;
  for (const at::TensorList& list : {tensors, others}) {
    for (const at::Tensor& tensor : list) visit(ArgName{kSparseCopy, side, c++}, tensor);
  }
}

// Rows that every component has, those of the limit included.
int64_t least_rows(at::TensorList tensors, const std::optional<c10::SymInt>& limit) {
  int64_t rows = limit ? limit->guard_int(__FILE__, __LINE__) : INT64_MAX;
  for (const at::Tensor& tensor : tensors) rows = std::min(rows, tensor.size(0));
  return rows;
}

}  // namespace

bool check_sparse_copy(at::TensorList dst, at::TensorList src, const OptionalTensor& dst_index,
                       const OptionalTensor& src_index, const OptionalTensor& count, const Placement& placement,
                       const CallLimits& limits) {
  check_cores(kSparseCopy, limits.cores);
  TORCH_CHECK_VALUE(!dst.empty(), kSparseCopy, ": expected dst to hold at least 1 tensor, got 0");
  const size_t dst_size = dst.size() + limits.other_dst.size();
  const size_t src_size = src.size() + limits.other_src.size();
  TORCH_CHECK_VALUE(src.size() == dst.size() && src_size == dst_size, kSparseCopy, ": expected src to hold ", dst_size,
                    " tensors like dst, got ", src_size);
  const ArgName dst_index_arg{kSparseCopy, "dst_index"};
  const ArgName src_index_arg{kSparseCopy, "src_index"};
  const ArgName count_arg{kSparseCopy, "count"};
  int64_t c = 0;
  for (const auto& [to, from] : {std::pair(dst, src), std::pair(limits.other_dst, limits.other_src)}) {
    for (size_t i = 0; i < to.size(); ++i) check_pair(c++, to[i], from[i], placement);
  }
  if (dst_index) check_table(dst_index_arg, *dst_index, placement, at::kInt, at::kLong);
  if (src_index) check_table(src_index_arg, *src_index, placement, at::kInt, at::kLong);
  if (dst_index && src_index) {
    OFFLOAD_SYM_CHECK(ValueError, src_index->sym_size(0).sym_eq(dst_index->sym_size(0)), src_index_arg,
                      " to have the length of dst_index, ", dst_index->sym_size(0), ", got ", src_index->sym_size(0));
  }
  if (!dst_index && !src_index) check_row_counts_equal(dst, src);
  if (count) check_count(count_arg, *count, placement);

  OverlapCheck overlap(placement);
  for_each_component("dst", dst, limits.other_dst,
                     [&](const ArgName& arg, const at::Tensor& tensor) { overlap.add_written(arg, tensor); });
  for_each_component("src", src, limits.other_src,
                     [&](const ArgName& arg, const at::Tensor& tensor) { overlap.add_read(arg, tensor); });
  if (dst_index) overlap.add_read(dst_index_arg, *dst_index);
  if (src_index) overlap.add_read(src_index_arg, *src_index);
  if (count) overlap.add_read(count_arg, *count);
  return overlap.run();
}

void check_sparse_copy_ptrs(const at::Tensor& src_ptrs, const at::Tensor& dst_ptrs, const at::Tensor& lengths,
                            const at::Tensor& count, const at::Tensor& status, const Placement& placement) {
  const ArgName src_arg{kSparseCopyPtrs, "src_ptrs"};
  const ArgName dst_arg{kSparseCopyPtrs, "dst_ptrs"};
  const ArgName lengths_arg{kSparseCopyPtrs, "lengths"};
  const ArgName count_arg{kSparseCopyPtrs, "count"};
  const ArgName status_arg{kSparseCopyPtrs, "status"};
  check_table(src_arg, src_ptrs, placement, at::kLong, at::kUInt64);
  check_table(dst_arg, dst_ptrs, placement, at::kLong, at::kUInt64);
  check_table(lengths_arg, lengths, placement, at::kInt, at::kLong);
  const c10::SymInt n = src_ptrs.sym_size(0);
  OFFLOAD_SYM_CHECK(ValueError, dst_ptrs.sym_size(0).sym_eq(n), dst_arg, " to have the length of src_ptrs, ", n,
                    ", got ", dst_ptrs.sym_size(0));
  OFFLOAD_SYM_CHECK(ValueError, lengths.sym_size(0).sym_eq(n), lengths_arg, " to have the length of src_ptrs, ", n,
                    ", got ", lengths.sym_size(0));
  check_count(count_arg, count, placement);

  check_plain(status_arg, status, placement);
  TORCH_CHECK_TYPE(status.scalar_type() == at::kLong, status_arg, " to have dtype ", at::kLong, ", got ",
                   status.scalar_type());
  TORCH_CHECK_VALUE(status.dim() == 1, status_arg, " to have 1 dimension, got ", status.dim());
  OFFLOAD_SYM_CHECK(ValueError, status.sym_size(0).sym_eq(4), status_arg, " to have 4 elements, got ",
                    status.sym_size(0));
  OFFLOAD_SYM_CHECK(ValueError, status.sym_stride(0).sym_ge(1), status_arg,
                    " to have elements that do not overlap each other, got stride ", status.sym_stride(0));

  OverlapCheck overlap(placement);
  overlap.add_written(status_arg, status);
  overlap.add_read(src_arg, src_ptrs);
  overlap.add_read(dst_arg, dst_ptrs);
  overlap.add_read(lengths_arg, lengths);
  overlap.add_read(count_arg, count);
  overlap.run();
}

IndexView index_view(const ArgName& arg, const at::Tensor& table, const Placement& placement) {
  const void* data =
      table.numel() == 0 ? table.const_data_ptr() : reinterpret_cast<const void*>(placement.address(arg, table, false));
  return {data, table.stride(0), table.itemsize() == sizeof(int64_t)};
}

void check_cores(std::string_view op, const std::optional<int64_t>& cores) {
  TORCH_CHECK_VALUE(!cores || (1 <= *cores && *cores <= INT32_MAX), (ArgName{op, "cores"}),
                    " to be a number of cores from 1, got ", *cores);
}

int64_t read_count(std::string_view op, const OptionalTensor& count, int64_t n) {
  if (!count) return n;
  const void* data = count->const_data_ptr();
  const int64_t value =
      count->scalar_type() == at::kLong ? *static_cast<const int64_t*>(data) : *static_cast<const int32_t*>(data);
  TORCH_CHECK_VALUE(0 <= value && value <= n, (ArgName{op, "count"}), " to be in [0, ", n, "], got ", value);
  return value;
}

SparseCopyArgs::SparseCopyArgs(at::TensorList dst, at::TensorList src, const OptionalTensor& dst_index,
                               const OptionalTensor& src_index, const Placement& placement, const CallLimits& limits) {
  components_.reserve(dst.size());
  for (size_t c = 0; c < dst.size(); ++c) {
    const auto itemsize = static_cast<int64_t>(dst[c].itemsize());
    // Rows of no memory may be of a size that no number holds.
    const int64_t row_bytes = dst[c].numel() == 0 ? 0 : c10::multiply_integers(dst[c].sizes().slice(1)) * itemsize;
    Component component{nullptr, nullptr, dst[c].stride(0) * itemsize, src[c].stride(0) * itemsize, row_bytes};
    if (dst[c].numel() != 0) {
      const ArgName arg{kSparseCopy, "dst", static_cast<int64_t>(c)};
      component.dst = reinterpret_cast<std::byte*>(placement.address(arg, dst[c], true));
    }
    if (src[c].numel() != 0) {
      const ArgName arg{kSparseCopy, "src", static_cast<int64_t>(c)};
      component.src = reinterpret_cast<const std::byte*>(placement.address(arg, src[c], false));
    }
    components_.push_back(component);
  }
  params.components = components_.data();
  params.num_components = static_cast<int64_t>(components_.size());
  params.dst_rows = least_rows(dst, limits.dst_rows);
  params.src_rows = least_rows(src, limits.src_rows);
  params.n = dst_index ? dst_index->size(0) : src_index ? src_index->size(0) : params.dst_rows;
  if (dst_index) params.dst_index = index_view({kSparseCopy, "dst_index"}, *dst_index, placement);
  if (src_index) params.src_index = index_view({kSparseCopy, "src_index"}, *src_index, placement);
}

}  // namespace torch_offload
