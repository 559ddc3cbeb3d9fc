// SPDX-License-Identifier: Apache-2.0
#include "stand_in.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "../../sim_memory.h"

namespace stand_in {
namespace {

struct Region {
  uint64_t bytes;
  uint8_t* host;
};

std::mutex mutex;
std::map<uint64_t, Region> regions;
std::string fault;
uint64_t next_address = 0x7700'0000'0000'0000;  // no host pointer looks like that

constexpr uint8_t kGuardByte = 0xA5;

}  // namespace

DeviceMemory::DeviceMemory(uint64_t bytes, uint64_t shift, bool lazy) : bytes_(bytes), lazy_(lazy) {
  mapped_ = bytes + 2 * kGuard + shift;
  if (lazy) {
    void* mapping = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) abort();
    mapping_ = static_cast<uint8_t*>(mapping);
  } else {
    mapping_ = static_cast<uint8_t*>(aligned_alloc(512, (mapped_ + 511) / 512 * 512));
    memset(mapping_, kGuardByte, mapped_);
  }
  host_ = mapping_ + kGuard;
  std::lock_guard<std::mutex> lock(mutex);
  address_ = next_address + shift;
  next_address += (mapped_ + (uint64_t{1} << 33)) / 4096 * 4096;  // a wrapped 32-bit offset hits nothing
  regions[address_] = {bytes_, host_};
}

DeviceMemory::~DeviceMemory() {
  std::lock_guard<std::mutex> lock(mutex);
  regions.erase(address_);
  if (lazy_)
    munmap(mapping_, mapped_);
  else
    free(mapping_);
}

bool DeviceMemory::guardsIntact() const {
  for (uint64_t i = 0; !lazy_ && i < kGuard; i++)
    if (host_[bytes_ + i] != kGuardByte || mapping_[i] != kGuardByte) return false;
  return true;
}

std::string takeFault() {
  std::lock_guard<std::mutex> lock(mutex);
  std::string taken;
  taken.swap(fault);
  return taken;
}

}  // namespace stand_in

extern "C" void* simTranslate(uint64_t address, uint64_t bytes, int) {
  std::lock_guard<std::mutex> lock(stand_in::mutex);
  auto next = stand_in::regions.upper_bound(address);
  if (next == stand_in::regions.begin()) return nullptr;
  const auto& [begin, region] = *--next;
  if (address - begin > region.bytes || bytes > region.bytes - (address - begin)) return nullptr;
  return region.host + (address - begin);
}

extern "C" void simKernelFault(const char* message) {
  std::lock_guard<std::mutex> lock(stand_in::mutex);
  if (stand_in::fault.empty()) stand_in::fault = message;
}
