// SPDX-License-Identifier: Apache-2.0
#include "tensor_checks.h"

namespace torch_offload {

void check_plain(const ArgName& arg, const at::Tensor& tensor, c10::DeviceType device) {
  TORCH_CHECK_TYPE(!tensor.is_nested() && tensor.layout() == at::kStrided, arg, " to be a strided tensor, got layout ",
                   tensor.is_nested() ? "nested" : c10::str(tensor.layout()));
  TORCH_CHECK_TYPE(!tensor.is_quantized(), arg, " to be a plain tensor, got quantized dtype ", tensor.scalar_type());
  TORCH_CHECK_TYPE(!tensor.is_conj(), arg,
                   " to be a plain tensor, got a conjugate view (resolve_conj() makes a plain one)");
  TORCH_CHECK_TYPE(!tensor.is_neg(), arg,
                   " to be a plain tensor, got a negative view (resolve_neg() makes a plain one)");
  TORCH_CHECK_VALUE(tensor.device().type() == device, arg, " to be on device type ", device, ", got ", tensor.device());
}

void check_table(const ArgName& arg, const at::Tensor& table, c10::DeviceType device, at::ScalarType either,
                 at::ScalarType other) {
  check_plain(arg, table, device);
  TORCH_CHECK_TYPE(table.scalar_type() == either || table.scalar_type() == other, arg, " to have dtype ", either,
                   " or ", other, ", got ", table.scalar_type());
  TORCH_CHECK_VALUE(table.dim() == 1, arg, " to have 1 dimension, got ", table.dim());
}

void check_count(const ArgName& arg, const at::Tensor& count, c10::DeviceType device) {
  check_plain(arg, count, device);
  TORCH_CHECK_TYPE(count.scalar_type() == at::kInt || count.scalar_type() == at::kLong, arg, " to have dtype ",
                   at::kInt, " or ", at::kLong, ", got ", count.scalar_type());
  OFFLOAD_SYM_CHECK(ValueError, count.sym_numel().sym_eq(1), arg, " to have one element, got ", count.sym_numel());
}

}  // namespace torch_offload
