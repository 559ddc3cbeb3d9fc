// SPDX-License-Identifier: Apache-2.0
// Page-locked host memory, and host memory registered for the device.
#include <sys/mman.h>

#include <cstring>
#include <map>
#include <mutex>

#include "device.h"
#include "memory.h"
#include "settings.h"

namespace sim {
namespace {

struct Pinned {
  uint64_t size;
  bool sameAddress;  // VA flag: once registered, the device address is the host address
};
struct Registration {
  uint64_t size;
  char* device;  // null if it is only page-locked
  char* room;    // end of the device addresses that registrations of what follows may continue into
};

struct HostMemory {
  std::mutex mutex;
  std::map<char*, Pinned> pinned;
  std::map<char*, Registration> registered;
  uint64_t pinnedBytes = 0;
};
HostMemory& hostMemory() {
  static auto* instance = new HostMemory;
  return *instance;
}

template <typename Map>
typename Map::iterator around(Map& map, char* p) {
  auto it = map.upper_bound(p);
  if (it == map.begin()) return map.end();
  --it;
  return p < it->first + it->second.size ? it : map.end();
}

constexpr uint64_t kAdjacentRoom = 1ULL << 35;

aclError allocateHost(void** out, uint64_t size, bool sameAddress) {
  void* p = mmap(nullptr, roundUp(size, kPage), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "no host memory for %lu bytes", size);
  std::lock_guard guard(hostMemory().mutex);
  hostMemory().pinned[static_cast<char*>(p)] = {size, sameAddress};
  hostMemory().pinnedBytes += size;
  *out = p;
  return ACL_SUCCESS;
}

aclError freeHost(void* p) {
  HostMemory& host = hostMemory();
  std::lock_guard guard(host.mutex);
  auto it = host.pinned.find(static_cast<char*>(p));
  SIM_REQUIRE(it != host.pinned.end(), "aclrtFreeHost of unknown address %p", p);
  auto registered = host.registered.lower_bound(it->first);
  SIM_REQUIRE(registered == host.registered.end() || registered->first >= it->first + it->second.size,
              "aclrtFreeHost(%p): %p in it is still registered", p, registered->first);
  munmap(p, roundUp(it->second.size, kPage));
  host.pinnedBytes -= it->second.size;
  host.pinned.erase(it);
  return ACL_SUCCESS;
}

bool hostRangeExists(char* p, uint64_t size) {
  std::vector<unsigned char> pages(std::min<uint64_t>(roundUp(size, kPage) / kPage, 1 << 16));
  for (uint64_t offset = 0; offset < size; offset += pages.size() * kPage)
    if (mincore(p + offset, std::min(size - offset, pages.size() * kPage), pages.data())) return false;
  return true;
}

// A third address, unreadable for the host, unless the memory was allocated with the VA flag: mixing up host
// and device pointers crashes.
char* deviceAddress(HostMemory& host, char* p, uint64_t size, Registration& registration) {
  auto before = host.registered.lower_bound(p);
  if (is(Setting::kMappedAddresses, "adjacent") && before != host.registered.begin()) {
    Registration& left = (--before)->second;
    if (before->first + left.size == p && left.device && left.device + left.size + size <= left.room &&
        !Memory::get().overlaps(left.device + left.size, size)) {
      registration.room = left.room;
      return left.device + left.size;
    }
  }
  uint64_t room = is(Setting::kMappedAddresses, "adjacent") ? std::max(size, kAdjacentRoom) : size;
  char* address = AddressSpace::get().take(room, kPage);
  registration.room = address ? address + room : nullptr;
  return address;
}

aclError checkRegistration(HostMemory& host, const char* function, char* p, uint64_t size, bool pin) {
  SIM_REQUIRE(reinterpret_cast<uint64_t>(p) % kPage == 0, "%s: %p is not aligned to 4 KiB", function, p);
  if (is(Setting::kHostRegister, "none") ||
      !socIsAny({"Ascend910B1", "Ascend910B2", "Ascend910B3", "Ascend910B4", "Ascend910_93", "Ascend950"}))
    return fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "%s: not on this device", function);
  auto limit = static_cast<uint64_t>(number(Setting::kRegisterLimitMb)) << 20;
  SIM_REQUIRE(!limit || size <= limit, "%s: %lu bytes, the limit is %lu", function, size, limit);
  auto next = host.registered.lower_bound(p);
  if (around(host.registered, p) != host.registered.end() || (next != host.registered.end() && next->first < p + size))
    return fail(ACL_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "%s: some of [%p, +%lu) is registered", function, p, size);
  auto pinned = around(host.pinned, p);
  bool locked = pinned != host.pinned.end();
  SIM_REQUIRE(!locked || p + size <= pinned->first + roundUp(pinned->second.size, kPage),
              "%s: [%p, +%lu) is larger than its allocation", function, p, size);
  SIM_REQUIRE(locked || !is(Setting::kHostRegister, "malloc_host"), "%s: %p is not of aclrtMallocHost", function, p);
  SIM_REQUIRE(!(pin && locked), "%s: %p is page-locked already", function, p);
  SIM_REQUIRE(hostRangeExists(p, size), "%s: not all of [%p, +%lu) is memory", function, p, size);
  return ACL_SUCCESS;
}

aclError registerHost(const char* function, void* pointer, uint64_t size, bool map, bool pin, bool writable,
                      void** devicePointer) {
  SIM_REQUIRE_DEVICE(device);
  HostMemory& host = hostMemory();
  auto* p = static_cast<char*>(pointer);
  std::lock_guard guard(host.mutex);
  if (aclError error = checkRegistration(host, function, p, size, pin)) return error;
  Registration registration{size, nullptr, nullptr};
  if (map) {
    auto pinned = around(host.pinned, p);
    bool same = pinned != host.pinned.end() && pinned->second.sameAddress;
    registration.device = same ? p : deviceAddress(host, p, size, registration);
    if (!registration.device) return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "%s: no addresses left", function);
    Memory::get().insert(registration.device, {size, p, device, writable, RangeKind::kMappedHost});
  }
  host.registered[p] = registration;
  if (devicePointer) *devicePointer = registration.device;
  return ACL_SUCCESS;
}

}  // namespace
}  // namespace sim
using namespace sim;

