// SPDX-License-Identifier: Apache-2.0
//
// The same bytes of a pool as tensors of the host and of the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace torch_offload::npu {

// `tensor` is on the device, its storage in a pool that the host finds at `storage_address`. The result is on the CPU
// and holds the storage.
at::Tensor host_view(const at::Tensor& tensor, uintptr_t storage_address);

// `tensor` is in a pool whose device finds its first element at `address`. The result is on that device and holds the
// storage; when it dies, the block is the pool's again once the streams that were current then and now have passed.
at::Tensor device_view(const at::Tensor& tensor, uintptr_t address, c10::DeviceIndex device);

}  // namespace torch_offload::npu
