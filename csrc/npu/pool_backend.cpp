// SPDX-License-Identifier: Apache-2.0
#include "npu/pool_backend.h"

#include <c10/util/Exception.h>
#include <torch_npu/csrc/core/npu/NPUGuard.h>
#include <torch_npu/csrc/core/npu/NPUStream.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "error.h"
#include "host_pool/device_backend.h"
#include "npu/acl_api.h"
#include "npu/host_allocator.h"
#include "npu/host_memory.h"
#include "npu/stream_fence.h"

namespace torch_offload::npu {
namespace {

constexpr uint64_t kSmallestChunk = uint64_t{1} << 20;

std::atomic<bool> streams_are_watched{true};

class NpuBackend final : public DeviceBackend {
 public:
  std::vector<DevicePiece> map(int32_t device, std::byte* base, uint64_t bytes, uint64_t unit,
                               std::vector<std::string>* warnings) override {
    const auto begin = reinterpret_cast<uintptr_t>(base);
    std::vector<MappedRange> ranges;
    try {
      const c10_npu::NPUGuard guard(static_cast<c10::DeviceIndex>(device));
      const RelaxedCapture relaxed;
      ranges = register_host_memory(static_cast<c10::DeviceIndex>(device), begin, bytes,
                                    std::min(bytes, std::max(unit, kSmallestChunk)));
    } catch (const c10::Error& error) {
      throw StateError(join("HostPool: ", first_line(error)));
    }
    std::vector<DevicePiece> pieces;
    uint64_t largest = 0;
    for (const MappedRange& range : ranges) {
      pieces.push_back({range.address - begin, range.bytes, range.device_address});
      largest = std::max(largest, range.bytes);
    }
    if (pieces.size() > 1) {
      warnings->push_back(join("npu:", device, " takes at most ", largest, " bytes in one registration and finds the ",
                               pieces.size(), " pieces of this pool apart: no tensor can be larger than a piece"));
    }
    return pieces;
  }

  bool unmap(int32_t device, std::byte* base) noexcept override {
    if (!runtime_is_up()) return true;
    try {
      const c10_npu::NPUGuard guard(static_cast<c10::DeviceIndex>(device));
      const RelaxedCapture relaxed;
      const auto begin = reinterpret_cast<uintptr_t>(base);
      const std::vector<Registered> all = registered_host_memory();
      const auto mine = [begin](const Registered& one) { return one.address == begin; };
      if (std::any_of(all.begin(), all.end(), mine)) unregister_host_memory(begin);
    } catch (const std::exception& error) {
      TORCH_WARN("torch_offload: the memory of a HostPool stays: ", first_line(error));
      return false;
    }
    return true;
  }

  std::vector<StreamUse> current_streams(int32_t device) noexcept override {
    if (!runtime_is_up()) return {};
    try {
      const auto index = static_cast<c10::DeviceIndex>(device);
      return {{device, c10_npu::getCurrentNPUStream(index).stream(false)}};
    } catch (const std::exception& error) {
      TORCH_WARN("torch_offload: a block of a HostPool was freed without its stream: ", first_line(error));
      return {};
    }
  }

  std::function<bool()> fence(const std::vector<StreamUse>& uses) override {
    if (!streams_are_watched) return [] { return true; };
    return [streams = std::make_shared<StreamFence>(uses)] { return streams->passed(); };
  }
};

}  // namespace

void serve_pools() {
  static auto* backend = new NpuBackend;
  set_device_backend(backend);
  watch_host_copies();
}

void watch_streams(bool on) { streams_are_watched = on; }

void let_go_of_pools() {
  if (!runtime_is_up()) return;
  std::set<c10::DeviceIndex> idle;
  for (const Registered& one : registered_host_memory()) {
    try {
      const c10_npu::NPUGuard guard(one.device);
      if (idle.insert(one.device).second) c10_npu::npuSynchronizeDevice(false);
      unregister_host_memory(one.address);
    } catch (const std::exception& error) {
      TORCH_WARN("torch_offload: at the end of the process: ", first_line(error));
    }
  }
}

}  // namespace torch_offload::npu
