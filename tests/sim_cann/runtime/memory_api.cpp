// SPDX-License-Identifier: Apache-2.0
// Device memory: allocation, and the virtual memory calls behind expandable segments.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <mutex>

#include "device.h"
#include "memory.h"
#include "settings.h"

namespace sim {
namespace {

aclError allocate(const char* function, void** out, size_t size) {
  SIM_REQUIRE(out && size, "%s: %zu bytes asked", function, size);
  SIM_REQUIRE_DEVICE(device);
  return Memory::get().allocate(out, size, device);
}

struct Physical {
  int fd;
  uint64_t size;
  int device;
};

struct VirtualMemory {
  std::mutex mutex;
  std::map<char*, uint64_t> reserved;
  std::map<void*, Physical> physical;  // by handle
  uint64_t nextHandle = 0x1000;

  bool inReservation(char* p, uint64_t size) {
    auto it = reserved.upper_bound(p);
    if (it == reserved.begin()) return false;
    --it;
    return p + size <= it->first + it->second;
  }
};
VirtualMemory& virtualMemory() {
  static auto* instance = new VirtualMemory;
  return *instance;
}

}  // namespace
}  // namespace sim
using namespace sim;

SIM_EXPORT aclError aclrtMalloc(void** p, size_t size, aclrtMemMallocPolicy) {
  SIM_CALL("%zu", size);
  return allocate(__func__, p, size);
}

// The one that torch_npu's caching allocator uses.
SIM_EXPORT aclError aclrtMallocAlign32(void** p, size_t size, aclrtMemMallocPolicy) {
  SIM_CALL("%zu", size);
  return allocate(__func__, p, size);
}

SIM_EXPORT aclError aclrtFree(void* p) {
  SIM_CALL("%p", p);
  return Memory::get().release(p);
}

SIM_EXPORT aclError aclrtFreeWithDevSync(void* p) {
  SIM_CALL("%p", p);
  if (aclError error = synchronizeDevice(-1)) return error;
  return Memory::get().release(p);
}

SIM_EXPORT aclError aclrtGetMemInfo(aclrtMemAttr, size_t* free, size_t* total) {
  SIM_CALL();
  SIM_REQUIRE_DEVICE(device);
  *total = static_cast<size_t>(number(Setting::kMemoryMb)) << 20;
  *free = *total - std::min<size_t>(*total, Memory::get().used(device));
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtGetMemUsageInfo(int32_t, aclrtMemUsageInfo*, size_t, size_t*) { SIM_NOT_SIMULATED(); }

// ---- virtual memory

SIM_EXPORT aclError aclrtReserveMemAddress(void** p, size_t size, size_t, void*, uint64_t) {
  SIM_CALL("%zu", size);
  SIM_REQUIRE(p && size, "aclrtReserveMemAddress of %zu bytes", size);
  char* address = AddressSpace::get().take(size, kHugePage);
  if (!address) return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "no addresses left for %zu bytes", size);
  std::lock_guard guard(virtualMemory().mutex);
  virtualMemory().reserved[address] = size;
  *p = address;
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtReleaseMemAddress(void* p) {
  SIM_CALL("%p", p);
  std::lock_guard guard(virtualMemory().mutex);
  auto it = virtualMemory().reserved.find(static_cast<char*>(p));
  SIM_REQUIRE(it != virtualMemory().reserved.end(), "aclrtReleaseMemAddress of unknown address %p", p);
  SIM_REQUIRE(!Memory::get().overlaps(it->first, it->second), "aclrtReleaseMemAddress(%p): still mapped", p);
  virtualMemory().reserved.erase(it);
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtMallocPhysical(aclrtDrvMemHandle* handle, size_t size, const aclrtPhysicalMemProp* properties,
                                        uint64_t) {
  SIM_CALL("%zu", size);
  SIM_REQUIRE(handle && properties && size && size % kHugePage == 0, "aclrtMallocPhysical of %zu bytes", size);
  int device = static_cast<int>(properties->location.id);
  SIM_REQUIRE(properties->location.type == ACL_MEM_LOCATION_TYPE_DEVICE && validDevice(device),
              "aclrtMallocPhysical on device %d", device);
  if (!Memory::get().charge(device, size)) return ACL_ERROR_RT_MEMORY_ALLOCATION;
  int fd = memfd_create("sim_physical", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(size))) {
    if (fd >= 0) close(fd);
    Memory::get().discharge(device, size);
    return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "no physical memory for %zu bytes", size);
  }
  std::lock_guard guard(virtualMemory().mutex);
  *handle = reinterpret_cast<void*>(virtualMemory().nextHandle++);
  virtualMemory().physical[*handle] = {fd, size, device};
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtFreePhysical(aclrtDrvMemHandle handle) {
  SIM_CALL("%p", handle);
  std::lock_guard guard(virtualMemory().mutex);
  auto it = virtualMemory().physical.find(handle);
  SIM_REQUIRE(it != virtualMemory().physical.end(), "aclrtFreePhysical of unknown handle %p", handle);
  close(it->second.fd);
  Memory::get().discharge(it->second.device, it->second.size);
  virtualMemory().physical.erase(it);
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtMapMem(void* p, size_t size, size_t offset, aclrtDrvMemHandle handle, uint64_t) {
  SIM_CALL("%p, %zu", p, size);
  auto* address = static_cast<char*>(p);
  std::lock_guard guard(virtualMemory().mutex);
  auto it = virtualMemory().physical.find(handle);
  SIM_REQUIRE(it != virtualMemory().physical.end(), "aclrtMapMem of unknown handle %p", handle);
  SIM_REQUIRE(size && size <= it->second.size && offset <= it->second.size - size && !((uint64_t)p % kHugePage) &&
                  virtualMemory().inReservation(address, size) && !Memory::get().overlaps(address, size),
              "aclrtMapMem(%p, %zu, %zu)", p, size, offset);
  if (!AddressSpace::get().map(address, size, it->second.fd, offset))
    return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "aclrtMapMem of %zu bytes failed", size);
  Memory::get().insert(address, {size, AddressSpace::get().view(address), it->second.device, true, RangeKind::kDevice});
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtUnmapMem(void* p) {
  SIM_CALL("%p", p);
  std::lock_guard guard(virtualMemory().mutex);
  auto* address = static_cast<char*>(p);
  Range range;
  SIM_REQUIRE(virtualMemory().inReservation(address, 1) && Memory::get().erase(address, &range),
              "aclrtUnmapMem of %p, which is not mapped", p);
  AddressSpace::get().unmap(address, range.size);
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtMemExportToShareableHandle(aclrtDrvMemHandle, aclrtMemHandleType, uint64_t, uint64_t*) {
  SIM_NOT_SIMULATED();
}
SIM_EXPORT aclError aclrtMemImportFromShareableHandle(uint64_t, int32_t, aclrtDrvMemHandle*) { SIM_NOT_SIMULATED(); }
SIM_EXPORT aclError aclrtMemSetPidToShareableHandle(uint64_t, int32_t*, size_t) { SIM_NOT_SIMULATED(); }
