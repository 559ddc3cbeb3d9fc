// SPDX-License-Identifier: Apache-2.0
#include "npu/host_memory.h"

#include <c10/util/Exception.h>

#include <map>
#include <mutex>
#include <shared_mutex>

#include "npu/acl_api.h"

namespace torch_offload::npu {
namespace {

struct Registration {
  c10::DeviceIndex device;
  uint64_t bytes;
  uintptr_t device_address;
};

struct Registry {
  std::shared_mutex mutex;  // guards `by_address`
  std::map<uintptr_t, Registration> by_address;
};

Registry& registry() {
  static auto* instance = new Registry;  // finalizers may come late in a process's exit
  return *instance;
}

// Null if the host memory at that address is not mapped for the current device.
void* ask_runtime(decltype(&aclrtHostGetDevicePointer) get_pointer, uintptr_t address) {
  void* device_address = nullptr;
  const aclError code = get_pointer(reinterpret_cast<void*>(address), &device_address, 0);
  return code == ACL_SUCCESS ? device_address : nullptr;
}

uintptr_t map_for_device(void* host, uint64_t bytes) {
  void* device_address = nullptr;
  const auto get_pointer = OFFLOAD_ACL_OPTIONAL(aclrtHostGetDevicePointer);
  const auto register_v2 = OFFLOAD_ACL_OPTIONAL(aclrtHostRegisterV2);
  if (register_v2 == nullptr || get_pointer == nullptr) {
    const auto register_v1 = OFFLOAD_ACL_REQUIRED(aclrtHostRegister);
    check_acl("aclrtHostRegister", register_v1(host, bytes, ACL_HOST_REGISTER_MAPPED, &device_address));
    return reinterpret_cast<uintptr_t>(device_address);
  }
  check_acl("aclrtHostRegisterV2", register_v2(host, bytes, ACL_HOST_REG_MAPPED));
  const aclError code = get_pointer(host, &device_address, 0);
  if (code != ACL_SUCCESS) {
    const std::string message = recent_acl_message();
    OFFLOAD_ACL_REQUIRED(aclrtHostUnregister)(host);
    TORCH_CHECK(false, "aclrtHostGetDevicePointer: expected success, got code ", code, ": ", message);
  }
  return reinterpret_cast<uintptr_t>(device_address);
}

}  // namespace

void register_host_memory(c10::DeviceIndex device, uintptr_t address, uint64_t bytes) {
  const uintptr_t device_address = map_for_device(reinterpret_cast<void*>(address), bytes);
  const std::unique_lock<std::shared_mutex> lock(registry().mutex);
  registry().by_address[address] = {device, bytes, device_address};
}

void unregister_host_memory(uintptr_t address) {
  const std::unique_lock<std::shared_mutex> lock(registry().mutex);
  TORCH_CHECK_VALUE(registry().by_address.erase(address) == 1,
                    "unregister_host_memory: expected the beginning of registered memory, got another address");
  const auto unregister = OFFLOAD_ACL_REQUIRED(aclrtHostUnregister);
  check_acl("aclrtHostUnregister", unregister(reinterpret_cast<void*>(address)));
}

uintptr_t find_device_address(c10::DeviceIndex device, uintptr_t address, uint64_t bytes) {
  {
    const std::shared_lock<std::shared_mutex> lock(registry().mutex);
    auto after = registry().by_address.upper_bound(address);
    if (after != registry().by_address.begin()) {
      const auto& [begin, registration] = *--after;
      if (registration.device == device && address + bytes <= begin + registration.bytes) {
        return registration.device_address + (address - begin);
      }
    }
  }
  const auto get_pointer = OFFLOAD_ACL_OPTIONAL(aclrtHostGetDevicePointer);
  if (get_pointer == nullptr) return 0;
  const auto first = reinterpret_cast<uintptr_t>(ask_runtime(get_pointer, address));
  if (first == 0) return 0;
  // Neighbouring registrations need not have neighbouring device addresses.
  const auto last = reinterpret_cast<uintptr_t>(ask_runtime(get_pointer, address + bytes - 1));
  return last == first + bytes - 1 ? first : 0;
}

}  // namespace torch_offload::npu
