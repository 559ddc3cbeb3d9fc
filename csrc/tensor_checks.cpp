// SPDX-License-Identifier: Apache-2.0
#include "tensor_checks.h"

namespace torch_offload {

void Placement::check_device(const ArgName& arg, const at::Tensor& tensor) const {
  TORCH_CHECK_VALUE(tensor.device().type() == type_, arg, " to be on device type ", type_, ", got ", tensor.device());
}

uintptr_t Placement::address(const ArgName&, const at::Tensor& tensor, bool written) const {
  return reinterpret_cast<uintptr_t>(written ? tensor.mutable_data_ptr() : tensor.const_data_ptr());
}

void check_plain(const ArgName& arg, const at::Tensor& tensor, const Placement& placement) {
  TORCH_CHECK_TYPE(!tensor.is_nested() && tensor.layout() == at::kStrided, arg, " to be a strided tensor, got layout ",
                   tensor.is_nested() ? "nested" : c10::str(tensor.layout()));
  TORCH_CHECK_TYPE(!tensor.is_quantized(), arg, " to be a plain tensor, got quantized dtype ", tensor.scalar_type());
  TORCH_CHECK_TYPE(!tensor.is_conj(), arg,
                   " to be a plain tensor, got a conjugate view (resolve_conj() makes a plain one)");
  TORCH_CHECK_TYPE(!tensor.is_neg(), arg,
                   " to be a plain tensor, got a negative view (resolve_neg() makes a plain one)");
  TORCH_CHECK_TYPE(!tensor._is_zerotensor(), arg, " to be a plain tensor, got a zero tensor, which has no memory");
  placement.check_device(arg, tensor);
}

void check_table(const ArgName& arg, const at::Tensor& table, const Placement& placement, at::ScalarType either,
                 at::ScalarType other) {
  check_plain(arg, table, placement);
  TORCH_CHECK_TYPE(table.scalar_type() == either || table.scalar_type() == other, arg, " to have dtype ", either,
                   " or ", other, ", got ", table.scalar_type());
  TORCH_CHECK_VALUE(table.dim() == 1, arg, " to have 1 dimension, got ", table.dim());
}

void check_count(const ArgName& arg, const at::Tensor& count, const Placement& placement) {
  check_plain(arg, count, placement);
  TORCH_CHECK_TYPE(count.scalar_type() == at::kInt || count.scalar_type() == at::kLong, arg, " to have dtype ",
                   at::kInt, " or ", at::kLong, ", got ", count.scalar_type());
  OFFLOAD_SYM_CHECK(ValueError, count.sym_numel().sym_eq(1), arg, " to have one element, got ", count.sym_numel());
}

}  // namespace torch_offload
