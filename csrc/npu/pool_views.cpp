// SPDX-License-Identifier: Apache-2.0
#include "npu/pool_views.h"

#include <ATen/EmptyTensor.h>
#include <torch_npu/csrc/aten/common/from_blob.h>
#include <torch_npu/csrc/core/npu/NPUGuard.h>
#include <torch_npu/csrc/core/npu/NPUStream.h>

#include <exception>
#include <memory>
#include <utility>

#include "host_pool/host_pool.h"
#include "npu/acl_api.h"

namespace torch_offload::npu {
namespace {

aclrtStream current_stream(c10::DeviceIndex device) { return c10_npu::getCurrentNPUStream(device).stream(false); }

void record_use(const void* data, c10::DeviceIndex device, aclrtStream stream) {
  if (const std::shared_ptr<HostPool> pool = find_pool(data)) pool->record_use(data, {device, stream});
}

}  // namespace

at::Tensor host_view(const at::Tensor& tensor, uintptr_t storage_address) {
  const c10::Storage& storage = tensor.storage();
  at::DataPtr data(
      reinterpret_cast<void*>(storage_address), new c10::Storage(storage),
      [](void* held) { delete static_cast<c10::Storage*>(held); }, at::kCPU);
  c10::Storage on_host(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(data), nullptr,
                       /*resizable=*/false);
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(
      std::move(on_host), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  view.unsafeGetTensorImpl()->set_storage_offset(tensor.storage_offset());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  return view;
}

at::Tensor device_view(const at::Tensor& tensor, uintptr_t address, c10::DeviceIndex device) {
  const c10_npu::NPUGuard guard(device);
  const auto let_go = [storage = tensor.storage(), device, made_on = current_stream(device)](void*) {
    if (!runtime_is_up()) return;
    try {
      record_use(storage.data(), device, made_on);
      record_use(storage.data(), device, current_stream(device));
    } catch (const std::exception& error) {
      TORCH_WARN("torch_offload: at the end of a device view: ", first_line(error));
    }
  };
  const c10::Device on(c10::kPrivateUse1, device);
  return at_npu::native::from_blob(reinterpret_cast<void*>(address), tensor.sizes(), tensor.strides(), let_go,
                                   tensor.options().device(on), on);
}

}  // namespace torch_offload::npu
