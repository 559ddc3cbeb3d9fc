// SPDX-License-Identifier: Apache-2.0
#include "host_pool/pool_registry.h"

#include <map>
#include <mutex>
#include <utility>

#include "host_pool/process_generation.h"

namespace torch_offload {

namespace {

struct Registry {
  std::mutex mutex;
  struct Entry {
    const void* end;  // that of blocks of size 0 included
    std::weak_ptr<HostPool> pool;
  };
  std::map<const void*, Entry> by_base;
  struct DeviceEntry {
    uint64_t end;
    std::weak_ptr<HostPool> pool;
  };
  std::map<std::pair<int32_t, uint64_t>, DeviceEntry> by_device_address;
};

PerProcess<Registry> registry;

}  // namespace

void register_pool(const std::shared_ptr<HostPool>& pool) {
  Registry& all = registry.get();
  const std::byte* const end = pool->base() + align_up(pool->capacity(), kMaxAlignment) + 1;
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.by_base[pool->base()] = {end, pool};
  for (const DevicePiece& piece : pool->device_pieces()) {
    all.by_device_address[{pool->device(), piece.address}] = {piece.address + piece.bytes, pool};
  }
}

void unregister_pool(const HostPool& pool) noexcept {
  Registry& all = registry.get();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.by_base.erase(pool.base());
  for (const DevicePiece& piece : pool.device_pieces()) all.by_device_address.erase({pool.device(), piece.address});
}

std::shared_ptr<HostPool> find_pool(const void* data) {
  Registry& all = registry.get();
  const std::lock_guard<std::mutex> lock(all.mutex);
  auto entry = all.by_base.upper_bound(data);
  if (entry == all.by_base.begin()) return nullptr;
  --entry;
  // The range is compared first: a pool locked here in vain might die here, under the mutex that its end takes.
  if (data >= entry->second.end) return nullptr;
  return entry->second.pool.lock();
}

std::shared_ptr<HostPool> find_pool_of_device(int32_t device, uint64_t address) {
  Registry& all = registry.get();
  const std::lock_guard<std::mutex> lock(all.mutex);
  auto entry = all.by_device_address.upper_bound({device, address});
  if (entry == all.by_device_address.begin()) return nullptr;
  --entry;
  if (entry->first.first != device || address >= entry->second.end) return nullptr;
  return entry->second.pool.lock();
}

}  // namespace torch_offload
