// SPDX-License-Identifier: Apache-2.0
#include "memory.h"

#include <cstring>
#include <mutex>

#include "settings.h"
#include "task.h"

namespace sim {
namespace {

constexpr size_t kFreedRemembered = 4096;
constexpr uint64_t kPoisonLimit = 32 << 20;
constexpr int kPoisonByte = 0xA5;

// The range that this thread touched last: kernels translate row by row.
struct LastRange {
  char* begin = nullptr;
  char* end = nullptr;
  char* view = nullptr;
  int device = kAnyDevice;
  bool writable = false;
  uint64_t generation = 0;
};
thread_local LastRange lastRange;

bool reachable(const Range& range, int device) {
  if (device == kAnyDevice || range.device == kAnyDevice || range.device == device) return true;
  return range.kind == RangeKind::kDevice && peersEnabled(device, range.device);
}

}  // namespace

Memory& Memory::get() {
  static auto* instance = new Memory;
  return *instance;
}

Memory::Memory() : freed_(kFreedRemembered), used_(number(Setting::kDevices)) {}

bool Memory::charge(int device, uint64_t size) {
  std::lock_guard guard(mutex_);
  uint64_t budget = static_cast<uint64_t>(number(Setting::kBudgetMb)) << 20;
  if (size > budget || used_[device] > budget - size) {
    fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "out of device memory: %lu of %lu bytes used, %lu asked", used_[device],
         budget, size);
    return false;
  }
  used_[device] += size;
  return true;
}

void Memory::discharge(int device, uint64_t size) {
  std::lock_guard guard(mutex_);
  used_[device] -= size;
}

uint64_t Memory::used(int device) {
  std::lock_guard guard(mutex_);
  return used_.at(device);
}

aclError Memory::allocate(void** out, uint64_t size, int device) {
  if (!charge(device, size)) return ACL_ERROR_RT_MEMORY_ALLOCATION;
  AddressSpace& space = AddressSpace::get();
  char* p = space.take(size, size >= kHugePage ? kHugePage : kPage);
  if (!p || !space.map(p, size)) {
    discharge(device, size);
    return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "no addresses left for %lu bytes", size);
  }
  if (number(Setting::kPoison) && size <= kPoisonLimit) memset(space.view(p), kPoisonByte, size);
  insert(p, {size, space.view(p), device, true, RangeKind::kDevice});
  *out = p;
  return ACL_SUCCESS;
}

aclError Memory::release(void* p) {
  char* begin;
  Range range;
  if (!find(p, &begin, &range) || begin != p || range.kind != RangeKind::kDevice || !erase(begin))
    return fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtFree(%p): %s", p, describe(p, 0).c_str());
  AddressSpace::get().unmap(begin, range.size);
  discharge(range.device, range.size);
  return ACL_SUCCESS;
}

void Memory::insert(char* p, const Range& range) {
  std::lock_guard guard(mutex_);
  live_[p] = range;
}

bool Memory::erase(char* p, Range* erased) {
  std::lock_guard guard(mutex_);
  auto it = live_.find(p);
  if (it == live_.end()) return false;
  if (erased) *erased = it->second;
  freed_[nextFreed_++ % kFreedRemembered] = {p, it->second.size};
  live_.erase(it);
  generation_.fetch_add(1, std::memory_order_release);
  return true;
}

Memory::Ranges::iterator Memory::around(const void* p) {
  auto it = live_.upper_bound(const_cast<char*>(static_cast<const char*>(p)));
  if (it == live_.begin()) return live_.end();
  --it;
  return p < it->first + it->second.size ? it : live_.end();
}

bool Memory::overlaps(const char* p, uint64_t size) {
  std::shared_lock guard(mutex_);
  auto next = live_.lower_bound(const_cast<char*>(p));
  return around(p) != live_.end() || (next != live_.end() && next->first < p + size);
}

bool Memory::find(const void* p, char** begin, Range* range) {
  std::shared_lock guard(mutex_);
  auto it = around(p);
  if (it == live_.end()) return false;
  *begin = it->first;
  *range = it->second;
  return true;
}

