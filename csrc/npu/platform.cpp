// SPDX-License-Identifier: Apache-2.0
#include "npu/platform.h"

#include <c10/util/Exception.h>
#include <torch_npu/csrc/core/npu/NPUStream.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace torch_offload::npu {
namespace {

// Chips whose vector cores have DataCopyPad, by the beginning of their name.
struct Family {
  std::string_view prefix;
  uint64_t ub_bytes;
  const char* target;
};
constexpr Family kFamilies[] = {
    {"Ascend910B", 192 << 10, "dav-2201"},    // Atlas A2
    {"Ascend910_93", 192 << 10, "dav-2201"},  // Atlas A3
    {"Ascend950", 248 << 10, "dav-3510"},     // Atlas A5
};

const Family& family_of(std::string_view soc) {
  for (const Family& family : kFamilies) {
    if (soc.substr(0, family.prefix.size()) == family.prefix) return family;
  }
  TORCH_CHECK(false, "torch_offload: expected an Atlas A2, A3 or A5 device (Ascend910B, Ascend910_93, Ascend950), got ",
              soc, "; keep the tensors on the CPU");
}

int64_t vector_cores(c10::DeviceIndex device) {
  int64_t cores = 0;
  if (const auto get_info = OFFLOAD_ACL_OPTIONAL(aclrtGetDeviceInfo)) {
    check_acl("aclrtGetDeviceInfo", get_info(static_cast<uint32_t>(device), ACL_DEV_ATTR_VECTOR_CORE_NUM, &cores));
  } else {
    const auto get_capability = OFFLOAD_ACL_REQUIRED(aclGetDeviceCapability);
    check_acl("aclGetDeviceCapability",
              get_capability(static_cast<uint32_t>(device), ACL_DEVICE_INFO_VECTOR_CORE_NUM, &cores));
  }
  TORCH_CHECK(cores > 0, "torch_offload: expected the runtime to tell the number of vector cores, got ", cores);
  return cores;
}

uint64_t ub_bytes(c10::DeviceIndex device, uint64_t known) {
  int64_t told = 0;
  const auto get_info = OFFLOAD_ACL_OPTIONAL(aclrtGetDeviceInfo);
  const bool tells = get_info != nullptr && get_info(static_cast<uint32_t>(device), ACL_DEV_ATTR_UBUF_PER_VECTOR_CORE,
                                                     &told) == ACL_SUCCESS;  // runtimes before 8.5 do not know it
  return tells && told > 0 ? std::min(known, static_cast<uint64_t>(told)) : known;
}

uint32_t core_limit() {
  const char* text = std::getenv("TORCH_OFFLOAD_NPU_CORES");
  if (text == nullptr || *text == '\0') return UINT32_MAX;
  char* end = nullptr;
  const long long value = std::strtoll(text, &end, 10);
  TORCH_CHECK_VALUE(*end == '\0' && value >= 1 && value <= INT32_MAX,
                    "TORCH_OFFLOAD_NPU_CORES: expected a number of cores from 1, got '", text, "'");
  return static_cast<uint32_t>(value);
}

}  // namespace

DeviceLimits device_limits(c10::DeviceIndex device) {
  const char* name = aclrtGetSocName();
  const std::string soc = name == nullptr ? "an unknown chip" : name;
  const Family& family = family_of(soc);
  return {static_cast<uint32_t>(vector_cores(device)), ub_bytes(device, family.ub_bytes), soc, family.target};
}

uint32_t usable_cores(const DeviceLimits& limits, aclrtStream stream, std::optional<int64_t> wanted) {
  static const uint32_t limit = core_limit();
  uint32_t cores = std::min(limits.cores, limit);
  if (wanted) cores = static_cast<uint32_t>(std::min<int64_t>(cores, *wanted));
  if (c10_npu::is_core_control_enabled()) {
    uint32_t of_stream = 0;
    const auto get_limit = OFFLOAD_ACL_OPTIONAL(aclrtGetStreamResLimit);
    if (get_limit != nullptr && get_limit(stream, ACL_RT_DEV_RES_VECTOR_CORE, &of_stream) == ACL_SUCCESS &&
        of_stream > 0) {
      cores = std::min(cores, of_stream);
    }
  }
  return cores;
}

}  // namespace torch_offload::npu
