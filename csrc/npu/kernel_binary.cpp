// SPDX-License-Identifier: Apache-2.0
#include "npu/kernel_binary.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

namespace torch_offload::npu {
namespace {

constexpr const char* kVariable = "TORCH_OFFLOAD_NPU_KERNEL";
constexpr const char* kRemedy =
    "; reinstall torch_offload where CANN's compiler is found (source set_env.sh, then pip install "
    "--no-build-isolation --force-reinstall --no-deps torch_offload), or let TORCH_OFFLOAD_NPU_KERNEL name the file";

}  // namespace

std::string kernel_file() {
  const char* named = std::getenv(kVariable);
  if (named != nullptr && *named != '\0') return named;
  Dl_info info{};
  dladdr(reinterpret_cast<void*>(&kernel_file), &info);
  return std::filesystem::path(info.dli_fname).parent_path() / "npu" / "kernels.o";
}

aclrtBinHandle load_kernels() {
  const std::string path = kernel_file();
  TORCH_CHECK(std::filesystem::is_regular_file(path), "torch_offload: expected the compiled device kernels in ", path,
              ", got no such file", kRemedy);
  const auto load_file = OFFLOAD_ACL_REQUIRED(aclrtBinaryLoadFromFile);
  aclrtBinaryLoadOption option{};
  option.type = ACL_RT_BINARY_LOAD_OPT_MAGIC;
  option.value.magic = ACL_RT_BINARY_MAGIC_ELF_VECTOR_CORE;
  aclrtBinaryLoadOptions options{&option, 1};
  aclrtBinHandle kernels = nullptr;
  const aclError code = load_file(path.c_str(), &options, &kernels);
  TORCH_CHECK(code == ACL_SUCCESS, "aclrtBinaryLoadFromFile: expected ", path, " to load, got code ", code, ": ",
              recent_acl_message(), kRemedy);
  return kernels;
}

aclrtFuncHandle kernel_function(aclrtBinHandle kernels, const char* name) {
  const auto get_function = OFFLOAD_ACL_REQUIRED(aclrtBinaryGetFunction);
  aclrtFuncHandle function = nullptr;
  check_acl("aclrtBinaryGetFunction", get_function(kernels, name, &function));
  return function;
}

}  // namespace torch_offload::npu
