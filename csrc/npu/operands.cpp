// SPDX-License-Identifier: Apache-2.0
#include "npu/operands.h"

#include <ATen/core/CachingHostAllocator.h>

namespace torch_offload::npu {

sparse_copy_tiling::Table table_of(const IndexView& index) {
  if (index.is_identity()) return {};
  const uint32_t bytes = index.is_int64 ? sizeof(int64_t) : sizeof(int32_t);
  return {reinterpret_cast<uint64_t>(index.data), static_cast<uint64_t>(index.stride) * bytes, bytes};
}

void record_host_memory(const at::Tensor& tensor, const c10_npu::NPUStream& stream) {
  if (!tensor.is_cpu() || tensor.numel() == 0) return;
  const c10::Storage& storage = tensor.storage();
  at::getHostAllocator(at::kPrivateUse1)
      ->record_event(const_cast<void*>(storage.data()), storage.data_ptr().get_context(), stream.unwrap());
}

}  // namespace torch_offload::npu
