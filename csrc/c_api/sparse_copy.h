// SPDX-License-Identifier: Apache-2.0
//
// sparse_copy over plain arrays: the argument checks of the C interface in front of the CPU copy loop.
#pragma once

#include "c_api/offload.h"

namespace torch_offload {

// Copies in the calling thread and up to `threads - 1` others. Nothing is written before all checks have passed.
// @throws ValueError, IndexError
void sparse_copy(const offload_copy_t& copy);

}  // namespace torch_offload
