// SPDX-License-Identifier: Apache-2.0
// What the simulated machine says about itself: versions, chip, cores, limits.
#include <cstring>

#include "device.h"
#include "settings.h"

namespace sim {
namespace {

constexpr int64_t kL2Bytes = 192 << 20;
constexpr int64_t kUnifiedBufferBytes = 192 << 10;
constexpr int64_t kUnifiedBufferBytes950 = 248 << 10;

}  // namespace

int64_t vectorCores() { return number(Setting::kVectorCores); }
int64_t cubeCores() { return std::max<int64_t>(1, vectorCores() / 2); }

bool cannAtLeast(int major, int minor) {
  int a = 0, b = 0;
  sscanf(text(Setting::kCannVersion).c_str(), "%d.%d", &a, &b);
  return a > major || (a == major && b >= minor);
}

bool socIsAny(std::initializer_list<const char*> prefixes) {
  std::string soc = text(Setting::kSoc);
  for (const char* prefix : prefixes)
    if (soc.rfind(prefix, 0) == 0) return true;
  return false;
}

}  // namespace sim
using namespace sim;

SIM_EXPORT const char* aclrtGetSocName() {
  SIM_COUNT();
  static auto* name = new std::string(text(Setting::kSoc));
  return name->c_str();
}

SIM_EXPORT aclError aclsysGetCANNVersion(aclCANNPackageName name, aclCANNPackageVersion* version) {
  SIM_CALL("%d", name);
  *version = {};
  std::string value = text(name == ACL_PKG_NAME_DRIVER ? Setting::kDriverVersion : Setting::kCannVersion);
  copyText(value, version->version, sizeof version->version);
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclsysGetVersionStr(char* package, char* out) {
  SIM_CALL("%s", package);
  strcpy(out, text(Setting::kCannVersion).c_str());
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclGetCannAttribute(aclCannAttr attribute, int32_t* value) {
  SIM_CALL("%d", attribute);
  *value = attribute != ACL_CANN_ATTR_JIT_COMPILE;
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclGetCannAttributeList(const aclCannAttr** list, size_t* count) {
  SIM_CALL();
  static const aclCannAttr attributes[] = {ACL_CANN_ATTR_INF_NAN, ACL_CANN_ATTR_BF16};
  *list = attributes;
  *count = sizeof attributes / sizeof attributes[0];
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtGetDeviceInfo(uint32_t device, aclrtDevAttr attribute, int64_t* value) {
  SIM_CALL("%u, %d", device, attribute);
  switch (attribute) {
    case ACL_DEV_ATTR_AICPU_CORE_NUM:
      *value = 6;
      break;
    case ACL_DEV_ATTR_AICORE_CORE_NUM:
    case ACL_DEV_ATTR_CUBE_CORE_NUM:
      *value = cubeCores();
      break;
    case ACL_DEV_ATTR_VECTOR_CORE_NUM:
      *value = vectorCores();
      break;
    case ACL_DEV_ATTR_TOTAL_GLOBAL_MEM_SIZE:
      *value = number(Setting::kMemoryMb) << 20;
      break;
    case ACL_DEV_ATTR_L2_CACHE_SIZE:
      *value = kL2Bytes;
      break;
    case ACL_DEV_ATTR_UBUF_PER_VECTOR_CORE:
      *value = socIsAny({"Ascend950"}) ? kUnifiedBufferBytes950 : kUnifiedBufferBytes;
      break;
    default:
      return fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "aclrtGetDeviceInfo: attribute %d", attribute);
  }
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclGetDeviceCapability(uint32_t, aclDeviceInfo info, int64_t* value) {
  SIM_CALL("%d", info);
  switch (info) {
    case ACL_DEVICE_INFO_AI_CORE_NUM:
      *value = cubeCores();
      break;
    case ACL_DEVICE_INFO_VECTOR_CORE_NUM:
      *value = vectorCores();
      break;
    case ACL_DEVICE_INFO_L2_SIZE:
      *value = kL2Bytes;
      break;
    default:
      return fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "aclGetDeviceCapability: %d", info);
  }
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtGetDeviceUtilizationRate(int32_t, aclrtUtilizationInfo* info) {
  SIM_CALL();
  info->cubeUtilization = info->vectorUtilization = info->aicpuUtilization = info->memoryUtilization = 0;
  return ACL_SUCCESS;
}

// ---- modes of operators and timeouts: nothing here computes or times out
SIM_EXPORT aclError aclrtSetDeviceSatMode(aclrtFloatOverflowMode) { SIM_NO_EFFECT(); }
SIM_EXPORT aclError aclrtSetOpExecuteTimeOut(uint32_t) { SIM_NO_EFFECT(); }
SIM_EXPORT aclError aclrtSetOpExecuteTimeOutV2(uint64_t timeout, uint64_t* actual) {
  SIM_CALL("%lu", timeout);
  *actual = timeout;
  return ACL_SUCCESS;
}
SIM_EXPORT aclError aclrtSetOpWaitTimeout(uint32_t) { SIM_NO_EFFECT(); }
