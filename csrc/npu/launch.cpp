// SPDX-License-Identifier: Apache-2.0
#include "npu/launch.h"

#include <c10/util/Exception.h>

#include <cstring>

namespace torch_offload::npu {
namespace {

using sparse_copy_tiling::Launch;

// torch_npu's error names the operator, but on its queue thread neither call nor code: a warning does.
aclError logged(const char* call, aclError code) {
  if (code != ACL_SUCCESS) {
    TORCH_WARN("torch_offload: ", call, ": expected success, got code ", code, ": ", recent_acl_message());
  }
  return code;
}

// CANN 8.5 and newer: parameters and what stands behind them in one block.
aclError launch_with_host_args(decltype(&aclrtLaunchKernelWithHostArgs) call, aclrtFuncHandle function,
                               const Launch& launch, aclrtStream stream) {
  aclrtPlaceHolderInfo placeholder{launch.placeholderAddressOffset, launch.placeholderDataOffset};
  auto* arguments = const_cast<uint64_t*>(launch.arguments.data());  // only read
  const size_t placeholders = launch.HasPlaceholder() ? 1 : 0;
  return logged("aclrtLaunchKernelWithHostArgs",
                call(function, launch.blockDim, stream, nullptr, arguments, launch.ArgumentBytes(),
                     placeholders != 0 ? &placeholder : nullptr, placeholders));
}

#define OFFLOAD_RETURN_IF_FAILS(function, ...) \
  if (const aclError code = logged(#function, OFFLOAD_ACL_OPTIONAL(function)(__VA_ARGS__))) return code

// CANN 8.1 to 8.4: parameter after parameter into a handle, which the runtime owns.
aclError launch_with_handle(aclrtFuncHandle function, const Launch& launch, aclrtStream stream) {
  aclrtArgsHandle handle = nullptr;
  aclrtParamHandle parameter = nullptr;
  aclrtParamHandle placeholder = nullptr;
  OFFLOAD_RETURN_IF_FAILS(aclrtKernelArgsInit, function, &handle);
  for (uint32_t offset = 0; offset < launch.placeholderDataOffset; offset += sizeof(uint64_t)) {
    if (offset == launch.placeholderAddressOffset) {
      OFFLOAD_RETURN_IF_FAILS(aclrtKernelArgsAppendPlaceHolder, handle, &placeholder);
    } else {
      auto* value = const_cast<uint64_t*>(&launch.arguments[offset / sizeof(uint64_t)]);  // only read
      OFFLOAD_RETURN_IF_FAILS(aclrtKernelArgsAppend, handle, value, sizeof(uint64_t), &parameter);
    }
  }
  if (launch.HasPlaceholder()) {
    const size_t bytes = launch.ArgumentBytes() - launch.placeholderDataOffset;
    void* data = nullptr;
    OFFLOAD_RETURN_IF_FAILS(aclrtKernelArgsGetPlaceHolderBuffer, handle, placeholder, bytes, &data);
    std::memcpy(data, &launch.arguments[launch.placeholderDataOffset / sizeof(uint64_t)], bytes);
  }
  OFFLOAD_RETURN_IF_FAILS(aclrtKernelArgsFinalize, handle);
  OFFLOAD_RETURN_IF_FAILS(aclrtLaunchKernelWithConfig, function, launch.blockDim, stream, nullptr, handle, nullptr);
  return ACL_SUCCESS;
}

}  // namespace

aclError launch_kernel(aclrtFuncHandle function, const Launch& launch, aclrtStream stream) noexcept {
  if (const auto call = OFFLOAD_ACL_OPTIONAL(aclrtLaunchKernelWithHostArgs)) {
    return launch_with_host_args(call, function, launch, stream);
  }
  return launch_with_handle(function, launch, stream);
}

void check_launch_calls() {
  if (OFFLOAD_ACL_OPTIONAL(aclrtLaunchKernelWithHostArgs) != nullptr) return;
  (void)OFFLOAD_ACL_REQUIRED(aclrtKernelArgsInit);
  (void)OFFLOAD_ACL_REQUIRED(aclrtKernelArgsAppend);
  (void)OFFLOAD_ACL_REQUIRED(aclrtKernelArgsAppendPlaceHolder);
  (void)OFFLOAD_ACL_REQUIRED(aclrtKernelArgsGetPlaceHolderBuffer);
  (void)OFFLOAD_ACL_REQUIRED(aclrtKernelArgsFinalize);
  (void)OFFLOAD_ACL_REQUIRED(aclrtLaunchKernelWithConfig);
}

}  // namespace torch_offload::npu
