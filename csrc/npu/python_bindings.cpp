// SPDX-License-Identifier: Apache-2.0
//
// The module torch_offload._C_npu: importing it registers the NPU kernels. What Python sees of it is private.
#include <torch/extension.h>
#include <torch_npu/csrc/core/npu/NPUGuard.h>

#include "npu/acl_api.h"
#include "npu/host_memory.h"
#include "npu/kernel_binary.h"
#include "npu/launch.h"
#include "npu/pool_backend.h"
#include "npu/pool_views.h"
#include "npu/status.h"

namespace torch_offload::npu {
namespace {

py::tuple read(c10::DeviceIndex device) {
  StatusTotals totals;
  {
    const py::gil_scoped_release unlocked;
    const c10_npu::NPUGuard guard(device);
    totals = read_status(device);
  }
  return py::make_tuple(totals.copied, totals.skipped, totals.out_of_range, totals.first_bad, totals.clamped_counts,
                        totals.clamped_count, totals.refused_requests, totals.refusal);
}

void reset(c10::DeviceIndex device) {
  const c10_npu::NPUGuard guard(device);
  reset_status(device);
}

void register_host(c10::DeviceIndex device, uintptr_t address, uint64_t bytes) {
  const c10_npu::NPUGuard guard(device);
  register_host_memory(device, address, bytes, bytes);
}

void check_runtime() {
  check_cann_version();
  check_launch_calls();
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "NPU part of torch_offload; importing it registers the NPU kernels.";
  const py::call_guard<py::gil_scoped_release> unlocked;
  m.def("check_runtime", &check_runtime, unlocked);
  m.def("use_kernels", &use_kernels);
  m.def("kernel_file", &kernel_file);
  m.def("read_status", &read);
  m.def("reset_status", &reset, unlocked);
  m.def("register_host_memory", &register_host, unlocked);
  m.def("unregister_host_memory", &unregister_host_memory, unlocked);
  m.def("serve_pools", &serve_pools);
  m.def("watch_streams", &watch_streams);
  m.def("let_go_of_pools", &let_go_of_pools, unlocked);
  m.def("host_view", &host_view);
  m.def("device_view", &device_view);
}

}  // namespace torch_offload::npu
