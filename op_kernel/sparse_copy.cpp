// SPDX-License-Identifier: Apache-2.0
// Entry of the device kernel of the index form. Parameters are addresses and 64-bit integers only; `tiling` is a
// SparseCopyTilingData and its components, which stands behind the parameters in the argument block of the launch.
#include "sparse_copy.h"

extern "C" __global__ __aicore__ void sparse_copy(GM_ADDR count, uint64_t countBytes, GM_ADDR tiling,
                                                  uint64_t tilingBytes)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    AscendC::TPipe pipe;
    SparseCopy::Kernel<SparseCopy::IndexForm> kernel;
    kernel.Run(&pipe, {count, countBytes, tiling, tilingBytes});
}
