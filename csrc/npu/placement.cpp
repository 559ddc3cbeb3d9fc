// SPDX-License-Identifier: Apache-2.0
#include "npu/placement.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/CachingHostAllocator.h>
#include <acl/acl.h>
#include <torch_npu/csrc/core/npu/NPUFormat.h>
#include <torch_npu/csrc/core/npu/NPUStream.h>

#include "npu/host_memory.h"

namespace torch_offload::npu {
namespace {

// torch_npu keeps some tensors in layouts of its own, in which a row is no run of bytes.
bool is_plain_format(int64_t format) {
  return format == ACL_FORMAT_ND || format == ACL_FORMAT_NCHW || format == ACL_FORMAT_NHWC ||
         format == ACL_FORMAT_NCDHW || format == ACL_FORMAT_UNDEFINED;
}

// From the first to the last byte of what the tensor shows.
uint64_t extent(const at::Tensor& tensor) {
  return at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize());
}

}  // namespace

void NpuPlacement::check_device(const ArgName& arg, const at::Tensor& tensor) const {
  const c10::Device device = tensor.device();
  TORCH_CHECK_VALUE(device.is_cpu() || device == device_, arg, " to be on ", device_,
                    " or in host memory that it can address, got ", device);
  if (device.is_cpu()) return;
  const int64_t format = at_npu::native::get_npu_format(tensor);
  TORCH_CHECK_TYPE(is_plain_format(format), arg, " to be in a plain format, got the NPU format ", format,
                   " (torch_npu.npu_format_cast(tensor, 2) makes a plain one)");
}

uintptr_t NpuPlacement::address(const ArgName& arg, const at::Tensor& tensor, bool written) const {
  const uintptr_t address = Placement::address(arg, tensor, written);
  if (!tensor.is_cpu()) return address;
  const uint64_t bytes = extent(tensor);
  for (const HostRange& known : translated_) {
    if (known.address == address && bytes <= known.bytes) return known.device_address;
  }
  const uintptr_t found = find_device_address(device_.index(), address, bytes);
  TORCH_CHECK_VALUE(found != 0, arg, " to be on ", device_, " or in host memory that it can address, got ",
                    tensor.is_pinned() ? "pinned" : "ordinary",
                    " host memory; allocate it with torch_offload.HostPool(..., device='", device_,
                    "'), or move the tensor with .to('", device_, "')");
  translated_.push_back({address, bytes, found});
  return found;
}

void record_host_memory(const at::Tensor& tensor, const c10_npu::NPUStream& stream) {
  if (!tensor.is_cpu() || tensor.numel() == 0) return;
  const c10::Storage& storage = tensor.storage();
  at::getHostAllocator(at::kPrivateUse1)
      ->record_event(const_cast<void*>(storage.data()), storage.data_ptr().get_context(), stream.unwrap());
}

}  // namespace torch_offload::npu
