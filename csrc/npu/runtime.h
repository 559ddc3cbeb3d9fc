// SPDX-License-Identifier: Apache-2.0
//
// What a launch needs of its device, made at the device's first call and the same from then on.
#pragma once

#include "npu/acl_api.h"
#include "npu/platform.h"

namespace torch_offload::npu {

struct Runtime {
  DeviceLimits limits;
  aclrtFuncHandle sparse_copy;
  aclrtFuncHandle sparse_copy_ptrs;
  aclrtFuncHandle sparse_copy_ptrs_status;
  aclrtFuncHandle plan_residency;
  aclrtFuncHandle plan_residency_list;
};

// Of the current device, which must be `device`. Checks CANN's version, loads the device code and asks for the limits
// at the first call; until that has succeeded, each call tries again. RuntimeError with the remedy. Any thread; takes
// no lock once a device is known.
const Runtime& runtime_of(c10::DeviceIndex device);

}  // namespace torch_offload::npu
