// SPDX-License-Identifier: Apache-2.0
//
// plan_residency on NPU tensors: two launches on the current stream, the planning of each request and the list of what
// all of them miss. Nothing here synchronises, and no value in device memory is read by the host.
#include <ATen/ops/empty.h>
#include <torch_npu/csrc/core/npu/NPUGuard.h>
#include <torch_npu/csrc/core/npu/NPUStream.h>
#include <torch_npu/csrc/framework/OpCommand.h>

#include <initializer_list>
#include <memory>

#include "../op_host/plan_residency_tiling.h"
#include "npu/launch.h"
#include "npu/placement.h"
#include "npu/platform.h"
#include "npu/runtime.h"
#include "npu/status.h"
#include "ops.h"

namespace torch_offload {
namespace {

namespace tiling = plan_residency_tiling;

constexpr const char* kOperator = "offload::plan_residency";  // in profiles and in torch_npu's messages

template <typename Visit>
void for_each_tensor(const ResidencyTensors& t, const Visit& visit) {
  for (const at::Tensor* tensor : {&t.owners, &t.slot_tokens, &t.lru, &t.buckets, &t.slots, &t.src_index, &t.dst_index,
                                   &t.count, &t.totals, &t.topk, &t.request_ids}) {
    visit(*tensor);
  }
  for (const std::optional<at::Tensor>* tensor : {&t.stable_prefix, &t.block_table}) {
    if (*tensor) visit(**tensor);
  }
}

// The device of the first tensor that is on one. The dispatcher has seen at least one.
c10::Device device_of(const ResidencyTensors& t) {
  std::optional<c10::Device> device;
  for_each_tensor(t, [&](const at::Tensor& tensor) {
    if (!device && tensor.device().is_privateuseone()) device = tensor.device();
  });
  TORCH_INTERNAL_ASSERT(device);
  return *device;
}

// Addresses and tables of the tensors for the kernels; one without elements has none.
class Addresses {
 public:
  explicit Addresses(const npu::NpuPlacement& placement) : placement_(placement) {}

  uint64_t written(const char* name, const at::Tensor& tensor) const { return address(name, tensor, true); }

  // A vector, or the first row of a matrix.
  tiling::Table table(const char* name, const at::Tensor& tensor) const {
    const auto bytes = static_cast<uint32_t>(tensor.itemsize());
    return {address(name, tensor, false), static_cast<uint64_t>(tensor.stride(-1)) * bytes, bytes};
  }

 private:
  uint64_t address(const char* name, const at::Tensor& tensor, bool written) const {
    return tensor.numel() == 0 ? 0 : placement_.address({"plan_residency", name}, tensor, written);
  }

  const npu::NpuPlacement& placement_;
};

uint64_t row_stride(const at::Tensor& matrix) { return static_cast<uint64_t>(matrix.stride(0)) * matrix.itemsize(); }

tiling::Request request_of(const ResidencyTensors& t, const Addresses& addresses) {
  tiling::Request request;
  request.requests = static_cast<uint64_t>(t.topk.size(0));
  request.topK = static_cast<uint64_t>(t.topk.size(1));
  request.slotCount = static_cast<uint64_t>(t.slot_tokens.size(1));
  request.owners = addresses.written("owners", t.owners);
  request.slotTokens = addresses.written("slot_tokens", t.slot_tokens);
  request.lru = addresses.written("lru", t.lru);
  request.slots = addresses.written("slots", t.slots);
  request.srcIndex = addresses.written("src_index", t.src_index);
  request.dstIndex = addresses.written("dst_index", t.dst_index);
  request.count = addresses.written("count", t.count);
  request.countBytes = static_cast<uint32_t>(t.count.itemsize());
  request.totals = addresses.written("totals", t.totals);
  request.topk = addresses.table("topk", t.topk);
  request.topkRowStride = row_stride(t.topk);
  request.requestIds = addresses.table("request_ids", t.request_ids);
  if (t.stable_prefix) request.stablePrefix = addresses.table("stable_prefix", *t.stable_prefix);
  if (t.block_table) {
    request.blockTable = addresses.table("block_table", *t.block_table);
    request.blockRowStride = row_stride(*t.block_table);
    request.blocks = static_cast<uint64_t>(t.block_table->size(1));
    request.blockSize = static_cast<uint64_t>(t.block_size);
  }
  return request;
}

}  // namespace

void plan_residency_npu(const ResidencyTensors& t) {
  const c10::Device device = device_of(t);
  const c10_npu::NPUGuard guard(device);
  const npu::NpuPlacement placement(device);
  check_plan_residency(t, placement, BucketsOf::DEVICE);
  check_count_holds_entries(t);
  tiling::Request request = request_of(t, Addresses(placement));

  const npu::Runtime& runtime = npu::runtime_of(device.index());
  const uint64_t room = tiling::BufferBytes(request.topK, request.slotCount);
  TORCH_CHECK_VALUE(room <= runtime.limits.ub_bytes,
                    "plan_residency: expected a request to fit into the unified buffer of one core, ",
                    runtime.limits.ub_bytes, " bytes on ", device, ", got ", request.topK, " tokens and ",
                    request.slotCount, " slots, which take ", room);
  const c10_npu::NPUStream stream = c10_npu::getCurrentNPUStream(device.index());
  const aclrtStream handle = stream.stream(false);  // the task queue goes on: what it holds comes before this call
  request.statusAddress = npu::status_address(device.index(), runtime.limits.cores, handle);
  // Scratch of this call, in the stream's order like any tensor; a captured graph keeps its own.
  const at::Tensor scratch = at::empty({static_cast<int64_t>(tiling::ScratchBytes(request.requests, request.topK))},
                                       at::TensorOptions().device(device).dtype(at::kByte));
  request.scratch = reinterpret_cast<uint64_t>(scratch.mutable_data_ptr());

  auto launches = std::make_shared<tiling::Launches>();
  const bool fits = tiling::Tile(
      request, {npu::usable_cores(runtime.limits, handle, std::nullopt), runtime.limits.ub_bytes}, *launches);
  TORCH_INTERNAL_ASSERT(fits);
  at_npu::native::OpCommand::RunOpApiV2(kOperator, [launches, handle, &runtime]() -> int {  // a runtime is for ever
    if (launches->plan.blockDim != 0) {
      if (const int code = npu::launch_kernel(runtime.plan_residency, launches->plan, handle)) return code;
    }
    return npu::launch_kernel(runtime.plan_residency_list, launches->list, handle);
  });
  for_each_tensor(t, [&](const at::Tensor& tensor) { npu::record_host_memory(tensor, stream); });
}

}  // namespace torch_offload
