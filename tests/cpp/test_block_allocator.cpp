// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "check.h"
#include "error.h"
#include "host_pool/block_allocator.h"

namespace {

using namespace torch_offload;

// The model: the live intervals alone. Every block that the allocator hands out is compared with it.
class Model {
 public:
  explicit Model(uint64_t capacity) : capacity_(capacity) {}

  void add(uint64_t offset, uint64_t size) {
    EXPECT(offset + size <= capacity_);
    const auto next = live_.lower_bound(offset);
    if (next != live_.end()) EXPECT(offset + size <= next->first);
    if (next != live_.begin()) EXPECT(std::prev(next)->first + std::prev(next)->second <= offset);
    live_.emplace(offset, size);
    used_ += size;
  }

  void remove(uint64_t offset) {
    used_ -= live_.at(offset);
    live_.erase(offset);
  }

  // Whether any gap holds `size` bytes at a multiple of `alignment`.
  bool has_room(uint64_t size, uint64_t alignment) const {
    uint64_t begin = 0;
    for (const auto& [offset, length] : live_) {
      if (align_up(begin, alignment) + size <= offset) return true;
      begin = offset + length;
    }
    return align_up(begin, alignment) + size <= capacity_;
  }

  uint64_t used() const { return used_; }

 private:
  uint64_t capacity_;
  uint64_t used_ = 0;
  std::map<uint64_t, uint64_t> live_;
};

void expect_empty(const BlockAllocator& allocator) {
  const AllocatorStats stats = allocator.stats();
  EXPECT_EQ(stats.used, 0u);
  EXPECT_EQ(stats.requested, 0u);
  EXPECT_EQ(stats.live_blocks, 0u);
  EXPECT_EQ(stats.free_blocks, 1u);
  EXPECT_EQ(stats.largest_free, stats.capacity);
  EXPECT_EQ(stats.allocations, stats.frees);
}

// The map has no gap, no two free neighbours, and agrees with the counters.
void expect_consistent(const BlockAllocator& allocator) {
  const AllocatorStats stats = allocator.stats();
  uint64_t end = 0, used = 0, free_blocks = 0, largest = 0;
  bool previous_free = false;
  for (const BlockInfo& block : allocator.blocks()) {
    EXPECT_EQ(block.offset, end);
    EXPECT(block.size > 0);
    EXPECT(!(previous_free && block.free));
    end += block.size;
    used += block.free ? 0 : block.size;
    free_blocks += block.free;
    if (block.free) largest = std::max(largest, block.size);
    previous_free = block.free;
  }
  EXPECT_EQ(end, stats.capacity);
  EXPECT_EQ(used, stats.used);
  EXPECT_EQ(free_blocks, stats.free_blocks);
  EXPECT_EQ(largest, stats.largest_free);
  EXPECT_EQ(stats.used + stats.free, stats.capacity);
}

enum class Order { kLifo, kFifo, kRandom, kEvenOdd };

void churn(Order order, uint64_t pool_alignment, int operations, uint32_t seed) {
  const uint64_t capacity = uint64_t{64} << 20;
  BlockAllocator allocator(capacity, pool_alignment);
  Model model(capacity);
  std::mt19937_64 random(seed);
  struct Live {
    uint64_t offset, size;
  };
  std::vector<Live> live;
  uint64_t zero_sized = 0, refused = 0;
  const auto release = [&](size_t at) {
    EXPECT(allocator.free(live[at].offset) == FreeResult::kFreed);
    model.remove(live[at].offset);
    live.erase(live.begin() + at);
  };
  for (int i = 0; i < operations; ++i) {
    const bool grow = live.empty() || random() % 1000 < 520;
    if (grow) {
      // From 0 to a quarter of the capacity, small sizes far more often.
      const uint64_t size = random() % (uint64_t{1} << (random() % 25)) % (capacity / 4 + 1);
      const uint64_t alignment = random() % 3 ? 0 : uint64_t{16} << (random() % 18);
      const uint64_t effective = std::max(alignment, pool_alignment);
      const uint64_t rounded = align_up(size, pool_alignment);
      const bool room = size == 0 || model.has_room(rounded, effective);
      try {
        const uint64_t offset = allocator.allocate(size, alignment);
        EXPECT(room);
        EXPECT_EQ(offset % effective, 0u);
        if (size == 0) {
          EXPECT(offset >= capacity);
          ++zero_sized;
        } else {
          model.add(offset, rounded);
          live.push_back({offset, rounded});
        }
      } catch (const OutOfMemoryError&) {
        EXPECT(!room);
        ++refused;
        for (int n = 0; n < 8 && !live.empty(); ++n) release(random() % live.size());
      }
    } else if (order == Order::kLifo) {
      release(live.size() - 1);
    } else if (order == Order::kFifo) {
      release(0);
    } else if (order == Order::kRandom) {
      release(random() % live.size());
    } else {
      release(live.size() > 1 ? (live.size() - 1) / 2 * 2 : 0);
    }
    EXPECT_EQ(allocator.stats().used, model.used());
    EXPECT_EQ(allocator.stats().live_blocks, live.size() + zero_sized);
    if (i % 997 == 0) expect_consistent(allocator);
  }
  EXPECT(refused > 0);
  if (order == Order::kEvenOdd) {
    for (size_t at = 0; at < live.size(); ++at) release(at);  // every second one
    expect_consistent(allocator);
  }
  while (!live.empty()) release(order == Order::kFifo ? 0 : live.size() - 1);
  for (; zero_sized > 0; --zero_sized) EXPECT(allocator.free(allocator.zero_size_offset()) == FreeResult::kFreed);
  expect_empty(allocator);
  EXPECT_EQ(allocator.allocate(capacity), 0u);
}

#ifdef OFFLOAD_TEST_SMALL  // sanitizers
constexpr int kOperations = 12500;
#else
constexpr int kOperations = 50000;
#endif

TEST(random_operations_lifo) { churn(Order::kLifo, 64, kOperations, 1); }
TEST(random_operations_fifo) { churn(Order::kFifo, 16, kOperations, 2); }
TEST(random_operations_random) { churn(Order::kRandom, 64, kOperations, 3); }
TEST(random_operations_even_odd) { churn(Order::kEvenOdd, 512, kOperations, 4); }
TEST(random_operations_coarse_alignment) { churn(Order::kRandom, 65536, kOperations, 5); }

TEST(sizes_that_wrap_when_rounded_are_refused) {
  BlockAllocator allocator(1 << 20, 64);
  for (uint64_t size : {~uint64_t{0}, ~uint64_t{0} - 62, uint64_t{1} << 63, (uint64_t{1} << 20) + 1}) {
    EXPECT_THROWS(OutOfMemoryError, "asked for " + std::to_string(size) + " bytes", allocator.allocate(size));
  }
  expect_empty(allocator);
  EXPECT_EQ(allocator.allocate((1 << 20) - 1), 0u);
  EXPECT_EQ(allocator.stats().used, 1u << 20);
  EXPECT_EQ(allocator.stats().requested, (1u << 20) - 1);
}

TEST(out_of_memory_names_asked_free_and_largest) {
  BlockAllocator allocator(4096, 64);
  const uint64_t first = allocator.allocate(1024);
  allocator.allocate(1024);
  EXPECT(allocator.free(first) == FreeResult::kFreed);
  EXPECT_THROWS(OutOfMemoryError, "asked for 2500 bytes (alignment 64), free 3072 bytes, largest free block 2048 bytes",
                allocator.allocate(2500));
  expect_consistent(allocator);
}

TEST(size_zero_is_valid_also_when_full) {
  BlockAllocator allocator(4096, 64);
  allocator.allocate(4096);
  const uint64_t a = allocator.allocate(0);
  const uint64_t b = allocator.allocate(0, kMaxAlignment);
  EXPECT_EQ(a, b);
  EXPECT_EQ(a % kMaxAlignment, 0u);
  EXPECT_EQ(allocator.stats().live_blocks, 3u);
  EXPECT(allocator.free(a) == FreeResult::kFreed);
  EXPECT(allocator.free(b) == FreeResult::kFreed);
  EXPECT(allocator.free(b) == FreeResult::kDoubleFree);
  EXPECT_EQ(allocator.stats().live_blocks, 1u);
}

TEST(wrong_frees_change_nothing) {
  BlockAllocator allocator(4096, 64);
  const uint64_t a = allocator.allocate(256);
  const uint64_t b = allocator.allocate(256, 0, BlockOwner::kHandle);
  EXPECT(allocator.free(a + 16) == FreeResult::kInterior);
  EXPECT(allocator.free(b) == FreeResult::kForeign);
  EXPECT(allocator.free(b, BlockOwner::kRaw) == FreeResult::kForeign);
  EXPECT(allocator.free(4096) == FreeResult::kForeign);
  EXPECT(allocator.free(~uint64_t{0}) == FreeResult::kForeign);
  EXPECT(allocator.free(1024) == FreeResult::kDoubleFree);
  EXPECT(allocator.free(allocator.zero_size_offset()) == FreeResult::kDoubleFree);
  EXPECT_EQ(allocator.stats().used, 512u);
  EXPECT(allocator.free(a) == FreeResult::kFreed);
  EXPECT(allocator.free(a) == FreeResult::kDoubleFree);
  EXPECT(allocator.free(b, BlockOwner::kHandle) == FreeResult::kFreed);
  expect_empty(allocator);
}

TEST(bad_alignments_and_capacities_are_refused) {
  BlockAllocator allocator(4096, 64);
  for (uint64_t alignment :
       {uint64_t{1}, uint64_t{3}, uint64_t{8}, uint64_t{48}, uint64_t{1} << 22, uint64_t{1} << 40}) {
    EXPECT_THROWS(ValueError, "alignment: expected a power of two", allocator.allocate(1, alignment));
    EXPECT_THROWS(ValueError, "alignment: expected a power of two", BlockAllocator(4096, alignment));
  }
  EXPECT_THROWS(ValueError, "alignment", BlockAllocator(4096, 0));
  for (uint64_t capacity : {uint64_t{0}, uint64_t{100}, uint64_t{1} << 63}) {
    EXPECT_THROWS(ValueError, "capacity", BlockAllocator(capacity, 64));
  }
}

TEST(a_block_takes_no_more_than_the_alignment_above_its_size) {
  BlockAllocator allocator(8 << 20, 64);
  for (int i = 0; i < 5; ++i) allocator.allocate(1258291);  // 1.2 MiB
  const AllocatorStats stats = allocator.stats();
  EXPECT_EQ(stats.requested, 5u * 1258291);
  EXPECT(stats.used - stats.requested < 5 * 64);
}

TEST(best_fit_takes_the_smallest_hole) {
  BlockAllocator allocator(1 << 20, 64);
  const uint64_t wide = allocator.allocate(4096);
  allocator.allocate(64);
  const uint64_t narrow = allocator.allocate(1024);
  allocator.allocate(64);
  allocator.free(wide);
  allocator.free(narrow);
  EXPECT_EQ(allocator.allocate(1000), narrow);
  EXPECT_EQ(allocator.allocate(1000), wide);
}

// 100 holes of 4096 + 64 bytes that hold no aligned page, and one that does: the request must find it.
TEST(an_aligned_request_finds_the_only_hole_that_holds_it) {
  BlockAllocator allocator(1 << 20, 64);
  std::vector<uint64_t> holes;
  for (int i = 0; i < 101; ++i) {
    // Every hole but the last begins 128 bytes behind a multiple of 4096.
    allocator.allocate(i == 0 ? 128 : i == 100 ? 4096 - 64 - 128 : 4096 - 64);
    holes.push_back(allocator.allocate(4096 + 64));
  }
  allocator.allocate(allocator.stats().largest_free);
  for (uint64_t hole : holes) allocator.free(hole);
  EXPECT_EQ(holes[99] % 4096, 128u);
  EXPECT_EQ(holes[100] % 4096, 0u);
  EXPECT_EQ(allocator.allocate(4096, 4096), holes[100]);
  EXPECT_THROWS(OutOfMemoryError, "alignment 4096", allocator.allocate(4096, 4096));
  expect_consistent(allocator);
}

TEST(nearly_equal_sizes_leak_nothing) {
  BlockAllocator allocator(4 << 20, 64);
  const uint64_t mib = 1 << 20;
  for (int i = 0; i < 10000; ++i) {
    for (uint64_t size : {mib, mib - 1, mib - 63}) {
      EXPECT(allocator.free(allocator.allocate(size)) == FreeResult::kFreed);
    }
    EXPECT_EQ(allocator.stats().used, 0u);
  }
  expect_empty(allocator);
}

}  // namespace

CHECK_MAIN()
