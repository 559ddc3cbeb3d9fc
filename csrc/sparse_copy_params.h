// SPDX-License-Identifier: Apache-2.0
//
// What a copy is, in plain numbers: the seam between the torch layer, which checks tensors, and the loops,
// which know nothing about them. Nothing here owns memory; all addresses belong to the caller and outlive the
// call.
#pragma once

#include <cstddef>
#include <cstdint>

namespace torch_offload {

// A one-dimensional table of int32 or int64 values at any stride. A null `data` stands for 0, 1, 2, ...
struct IndexView {
  const void* data = nullptr;
  int64_t stride = 1;  // in elements
  bool is_int64 = true;

  bool is_identity() const { return data == nullptr; }

  int64_t operator[](int64_t i) const {
    if (is_identity()) return i;
    return is_int64 ? static_cast<const int64_t*>(data)[i * stride] : static_cast<const int32_t*>(data)[i * stride];
  }
};

// One pair of tensors: row i of a side starts `i * stride` bytes after its base and is `row_bytes` long.
struct Component {
  std::byte* dst = nullptr;
  const std::byte* src = nullptr;
  int64_t dst_stride = 0;
  int64_t src_stride = 0;
  int64_t row_bytes = 0;
};

// sparse_copy: for every component and every i in [0, n), row src_index[i] goes to row dst_index[i]. An entry
// with a negative value on either side is skipped.
struct SparseCopyParams {
  const Component* components = nullptr;
  int64_t num_components = 0;
  IndexView dst_index;
  IndexView src_index;
  int64_t n = 0;
  int64_t dst_rows = 0;  // the least over the components: an index must be below it
  int64_t src_rows = 0;
};

// sparse_copy_ptrs: for every i in [0, n), lengths[i] bytes go from address src[i] to address dst[i].
struct PointerCopyParams {
  IndexView src;
  IndexView dst;
  IndexView lengths;
  int64_t n = 0;
};

// What sparse_copy_ptrs reports; the order of the int64[4] status tensor.
struct PointerCopyStatus {
  int64_t copied = 0;
  int64_t skipped = 0;
  int64_t refused = 0;
  int64_t first_refused = -1;
};

}  // namespace torch_offload
