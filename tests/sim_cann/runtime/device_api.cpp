// SPDX-License-Identifier: Apache-2.0
// Devices and contexts.
#include <pthread.h>
#include <unistd.h>

#include <cstring>
#include <set>

#include "device.h"
#include "settings.h"
#include "task.h"

namespace sim {
namespace {

struct Device {
  std::atomic<bool> active{false};
  std::set<int> peers;  // guarded by peersMutex
};
std::mutex peersMutex;
std::atomic<bool> initialized{false};
std::atomic<bool> implicitDevice{false};  // acl_default.json makes device 0 current without a call
std::atomic<bool> forked{false};
thread_local int threadDevice = -1;

std::vector<Device>& devices() {
  static auto* instance = [] {
    pthread_atfork(nullptr, nullptr, [] { forked = true; });
    return new std::vector<Device>(number(Setting::kDevices));
  }();
  return *instance;
}

aclError checkDevice(const char* function, int device) {
  if (validDevice(device)) return ACL_SUCCESS;
  return fail(ACL_ERROR_RT_INVALID_DEVICEID, "%s: device %d of %zu", function, device, devices().size());
}

bool hasDefaultDevice(const char* path) {
  FILE* file = fopen(path, "r");
  if (!file) return false;
  std::string content(1 << 16, 0);
  content.resize(fread(content.data(), 1, content.size(), file));
  fclose(file);
  return content.find("\"default_device\"") != content.npos;
}

}  // namespace

bool validDevice(int device) { return device >= 0 && static_cast<size_t>(device) < devices().size(); }

int currentDevice() {
  if (threadDevice < 0 && implicitDevice) {
    threadDevice = 0;
    devices()[0].active = true;
  }
  return threadDevice;
}

bool inForkedChild() { return forked; }

bool peersEnabled(int device, int other) {
  std::lock_guard guard(peersMutex);
  return validDevice(device) && devices()[device].peers.count(other);
}

}  // namespace sim
using namespace sim;

SIM_EXPORT aclError aclInit(const char* config) {
  SIM_CALL("%s", config ? config : "");
  if (initialized.exchange(true)) return fail(ACL_ERROR_REPEAT_INITIALIZE, "aclInit was called before");
  if (config && hasDefaultDevice(config)) implicitDevice = true;
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclFinalize() {
  SIM_CALL();
  if (!initialized.exchange(false)) return fail(ACL_ERROR_UNINITIALIZE, "aclFinalize without aclInit");
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtGetRunMode(aclrtRunMode* mode) {
  SIM_CALL();
  *mode = ACL_HOST;
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtGetDeviceCount(uint32_t* count) {
  SIM_CALL();
  *count = static_cast<uint32_t>(devices().size());
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtSetDevice(int32_t device) {
  SIM_CALL("%d", device);
  if (aclError error = checkDevice(__func__, device)) return error;
  devices()[device].active = true;
  threadDevice = device;
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtGetDevice(int32_t* device) {
  SIM_CALL();
  SIM_REQUIRE_DEVICE(current);
  *device = current;
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtResetDevice(int32_t device) {
  SIM_CALL("%d", device);
  if (aclError error = checkDevice(__func__, device)) return error;
  devices()[device].active = false;
  if (threadDevice == device) threadDevice = -1;
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtResetDeviceForce(int32_t device) {
  SIM_CALL("%d", device);
  return aclrtResetDevice(device);
}

// One context per device, its entry in the list.
SIM_EXPORT aclError aclrtGetCurrentContext(aclrtContext* context) {
  SIM_CALL();
  SIM_REQUIRE_DEVICE(device);
  *context = &devices()[device];
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtSetCurrentContext(aclrtContext context) {
  SIM_CALL("%p", context);
  for (size_t i = 0; i < devices().size(); i++) {
    if (&devices()[i] != context) continue;
    threadDevice = static_cast<int>(i);
    return ACL_SUCCESS;
  }
  return fail(ACL_ERROR_RT_CONTEXT_NULL, "aclrtSetCurrentContext: %p is not a context", context);
}

SIM_EXPORT aclError aclrtGetPrimaryCtxState(int32_t device, uint32_t* flags, int32_t* active) {
  SIM_CALL("%d", device);
  if (aclError error = checkDevice(__func__, device)) return error;
  if (flags) *flags = 0;
  *active = devices()[device].active;
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtGetLogicDevIdByUserDevId(const int32_t user, int32_t* const logic) {
  SIM_CALL("%d", user);
  if (aclError error = checkDevice(__func__, user)) return error;
  *logic = user;
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtDeviceGetUuid(int32_t device, aclrtUuid* uuid) {
  SIM_CALL("%d", device);
  if (aclError error = checkDevice(__func__, device)) return error;
  memset(uuid, 0, sizeof *uuid);
  snprintf(uuid->bytes, sizeof uuid->bytes, "simdevice-%05d", device);
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtDeviceCanAccessPeer(int32_t* can, int32_t device, int32_t other) {
  SIM_CALL("%d, %d", device, other);
  *can = validDevice(device) && validDevice(other) && device != other;
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtDeviceEnablePeerAccess(int32_t other, uint32_t flags) {
  SIM_CALL("%d, %u", other, flags);
  SIM_REQUIRE_DEVICE(device);
  if (aclError error = checkDevice(__func__, other)) return error;
  SIM_REQUIRE(device != other && !flags, "aclrtDeviceEnablePeerAccess(%d, %u) on device %d", other, flags, device);
  std::lock_guard guard(peersMutex);
  devices()[device].peers.insert(other);
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtDeviceGetBareTgid(int32_t* pid) {
  SIM_CALL();
  *pid = getpid();
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtGetMemUceInfo(int32_t, aclrtMemUceInfo*, size_t, size_t* count) {
  SIM_CALL();
  *count = 0;  // no memory errors
  return ACL_SUCCESS;
}
SIM_EXPORT aclError aclrtMemUceRepair(int32_t, aclrtMemUceInfo*, size_t) { SIM_NOT_SIMULATED(); }
SIM_EXPORT aclError aclrtDeviceTaskAbort(int32_t, uint32_t) { SIM_NOT_SIMULATED(); }
