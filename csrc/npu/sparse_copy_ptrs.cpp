// SPDX-License-Identifier: Apache-2.0
//
// sparse_copy_ptrs on NPU tensors: two launches on the current stream, the copy and the sum of what its cores have
// seen. Nothing here synchronises, and neither tables nor count are read by the host.
#include <torch_npu/csrc/core/npu/NPUGuard.h>
#include <torch_npu/csrc/core/npu/NPUStream.h>
#include <torch_npu/csrc/framework/OpCommand.h>

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

constexpr const char* kOperator = "offload::sparse_copy_ptrs";  // in profiles and in torch_npu's messages

// Host memory is not for the tables: a graph that is traced could not tell whether the device reaches it.
class OneDevice final : public Placement {
 public:
  explicit OneDevice(c10::Device device) : Placement(device.type()), device_(device), npu_(device) {}

  void check_device(const ArgName& arg, const at::Tensor& tensor) const override {
    TORCH_CHECK_VALUE(tensor.device() == device_, arg, " to be on ", device_, " like status, got ", tensor.device());
    npu_.check_device(arg, tensor);
  }

 private:
  c10::Device device_;
  npu::NpuPlacement npu_;
};

struct Launches {
  tiling::Launch copy;  // without cores if there is nothing to copy
  tiling::Launch status;
};

}  // namespace

void sparse_copy_ptrs_npu(const at::Tensor& src_ptrs, const at::Tensor& dst_ptrs, const at::Tensor& lengths,
                          const at::Tensor& count, at::Tensor& status, std::optional<int64_t> cores) {
  check_cores("sparse_copy_ptrs", cores);
  const c10::Device device = status.device();
  const OneDevice placement(device);
  check_sparse_copy_ptrs(src_ptrs, dst_ptrs, lengths, count, status, placement);

  const c10_npu::NPUGuard guard(device);
  const uintptr_t status_address = placement.address({"sparse_copy_ptrs", "status"}, status, true);
  tiling::PointerRequest request;
  request.entryCount = static_cast<uint64_t>(src_ptrs.size(0));
  request.srcPointers = npu::table_of(index_view({"sparse_copy_ptrs", "src_ptrs"}, src_ptrs, placement));
  request.dstPointers = npu::table_of(index_view({"sparse_copy_ptrs", "dst_ptrs"}, dst_ptrs, placement));
  request.lengths = npu::table_of(index_view({"sparse_copy_ptrs", "lengths"}, lengths, placement));
  request.countAddress = placement.address({"sparse_copy_ptrs", "count"}, count, false);
  request.countBytes = static_cast<uint32_t>(count.itemsize());

  const npu::Runtime& runtime = npu::runtime_of(device.index());
  // Without a wait for the task queue: what it holds comes before this call.
  const aclrtStream handle = c10_npu::getCurrentNPUStream(device.index()).stream(false);
  request.recordsAddress = npu::scratch_address(device.index(), runtime.limits.cores, handle);
  const tiling::Platform platform{npu::usable_cores(runtime.limits, handle, cores), runtime.limits.ub_bytes};

  auto launches = std::make_shared<Launches>();
  const tiling::Result result = tiling::TilePointers(request, platform, launches->copy);
  TORCH_CHECK(result == tiling::Result::LAUNCH || result == tiling::Result::NOTHING_TO_DO,
              "sparse_copy_ptrs: expected a device with room for the tables in its unified buffer, got ",
              platform.coreCount, " cores of ", platform.ubBytes, " bytes");
  launches->status = tiling::TilePointerStatus({request.recordsAddress, launches->copy.blockDim, status_address,
                                                static_cast<uint64_t>(status.stride(0)) * sizeof(int64_t)});
  at_npu::native::OpCommand::RunOpApiV2(kOperator, [launches, handle, &runtime]() -> int {  // a runtime is for ever
    if (launches->copy.blockDim != 0) {
      if (const int code = npu::launch_kernel(runtime.sparse_copy_ptrs, launches->copy, handle)) return code;
    }
    return npu::launch_kernel(runtime.sparse_copy_ptrs_status, launches->status, handle);
  });
}

}  // namespace torch_offload