SIM_EXPORT uint64_t simLiveHostBytes(void) {
  std::lock_guard guard(hostMemory().mutex);
  return hostMemory().pinnedBytes;
}
SIM_EXPORT uint64_t simLiveRegistrations(void) {
  std::lock_guard guard(hostMemory().mutex);
  return hostMemory().registered.size();
}

SIM_EXPORT aclError aclrtMallocHost(void** p, size_t size) {
  SIM_CALL("%zu", size);
  SIM_REQUIRE(p && size, "aclrtMallocHost of %zu bytes", size);
  SIM_REQUIRE_DEVICE(device);
  return allocateHost(p, size, false);
}

SIM_EXPORT aclError aclrtMallocHostWithCfg(void** p, uint64_t size, aclrtMallocConfig* config) {
  SIM_CALL("%lu", size);
  SIM_REQUIRE(p && size, "aclrtMallocHostWithCfg of %lu bytes", size);
  SIM_REQUIRE_DEVICE(device);
  bool sameAddress = false;
  for (size_t i = 0; config && i < config->numAttrs; i++)
    if (config->attrs[i].attr == ACL_RT_MEM_ATTR_VA_FLAG) sameAddress = config->attrs[i].value.vaFlag != 0;
  bool supported = number(Setting::kVaFlag) && cannAtLeast(8, 5) &&
                   socIsAny({"Ascend910B1", "Ascend910B2", "Ascend910B3", "Ascend910B4", "Ascend910_93"});
  if (sameAddress && !supported)
    return fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "aclrtMallocHostWithCfg: the VA flag is not supported");
  return allocateHost(p, size, sameAddress);
}

SIM_EXPORT aclError aclrtFreeHost(void* p) {
  SIM_CALL("%p", p);
  return freeHost(p);
}

