// SPDX-License-Identifier: Apache-2.0
#include "kernel.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstring>

namespace sim {
namespace {

constexpr uint32_t kMaxBlocks = 65535;
// What the launch paths of real runtimes take without falling back to something slow (the smaller of them).
constexpr size_t kMaxArgumentBytes = 43584;

aclError checkLaunch(const Function& function, uint32_t blocks, const aclrtLaunchKernelCfg* cfg, size_t bytes) {
  SIM_REQUIRE(blocks >= 1 && blocks <= kMaxBlocks, "launch of %s: %u blocks", function.name.c_str(), blocks);
  SIM_REQUIRE(bytes <= kMaxArgumentBytes, "launch of %s: %zu bytes of arguments, at most %zu", function.name.c_str(),
              bytes, kMaxArgumentBytes);
  for (size_t i = 0; cfg && i < cfg->numAttrs; i++) {
    int id = cfg->attrs[i].id;
    SIM_REQUIRE(id >= ACL_RT_LAUNCH_KERNEL_ATTR_SCHEM_MODE && id <= ACL_RT_LAUNCH_KERNEL_ATTR_TIMEOUT_US,
                "launch of %s: attribute %d", function.name.c_str(), id);
  }
  counter("kernel." + function.name + ".launches")++;
  return ACL_SUCCESS;
}

aclError run(const FunctionPtr& function, uint32_t blocks, std::vector<char> block) {
  counter("kernel." + function->name + ".runs")++;
  aclError code = injectedFault("kernel");
  if (aclError named = injectedFault(("kernel." + function->name).c_str())) code = named;
  if (code) return fail(code, "kernel %s: injected fault", function->name.c_str());
  function->entry(block.data(), static_cast<uint32_t>(block.size()), blocks);
  return ACL_SUCCESS;
}

}  // namespace

Binary::~Binary() {
  dlclose(library);
  if (fd >= 0) close(fd);
}

aclError launch(const FunctionPtr& function, uint32_t blocks, const StreamPtr& stream, const aclrtLaunchKernelCfg* cfg,
                Arguments arguments) {
  size_t bytes = arguments.block.size();
  for (auto& holder : arguments.placeHolders) bytes += holder.data.size();
  if (aclError error = checkLaunch(*function, blocks, cfg, bytes)) return error;
  // The data of placeholders lives in device memory for as long as the launch can run: in a graph, as that.
  std::vector<std::shared_ptr<ArgumentBuffer>> buffers;
  for (auto& holder : arguments.placeHolders) {
    auto buffer = std::make_shared<ArgumentBuffer>(holder.data.data(), holder.data.size());
    char* address = buffer->address();
    if (!address) return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "launch of %s: no memory", function->name.c_str());
    memcpy(arguments.block.data() + holder.address, &address, sizeof address);
    buffers.push_back(std::move(buffer));
  }
  return submit(stream, {"kernel " + function->name, [function, blocks, buffers, block = std::move(arguments.block)] {
                           return run(function, blocks, block);
                         }});
}

aclError launchFromDevice(const FunctionPtr& function, uint32_t blocks, const StreamPtr& stream,
                          const aclrtLaunchKernelCfg* cfg, const void* block, size_t size) {
  if (aclError error = checkLaunch(*function, blocks, cfg, size)) return error;
  return submit(stream, {"kernel " + function->name, [=]() -> aclError {
                           const char* view = Memory::get().translate(block, size, false);
                           SIM_REQUIRE(view, "arguments of %s: %s", function->name.c_str(),
                                       Memory::get().describe(block, size).c_str());
                           return run(function, blocks, std::vector<char>(view, view + size));
                         }});
}

}  // namespace sim
