// SPDX-License-Identifier: Apache-2.0
#include "overlap.h"

#include <algorithm>
#include <functional>

namespace torch_offload {
namespace {

// Elements from the first to the last of what one index of dimension 0 shows; none where that is symbolic.
std::optional<int64_t> row_extent(const at::Tensor& tensor) {
  int64_t elements = 1;
  for (int64_t dim = 1; dim < tensor.dim(); ++dim) {
    const auto size = tensor.sym_size(dim).maybe_as_int();
    const auto stride = tensor.sym_stride(dim).maybe_as_int();
    if (!size || !stride) return std::nullopt;
    elements += (*size - 1) * *stride;
  }
  return elements;
}

}  // namespace

void OverlapCheck::add(const ArgName& arg, const at::Tensor& tensor, bool written) {
  const auto numel = tensor.sym_numel().maybe_as_int();
  const auto stride = tensor.dim() > 0 ? tensor.sym_stride(0).maybe_as_int() : 0;
  const auto rows = tensor.dim() > 0 ? tensor.sym_size(0).maybe_as_int() : 1;
  const auto offset = tensor.sym_storage_offset().maybe_as_int();
  if (!numel || !stride || !rows || !offset || *numel == 0) return;
  const auto itemsize = static_cast<int64_t>(tensor.itemsize());
  const std::optional<int64_t> row_elements = row_extent(tensor);
  if (!row_elements) return;
  Extent extent{nullptr, {0, *stride * itemsize, *rows, *row_elements * itemsize}, written, arg};
  if (tensor.is_meta()) {
    extent.space = tensor.storage().unsafeGetStorageImpl();
    extent.rows.begin = *offset * itemsize;
  } else {
    // A storage can be shrunk under its tensors (untyped_storage().resize_): what is gone must not be touched.
    const int64_t end = *offset * itemsize + extent.rows.end();
    TORCH_CHECK_VALUE(end <= static_cast<int64_t>(tensor.storage().nbytes()), arg, " to lie inside its storage, got ",
                      end, " bytes in a storage of ", tensor.storage().nbytes());
    extent.rows.begin = static_cast<int64_t>(placement_.address(arg, tensor, written));
  }
  extents_.push_back(extent);
}

bool OverlapCheck::run() {
  std::sort(extents_.begin(), extents_.end(), [](const Extent& a, const Extent& b) {
    if (a.space != b.space) return std::less<>()(a.space, b.space);
    return a.rows.begin < b.rows.begin;
  });
  // One sweep over the extents in the order of their beginnings: the usual case, nothing meets, ends here.
  bool read_meets_written = false;
  bool written_meet = false;
  const void* space = nullptr;
  int64_t written_end = INT64_MIN;
  int64_t read_end = INT64_MIN;
  for (const Extent& extent : extents_) {
    if (extent.space != space) {
      space = extent.space;
      written_end = read_end = INT64_MIN;
    }
    read_meets_written |= extent.rows.begin < (extent.written ? read_end : written_end);
    written_meet |= extent.written && extent.rows.begin < written_end;
    int64_t& end = extent.written ? written_end : read_end;
    end = std::max(end, extent.rows.end());
  }
  if (read_meets_written) refuse_exact_overlap();
  return written_meet && written_overlap_exactly();
}

void OverlapCheck::refuse_exact_overlap() const {
  for (const Extent& written : extents_) {
    if (!written.written) continue;
    for (const Extent& read : extents_) {
      TORCH_CHECK_VALUE(read.written || read.space != written.space || !rows_overlap(written.rows, read.rows),
                        written.arg, " not to overlap what the call reads, got bytes shared with ", read.arg.name,
                        read.arg.position < 0 ? "" : c10::str('[', read.arg.position, ']'));
    }
  }
}

bool OverlapCheck::written_overlap_exactly() const {
  for (auto a = extents_.begin(); a != extents_.end(); ++a) {
    if (!a->written) continue;
    for (auto b = a + 1; b != extents_.end(); ++b) {
      if (b->written && a->space == b->space && rows_overlap(a->rows, b->rows)) return true;
    }
  }
  return false;
}

}  // namespace torch_offload
