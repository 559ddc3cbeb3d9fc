// SPDX-License-Identifier: Apache-2.0
#include "host_pool/memory_info.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <sstream>

#include "error.h"

namespace torch_offload {

namespace {

// The number behind `key` at the start of a line or after a blank ("MemAvailable:  123 kB" -> 123).
std::optional<uint64_t> value_of(const std::string& text, const std::string& key) {
  for (size_t at = text.find(key); at != std::string::npos; at = text.find(key, at + 1)) {
    if (at != 0 && text[at - 1] != '\n' && text[at - 1] != ' ') continue;
    const size_t digits = text.find_first_not_of(" \t", at + key.size());
    uint64_t value = 0;
    if (digits == std::string::npos) return std::nullopt;
    const auto parsed = std::from_chars(text.data() + digits, text.data() + text.size(), value);
    if (parsed.ec == std::errc()) return value;
  }
  return std::nullopt;
}

std::optional<uint64_t> read_value(const SystemCalls& calls, const std::string& path, const std::string& key = "") {
  std::string text;
  if (!calls.read_text(path.c_str(), &text)) return std::nullopt;
  return value_of(text, key);
}

uint64_t minus(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

// The names by which one version of the memory controller goes.
struct CgroupFiles {
  const char* root;
  const char* limit;
  const char* usage;
  const char* reclaimable;  // page cache that the kernel gives up before it refuses memory
};
constexpr CgroupFiles kCgroupV2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "};
constexpr CgroupFiles kCgroupV1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                   "total_inactive_file "};

// Walks from the group of this process to the root of the mount: each level may limit, and inside a container the
// deeper paths may not be visible.
void limit_by_cgroup(const SystemCalls& calls, const CgroupFiles& files, std::string path, AvailableMemory* available) {
  while (true) {
    const std::string folder = files.root + (path == "/" ? std::string() : path) + "/";
    const auto limit = read_value(calls, folder + files.limit);  // "max" is no number
    const auto usage = read_value(calls, folder + files.usage);
    if (limit && usage) {
      const uint64_t cache = read_value(calls, folder + "memory.stat", files.reclaimable).value_or(0);
      const uint64_t bytes = minus(*limit, minus(*usage, cache));
      if (bytes < available->bytes) *available = {bytes, folder + files.limit};
    }
    if (path.empty() || path == "/") return;
    path.resize(path.find_last_of('/'));
  }
}

}  // namespace

uint64_t small_page_size() {
  static const uint64_t size = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return size;
}

AvailableMemory available_memory(const SystemCalls& calls) {
  AvailableMemory available = {UINT64_MAX, "nothing"};
  std::string text;
  if (calls.read_text("/proc/meminfo", &text)) {
    auto kib = value_of(text, "MemAvailable:");
    if (!kib) kib = value_of(text, "MemFree:");
    if (kib) available = {*kib * 1024, "/proc/meminfo"};
  }
  if (calls.read_text("/proc/self/cgroup", &text)) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      const size_t first = line.find(':');
      const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
      if (second == std::string::npos) continue;
      const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
      const std::string path = line.substr(second + 1);
      if (path.empty() || path[0] != '/') continue;
      if (controllers == ",,") limit_by_cgroup(calls, kCgroupV2, path, &available);
      if (controllers.find(",memory,") != std::string::npos) limit_by_cgroup(calls, kCgroupV1, path, &available);
    }
  }
  return available;
}

AvailableMemory available_on_node(const SystemCalls& calls, int node) {
  const std::string path = join("/sys/devices/system/node/node", node, "/meminfo");
  std::string text;
  if (!calls.read_text(path.c_str(), &text)) return {UINT64_MAX, "nothing"};
  const auto free = value_of(text, "MemFree:");
  if (!free) return {UINT64_MAX, "nothing"};
  const uint64_t cache = value_of(text, "Inactive(file):").value_or(0);
  return {(*free + cache) * 1024, path};
}

uint64_t available_huge_pages(const SystemCalls& calls) {
  const std::string folder = "/sys/kernel/mm/hugepages/hugepages-2048kB/";
  auto free = read_value(calls, folder + "free_hugepages");
  auto reserved = read_value(calls, folder + "resv_hugepages");
  std::string text;
  if (!free && calls.read_text("/proc/meminfo", &text) && value_of(text, "Hugepagesize:") == kHugePageSize / 1024) {
    free = value_of(text, "HugePages_Free:");
    reserved = value_of(text, "HugePages_Rsvd:");
  }
  return minus(free.value_or(0), reserved.value_or(0)) * kHugePageSize;
}

bool transparent_huge_pages_enabled(const SystemCalls& calls, bool shared) {
  std::string text;
  const std::string folder = "/sys/kernel/mm/transparent_hugepage/";
  if (!calls.read_text((folder + (shared ? "shmem_enabled" : "enabled")).c_str(), &text)) return true;
  return text.find("[never]") == std::string::npos && text.find("[deny]") == std::string::npos;
}

std::vector<int> online_numa_nodes(const SystemCalls& calls) {
  std::string text;
  if (!calls.read_text("/sys/devices/system/node/online", &text)) return {};
  std::vector<int> nodes;
  std::istringstream ranges(text);  // "0-1,4"
  for (std::string range; std::getline(ranges, range, ',');) {
    int first = 0;
    int last = 0;
    const int read = std::sscanf(range.c_str(), "%d-%d", &first, &last);
    if (read < 1) continue;
    for (int node = first; node <= (read == 2 ? last : first); ++node) nodes.push_back(node);
  }
  return nodes;
}

uint64_t huge_page_bytes(const SystemCalls& calls, const void* begin, uint64_t length) {
  std::string text;
  if (!calls.read_text("/proc/self/smaps", &text)) return 0;
  const uint64_t from = reinterpret_cast<uintptr_t>(begin);
  uint64_t bytes = 0;
  bool inside = false;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    uint64_t start = 0;
    uint64_t end = 0;
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " ", &start, &end) == 2) {
      inside = start < from + length && from < end;
    } else if (inside) {
      for (const char* key : {"AnonHugePages:", "ShmemPmdMapped:"}) {
        if (line.rfind(key, 0) == 0) bytes += value_of(line, key).value_or(0) * 1024;
      }
    }
  }
  return std::min(bytes, length);
}

}  // namespace torch_offload
