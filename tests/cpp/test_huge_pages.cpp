// SPDX-License-Identifier: Apache-2.0
//
// Explicit and transparent huge pages, with a system that has none, too few, or gives them and cannot back them.
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "check.h"
#include "error.h"
#include "fake_system.h"
#include "host_pool/mapping.h"

namespace {

using namespace torch_offload;

void offer_huge_pages(int pages) {
  files["/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"] = std::to_string(pages) + "\n";
  files["/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages"] = "1\n";
}

void forbid_transparent_huge_pages() {
  files["/sys/kernel/mm/transparent_hugepage/enabled"] = "always madvise [never]\n";
  files["/sys/kernel/mm/transparent_hugepage/shmem_enabled"] = "always advise [never] deny\n";
}

// Explicit huge pages that are in truth ordinary ones.
void* mmap_without_hugetlb(void* address, size_t length, int protection, int flags, int fd, off_t offset) {
  return mmap(address, length, protection, flags & ~(MAP_HUGETLB | (0x3f << 26)), fd, offset);
}

TEST(explicit_huge_pages) {
  std::vector<std::string> warnings;
  SystemCalls calls = faked();
  offer_huge_pages(3);
  calls.mmap = mmap_without_hugetlb;
  for (HugePages wish : {HugePages::kAuto, HugePages::kRequire}) {
    MappingOptions options = plain(3 * kMiB);
    options.huge_pages = wish;
    const auto mapping = create(options, calls, &warnings);
    EXPECT_EQ(mapping->length(), 4 * kMiB);
    EXPECT_EQ(mapping->page_size(), kHugePageSize);
    EXPECT_EQ(mapping->huge_bytes(), 4 * kMiB);
    EXPECT_EQ(resident_bytes(*mapping), 4 * kMiB);
    EXPECT(warnings.empty());
  }
}

TEST(too_few_huge_pages) {
  std::vector<std::string> warnings;
  const SystemCalls calls = faked();
  offer_huge_pages(2);  // one of them is reserved
  forbid_transparent_huge_pages();
  MappingOptions options = plain(4 * kMiB);
  options.huge_pages = HugePages::kAuto;
  for (bool shared : {false, true}) {
    options.shared = shared;
    const auto mapping = create(options, calls, &warnings);
    EXPECT_EQ(mapping->page_size(), small_page_size());
    EXPECT_EQ(warnings.size(), 1u);
    EXPECT(warnings[0].find("4194304 bytes of explicit huge pages wanted, 2097152 free") != std::string::npos);
    std::memset(mapping->base(), 1, mapping->length());
  }
  options.huge_pages = HugePages::kRequire;
  EXPECT_THROWS(OutOfMemoryError, "vm.nr_hugepages", create(options, calls, &warnings));
  options.huge_pages = HugePages::kAuto;
  options.length = kMiB;  // smaller than a huge page: nothing was wished for
  create(options, calls, &warnings);
  EXPECT(warnings.empty());
}

// The control group's cap shows only when the pages are populated.
TEST(huge_pages_that_cannot_be_populated) {
  std::vector<std::string> warnings;
  SystemCalls calls = faked();
  offer_huge_pages(100);
  forbid_transparent_huge_pages();
  calls.mmap = mmap_without_hugetlb;
  calls.madvise = [](void* address, size_t length, int advice) {
    if (advice != 23) return madvise(address, length, advice);
    errno = EFAULT;
    return -1;
  };
  MappingOptions options = plain(4 * kMiB);
  options.huge_pages = HugePages::kAuto;
  const auto mapping = create(options, calls, &warnings);
  EXPECT_EQ(mapping->page_size(), small_page_size());
  EXPECT_EQ(warnings.size(), 1u);
  EXPECT(warnings[0].find("could not be populated") != std::string::npos);
  options.huge_pages = HugePages::kRequire;
  EXPECT_THROWS(OutOfMemoryError, "could not be populated", create(options, calls, &warnings));
}

TEST(huge_pages_on_a_kernel_without_populate) {
  std::vector<std::string> warnings;
  SystemCalls calls = faked();
  offer_huge_pages(100);
  forbid_transparent_huge_pages();
  calls.mmap = mmap_without_hugetlb;
  calls.madvise = [](void*, size_t, int) {
    errno = EINVAL;
    return -1;
  };
  MappingOptions options = plain(4 * kMiB);
  options.huge_pages = HugePages::kAuto;
  EXPECT_EQ(create(options, calls, &warnings)->page_size(), kHugePageSize);  // MAP_POPULATE did it
  calls.mincore = [](void* address, size_t length, unsigned char* resident) {
    const int result = mincore(address, length, resident);
    resident[length / small_page_size() - 1] = 0;
    return result;
  };
  EXPECT_EQ(create(options, calls, &warnings)->page_size(), small_page_size());
  EXPECT_EQ(warnings.size(), 1u);
}

TEST(transparent_huge_pages_are_reported_only_where_they_are) {
  std::vector<std::string> warnings;
  const SystemCalls calls = faked();
  offer_huge_pages(0);
  MappingOptions options = plain(8 * kMiB);
  options.huge_pages = HugePages::kAuto;
  options.prefault_threads = 2;
  const auto mapping = create(options, calls, &warnings);
  const uint64_t measured = mapping->measure_huge_bytes();
  EXPECT_EQ(mapping->huge_bytes(), measured);
  EXPECT_EQ(mapping->page_size() == kHugePageSize, measured == mapping->length());
  EXPECT_EQ(warnings.empty(), measured == mapping->length());
  // Without prefaulting nothing is backed, so nothing is claimed.
  options.prefault_threads = 0;
  const auto lazy = create(options, calls, &warnings);
  EXPECT_EQ(lazy->page_size(), small_page_size());
  // "require" backs everything before it returns, or refuses.
  options.huge_pages = HugePages::kRequire;
  try {
    const auto required = create(options, calls, &warnings);
    EXPECT_EQ(required->page_size(), kHugePageSize);
    EXPECT_EQ(required->measure_huge_bytes(), required->length());
  } catch (const OutOfMemoryError&) {
    EXPECT(measured != mapping->length());
  }
  files["/proc/self/smaps"] = "";  // unreadable: nothing can be claimed
  EXPECT_THROWS(OutOfMemoryError, "", create(options, calls, &warnings));
}

}  // namespace

CHECK_MAIN()
