// SPDX-License-Identifier: Apache-2.0
#include "npu/kernel_binary.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <filesystem>
#include <utility>

namespace torch_offload::npu {
namespace {

namespace fs = std::filesystem;

constexpr const char* kVariable = "TORCH_OFFLOAD_NPU_KERNEL";
constexpr const char* kRemedy =
    "; run 'python -m torch_offload.build_kernel' where CANN's compiler is found (source set_env.sh before), or let "
    "TORCH_OFFLOAD_NPU_KERNEL name the file";

// Written once, while the module is imported.
std::vector<std::string> kernel_folders;
std::string kernel_sources;

std::string name_of(const std::string& target) { return "kernels-" + target + "-" + kernel_sources + ".o"; }

// What there is instead of the file that is missing, for the message.
std::string found_instead() {
  std::string names;
  for (const std::string& folder : kernel_folders) {
    std::error_code ignored;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
      const std::string name = entry.path().filename();
      if (name.rfind("kernels-", 0) != 0 || entry.path().extension() != ".o") continue;
      names += (names.empty() ? "" : ", ") + name;
    }
  }
  return names.empty() ? "none" : names + " (for other chips or of other sources)";
}

void check_found(const std::string& path, const DeviceLimits& chip) {
  if (!path.empty()) {  // named by the variable, or seen a moment ago
    TORCH_CHECK(fs::is_regular_file(path), "torch_offload: expected the compiled device kernels in ", path,
                ", got no such file", kRemedy);
    const std::string name = fs::path(path).filename();
    TORCH_CHECK(name.rfind("kernels-dav-", 0) != 0 || name.rfind("kernels-" + chip.target + "-", 0) == 0,
                "torch_offload: expected device kernels for ", chip.soc, " (", chip.target, "), got ", path,
                ", built for another chip", kRemedy);
    return;
  }
  std::string folders;
  for (const std::string& folder : kernel_folders) folders += (folders.empty() ? "" : " or ") + folder;
  TORCH_CHECK(false, "torch_offload: expected device kernels for ", chip.soc, ", ", name_of(chip.target), " in ",
              folders, ", got ", found_instead(), kRemedy);
}

}  // namespace

void use_kernels(std::vector<std::string> folders, std::string source_id) {
  kernel_folders = std::move(folders);
  kernel_sources = std::move(source_id);
}

std::string kernel_file(const std::string& target) {
  const char* named = std::getenv(kVariable);
  if (named != nullptr && *named != '\0') return named;
  for (const std::string& folder : kernel_folders) {
    const fs::path path = fs::path(folder) / name_of(target);
    if (fs::is_regular_file(path)) return path;
  }
  return "";
}

aclrtBinHandle load_kernels(const DeviceLimits& chip) {
  const std::string path = kernel_file(chip.target);
  check_found(path, chip);
  const auto load_file = OFFLOAD_ACL_REQUIRED(aclrtBinaryLoadFromFile);
  aclrtBinaryLoadOption option{};
  option.type = ACL_RT_BINARY_LOAD_OPT_MAGIC;
  option.value.magic = ACL_RT_BINARY_MAGIC_ELF_VECTOR_CORE;
  aclrtBinaryLoadOptions options{&option, 1};
  aclrtBinHandle kernels = nullptr;
  const aclError code = load_file(path.c_str(), &options, &kernels);
  TORCH_CHECK(code == ACL_SUCCESS, "aclrtBinaryLoadFromFile: expected ", path, " to load on ", chip.soc, " (",
              chip.target, "), got code ", code, ": ", recent_acl_message(), kRemedy);
  return kernels;
}

aclrtFuncHandle kernel_function(aclrtBinHandle kernels, const char* name) {
  const auto get_function = OFFLOAD_ACL_REQUIRED(aclrtBinaryGetFunction);
  aclrtFuncHandle function = nullptr;
  check_acl("aclrtBinaryGetFunction", get_function(kernels, name, &function));
  return function;
}

}  // namespace torch_offload::npu
