// SPDX-License-Identifier: Apache-2.0
//
// What a kernel on one NPU can reach: tensors on it, and host tensors in memory that is registered with it.
#pragma once

#include <c10/util/SmallVector.h>

#include "tensor_checks.h"

namespace c10_npu {
class NPUStream;
}

namespace torch_offload::npu {

class NpuPlacement final : public Placement {
 public:
  // The device must be the current one.
  explicit NpuPlacement(c10::Device device) : Placement(device.type()), device_(device) {}

  void check_device(const ArgName& arg, const at::Tensor& tensor) const override;
  uintptr_t address(const ArgName& arg, const at::Tensor& tensor, bool written) const override;

 private:
  struct HostRange {
    uintptr_t address;
    uint64_t bytes;
    uintptr_t device_address;
  };

  c10::Device device_;
  mutable c10::SmallVector<HostRange, 4> translated_;  // one call asks for each of its host tensors more than once
};

// To be called behind the launch for every tensor of a call. torch_npu's pinned memory is handed out again once the
// host has dropped it, unless it knows of the stream. Does nothing for tensors on a device.
void record_host_memory(const at::Tensor& tensor, const c10_npu::NPUStream& stream);

}  // namespace torch_offload::npu
