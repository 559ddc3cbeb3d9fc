// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace torch_offload::npu {

// From now on, the streams for which torch_npu or this package records that they use host memory (asynchronous copies,
// sparse_copy) are recorded with the block of the pool that the memory is in. torch_npu calls PyTorch's allocator of
// pinned memory for that: a layer over it passes everything else on.
void watch_host_copies();

}  // namespace torch_offload::npu
