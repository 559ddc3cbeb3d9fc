// SPDX-License-Identifier: Apache-2.0
//
// The device code: one file with all kernels for each kind of chip, made by torch_offload/npu/device_code.py.
#pragma once

#include <string>
#include <vector>

#include "npu/acl_api.h"
#include "npu/platform.h"

namespace torch_offload::npu {

// Where device code is looked for, in this order, and the id of the sources that this module belongs to. To be called
// before the first launch.
void use_kernels(std::vector<std::string> folders, std::string source_id);

// Loads the device code for a chip into the current device. RuntimeError, with the remedy, if there is none for that
// chip or it does not load. It is never unloaded: graphs and queued launches refer to it.
aclrtBinHandle load_kernels(const DeviceLimits& chip);

// The kernel of that name.
aclrtFuncHandle kernel_function(aclrtBinHandle kernels, const char* name);

// The file: what the environment variable TORCH_OFFLOAD_NPU_KERNEL names, else the one for the target in the first
// folder that has it, else "".
std::string kernel_file(const std::string& target);

}  // namespace torch_offload::npu
