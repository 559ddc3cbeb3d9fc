// SPDX-License-Identifier: Apache-2.0
#include "npu/host_memory.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <string>

#include "npu/acl_api.h"

namespace torch_offload::npu {
namespace {

struct Range {
  c10::DeviceIndex device;
  uint64_t bytes;
  uintptr_t device_address;
};

struct Registration {
  c10::DeviceIndex device;
  std::vector<uintptr_t> chunks;
};

struct Registry {
  std::shared_mutex mutex;                          // guards both
  std::map<uintptr_t, Range> ranges;                // what a device finds in one piece
  std::map<uintptr_t, Registration> registrations;  // by the beginning of the whole
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

// Whoever has registered the memory may have done so for another device: the runtime answers all the same.
bool is_of_another_device(c10::DeviceIndex device, uintptr_t device_address) {
  const auto get_attributes = OFFLOAD_ACL_OPTIONAL(aclrtPointerGetAttributes);
  aclrtPtrAttributes attributes{};
  return get_attributes != nullptr &&
         get_attributes(reinterpret_cast<const void*>(device_address), &attributes) == ACL_SUCCESS &&
         attributes.location.type == ACL_MEM_LOCATION_TYPE_DEVICE &&
         attributes.location.id != static_cast<uint32_t>(device);
}

struct Failure {
  const char* call;
  aclError code = ACL_SUCCESS;
  std::string message;
  bool may_be_the_size = false;
};

Failure failed(const char* call, aclError code) { return {call, code, recent_acl_message()}; }

// What runtimes answer when a registration is larger than they can take. All else about it is right.
Failure not_registered(const char* call, aclError code) {
  Failure failure = failed(call, code);
  failure.may_be_the_size = code == ACL_ERROR_RT_PARAM_INVALID || code == ACL_ERROR_RT_MEMORY_ALLOCATION;
  return failure;
}

// Tried twice: a registration that stays costs the memory under it.
aclError unregister(uintptr_t address) {
  const auto call = OFFLOAD_ACL_REQUIRED(aclrtHostUnregister);
  const aclError code = call(reinterpret_cast<void*>(address));
  return code == ACL_SUCCESS ? code : call(reinterpret_cast<void*>(address));
}

// One registration, with the calls of CANN 8.5 or those before it.
Failure map_chunk(uintptr_t address, uint64_t bytes, uintptr_t* device_address) {
  void* const host = reinterpret_cast<void*>(address);
  void* found = nullptr;
  const auto get_pointer = OFFLOAD_ACL_OPTIONAL(aclrtHostGetDevicePointer);
  const auto register_v2 = OFFLOAD_ACL_OPTIONAL(aclrtHostRegisterV2);
  if (register_v2 == nullptr || get_pointer == nullptr) {
    const auto register_v1 = OFFLOAD_ACL_REQUIRED(aclrtHostRegister);
    const aclError code = register_v1(host, bytes, ACL_HOST_REGISTER_MAPPED, &found);
    if (code != ACL_SUCCESS) return not_registered("aclrtHostRegister", code);
  } else {
    const aclError code = register_v2(host, bytes, ACL_HOST_REG_MAPPED);
    if (code != ACL_SUCCESS) return not_registered("aclrtHostRegisterV2", code);
    if (const aclError query = get_pointer(host, &found, 0)) {
      const Failure failure = failed("aclrtHostGetDevicePointer", query);
      unregister(address);
      return failure;
    }
  }
  *device_address = reinterpret_cast<uintptr_t>(found);
  return {};
}

}  // namespace

std::vector<MappedRange> register_host_memory(c10::DeviceIndex device, uintptr_t address, uint64_t bytes,
                                              uint64_t smallest_chunk) {
  std::vector<MappedRange> chunks;
  uint64_t chunk = bytes;
  for (uint64_t offset = 0; offset < bytes;) {
    const uint64_t size = std::min(chunk, bytes - offset);
    uintptr_t device_address = 0;
    const Failure failure = map_chunk(address + offset, size, &device_address);
    if (failure.code == ACL_SUCCESS) {
      chunks.push_back({address + offset, size, device_address});
      offset += size;
      continue;
    }
    if (offset == 0 && failure.may_be_the_size && chunk > smallest_chunk) {
      chunk = std::max(std::bit_ceil(chunk) / 2, smallest_chunk);
      continue;
    }
    for (const MappedRange& done : chunks) unregister(done.address);
    TORCH_CHECK(false, failure.call, ": expected npu:", static_cast<int>(device), " to map ", size,
                " bytes of host memory at offset ", offset, " of ", bytes, ", got code ", failure.code, ": ",
                failure.message);
  }

  Registration registration{device, {}};
  std::vector<MappedRange> ranges;
  for (const MappedRange& part : chunks) {
    registration.chunks.push_back(part.address);
    // Neighbouring registrations need not have neighbouring device addresses.
    if (!ranges.empty() && ranges.back().device_address + ranges.back().bytes == part.device_address) {
      ranges.back().bytes += part.bytes;
    } else {
      ranges.push_back(part);
    }
  }
  const std::unique_lock<std::shared_mutex> lock(registry().mutex);
  for (const MappedRange& range : ranges) {
    registry().ranges[range.address] = {device, range.bytes, range.device_address};
  }
  registry().registrations[address] = std::move(registration);
  return ranges;
}

void unregister_host_memory(uintptr_t address) {
  Registry& all = registry();
  const std::unique_lock<std::shared_mutex> lock(all.mutex);
  const auto found = all.registrations.find(address);
  TORCH_CHECK_VALUE(found != all.registrations.end(),
                    "unregister_host_memory: expected the beginning of registered memory, got another address");
  Failure first;
  for (const uintptr_t chunk : found->second.chunks) {
    all.ranges.erase(chunk);
    const aclError code = unregister(chunk);
    if (code != ACL_SUCCESS && first.code == ACL_SUCCESS) first = failed("aclrtHostUnregister", code);
  }
  all.registrations.erase(found);
  TORCH_CHECK(first.code == ACL_SUCCESS, first.call, ": expected success, got code ", first.code, ": ", first.message);
}

std::vector<Registered> registered_host_memory() {
  const std::shared_lock<std::shared_mutex> lock(registry().mutex);
  std::vector<Registered> out;
  for (const auto& [address, registration] : registry().registrations) out.push_back({registration.device, address});
  return out;
}

uintptr_t find_device_address(c10::DeviceIndex device, uintptr_t address, uint64_t bytes) {
  {
    const std::shared_lock<std::shared_mutex> lock(registry().mutex);
    auto after = registry().ranges.upper_bound(address);
    if (after != registry().ranges.begin()) {
      const auto& [begin, range] = *--after;
      const bool is_inside = address < begin + range.bytes;
      if (is_inside && range.device != device) return 0;
      if (is_inside && address + bytes <= begin + range.bytes) return range.device_address + (address - begin);
    }
  }
  const auto get_pointer = OFFLOAD_ACL_OPTIONAL(aclrtHostGetDevicePointer);
  if (get_pointer == nullptr) return 0;
  const auto first = reinterpret_cast<uintptr_t>(ask_runtime(get_pointer, address));
  if (first == 0 || is_of_another_device(device, first)) return 0;
  const auto last = reinterpret_cast<uintptr_t>(ask_runtime(get_pointer, address + bytes - 1));
  return last == first + bytes - 1 ? first : 0;
}

}  // namespace torch_offload::npu
