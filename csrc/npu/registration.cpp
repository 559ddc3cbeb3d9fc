// SPDX-License-Identifier: Apache-2.0
//
// Which kernels serve NPU tensors: of every operator, and of the kinds of tensors that the contract refuses.
#include "op_implementation.h"
#include "ops.h"

namespace torch_offload {
namespace {

void implement_npu(torch::Library& m) { implement<&sparse_copy_npu, &sparse_copy_ptrs_npu, &plan_residency_npu>(m); }

TORCH_LIBRARY_IMPL(offload, PrivateUse1, m) { implement_npu(m); }
TORCH_LIBRARY_IMPL(offload, SparsePrivateUse1, m) { implement_npu(m); }
TORCH_LIBRARY_IMPL(offload, SparseCsrPrivateUse1, m) { implement_npu(m); }
TORCH_LIBRARY_IMPL(offload, QuantizedPrivateUse1, m) { implement_npu(m); }
TORCH_LIBRARY_IMPL(offload, NestedTensorPrivateUse1, m) { implement_npu(m); }

}  // namespace
}  // namespace torch_offload
