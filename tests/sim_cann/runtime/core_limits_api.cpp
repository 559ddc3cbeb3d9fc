// SPDX-License-Identifier: Apache-2.0
// Limits on the cores that a device, a stream or a thread may use. They are kept and told; launches are not
// held to them, the number of blocks is the caller's.
#include <array>
#include <map>

#include "device.h"
#include "stream.h"

namespace sim {
namespace {

struct Limits {
  std::array<uint32_t, 2> cores{};  // 0: no limit
};
std::mutex mutex;
auto& ofDevices = *new std::map<int, Limits>;  // never destroyed: see settings.cpp
auto& ofStreams = *new std::map<aclrtStream, Limits>;
thread_local aclrtStream threadStream = nullptr;

aclError index(aclrtDevResLimitType type, size_t* position, int64_t* most) {
  switch (type) {
    case ACL_RT_DEV_RES_CUBE_CORE:
      *position = 0;
      *most = cubeCores();
      return ACL_SUCCESS;
    case ACL_RT_DEV_RES_VECTOR_CORE:
      *position = 1;
      *most = vectorCores();
      return ACL_SUCCESS;
    default:
      return fail(ACL_ERROR_RT_PARAM_INVALID, "core limits: type %d", type);
  }
}

template <typename Key>
aclError set(std::map<Key, Limits>& table, Key key, aclrtDevResLimitType type, uint32_t value) {
  size_t position;
  int64_t most;
  if (aclError error = index(type, &position, &most)) return error;
  SIM_REQUIRE(value >= 1 && value <= most, "core limits: %u of %ld", value, most);
  std::lock_guard guard(mutex);
  table[key].cores[position] = value;
  return ACL_SUCCESS;
}

// The limit of the stream, else of the device, else what there is.
aclError get(aclrtStream stream, int device, aclrtDevResLimitType type, uint32_t* value) {
  size_t position;
  int64_t most;
  if (aclError error = index(type, &position, &most)) return error;
  std::lock_guard guard(mutex);
  auto own = ofStreams.find(stream);
  auto shared = ofDevices.find(device);
  if (own != ofStreams.end() && own->second.cores[position])
    *value = own->second.cores[position];
  else if (shared != ofDevices.end() && shared->second.cores[position])
    *value = shared->second.cores[position];
  else
    *value = static_cast<uint32_t>(most);
  return ACL_SUCCESS;
}

}  // namespace
}  // namespace sim
using namespace sim;

SIM_EXPORT aclError aclrtGetDeviceResLimit(int32_t device, aclrtDevResLimitType type, uint32_t* value) {
  SIM_CALL("%d, %d", device, type);
  return get(nullptr, device, type, value);
}
SIM_EXPORT aclError aclrtSetDeviceResLimit(int32_t device, aclrtDevResLimitType type, uint32_t value) {
  SIM_CALL("%d, %d, %u", device, type, value);
  if (!validDevice(device)) return fail(ACL_ERROR_RT_INVALID_DEVICEID, "device %d", device);
  return set<int>(ofDevices, device, type, value);
}
SIM_EXPORT aclError aclrtResetDeviceResLimit(int32_t device) {
  SIM_CALL("%d", device);
  std::lock_guard guard(mutex);
  ofDevices.erase(device);
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtGetStreamResLimit(aclrtStream handle, aclrtDevResLimitType type, uint32_t* value) {
  SIM_CALL("%p, %d", handle, type);
  SIM_REQUIRE_STREAM(stream, handle);
  return get(handle, stream->device, type, value);
}
SIM_EXPORT aclError aclrtSetStreamResLimit(aclrtStream handle, aclrtDevResLimitType type, uint32_t value) {
  SIM_CALL("%p, %d, %u", handle, type, value);
  SIM_REQUIRE_STREAM(stream, handle);
  return set<aclrtStream>(ofStreams, handle, type, value);
}
SIM_EXPORT aclError aclrtResetStreamResLimit(aclrtStream handle) {
  SIM_CALL("%p", handle);
  std::lock_guard guard(mutex);
  ofStreams.erase(handle);
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtUseStreamResInCurrentThread(aclrtStream handle) {
  SIM_CALL("%p", handle);
  SIM_REQUIRE_STREAM(stream, handle);
  threadStream = handle;
  return ACL_SUCCESS;
}
SIM_EXPORT aclError aclrtUnuseStreamResInCurrentThread(aclrtStream handle) {
  SIM_CALL("%p", handle);
  threadStream = nullptr;
  return ACL_SUCCESS;
}
SIM_EXPORT aclError aclrtGetResInCurrentThread(aclrtDevResLimitType type, uint32_t* value) {
  SIM_CALL("%d", type);
  SIM_REQUIRE_DEVICE(device);
  return get(threadStream, device, type, value);
}
