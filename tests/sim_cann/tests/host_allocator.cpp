// SPDX-License-Identifier: Apache-2.0
// An allocator for torch_npu's NPUPluggableAllocator: host memory that is mapped for the device.
#include <sys/mman.h>
#include <sys/types.h>

#include <map>
#include <mutex>

#include "acl/acl.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct Mapping {
  char* host;
  size_t size;
};
std::mutex mutex;
std::map<char*, Mapping> live;  // by device address
int allocations = 0, frees = 0;

}  // namespace

EXPORT void* host_alloc(ssize_t size, int, aclrtStream) {
  const size_t bytes = (size + 4095) / 4096 * 4096;
  void* host = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (host == MAP_FAILED) return nullptr;
  void* device = nullptr;
  if (aclrtHostRegister(host, bytes, ACL_HOST_REGISTER_MAPPED, &device)) {
    munmap(host, bytes);
    return nullptr;
  }
  std::lock_guard guard(mutex);
  live[static_cast<char*>(device)] = {static_cast<char*>(host), bytes};
  allocations++;
  return device;
}

EXPORT void host_free(void* p, size_t, int, aclrtStream) {
  std::lock_guard guard(mutex);
  auto it = live.find(static_cast<char*>(p));
  if (it == live.end()) return;
  aclrtHostUnregister(it->second.host);
  munmap(it->second.host, it->second.size);
  live.erase(it);
  frees++;
}

// For the tests.
EXPORT int host_allocations() { return allocations; }
EXPORT int host_frees() { return frees; }
EXPORT void* host_pointer(void* p) {
  std::lock_guard guard(mutex);
  auto it = live.upper_bound(static_cast<char*>(p));
  if (it == live.begin()) return nullptr;
  --it;
  const size_t offset = static_cast<char*>(p) - it->first;
  return offset < it->second.size ? it->second.host + offset : nullptr;
}
