// SPDX-License-Identifier: Apache-2.0
#include "host_pool/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "error.h"
#include "host_pool/block_allocator.h"

#ifndef MAP_HUGE_2MB
#define MAP_HUGE_2MB (21 << 26)
#endif
#ifndef MFD_HUGETLB
#define MFD_HUGETLB 4U
#endif
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26)
#endif

namespace torch_offload {

namespace {

constexpr uint64_t kMaxLength = uint64_t{1} << 46;  // 64 TiB: more than an address space offers
constexpr int kMaxNode = 1023;
constexpr int kMpolBind = 2;           // MPOL_BIND
constexpr size_t kMaxMemfdName = 249;  // longer ones are refused by the kernel

constexpr int kReadWrite = PROT_READ | PROT_WRITE;

[[noreturn]] void throw_out_of_memory(uint64_t length, const std::string& why) {
  throw OutOfMemoryError(join("HostPool: out of memory: asked for ", length, " bytes, ", why));
}

void check_available(uint64_t length, const AvailableMemory& available) {
  if (length > available.bytes) {
    throw_out_of_memory(length, join("free ", available.bytes, " bytes (", available.source, ")"));
  }
}

// A node that does not exist is the user's mistake. Where the system does not list its nodes, mbind has the last word.
void check_numa_node(int node, const SystemCalls& calls) {
  if (node == kNoNumaNode) return;
  const std::vector<int> online = online_numa_nodes(calls);
  const bool known = online.empty() ? node == 0 : std::find(online.begin(), online.end(), node) != online.end();
  if (node < 0 || node > kMaxNode || (!known && !online.empty())) {
    std::string list;
    for (int other : online) list += (list.empty() ? "" : ", ") + std::to_string(other);
    throw ValueError(join("numa_node: expected a node that is online (", list.empty() ? "0" : list, "), got ", node));
  }
}

}  // namespace

std::unique_ptr<Mapping> Mapping::create(const MappingOptions& options, const Progress& progress,
                                         std::vector<std::string>* warnings, const SystemCalls& calls) {
  if (options.length == 0) throw ValueError("capacity: expected at least 1 byte, got 0");
  if (options.length > kMaxLength) throw_out_of_memory(options.length, join("free at most ", kMaxLength, " bytes"));
  if (options.prefault_threads < 0) {
    throw ValueError(join("prefault_threads: expected at least 0, got ", options.prefault_threads));
  }
  check_numa_node(options.numa_node, calls);
  std::unique_ptr<Mapping> mapping(new Mapping(calls));

  std::string why_not;
  // Below one huge page "auto" would only waste memory.
  const bool huge = options.huge_pages == HugePages::kRequire ||
                    (options.huge_pages == HugePages::kAuto && options.length >= kHugePageSize);
  if (huge && !mapping->map_explicit_huge_pages(options, progress, &why_not)) {
    const bool transparent = transparent_huge_pages_enabled(calls, options.shared);
    why_not += transparent ? "; transparent huge pages back only a part" : "; transparent huge pages are switched off";
    if (options.huge_pages == HugePages::kRequire && !transparent) throw_out_of_memory(options.length, why_not);
    mapping->map_pages(options, progress, transparent);
    const bool all_huge = mapping->page_size_ == kHugePageSize;
    if (options.huge_pages == HugePages::kRequire && !all_huge) throw_out_of_memory(options.length, why_not);
    // Without prefaulting nothing is known yet about transparent ones.
    if (!all_huge && (!transparent || options.prefault_threads > 0)) {
      warnings->push_back(join("huge pages: ordinary pages of ", small_page_size(), " bytes are used: ", why_not));
    }
  } else if (!huge) {
    mapping->map_pages(options, progress, false);
  }
  warnings->insert(warnings->end(), mapping->bind_warnings_.begin(), mapping->bind_warnings_.end());
  if (options.lock) mapping->lock(warnings);
  return mapping;
}

std::unique_ptr<Mapping> Mapping::attach(int fd, uint64_t length, uint64_t page_size, const SystemCalls& calls) {
  std::unique_ptr<Mapping> mapping(new Mapping(calls));
  mapping->fd_ = fd;
  mapping->reserve(length);
  mapping->map_memory(length, 0);
  mapping->page_size_ = page_size;
  mapping->huge_bytes_ = page_size == kHugePageSize ? length : 0;
  return mapping;
}

Mapping::~Mapping() {
  if (reserved_ != nullptr) munmap(reserved_, reserved_length_);
  if (fd_ >= 0) close(fd_);
}

// Takes the addresses; a multiple of 2 MiB as base makes every alignment of a block an alignment of its offset.
void Mapping::reserve(uint64_t length) {
  const uint64_t guard = small_page_size();
  const uint64_t total = guard + kMaxAlignment + align_up(length, kMaxAlignment) + guard;
  void* const address = calls_->mmap(nullptr, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) throw_out_of_memory(length, describe_errno("mmap of the addresses", errno));
  reserved_ = static_cast<std::byte*>(address);
  reserved_length_ = total;
  base_ = reinterpret_cast<std::byte*>(align_up(reinterpret_cast<uintptr_t>(address) + guard, kMaxAlignment));
}

// Puts memory on the reserved addresses.
void Mapping::map_memory(uint64_t length, int flags) {
  flags |= MAP_FIXED | (fd_ >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS);
  if (calls_->mmap(base_, length, kReadWrite, flags, fd_, 0) == MAP_FAILED) {
    throw_out_of_memory(length, describe_errno("mmap", errno));
  }
  length_ = length;
}

void Mapping::drop_memory() {
  if (reserved_ != nullptr) munmap(reserved_, reserved_length_);
  if (fd_ >= 0) close(fd_);
  reserved_ = base_ = nullptr;
  length_ = 0;
  fd_ = -1;
  numa_node_ = kNoNumaNode;
  bind_warnings_.clear();
}

// The size is sealed: a process that attaches could otherwise shrink the file, and an access would raise SIGBUS.
bool Mapping::open_memfd(const std::string& name, uint64_t length, unsigned flags) {
  fd_ = calls_->memfd_create(name.substr(0, kMaxMemfdName).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
  if (fd_ < 0) return false;
  if (ftruncate(fd_, static_cast<off_t>(length)) != 0) return false;
  fcntl(fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);  // hugetlbfs of old kernels: not supported
  return true;
}

// Explicit huge pages, all of them populated at once: a control group or a NUMA node that has too few of them shows
// only when they are touched, and then with SIGBUS. Populating reports it as an error.
bool Mapping::map_explicit_huge_pages(const MappingOptions& options, const Progress& progress, std::string* why_not) {
  const uint64_t length = align_up(options.length, kHugePageSize);
  const uint64_t available = available_huge_pages(*calls_);
  if (available < length) {
    *why_not = join(length, " bytes of explicit huge pages wanted, ", available, " free (vm.nr_hugepages)");
    return false;
  }
  bool done = false;
  try {
    if (options.shared && !open_memfd(options.name, length, MFD_HUGETLB | MFD_HUGE_2MB)) {
      *why_not = describe_errno("memfd_create of explicit huge pages", errno);
      drop_memory();
      return false;
    }
    const int flags = MAP_HUGETLB | MAP_HUGE_2MB;
    reserve(length);
    map_memory(length, flags);
    bind(options.numa_node, &bind_warnings_);
    PrefaultResult result = prefault({base_, length, std::max(options.prefault_threads, 1), false}, progress, *calls_);
    if (result == PrefaultResult::kUnsupported) {
      // MAP_POPULATE fails silently; mincore tells which pages have come.
      map_memory(length, flags | MAP_POPULATE);
      bind(options.numa_node, &bind_warnings_);
      std::vector<unsigned char> resident(length / small_page_size());
      const bool all = calls_->mincore(base_, length, resident.data()) == 0 &&
                       std::all_of(resident.begin(), resident.end(), [](unsigned char page) { return page & 1; });
      result = all ? PrefaultResult::kDone : PrefaultResult::kNoMemory;
    }
    done = result == PrefaultResult::kDone;
    if (!done) *why_not = "the explicit huge pages could not be populated (a limit of the control group or node)";
  } catch (const OutOfMemoryError& error) {
    *why_not = error.what();
  }
  if (!done) {
    drop_memory();
    return false;
  }
  page_size_ = kHugePageSize;
  huge_bytes_ = length;
  return true;
}

void Mapping::map_pages(const MappingOptions& options, const Progress& progress, bool transparent_huge_pages) {
  const uint64_t length = align_up(options.length, transparent_huge_pages ? kHugePageSize : small_page_size());
  check_available(length, available_memory(*calls_));
  if (options.numa_node != kNoNumaNode) check_available(length, available_on_node(*calls_, options.numa_node));
  if (options.shared && !open_memfd(options.name, length, 0)) {
    const int error = errno;
    const std::string what = describe_errno("memfd_create", error);
    if (error == ENOMEM || error == ENOSPC || error == EFBIG) throw_out_of_memory(length, what);
    throw StateError("HostPool: expected the system to give memory that processes can share, got " + what);
  }
  reserve(length);
  map_memory(length, 0);
  advised_ = transparent_huge_pages && calls_->madvise(base_, length, MADV_HUGEPAGE) == 0;
  // Whatever the system's default: the user said never.
  if (options.huge_pages == HugePages::kNever) calls_->madvise(base_, length, MADV_NOHUGEPAGE);
  bind(options.numa_node, &bind_warnings_);
  const int threads =
      options.huge_pages == HugePages::kRequire ? std::max(options.prefault_threads, 1) : options.prefault_threads;
  if (threads > 0 && prefault({base_, length, threads, true}, progress, *calls_) != PrefaultResult::kDone) {
    throw_out_of_memory(length, "prefaulting found no more memory");
  }
  huge_bytes_ = advised_ && threads > 0 ? measure_huge_bytes() : 0;
  page_size_ = huge_bytes_ == length ? kHugePageSize : small_page_size();
}

void Mapping::bind(int node, std::vector<std::string>* warnings) {
  if (node == kNoNumaNode) return;
  constexpr int kBits = 8 * sizeof(unsigned long);
  unsigned long nodes[(kMaxNode + 1) / kBits] = {};
  nodes[node / kBits] = 1UL << (node % kBits);
  // The kernel looks at one bit less than it is told.
  if (calls_->mbind(base_, length_, kMpolBind, nodes, kMaxNode + 2, 0) == 0) {
    numa_node_ = node;
    return;
  }
  const int error = errno;
  if (error == EINVAL && online_numa_nodes(*calls_).empty()) {
    throw ValueError(
        join("numa_node: expected a node of this system, got ", node, ": ", describe_errno("mbind", error)));
  }
  *warnings = {join("numa_node: not bound to node ", node, ": ", describe_errno("mbind", error))};
}

void Mapping::lock(std::vector<std::string>* warnings) {
  if (calls_->mlock(base_, length_) == 0) {
    locked_ = true;
    return;
  }
  const int error = errno;
  rlimit limit = {};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  const std::string bytes = limit.rlim_cur == RLIM_INFINITY ? "unlimited" : join(limit.rlim_cur, " bytes");
  warnings->push_back(join("lock: ", length_, " bytes are not locked: ", describe_errno("mlock", error),
                           "; RLIMIT_MEMLOCK (ulimit -l) is ", bytes));
}

}  // namespace torch_offload
