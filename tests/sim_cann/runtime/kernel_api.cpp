// SPDX-License-Identifier: Apache-2.0
// Loading binaries, arguments, launches.
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>

#include "device.h"
#include "kernel.h"

namespace sim {
namespace {

// An argument block that is being built with aclrtKernelArgs*.
struct ArgsHandle {
  FunctionPtr function;
  Arguments arguments;
  std::vector<std::pair<size_t, size_t>> parameters;  // offset and size, by parameter handle - 1
  bool final = false;
};

// The API has no call that frees an argument handle: the latest ones of the process stay valid.
constexpr size_t kKeptArgsHandles = 4096;

struct Kernels {
  std::mutex mutex;
  std::map<void*, std::shared_ptr<Binary>> binaries;
  std::map<void*, FunctionPtr> functions;
  std::deque<std::shared_ptr<ArgsHandle>> argsHandles;
};
Kernels& kernels() {
  static auto* instance = new Kernels;
  return *instance;
}

aclError load(const char* path, int fd, aclrtBinHandle* handle) {
  // Kernels find simTranslate and the like without being linked to this library, whatever loaded it.
  static void* self = [] {
    Dl_info info;
    bool known = dladdr(reinterpret_cast<void*>(&simTranslate), &info) && info.dli_fname;
    return known ? dlopen(info.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD) : nullptr;
  }();
  (void)self;
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const bool readable = access(path, R_OK) == 0;
    if (fd >= 0) close(fd);
    return fail(readable ? ACL_ERROR_RT_PARAM_INVALID : ACL_ERROR_RT_FILE_OPEN,
                "not a kernel that was built for the simulator: %s", dlerror());
  }
  auto binary = std::shared_ptr<Binary>(new Binary{library, fd});
  std::lock_guard guard(kernels().mutex);
  kernels().binaries[binary.get()] = binary;
  *handle = binary.get();
  return ACL_SUCCESS;
}

std::shared_ptr<Binary> findBinary(aclrtBinHandle handle) {
  std::lock_guard guard(kernels().mutex);
  auto it = kernels().binaries.find(handle);
  return it == kernels().binaries.end() ? nullptr : it->second;
}

std::shared_ptr<ArgsHandle> findArgs(aclrtArgsHandle handle) {
  std::lock_guard guard(kernels().mutex);
  for (auto it = kernels().argsHandles.rbegin(); it != kernels().argsHandles.rend(); ++it)
    if (it->get() == handle) return *it;
  return nullptr;
}

size_t append(ArgsHandle& args, const void* data, size_t size) {
  constexpr size_t kAlignment = 8;
  auto& block = args.arguments.block;
  size_t offset = roundUp(block.size(), kAlignment);
  block.resize(offset + size);
  if (data) memcpy(block.data() + offset, data, size);
  args.parameters.emplace_back(offset, size);
  return args.parameters.size();
}

// A parameter handle is the position of the parameter, from 1.
aclrtParamHandle paramHandle(size_t position) { return reinterpret_cast<void*>(position); }

}  // namespace

FunctionPtr findFunction(aclrtFuncHandle handle) {
  std::lock_guard guard(kernels().mutex);
  auto it = kernels().functions.find(handle);
  return it == kernels().functions.end() ? nullptr : it->second;
}

}  // namespace sim
using namespace sim;

#define SIM_REQUIRE_ARGS(args, handle)                 \
  std::shared_ptr<ArgsHandle> args = findArgs(handle); \
  if (!args) return fail(ACL_ERROR_RT_INVALID_HANDLE, "%s: %p is not an argument handle", __func__, (void*)handle)

SIM_EXPORT aclError aclrtBinaryLoadFromFile(const char* path, aclrtBinaryLoadOptions*, aclrtBinHandle* handle) {
  SIM_CALL("%s", path ? path : "null");
  SIM_REQUIRE(path && handle, "aclrtBinaryLoadFromFile: null");
  return load(path, -1, handle);
}

SIM_EXPORT aclError aclrtBinaryLoadFromData(const void* data, size_t size, const aclrtBinaryLoadOptions*,
                                            aclrtBinHandle* handle) {
  SIM_CALL("%zu", size);
  SIM_REQUIRE(data && size && handle, "aclrtBinaryLoadFromData of %zu bytes", size);
  int fd = memfd_create("sim_kernel", MFD_CLOEXEC);
  if (fd < 0 || write(fd, data, size) != static_cast<ssize_t>(size)) {
    if (fd >= 0) close(fd);
    return fail(ACL_ERROR_RT_FILE_WRITE, "aclrtBinaryLoadFromData: no memory for %zu bytes", size);
  }
  return load(("/proc/self/fd/" + std::to_string(fd)).c_str(), fd, handle);
}