char* Memory::translate(const void* pointer, uint64_t bytes, bool write, int device) {
  auto* p = const_cast<char*>(static_cast<const char*>(pointer));
  const LastRange& last = lastRange;
  if (last.generation == generation_.load(std::memory_order_acquire) && p >= last.begin && p < last.end &&
      bytes <= static_cast<uint64_t>(last.end - p) && (last.writable || !write) && last.device == device)
    return last.view + (p - last.begin);

  std::shared_lock guard(mutex_);
  auto it = around(p);
  if (it == live_.end() || (write && !it->second.writable) || !reachable(it->second, device)) return nullptr;
  char* begin = it->first;
  char* end = begin + it->second.size;
  char* view = it->second.view;
  bool writable = it->second.writable;
  // Physical memory that is mapped side by side (expandable segments) and registrations that continue each
  // other are one range, as long as their views are.
  for (auto next = std::next(it); bytes > static_cast<uint64_t>(end - p); ++next) {
    if (next == live_.end() || next->first != end || next->second.view != view + (end - begin)) return nullptr;
    if ((write && !next->second.writable) || !reachable(next->second, device)) return nullptr;
    writable = writable && next->second.writable;
    end += next->second.size;
  }
  lastRange = {begin, end, view, device, writable, generation_.load(std::memory_order_relaxed)};
  return view + (p - begin);
}

std::string Memory::describe(const void* pointer, uint64_t bytes) {
  auto* p = static_cast<const char*>(pointer);
  char line[300];
  auto say = [&](const char* what, const char* begin, uint64_t size) {
    snprintf(line, sizeof line, "[%p, +%lu) is at byte %ld of %s of %lu bytes at %p", pointer, bytes, p - begin, what,
             size, begin);
    return std::string(line);
  };
  std::shared_lock guard(mutex_);
  auto it = around(p);
  if (it != live_.end()) {
    const Range& range = it->second;
    const char* what = range.kind == RangeKind::kDevice       ? "the device memory"
                       : range.kind == RangeKind::kMappedHost ? "the mapped host memory"
                                                              : "the kernel arguments";
    std::string text = say(what, it->first, range.size);
    uint64_t left = range.size - (p - it->first);
    if (bytes > left) text += ", " + std::to_string(bytes - left) + " bytes beyond its end";
    if (range.device != kAnyDevice) text += ", device " + std::to_string(range.device);
    return text + (range.writable ? "" : ", read-only");
  }
  for (auto& [begin, size] : freed_)
    if (p >= begin && p < begin + size) return say("freed or unmapped memory", begin, size);
  auto next = live_.upper_bound(const_cast<char*>(p));
  if (next != live_.begin()) {
    auto before = std::prev(next);
    uint64_t gap = p - (before->first + before->second.size);
    if (gap < kHugePage) return say("no memory, after that", before->first, before->second.size);
  }
  snprintf(line, sizeof line, "%p is %s", pointer,
           AddressSpace::get().contains(p) ? "a device address without memory" : "not a device address");
  return line;
}

ArgumentBuffer::ArgumentBuffer(const void* data, uint64_t size) : size_(size) {
  AddressSpace& space = AddressSpace::get();
  address_ = space.take(size, kPage);
  if (address_ && !space.map(address_, size)) address_ = nullptr;
  if (!address_) return;
  memcpy(space.view(address_), data, size);
  Memory::get().insert(address_, {size, space.view(address_), kAnyDevice, false, RangeKind::kArguments});
}

ArgumentBuffer::~ArgumentBuffer() {
  if (!address_) return;
  Memory::get().erase(address_);
  AddressSpace::get().unmap(address_, size_);
}

}  // namespace sim
using namespace sim;

// A task may reach what its device may; a thread that belongs to no task, what any device may.
static int deviceOfThread() { return RunningTask::current() ? RunningTask::current()->device : kAnyDevice; }

SIM_EXPORT void* simTranslate(uint64_t address, uint64_t bytes, int write) {
  return Memory::get().translate(reinterpret_cast<void*>(address), bytes, write != 0, deviceOfThread());
}

SIM_EXPORT int simIsDeviceAddress(const void* p) {
  return Memory::get().translate(p, 1, false, deviceOfThread()) != nullptr;
}

SIM_EXPORT void simDescribeAddress(uint64_t address, uint64_t bytes, char* text, uint64_t size) {
  copyText(Memory::get().describe(reinterpret_cast<void*>(address), bytes), text, size);
}

SIM_EXPORT uint64_t simLiveDeviceBytes(int device) { return Memory::get().used(device); }
