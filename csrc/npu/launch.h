// SPDX-License-Identifier: Apache-2.0
//
// The launch call, in the form that the runtime of this machine has.
#pragma once

#include "../op_host/sparse_copy_tiling.h"
#include "npu/acl_api.h"

namespace torch_offload::npu {

// Launches on the stream; the runtime copies the arguments before it returns. Throws nothing: it runs on torch_npu's
// queue thread, which reports the code that it returns. What failed is said in a warning.
aclError launch_kernel(aclrtFuncHandle function, const sparse_copy_tiling::Launch& launch, aclrtStream stream) noexcept;

// RuntimeError if the runtime has no launch call that this backend can use. To be called before the first launch.
void check_launch_calls();

}  // namespace torch_offload::npu
