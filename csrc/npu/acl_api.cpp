// SPDX-License-Identifier: Apache-2.0
#include "npu/acl_api.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <torch_npu/csrc/core/npu/sys_ctrl/npu_sys_ctrl.h>

#include <cstdio>

namespace torch_offload::npu {
namespace {

constexpr int kOldestMajor = 8;
constexpr int kOldestMinor = 1;

constexpr const char* kHowToUpdate =
    "; install CANN 8.1 or newer with the driver that belongs to it, and source its set_env.sh before Python starts";

}  // namespace

std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

std::string recent_acl_message() {
  const char* message = aclGetRecentErrMsg();
  return message == nullptr || *message == '\0' ? "no details" : message;
}

void check_acl(const char* call, aclError code) {
  TORCH_CHECK(code == ACL_SUCCESS, call, ": expected success, got code ", code, ": ", recent_acl_message());
}

void* find_acl_function(const char* name) {
  // torch_npu has loaded the library; its soname is the same in every CANN.
  static void* const library = dlopen("libascendcl.so", RTLD_LAZY | RTLD_NOLOAD);
  return dlsym(library != nullptr ? library : RTLD_DEFAULT, name);
}

void throw_missing_function(const char* name) {
  TORCH_CHECK(false, "torch_offload: expected a CANN with ", name, ", got CANN ", cann_version(), kHowToUpdate);
}

// aclsysGetVersionStr, its successor, is too young.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
std::string cann_version() {
  const auto get_version = OFFLOAD_ACL_OPTIONAL(aclsysGetCANNVersion);
  aclCANNPackageVersion version{};
  if (get_version == nullptr || get_version(ACL_PKG_NAME_CANN, &version) != ACL_SUCCESS) return "";
  return version.version;
}
#pragma GCC diagnostic pop

void check_cann_version() {
  const std::string version = cann_version();
  int major = 0;
  int minor = 0;
  if (std::sscanf(version.c_str(), "%d.%d", &major, &minor) < 1) return;  // unknown: what is missing will say so
  TORCH_CHECK(major > kOldestMajor || (major == kOldestMajor && minor >= kOldestMinor), "torch_offload: expected CANN ",
              kOldestMajor, '.', kOldestMinor, " or newer, got CANN ", version, kHowToUpdate);
}

aclmdlRI captured_graph(aclrtStream stream) {
  const auto get_info = OFFLOAD_ACL_OPTIONAL(aclmdlRICaptureGetInfo);
  if (get_info == nullptr) return nullptr;
  aclmdlRICaptureStatus status = ACL_MODEL_RI_CAPTURE_STATUS_NONE;
  aclmdlRI graph = nullptr;
  check_acl("aclmdlRICaptureGetInfo", get_info(stream, &status, &graph));
  return status == ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE ? graph : nullptr;
}

bool runtime_is_up() { return c10_npu::NpuSysCtrl::GetInstance().GetInitFlag(); }

RelaxedCapture::RelaxedCapture() : mode_(ACL_MODEL_RI_CAPTURE_MODE_RELAXED) {
  if (const auto exchange = OFFLOAD_ACL_OPTIONAL(aclmdlRICaptureThreadExchangeMode)) {
    check_acl("aclmdlRICaptureThreadExchangeMode", exchange(&mode_));
  }
}

RelaxedCapture::~RelaxedCapture() {
  if (const auto exchange = OFFLOAD_ACL_OPTIONAL(aclmdlRICaptureThreadExchangeMode)) exchange(&mode_);
}

}  // namespace torch_offload::npu
