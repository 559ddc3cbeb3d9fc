// SPDX-License-Identifier: Apache-2.0
//
// What the operators do alike with their tensors on the way to a launch.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch_npu/csrc/core/npu/NPUStream.h>

#include "../op_host/sparse_copy_tiling.h"
#include "sparse_copy_params.h"

namespace torch_offload::npu {

// A table as the tiling wants it.
sparse_copy_tiling::Table table_of(const IndexView& index);

// Keeps the memory of a host tensor from being handed out again before the stream has passed what is launched on it
// now, where torch_npu's pinned memory would be. Does nothing for a tensor on a device.
void record_host_memory(const at::Tensor& tensor, const c10_npu::NPUStream& stream);

}  // namespace torch_offload::npu
