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

// Which memory the kernel of a call can reach, and at which addresses it finds it. This one knows the tensors of one
// kind of device, at the addresses that the tensors give.
class Placement {
 public:
  explicit Placement(c10::DeviceType type) : type_(type) {}
  virtual ~Placement() = default;

  // ValueError if the tensor is on a device that the kernel cannot reach. Looks at the device alone.
  virtual void check_device(const ArgName& arg, const at::Tensor& tensor) const;

  // The address of the first element of a tensor that has memory and at least one element. ValueError if the kernel
  // cannot reach all of the tensor's memory. A tensor that is written has to be asked for with `written` first: taking
  // the address of a copy-on-write tensor for writing gives it memory of its own.
  virtual uintptr_t address(const ArgName& arg, const at::Tensor& tensor, bool written) const;

 private:
  c10::DeviceType type_;
};

// Plain memory on the expected kind of device: strided, not quantized, nested, conjugate or negative.
void check_plain(const ArgName& arg, const at::Tensor& tensor, const Placement& placement);

// A one-dimensional table of one of two dtypes.
void check_table(const ArgName& arg, const at::Tensor& table, const Placement& placement, at::ScalarType either,
                 at::ScalarType other);

// One element of int32 or int64.
void check_count(const ArgName& arg, const at::Tensor& count, const Placement& placement);

}  // namespace torch_offload
