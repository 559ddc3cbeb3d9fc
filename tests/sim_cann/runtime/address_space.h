// SPDX-License-Identifier: Apache-2.0
// Two ranges of addresses of the same layout. Programs see the device range, which is never readable: a host
// that dereferences a device address crashes. The runtime works on the bytes at the same offset of the view
// range. Nothing is protected and unprotected in turns, so there is no window and no cost.
#pragma once
#include <cstdint>
#include <mutex>

namespace sim {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kHugePage = 2 << 20;
inline uint64_t roundUp(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

class AddressSpace {
 public:
  static AddressSpace& get();

  // Device addresses, followed by an unused page. None is handed out twice, so a use after free is always
  // seen. Null when all are used up.
  char* take(uint64_t size, uint64_t alignment);
  bool contains(const void* p) const { return p >= device_ && p < device_ + kBytes; }
  char* view(const void* p) const { return view_ + (static_cast<const char*>(p) - device_); }

  // Makes fresh zeroed memory appear in the view of [p, p + size), or pages of a file if fd >= 0.
  bool map(char* p, uint64_t size, int fd = -1, uint64_t offset = 0);
  void unmap(char* p, uint64_t size);

  // torch_npu reserves more than the whole device memory per stream and graph with expandable segments. The
  // thread sanitizer only knows a small part of the address space.
#ifdef __SANITIZE_THREAD__
  static constexpr uint64_t kBytes = 1ULL << 37;
#else
  static constexpr uint64_t kBytes = 1ULL << 42;
#endif

 private:
  AddressSpace();
  std::mutex mutex_;
  char* device_;
  char* view_;
  char* next_;
};

}  // namespace sim
