// SPDX-License-Identifier: Apache-2.0
//
// sparse_copy on NPU tensors: tensors to launches on the current stream. Nothing here synchronises, and no value in
// device memory is read.
#include <torch_npu/csrc/core/npu/NPUGuard.h>
#include <torch_npu/csrc/core/npu/NPUStream.h>
#include <torch_npu/csrc/framework/OpCommand.h>

#include <algorithm>
#include <memory>

#include "npu/launch.h"
#include "npu/placement.h"
#include "npu/platform.h"
#include "npu/runtime.h"
#include "npu/status.h"
#include "npu/tables.h"
#include "ops.h"

namespace torch_offload {
namespace {

namespace tiling = sparse_copy_tiling;

constexpr const char* kOperator = "offload::sparse_copy";  // in profiles and in torch_npu's messages

template <typename Visit>
void for_each_tensor(at::TensorList dst, at::TensorList src, const OptionalTensor& dst_index,
                     const OptionalTensor& src_index, const OptionalTensor& count, const Visit& visit) {
  for (const at::Tensor& tensor : dst) visit(tensor);
  for (const at::Tensor& tensor : src) visit(tensor);
  for (const OptionalTensor* tensor : {&dst_index, &src_index, &count}) {
    if (*tensor) visit(**tensor);
  }
}

// The device of the first tensor that is on one; destinations come first. The dispatcher has seen at least one.
c10::Device device_of(at::TensorList dst, at::TensorList src, const OptionalTensor& dst_index,
                      const OptionalTensor& src_index, const OptionalTensor& count) {
  std::optional<c10::Device> device;
  for_each_tensor(dst, src, dst_index, src_index, count, [&](const at::Tensor& tensor) {
    if (!device && tensor.device().is_privateuseone()) device = tensor.device();
  });
  TORCH_INTERNAL_ASSERT(device);
  return *device;
}

// Components [first, first + count) of the call. Row numbers are limited by the least rows of the whole call.
std::vector<tiling::Component> components_of(const SparseCopyParams& params, int64_t first, int64_t count) {
  std::vector<tiling::Component> components;
  components.reserve(static_cast<size_t>(count));
  for (int64_t c = first; c < first + count; ++c) {
    const Component& component = params.components[c];
    components.push_back({reinterpret_cast<uint64_t>(component.src), reinterpret_cast<uint64_t>(component.dst),
                          static_cast<uint64_t>(component.src_stride), static_cast<uint64_t>(component.dst_stride),
                          static_cast<uint64_t>(params.src_rows), static_cast<uint64_t>(params.dst_rows),
                          static_cast<uint64_t>(component.row_bytes)});
  }
  return components;
}

}  // namespace

void sparse_copy_npu(at::TensorList dst, at::TensorList src, const OptionalTensor& dst_index,
                     const OptionalTensor& src_index, const OptionalTensor& count, const CallLimits& limits) {
  const c10::Device device = device_of(dst, src, dst_index, src_index, count);
  const c10_npu::NPUGuard guard(device);
  const npu::NpuPlacement placement(device);
  const bool one_by_one = check_sparse_copy(dst, src, dst_index, src_index, count, placement, limits);
  const SparseCopyArgs args(dst, src, dst_index, src_index, placement, limits);
  const SparseCopyParams& params = args.params;

  tiling::Request request;
  request.entryCount = static_cast<uint64_t>(params.n);
  request.srcIndex = npu::table_of(params.src_index);
  request.dstIndex = npu::table_of(params.dst_index);
  if (count) {
    request.countAddress = placement.address({"sparse_copy", "count"}, *count, false);
    request.countBytes = static_cast<uint32_t>(count->itemsize());
  }
  if (params.n == 0) return;

  const npu::Runtime& runtime = npu::runtime_of(device.index());
  const c10_npu::NPUStream stream = c10_npu::getCurrentNPUStream(device.index());
  const aclrtStream handle = stream.stream(false);  // the task queue goes on: what it holds comes before this call
  request.statusAddress = npu::status_address(device.index(), runtime.limits.cores, handle);
  const tiling::Platform platform{npu::usable_cores(runtime.limits, handle, limits.cores), runtime.limits.ub_bytes};

  // Destinations that share bytes are written one after another, so that the last component wins.
  const int64_t per_launch = one_by_one ? 1 : SPARSE_COPY_MAX_COMPONENTS;
  for (int64_t first = 0; first < params.num_components; first += per_launch) {
    request.components = components_of(params, first, std::min(per_launch, params.num_components - first));
    auto launch = std::make_shared<tiling::Launch>();
    const tiling::Result result = tiling::Tile(request, platform, *launch);
    if (result == tiling::Result::NOTHING_TO_DO) continue;
    TORCH_CHECK(result == tiling::Result::LAUNCH, "sparse_copy: expected a device with ", SPARSE_COPY_MAX_COMPONENTS,
                " components' room in its unified buffer, got ", platform.coreCount, " cores of ", platform.ubBytes,
                " bytes");
    at_npu::native::OpCommand::RunOpApiV2(kOperator, [launch, handle, function = runtime.sparse_copy]() -> int {
      return npu::launch_kernel(function, *launch, handle);
    });
    request.statusAddress = 0;  // an entry counts once, however many launches the components take
  }
  for_each_tensor(dst, src, dst_index, src_index, count,
                  [&](const at::Tensor& tensor) { npu::record_host_memory(tensor, stream); });
}

}  // namespace torch_offload
