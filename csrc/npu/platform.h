// SPDX-License-Identifier: Apache-2.0
//
// What the tiling must know of the device: its vector cores and their buffers, asked from the runtime.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>

#include "npu/acl_api.h"

namespace torch_offload::npu {

struct DeviceLimits {
  uint32_t cores;      // AI vector cores of the device
  uint64_t ub_bytes;   // unified buffer of each
  std::string soc;     // name of the chip
  std::string target;  // what device code for it is compiled for, like "dav-2201"
};

// Of the current device, which must be `device`. RuntimeError for chips without the kernel's instructions.
DeviceLimits device_limits(c10::DeviceIndex device);

// Cores that a launch on this stream may use: those of the device, less where the call (`wanted`, from 1), the
// environment variable TORCH_OFFLOAD_NPU_CORES (read once a process) or the stream's own limit
// (torch.npu.set_stream_limit) says so.
uint32_t usable_cores(const DeviceLimits& limits, aclrtStream stream, std::optional<int64_t> wanted);

}  // namespace torch_offload::npu
