// SPDX-License-Identifier: Apache-2.0
// Hands a tiled launch to a kernel as the runtime does.
#pragma once
#include <string>

#include "ascendc_sim.h"
#include "op_host/sparse_copy_tiling.h"

extern "C" {
void sparse_copy_sim(void* args, uint32_t args_bytes, uint32_t block_dim);
void sparse_copy_ptrs_sim(void* args, uint32_t args_bytes, uint32_t block_dim);
void sparse_copy_ptrs_status_sim(void* args, uint32_t args_bytes, uint32_t block_dim);
}

namespace test {

using KernelEntry = void (*)(void*, uint32_t, uint32_t);

// The placeholder's data goes to device memory and its address to its place. Returns the kernel's fault, or
// "".
std::string runLaunch(KernelEntry kernel, const sparse_copy_tiling::Launch& launch, const AscendcSimSettings& settings);

}  // namespace test
