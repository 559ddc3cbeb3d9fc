// SPDX-License-Identifier: Apache-2.0
//
// The device code: one file with all kernels.
#pragma once

#include <string>

#include "npu/acl_api.h"

namespace torch_offload::npu {

// Loads the device code into the current device. RuntimeError, with the remedy, if the file is missing or does not
// load. It is never unloaded: graphs and queued launches refer to it.
aclrtBinHandle load_kernels();

// The kernel of that name.
aclrtFuncHandle kernel_function(aclrtBinHandle kernels, const char* name);

// The file: what the environment variable TORCH_OFFLOAD_NPU_KERNEL names, else npu/kernels.o beside this module.
std::string kernel_file();

}  // namespace torch_offload::npu
