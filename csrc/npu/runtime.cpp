// SPDX-License-Identifier: Apache-2.0
#include "npu/runtime.h"

#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <mutex>

#include "npu/kernel_binary.h"
#include "npu/launch.h"

namespace torch_offload::npu {
namespace {

constexpr size_t kMaxDevices = 64;

}  // namespace

const Runtime& runtime_of(c10::DeviceIndex device) {
  static std::array<std::atomic<const Runtime*>, kMaxDevices> known{};
  static std::mutex mutex;  // one thread makes a device's runtime
  TORCH_CHECK(device >= 0 && static_cast<size_t>(device) < kMaxDevices, "torch_offload: expected a device below ",
              kMaxDevices, ", got ", static_cast<int>(device));
  std::atomic<const Runtime*>& slot = known[static_cast<size_t>(device)];
  if (const Runtime* runtime = slot.load(std::memory_order_acquire)) return *runtime;
  const std::lock_guard<std::mutex> lock(mutex);
  if (const Runtime* runtime = slot.load(std::memory_order_acquire)) return *runtime;
  check_cann_version();
  check_launch_calls();
  const RelaxedCapture relaxed;
  const DeviceLimits limits = device_limits(device);
  const aclrtBinHandle kernels = load_kernels(limits);
  const auto* made = new Runtime{limits,  // never freed
                                 kernel_function(kernels, "sparse_copy"),
                                 kernel_function(kernels, "sparse_copy_ptrs"),
                                 kernel_function(kernels, "sparse_copy_ptrs_status"),
                                 kernel_function(kernels, "plan_residency"),
                                 kernel_function(kernels, "plan_residency_list")};
  slot.store(made, std::memory_order_release);
  return *made;
}

}  // namespace torch_offload::npu
