// SPDX-License-Identifier: Apache-2.0
// Entries of the device kernels. Parameters are addresses and 64-bit integers only; `tiling` is the tiling data, which
// stands behind the parameters in the argument block of the launch (SparseCopyLaunchArguments).
#include "sparse_copy.h"

#include "plan_residency.h"
#include "plan_residency_list.h"
#include "sparse_copy_ptrs.h"

// SparseCopyTilingData and its components.
extern "C" __global__ __aicore__ void sparse_copy(GM_ADDR count, uint64_t countBytes, GM_ADDR tiling,
                                                  uint64_t tilingBytes)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    AscendC::TPipe pipe;
    SparseCopy::Kernel<SparseCopy::IndexForm> kernel;
    kernel.Run(&pipe, {count, countBytes, tiling, tilingBytes});
}

// SparseCopyPtrsTilingData.
extern "C" __global__ __aicore__ void sparse_copy_ptrs(GM_ADDR count, uint64_t countBytes, GM_ADDR tiling,
                                                       uint64_t tilingBytes)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    AscendC::TPipe pipe;
    SparseCopy::Kernel<SparseCopy::PointerForm> kernel;
    kernel.Run(&pipe, {count, countBytes, tiling, tilingBytes});
}

// On one core, behind sparse_copy_ptrs on the same stream (SparseCopyPtrsStatusArguments).
extern "C" __global__ __aicore__ void sparse_copy_ptrs_status(GM_ADDR records, uint64_t cores, GM_ADDR status,
                                                              uint64_t statusStride)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    AscendC::TPipe pipe;
    SparseCopy::ReduceStatus(
        &pipe, {reinterpret_cast<uint64_t>(records), cores, reinterpret_cast<uint64_t>(status), statusStride});
}

// PlanResidencyTilingData, behind PlanResidencyLaunchArguments.
extern "C" __global__ __aicore__ void plan_residency(GM_ADDR tiling, uint64_t tilingBytes)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    AscendC::TPipe pipe;
    PlanResidency::Planner planner;
    planner.Run(&pipe, tiling, tilingBytes);
}

// The same, behind plan_residency on the same stream.
extern "C" __global__ __aicore__ void plan_residency_list(GM_ADDR tiling, uint64_t tilingBytes)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    AscendC::TPipe pipe;
    PlanResidency::Lister lister;
    lister.Run(&pipe, tiling, tilingBytes);
}
