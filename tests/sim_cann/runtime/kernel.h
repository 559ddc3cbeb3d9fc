// SPDX-License-Identifier: Apache-2.0
// Kernels. A "device binary" is a shared object built for the host; the kernel `name` is its symbol
// `name_sim`.
#pragma once
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "memory.h"
#include "stream.h"

namespace sim {

struct Binary {
  void* library;
  int fd;  // of aclrtBinaryLoadFromData: open as long as the binary, because dlopen knows it by its number
  ~Binary();
};

struct Function {
  std::shared_ptr<Binary> binary;
  std::string name;
  SimKernelEntry entry;
};
using FunctionPtr = std::shared_ptr<Function>;

// The parameters of a launch, and the data that some of them point to.
struct Arguments {
  struct PlaceHolder {
    size_t address;  // offset in `block` of the pointer
    std::vector<char> data;
  };
  std::vector<char> block;
  std::vector<PlaceHolder> placeHolders;
};

FunctionPtr findFunction(aclrtFuncHandle handle);

aclError launch(const FunctionPtr& function, uint32_t blocks, const StreamPtr& stream, const aclrtLaunchKernelCfg* cfg,
                Arguments arguments);
// Arguments in device memory, read when the kernel runs.
aclError launchFromDevice(const FunctionPtr& function, uint32_t blocks, const StreamPtr& stream,
                          const aclrtLaunchKernelCfg* cfg, const void* block, size_t size);

}  // namespace sim

#define SIM_REQUIRE_FUNCTION(function, handle)           \
  sim::FunctionPtr function = sim::findFunction(handle); \
  if (!function) return sim::fail(ACL_ERROR_RT_INVALID_HANDLE, "%s: %p is not a function", __func__, (void*)handle)
