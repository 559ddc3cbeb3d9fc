// SPDX-License-Identifier: Apache-2.0
// The device kernels, from their real sources, as a "device binary" of the simulated runtime.
#include "sparse_copy.cpp"

ASCENDC_SIM_KERNEL(sparse_copy)
ASCENDC_SIM_KERNEL(sparse_copy_ptrs)
ASCENDC_SIM_KERNEL(sparse_copy_ptrs_status)
ASCENDC_SIM_KERNEL(plan_residency)
ASCENDC_SIM_KERNEL(plan_residency_list)