// Launches that are queued or captured keep the code.
SIM_EXPORT aclError aclrtBinaryUnLoad(aclrtBinHandle handle) {
  SIM_CALL("%p", handle);
  std::shared_ptr<Binary> binary = findBinary(handle);
  if (!binary) return fail(ACL_ERROR_RT_INVALID_HANDLE, "aclrtBinaryUnLoad: %p is not a binary", handle);
  std::lock_guard guard(kernels().mutex);
  for (auto it = kernels().functions.begin(); it != kernels().functions.end();)
    it = it->second->binary == binary ? kernels().functions.erase(it) : std::next(it);
  std::erase_if(kernels().argsHandles, [&](auto& args) { return args->function->binary == binary; });
  kernels().binaries.erase(handle);
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtBinaryGetFunction(const aclrtBinHandle handle, const char* name, aclrtFuncHandle* out) {
  SIM_CALL("%s", name ? name : "null");
  std::shared_ptr<Binary> binary = findBinary(handle);
  if (!binary) return fail(ACL_ERROR_RT_INVALID_HANDLE, "aclrtBinaryGetFunction: %p is not a binary", handle);
  SIM_REQUIRE(name && out, "aclrtBinaryGetFunction: null");
  auto entry = reinterpret_cast<SimKernelEntry>(dlsym(binary->library, (std::string(name) + "_sim").c_str()));
  if (!entry) return fail(ACL_ERROR_RT_KERNEL_LOOKUP, "there is no kernel \"%s\" (symbol %s_sim)", name, name);
  std::lock_guard guard(kernels().mutex);
  for (auto& [known, function] : kernels().functions) {
    if (function->binary != binary || function->name != name) continue;
    *out = known;
    return ACL_SUCCESS;
  }
  auto function = std::make_shared<Function>(Function{binary, name, entry});
  kernels().functions[function.get()] = function;
  *out = function.get();
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtGetFunctionName(aclrtFuncHandle handle, uint32_t size, char* name) {
  SIM_CALL("%p", handle);
  SIM_REQUIRE_FUNCTION(function, handle);
  SIM_REQUIRE(name && size > function->name.size(), "aclrtGetFunctionName: %u bytes are too few", size);
  copyText(function->name, name, size);
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtGetFunctionAddr(aclrtFuncHandle, void**, void**) { SIM_NOT_SIMULATED(); }

// ---- argument handles
SIM_EXPORT aclError aclrtKernelArgsInit(aclrtFuncHandle handle, aclrtArgsHandle* out) {
  SIM_CALL("%p", handle);
  SIM_REQUIRE_FUNCTION(function, handle);
  SIM_REQUIRE(out, "aclrtKernelArgsInit: null");
  auto args = std::make_shared<ArgsHandle>();
  args->function = function;
  std::lock_guard guard(kernels().mutex);
  kernels().argsHandles.push_back(args);
  if (kernels().argsHandles.size() > kKeptArgsHandles) kernels().argsHandles.pop_front();
  *out = args.get();
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtKernelArgsAppend(aclrtArgsHandle handle, void* data, size_t size, aclrtParamHandle* out) {
  SIM_CALL("%p, %zu", handle, size);
  SIM_REQUIRE_ARGS(args, handle);
  SIM_REQUIRE(data && size && out && !args->final, "aclrtKernelArgsAppend of %zu bytes", size);
  *out = paramHandle(append(*args, data, size));
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtKernelArgsAppendPlaceHolder(aclrtArgsHandle handle, aclrtParamHandle* out) {
  SIM_CALL("%p", handle);
  SIM_REQUIRE_ARGS(args, handle);
  SIM_REQUIRE(out && !args->final, "aclrtKernelArgsAppendPlaceHolder");
  *out = paramHandle(append(*args, nullptr, sizeof(void*)));
  return ACL_SUCCESS;
}

// The buffer stays where it is until the handle goes; the launch copies it.
SIM_EXPORT aclError aclrtKernelArgsGetPlaceHolderBuffer(aclrtArgsHandle handle, aclrtParamHandle parameter, size_t size,
                                                        void** buffer) {
  SIM_CALL("%p, %zu", handle, size);
  SIM_REQUIRE_ARGS(args, handle);
  auto position = reinterpret_cast<size_t>(parameter);
  SIM_REQUIRE(buffer && size && position >= 1 && position <= args->parameters.size() && !args->final,
              "aclrtKernelArgsGetPlaceHolderBuffer of %zu bytes", size);
  auto& holders = args->arguments.placeHolders;
  const size_t address = args->parameters[position - 1].first;
  for (auto& holder : holders) SIM_REQUIRE(holder.address != address, "the placeholder has a buffer already");
  holders.push_back({address, std::vector<char>(size)});
  *buffer = holders.back().data.data();
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtKernelArgsParaUpdate(aclrtArgsHandle handle, aclrtParamHandle parameter, void* data,
                                              size_t size) {
  SIM_CALL("%p, %zu", handle, size);
  SIM_REQUIRE_ARGS(args, handle);
  auto position = reinterpret_cast<size_t>(parameter);
  SIM_REQUIRE(
      data && position >= 1 && position <= args->parameters.size() && args->parameters[position - 1].second == size,
      "aclrtKernelArgsParaUpdate of %zu bytes", size);
  memcpy(args->arguments.block.data() + args->parameters[position - 1].first, data, size);
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtKernelArgsFinalize(aclrtArgsHandle handle) {
  SIM_CALL("%p", handle);
  SIM_REQUIRE_ARGS(args, handle);
  args->final = true;
  return ACL_SUCCESS;
}

// ---- launches. Host arguments are copied before the call returns.
SIM_EXPORT aclError aclrtLaunchKernelWithConfig(aclrtFuncHandle handle, uint32_t blocks, aclrtStream streamHandle,
                                                aclrtLaunchKernelCfg* cfg, aclrtArgsHandle argsHandle, void* reserve) {
  SIM_CALL("%p, %u", handle, blocks);
  SIM_REQUIRE_FUNCTION(function, handle);
  SIM_REQUIRE_STREAM(stream, streamHandle);
  SIM_REQUIRE_ARGS(args, argsHandle);
  SIM_REQUIRE(args->final && args->function == function && !reserve,
              "aclrtLaunchKernelWithConfig: arguments of another function, or not finalized");
  return launch(function, blocks, stream, cfg, args->arguments);
}

SIM_EXPORT aclError aclrtLaunchKernelWithHostArgs(aclrtFuncHandle handle, uint32_t blocks, aclrtStream streamHandle,
                                                  aclrtLaunchKernelCfg* cfg, void* hostArgs, size_t size,
                                                  aclrtPlaceHolderInfo* placeHolders, size_t placeHolderCount) {
  SIM_CALL("%p, %u, %p, %zu, %zu", handle, blocks, streamHandle, size, placeHolderCount);
  SIM_REQUIRE_FUNCTION(function, handle);
  SIM_REQUIRE_STREAM(stream, streamHandle);
  SIM_REQUIRE((hostArgs || !size) && (placeHolders || !placeHolderCount), "aclrtLaunchKernelWithHostArgs: null");
  Arguments arguments;
  auto* bytes = static_cast<char*>(hostArgs);
  arguments.block.assign(bytes, bytes + size);
  for (size_t i = 0; i < placeHolderCount; i++) {
    auto [address, data] = placeHolders[i];
    SIM_REQUIRE(data < size && address <= size - sizeof(void*), "placeholder %zu: offsets %u, %u of %zu bytes", i,
                address, data, size);
    // The data of a placeholder ends where that of the next one begins.
    size_t end = size;
    for (size_t j = 0; j < placeHolderCount; j++)
      if (placeHolders[j].dataOffset > data) end = std::min<size_t>(end, placeHolders[j].dataOffset);
    arguments.placeHolders.push_back({address, std::vector<char>(bytes + data, bytes + end)});
  }
  return launch(function, blocks, stream, cfg, std::move(arguments));
}

SIM_EXPORT aclError aclrtLaunchKernel(aclrtFuncHandle handle, uint32_t blocks, const void* deviceArgs, size_t size,
                                      aclrtStream streamHandle) {
  SIM_CALL("%p, %u", handle, blocks);
  SIM_REQUIRE_FUNCTION(function, handle);
  SIM_REQUIRE_STREAM(stream, streamHandle);
  return launchFromDevice(function, blocks, stream, nullptr, deviceArgs, size);
}

SIM_EXPORT aclError aclrtLaunchKernelV2(aclrtFuncHandle handle, uint32_t blocks, const void* deviceArgs, size_t size,
                                        aclrtLaunchKernelCfg* cfg, aclrtStream streamHandle) {
  SIM_CALL("%p, %u", handle, blocks);
  SIM_REQUIRE_FUNCTION(function, handle);
  SIM_REQUIRE_STREAM(stream, streamHandle);
  return launchFromDevice(function, blocks, stream, cfg, deviceArgs, size);
}
