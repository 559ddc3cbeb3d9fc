// SPDX-License-Identifier: Apache-2.0
//
// Refuses copies whose destination shares bytes with something that the copy reads.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "byte_rows.h"
#include "tensor_checks.h"

namespace torch_offload {

// Collects the bytes that a call writes and reads, as far as they are known: real tensors by the address at which the
// kernel finds them, tensors without data (Meta) by their place in their storage when sizes are not symbolic.
class OverlapCheck {
 public:
  explicit OverlapCheck(const Placement& placement) : placement_(placement) {}

  // Destinations first: taking the address of a copy-on-write tensor for writing gives it memory of its own.
  void add_written(const ArgName& arg, const at::Tensor& tensor) { add(arg, tensor, true); }
  void add_read(const ArgName& arg, const at::Tensor& tensor) { add(arg, tensor, false); }

  // ValueError if a written tensor shares a byte with a read one. Returns whether two written ones do.
  bool run();

 private:
  struct Extent {
    const void* space;  // the storage for tensors without data, null for real addresses
    ByteRows rows;
    bool written;
    ArgName arg;
  };

  void add(const ArgName& arg, const at::Tensor& tensor, bool written);
  void refuse_exact_overlap() const;
  bool written_overlap_exactly() const;

  const Placement& placement_;
  c10::SmallVector<Extent, 12> extents_;
};

}  // namespace torch_offload
