// SPDX-License-Identifier: Apache-2.0
// The table of everything that simulated device code may touch.
#pragma once
#include <map>
#include <memory>
#include <shared_mutex>
#include <vector>

#include "address_space.h"
#include "api.h"

namespace sim {

enum class RangeKind { kDevice, kMappedHost, kArguments };

struct Range {
  uint64_t size;  // exactly what was asked for
  char* view;     // where the host finds the bytes
  int device;     // the one that may touch it; kAnyDevice
  bool writable;
  RangeKind kind;
};
constexpr int kAnyDevice = -1;

class Memory {
 public:
  static Memory& get();

  aclError allocate(void** out, uint64_t size, int device);
  aclError release(void* p);
  uint64_t used(int device);
  // Counts physical memory of a device; false if the budget does not allow it.
  bool charge(int device, uint64_t size);
  void discharge(int device, uint64_t size);

  void insert(char* p, const Range& range);
  // False if there is none that begins at p.
  bool erase(char* p, Range* erased = nullptr);
  bool overlaps(const char* p, uint64_t size);
  // The range around p; false if there is none.
  bool find(const void* p, char** begin, Range* range);

  // The host address of [p, p + bytes) as `device` may touch it, or null.
  char* translate(const void* p, uint64_t bytes, bool write, int device = kAnyDevice);
  std::string describe(const void* p, uint64_t bytes);

 private:
  using Ranges = std::map<char*, Range>;
  Memory();
  Ranges::iterator around(const void* p);  // the caller holds the mutex

  std::shared_mutex mutex_;
  Ranges live_;
  std::vector<std::pair<char*, uint64_t>> freed_;  // the latest, a ring: for describe()
  size_t nextFreed_ = 0;
  std::vector<uint64_t> used_;           // bytes by device
  std::atomic<uint64_t> generation_{1};  // changes with each erase: what threads cache is stale then
};

// Device memory of the runtime itself, for the argument blocks of launches: read-only for kernels.
class ArgumentBuffer {
 public:
  explicit ArgumentBuffer(const void* data, uint64_t size);
  ~ArgumentBuffer();
  ArgumentBuffer(const ArgumentBuffer&) = delete;
  ArgumentBuffer& operator=(const ArgumentBuffer&) = delete;
  char* address() const { return address_; }  // null if there was no memory

 private:
  char* address_;
  uint64_t size_;
};

}  // namespace sim
