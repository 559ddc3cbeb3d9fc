// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

#include "check.h"
#include "error.h"
#include "fake_system.h"
#include "host_pool/mapping.h"

namespace {

using namespace torch_offload;

size_t count_maps() {
  std::ifstream maps("/proc/self/maps");
  size_t lines = 0;
  for (std::string line; std::getline(maps, line);) ++lines;
  return lines;
}

TEST(prefault_in_parallel) {
  std::vector<std::string> warnings;
  for (int threads : {1, 2, 5}) {
    for (bool shared : {false, true}) {
      MappingOptions options = plain(70 * kMiB + 4096);
      options.prefault_threads = threads;
      options.shared = shared;
      uint64_t last = 0;
      const auto mapping = create(options, faked(), &warnings, [&](uint64_t done, uint64_t total) {
        EXPECT(done >= last && done <= total);
        EXPECT_EQ(total, 70 * kMiB + 4096);
        last = done;
        return true;
      });
      EXPECT_EQ(last, mapping->length());
      EXPECT_EQ(resident_bytes(*mapping), mapping->length());
    }
  }
}

// Each call waits until three threads are inside one: a single thread would never get through its first.
TEST(prefault_uses_its_threads) {
  std::vector<std::string> warnings;
  SystemCalls calls = faked();
  static std::mutex mutex;
  static std::condition_variable more;
  static std::set<std::thread::id> threads;
  threads.clear();
  calls.madvise = [](void* address, size_t length, int advice) {
    if (advice == MADV_POPULATE_WRITE) {
      std::unique_lock<std::mutex> lock(mutex);
      threads.insert(std::this_thread::get_id());
      more.notify_all();
      more.wait_for(lock, std::chrono::seconds(20), [] { return threads.size() == 3; });
    }
    return madvise(address, length, advice);
  };
  MappingOptions options = plain(80 * kMiB);
  options.prefault_threads = 3;
  const auto mapping = create(options, calls, &warnings);
  EXPECT_EQ(threads.size(), size_t{3});
}

TEST(never_means_never) {
  std::vector<std::string> warnings;
  SystemCalls calls = faked();
  static int advice_given;
  calls.madvise = [](void* address, size_t length, int advice) {
    if (advice == MADV_NOHUGEPAGE || advice == MADV_HUGEPAGE) advice_given = advice;
    return madvise(address, length, advice);
  };
  advice_given = 0;
  const auto mapping = create(plain(8 * kMiB), calls, &warnings);
  EXPECT_EQ(advice_given, MADV_NOHUGEPAGE);
}

TEST(prefault_on_an_old_kernel_touches) {
  std::vector<std::string> warnings;
  SystemCalls calls = faked();
  calls.madvise = [](void*, size_t, int) {
    errno = EINVAL;
    return -1;
  };
  MappingOptions options = plain(40 * kMiB);
  options.prefault_threads = 3;
  const auto mapping = create(options, calls, &warnings);
  EXPECT_EQ(resident_bytes(*mapping), mapping->length());
  EXPECT(mapping->base()[12345] == std::byte{0});
}

TEST(prefault_without_memory) {
  std::vector<std::string> warnings;
  SystemCalls calls = faked();
  static std::atomic<int> left;
  calls.madvise = [](void* address, size_t length, int advice) {
    if (advice != 23 || left-- > 0) return madvise(address, length, advice);
    errno = ENOMEM;
    return -1;
  };
  MappingOptions options = plain(80 * kMiB);
  options.prefault_threads = 2;
  const auto fail = [&] {
    left = 2;
    EXPECT_THROWS(OutOfMemoryError, "prefaulting found no more memory", create(options, calls, &warnings));
  };
  fail();  // libc and the sanitizers keep what ended threads had
  const size_t before = count_maps();
  for (int i = 0; i < 20; ++i) fail();
  EXPECT(count_maps() < before + 20);
}

TEST(prefault_cancelled) {
  std::vector<std::string> warnings;
  SystemCalls calls = faked();
  static std::atomic<int> chunks;
  chunks = 0;
  calls.madvise = [](void* address, size_t length, int advice) {
    ++chunks;
    usleep(150000);
    return madvise(address, length, advice);
  };
  MappingOptions options = plain(512 * kMiB);
  options.prefault_threads = 2;
  int called = 0;
  EXPECT_THROWS(StateError, "cancelled",
                create(options, calls, &warnings, [&](uint64_t, uint64_t) { return ++called < 2; }));
  EXPECT_EQ(called, 2);  // and not again while the workers finish
  EXPECT(chunks < 16);   // of 32
  chunks = 0;
  EXPECT_THROWS(std::out_of_range, "from the callback",
                create(options, calls, &warnings,
                       [](uint64_t, uint64_t) -> bool { throw std::out_of_range("from the callback"); }));
  EXPECT(chunks < 16);
}

}  // namespace

CHECK_MAIN()
