// SPDX-License-Identifier: Apache-2.0
//
// Checks of one tensor argument, shared by the contracts of all operators. Nothing here reads data; sizes and
// strides may be symbolic.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymBool.h>
#include <c10/util/Exception.h>

#include <string_view>

// TORCH_SYM_CHECK with a choice of error type. With unbacked sizes it leaves an assertion in the graph.
#define OFFLOAD_SYM_CHECK(error_type, cond, ...) \
  TORCH_CHECK_WITH(error_type, (cond).expect_true(__FILE__, __LINE__), __VA_ARGS__)

namespace torch_offload {

// How a message names an argument: "dst[2]", or "count" when there is no position.
struct ArgName {
  std::string_view op;
  std::string_view name;
  int64_t position = -1;
};

inline std::ostream& operator<<(std::ostream& out, const ArgName& arg) {
  out << arg.op << ": expected " << arg.name;
  if (arg.position >= 0) out << '[' << arg.position << ']';
  return out;
}

// Plain memory on the expected kind of device: strided, not quantized, nested, conjugate or negative.
void check_plain(const ArgName& arg, const at::Tensor& tensor, c10::DeviceType device);

// A one-dimensional table of one of two dtypes.
void check_table(const ArgName& arg, const at::Tensor& table, c10::DeviceType device, at::ScalarType either,
                 at::ScalarType other);

// One element of int32 or int64.
void check_count(const ArgName& arg, const at::Tensor& count, c10::DeviceType device);

}  // namespace torch_offload
