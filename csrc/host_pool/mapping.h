// SPDX-License-Identifier: Apache-2.0
//
// One piece of host memory and everything the operating system has to say about it: page size, NUMA node, locking,
// sharing. A shortage is an exception at creation, never a signal later.
//
// Layout of the reserved addresses: a guard page, the memory (base aligned to 2 MiB), then inaccessible addresses up to
// and including the page at the next multiple of 2 MiB, which is where blocks of size 0 live.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "host_pool/memory_info.h"
#include "host_pool/prefault.h"
#include "host_pool/system_calls.h"
#include "visibility.h"

namespace torch_offload {

enum class HugePages : uint8_t {
  kAuto,     // explicit huge pages, else transparent ones, else ordinary pages
  kRequire,  // explicit or transparent ones that really back all of the memory, else OutOfMemoryError
  kNever,
};

inline constexpr int kNoNumaNode = -1;

struct MappingOptions {
  uint64_t length = 0;  // rounded up to the page size that is used
  HugePages huge_pages = HugePages::kAuto;
  bool shared = false;             // backed by a memfd that other processes can map
  int numa_node = kNoNumaNode;     // bind to this node
  bool lock = false;               // mlock
  int prefault_threads = 0;        // 0: pages come with their first touch (explicit huge pages always at creation)
  std::string name = "host_pool";  // of the memfd, as /proc shows it
};

// Owns its addresses and its memfd; both go with the object. Immutable once made, so that it needs no lock.
class OFFLOAD_CORE_API Mapping {
 public:
  // Appends a text to `warnings` for every wish that was denied.
  // @throws ValueError (length, NUMA node), OutOfMemoryError, StateError (cancelled, or no shared memory allowed) and
  // what `progress` throws
  static std::unique_ptr<Mapping> create(const MappingOptions& options, const Progress& progress,
                                         std::vector<std::string>* warnings, const SystemCalls& calls = system_calls());

  // Maps the memory of another process's mapping; takes `fd` over, also when it throws.
  // @throws OutOfMemoryError when the addresses cannot be had
  static std::unique_ptr<Mapping> attach(int fd, uint64_t length, uint64_t page_size,
                                         const SystemCalls& calls = system_calls());

  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* base() const { return base_; }
  uint64_t length() const { return length_; }
  // The smallest page that backs the memory: 2 MiB only if huge pages back all of it, measured at creation.
  uint64_t page_size() const { return page_size_; }
  // How many bytes huge pages back, measured at creation.
  uint64_t huge_bytes() const { return huge_bytes_; }
  int numa_node() const { return numa_node_; }  // kNoNumaNode unless bound
  bool locked() const { return locked_; }
  bool shared() const { return fd_ >= 0; }
  int fd() const { return fd_; }  // of the memfd, -1 for private memory; the mapping owns it
  // Transparent huge pages were asked for and may still come with later touches.
  bool huge_pages_may_come() const { return advised_ && page_size_ != kHugePageSize; }
  // How many bytes huge pages back now. Slow: reads /proc.
  uint64_t measure_huge_bytes() const { return huge_page_bytes(*calls_, base_, length_); }

 private:
  explicit Mapping(const SystemCalls& calls) : calls_(&calls) {}

  void reserve(uint64_t length);
  bool map_explicit_huge_pages(const MappingOptions& options, const Progress& progress, std::string* why_not);
  void map_pages(const MappingOptions& options, const Progress& progress, bool transparent_huge_pages);
  void map_memory(uint64_t length, int flags);
  bool open_memfd(const std::string& name, uint64_t length, unsigned flags);
  void bind(int node, std::vector<std::string>* warnings);
  void lock(std::vector<std::string>* warnings);
  void drop_memory();

  const SystemCalls* calls_;
  std::byte* reserved_ = nullptr;
  uint64_t reserved_length_ = 0;
  std::byte* base_ = nullptr;
  uint64_t length_ = 0;
  uint64_t page_size_ = 0;
  uint64_t huge_bytes_ = 0;
  int numa_node_ = kNoNumaNode;
  bool advised_ = false;
  bool locked_ = false;
  int fd_ = -1;
  std::vector<std::string> bind_warnings_;
};

}  // namespace torch_offload
