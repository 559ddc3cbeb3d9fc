// SPDX-License-Identifier: Apache-2.0
//
// The mapping with system calls that are denied, and with limits that are really set.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "check.h"
#include "error.h"
#include "fake_system.h"
#include "host_pool/block_allocator.h"
#include "host_pool/mapping.h"

// The sanitizers reserve terabytes of addresses.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OFFLOAD_TEST_CAN_LIMIT_ADDRESSES false
#else
#define OFFLOAD_TEST_CAN_LIMIT_ADDRESSES true
#endif

namespace {

using namespace torch_offload;

// Runs `body` in a child process and returns its exit status: 0 if body returned true.
template <typename Body>
int in_child(Body&& body) {
  const pid_t child = fork();
  if (child == 0) {
    bool good = false;
    try {
      good = body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "child: %s\n", error.what());
    }
    _exit(good ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

TEST(plain_memory) {
  std::vector<std::string> warnings;
  const auto mapping = create(plain(3 * kMiB + 5), faked(), &warnings);
  EXPECT_EQ(mapping->length(), align_up(3 * kMiB + 5, small_page_size()));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(mapping->base()) % kMaxAlignment, 0u);
  EXPECT_EQ(mapping->page_size(), small_page_size());
  EXPECT_EQ(mapping->fd(), -1);
  EXPECT_EQ(mapping->numa_node(), kNoNumaNode);
  EXPECT(!mapping->locked());
  EXPECT(warnings.empty());
  EXPECT_EQ(resident_bytes(*mapping), 0u);
  std::memset(mapping->base(), 1, mapping->length());
}

TEST(the_address_behind_the_memory_is_inaccessible) {
  std::vector<std::string> warnings;
  const auto mapping = create(plain(2 * kMiB), faked(), &warnings);
  std::byte* const behind = mapping->base() + 2 * kMiB;
  std::byte* const before = mapping->base() - 1;
  // A system call reports what an access would raise a signal for.
  int pipes[2];
  EXPECT_EQ(pipe(pipes), 0);
  EXPECT_EQ(write(pipes[1], behind, 1), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(write(pipes[1], before, 1), -1);
  EXPECT_EQ(write(pipes[1], behind - 1, 1), 1);
  close(pipes[0]);
  close(pipes[1]);
}

TEST(bad_arguments) {
  std::vector<std::string> warnings;
  EXPECT_THROWS(ValueError, "capacity", create(plain(0), faked(), &warnings));
  EXPECT_THROWS(OutOfMemoryError, "asked for 18446744073709551615 bytes",
                create(plain(UINT64_MAX), faked(), &warnings));
  EXPECT_THROWS(OutOfMemoryError, "out of memory", create(plain(uint64_t{1} << 45), faked(), &warnings));
  MappingOptions options = plain(kMiB);
  options.prefault_threads = -1;
  EXPECT_THROWS(ValueError, "prefault_threads", create(options, faked(), &warnings));
}

TEST(numa_node_that_does_not_exist) {
  std::vector<std::string> warnings;
  SystemCalls calls = faked();
  files["/sys/devices/system/node/online"] = "0-1,4\n";
  calls.mbind = [](void*, unsigned long, int, const unsigned long*, unsigned long, unsigned) -> long { return 0; };
  MappingOptions options = plain(kMiB);
  for (int node : {-2, 2, 3, 5, 5000}) {
    options.numa_node = node;
    EXPECT_THROWS(ValueError, "expected a node that is online (0, 1, 4), got " + std::to_string(node),
                  create(options, calls, &warnings));
  }
  for (int node : {0, 1, 4}) {
    options.numa_node = node;
    EXPECT_EQ(create(options, calls, &warnings)->numa_node(), node);
    EXPECT(warnings.empty());
  }
}

TEST(numa_binding_denied) {
  std::vector<std::string> warnings;
  MappingOptions options = plain(kMiB);
  options.numa_node = 0;
  SystemCalls calls = faked();
  calls.mbind = [](void*, unsigned long, int, const unsigned long*, unsigned long, unsigned) -> long {
    errno = EPERM;
    return -1;
  };
  EXPECT_EQ(create(options, calls, &warnings)->numa_node(), kNoNumaNode);
  EXPECT_EQ(warnings.size(), 1u);
  EXPECT(warnings[0].find("not bound to node 0: mbind: Operation not permitted") != std::string::npos);
  calls.mbind = [](void*, unsigned long, int, const unsigned long*, unsigned long, unsigned) -> long {
    errno = ENOSYS;
    return -1;
  };
  EXPECT_EQ(create(options, calls, &warnings)->numa_node(), kNoNumaNode);
  EXPECT_EQ(warnings.size(), 1u);
}

TEST(numa_node_unknown_to_a_system_that_lists_none) {
  std::vector<std::string> warnings;
  SystemCalls calls = faked();
  no_files = true;
  calls.mbind = [](void*, unsigned long, int, const unsigned long*, unsigned long, unsigned) -> long {
    errno = EINVAL;
    return -1;
  };
  MappingOptions options = plain(kMiB);
  options.numa_node = 9;
  EXPECT_THROWS(ValueError, "numa_node: expected a node of this system, got 9", create(options, calls, &warnings));
}

TEST(numa_node_with_too_little_memory) {
  std::vector<std::string> warnings;
  const SystemCalls calls = faked();
  files["/sys/devices/system/node/online"] = "0\n";
  files["/sys/devices/system/node/node0/meminfo"] = "Node 0 MemFree: 100 kB\nNode 0 Inactive(file): 50 kB\n";
  MappingOptions options = plain(kMiB);
  options.numa_node = 0;
  EXPECT_THROWS(OutOfMemoryError, "free 153600 bytes", create(options, calls, &warnings));
}

TEST(nothing_readable_still_works) {
  std::vector<std::string> warnings;
  const SystemCalls calls = faked();
  no_files = true;
  MappingOptions options = plain(4 * kMiB);
  options.huge_pages = HugePages::kAuto;
  options.prefault_threads = 2;
  const auto mapping = create(options, calls, &warnings);
  EXPECT_EQ(mapping->page_size(), small_page_size());
  EXPECT(warnings.size() <= 1);
  std::memset(mapping->base(), 1, mapping->length());
}

TEST(memory_that_is_not_there_is_refused) {
  std::vector<std::string> warnings;
  const SystemCalls calls = faked();
  files["/proc/meminfo"] = "MemTotal: 9999999 kB\nMemFree: 9999 kB\nMemAvailable:   2048 kB\nHugePages_Total: 4000\n";
  files["/proc/self/cgroup"] = "";
  EXPECT_THROWS(OutOfMemoryError, "free 2097152 bytes (/proc/meminfo)", create(plain(3 * kMiB), calls, &warnings));
  create(plain(2 * kMiB), calls, &warnings);
}

TEST(control_group_limits) {
  std::vector<std::string> warnings;
  const SystemCalls calls = faked();
  files["/proc/meminfo"] = "MemAvailable: 999999999 kB\n";
  // Version 2: the parent limits; its page cache may go.
  files["/proc/self/cgroup"] = "0::/a/b\n";
  files["/sys/fs/cgroup/a/b/memory.max"] = "max\n";
  files["/sys/fs/cgroup/a/b/memory.current"] = "0\n";
  files["/sys/fs/cgroup/a/memory.max"] = "10485760\n";
  files["/sys/fs/cgroup/a/memory.current"] = "8388608\n";
  files["/sys/fs/cgroup/a/memory.stat"] = "anon 5\ninactive_file 2097152\n";
  EXPECT_THROWS(OutOfMemoryError, "free 4194304 bytes (/sys/fs/cgroup/a/memory.max)",
                create(plain(5 * kMiB), calls, &warnings));
  create(plain(4 * kMiB), calls, &warnings);
  // Version 1, in a container that sees only its own root.
  files["/proc/self/cgroup"] = "5:cpu,cpuacct:/x\n4:hugetlb,memory:/docker/x\n";
  files["/sys/fs/cgroup/memory/memory.limit_in_bytes"] = "3145728\n";
  files["/sys/fs/cgroup/memory/memory.usage_in_bytes"] = "1048576\n";
  files["/sys/fs/cgroup/memory/memory.stat"] = "inactive_file 7777777\ntotal_inactive_file 0\n";
  EXPECT_THROWS(OutOfMemoryError, "free 2097152 bytes (/sys/fs/cgroup/memory/memory.limit_in_bytes)",
                create(plain(3 * kMiB), calls, &warnings));
}

TEST(no_addresses) {
  std::vector<std::string> warnings;
  SystemCalls calls = faked();
  calls.mmap = [](void*, size_t, int, int, int, off_t) -> void* {
    errno = ENOMEM;
    return MAP_FAILED;
  };
  EXPECT_THROWS(OutOfMemoryError, "mmap of the addresses: Cannot allocate memory",
                create(plain(kMiB), calls, &warnings));
  calls = faked();
  static int denied;
  calls.memfd_create = [](const char*, unsigned) {
    errno = denied;
    return -1;
  };
  MappingOptions options = plain(kMiB);
  options.shared = true;
  denied = ENOMEM;
  EXPECT_THROWS(OutOfMemoryError, "memfd_create", create(options, calls, &warnings));
  for (const int error : {ENOSYS, EPERM, EMFILE}) {
    denied = error;
    EXPECT_THROWS(StateError, "memfd_create", create(options, calls, &warnings));
  }
}

// Limits that are really set, in a child process.

TEST(address_space_limit) {
  if (!OFFLOAD_TEST_CAN_LIMIT_ADDRESSES) return;
  EXPECT_EQ(in_child([] {
              std::vector<std::string> warnings;
              const rlimit limit = {uint64_t{1} << 30, uint64_t{1} << 30};
              setrlimit(RLIMIT_AS, &limit);
              EXPECT_THROWS(OutOfMemoryError, "mmap of the addresses", create(plain(2048 * kMiB), faked(), &warnings));
              return true;
            }),
            0);
}

TEST(locking_within_and_beyond_the_limit) {
  EXPECT_EQ(in_child([] {
              std::vector<std::string> warnings;
              const rlimit limit = {65536, 65536};
              setrlimit(RLIMIT_MEMLOCK, &limit);
              if (geteuid() == 0 && setuid(65534) != 0) return true;  // root may lock anything
              MappingOptions options = plain(4 * kMiB);
              options.lock = true;
              const auto mapping = create(options, faked(), &warnings);
              EXPECT(!mapping->locked());
              EXPECT_EQ(warnings.size(), 1u);
              EXPECT(warnings[0].find("RLIMIT_MEMLOCK (ulimit -l) is 65536 bytes") != std::string::npos);
              std::memset(mapping->base(), 1, mapping->length());
              options.length = 16384;
              EXPECT(create(options, faked(), &warnings)->locked());
              return true;
            }),
            0);
}

TEST(locking_denied) {
  std::vector<std::string> warnings;
  SystemCalls calls = faked();
  calls.mlock = [](const void*, size_t) {
    errno = EPERM;
    return -1;
  };
  MappingOptions options = plain(kMiB);
  options.lock = true;
  EXPECT(!create(options, calls, &warnings)->locked());
  EXPECT_EQ(warnings.size(), 1u);
}

}  // namespace

CHECK_MAIN()