SIM_EXPORT aclError aclrtFreeHostWithDevSync(void* p) {
  SIM_CALL("%p", p);
  if (aclError error = synchronizeDevice(-1)) return error;
  return freeHost(p);
}

SIM_EXPORT aclError aclrtHostRegister(void* p, uint64_t size, aclrtHostRegisterType type, void** devicePointer) {
  SIM_CALL("%p, %lu, %d", p, size, type);
  SIM_REQUIRE(p && size && devicePointer, "aclrtHostRegister(%p, %lu)", p, size);
  if (type != ACL_HOST_REGISTER_MAPPED)
    return fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "aclrtHostRegister: type %d is reserved", type);
  return registerHost(__func__, p, size, true, false, true, devicePointer);
}

SIM_EXPORT aclError aclrtHostRegisterV2(void* p, uint64_t size, uint32_t flag) {
  SIM_CALL("%p, %lu, %#x", p, size, flag);
  const uint32_t newer = cannAtLeast(9, 1) ? ACL_HOST_REG_IOMEMORY | ACL_HOST_REG_READONLY : 0;
  const uint32_t map = ACL_HOST_REG_MAPPED | newer;
  SIM_REQUIRE(p && size && flag && !(flag & ~(map | ACL_HOST_REG_PINNED)), "aclrtHostRegisterV2(%p, %lu, %#x)", p, size,
              flag);
  return registerHost(__func__, p, size, flag & map, flag & ACL_HOST_REG_PINNED, !(flag & ACL_HOST_REG_READONLY),
                      nullptr);
}

SIM_EXPORT aclError aclrtHostGetDevicePointer(void* p, void** devicePointer, uint32_t flag) {
  SIM_CALL("%p, %u", p, flag);
  SIM_REQUIRE(p && devicePointer && !flag, "aclrtHostGetDevicePointer(%p, flag %u)", p, flag);
  std::lock_guard guard(hostMemory().mutex);
  auto it = around(hostMemory().registered, static_cast<char*>(p));
  SIM_REQUIRE(it != hostMemory().registered.end() && it->second.device, "%p is not mapped for the device", p);
  *devicePointer = it->second.device + (static_cast<char*>(p) - it->first);
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtHostUnregister(void* p) {
  SIM_CALL("%p", p);
  std::lock_guard guard(hostMemory().mutex);
  auto it = hostMemory().registered.find(static_cast<char*>(p));
  if (it == hostMemory().registered.end())
    return fail(ACL_ERROR_HOST_MEMORY_NOT_REGISTERED, "aclrtHostUnregister: no registration begins at %p", p);
  if (it->second.device) Memory::get().erase(it->second.device);
  hostMemory().registered.erase(it);
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtHostMemMapCapabilities(uint32_t, aclrtHacType, aclrtHostMemMapCapability*) {
  SIM_NOT_SIMULATED();
}

SIM_EXPORT aclError aclrtPointerGetAttributes(const void* pointer, aclrtPtrAttributes* attributes) {
  SIM_CALL("%p", pointer);
  SIM_REQUIRE(pointer && attributes, "aclrtPointerGetAttributes(%p)", pointer);
  *attributes = {};
  attributes->location.type = ACL_MEM_LOCATION_TYPE_UNREGISTERED;
  attributes->pageSize = kPage;
  auto* p = static_cast<char*>(const_cast<void*>(pointer));
  {
    std::lock_guard guard(hostMemory().mutex);
    if (around(hostMemory().pinned, p) != hostMemory().pinned.end() ||
        around(hostMemory().registered, p) != hostMemory().registered.end()) {
      attributes->location.type = ACL_MEM_LOCATION_TYPE_HOST;
      return ACL_SUCCESS;
    }
  }
  char* begin;
  Range range;
  if (Memory::get().find(p, &begin, &range)) {
    attributes->location.type = ACL_MEM_LOCATION_TYPE_DEVICE;
    attributes->location.id = range.device;
  }
  return ACL_SUCCESS;
}
