// SPDX-License-Identifier: Apache-2.0
//
// HostPool in one process: lifetimes, wrong frees, threads, closing, deferred blocks, the default pool.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <mutex>
#include <random>
#include <thread>

#include "check.h"
#include "error.h"
#include "host_pool/default_pool.h"
#include "host_pool/host_pool.h"

namespace {

using namespace torch_offload;

constexpr uint64_t kMiB = uint64_t{1} << 20;

PoolOptions options_of(uint64_t capacity, uint64_t alignment = 64) {
  PoolOptions options;
  options.capacity = capacity;
  options.alignment = alignment;
  options.huge_pages = HugePages::kNever;
  return options;
}

uint64_t resident_pages() {
  std::ifstream statm("/proc/self/statm");
  uint64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident;
}

TEST(a_block_frees_itself) {
  const auto pool = HostPool::create(options_of(kMiB));
  {
    PoolBlock block = pool->allocate(1000);
    std::memset(block.data(), 1, 1000);
    EXPECT_EQ(pool->stats().used, 1024u);
    EXPECT_EQ(pool->stats().requested, 1000u);
    PoolBlock moved = std::move(block);
    EXPECT(block.data() == nullptr);
    EXPECT_EQ(pool->stats().live_blocks, 1u);
    moved = pool->allocate(100);
    EXPECT_EQ(pool->stats().live_blocks, 1u);
    EXPECT_EQ(pool->stats().used, 128u);
  }
  const PoolStats stats = pool->stats();
  EXPECT_EQ(stats.used, 0u);
  EXPECT_EQ(stats.peak, 1152u);
  EXPECT_EQ(stats.allocations, 2u);
  EXPECT_EQ(stats.frees, 2u);
  EXPECT_EQ(stats.page_size, static_cast<uint64_t>(getpagesize()));
}

TEST(capacity_is_rounded_to_pages_and_alignment) {
  EXPECT_EQ(HostPool::create(options_of(1))->capacity(), static_cast<uint64_t>(getpagesize()));
  EXPECT_EQ(HostPool::create(options_of(5000))->capacity(), 2u * getpagesize());
  EXPECT_EQ(HostPool::create(options_of(1, 2 * kMiB))->stats().capacity, 2 * kMiB);
  const auto pool = HostPool::create(options_of(8 * kMiB));
  EXPECT_EQ(pool->allocate(pool->capacity()).size(), 8 * kMiB);
}

TEST(bad_options_are_refused) {
  EXPECT_THROWS(ValueError, "capacity", HostPool::create(options_of(0)));
  EXPECT_THROWS(OutOfMemoryError, "out of memory", HostPool::create(options_of(UINT64_MAX)));
  EXPECT_THROWS(ValueError, "alignment", HostPool::create(options_of(kMiB, 3)));
  PoolOptions options = options_of(kMiB);
  options.device = 256;
  EXPECT_THROWS(ValueError, "device: expected -1", HostPool::create(options));
}

TEST(every_alignment) {
  const auto pool = HostPool::create(options_of(32 * kMiB, 16));
  std::vector<PoolBlock> blocks;
  for (uint64_t alignment = 16; alignment <= kMaxAlignment; alignment *= 2) {
    for (uint64_t size : {1, 17, 4097}) {
      blocks.push_back(pool->allocate(size, alignment));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(blocks.back().data()) % alignment, 0u);
      std::memset(blocks.back().data(), 7, size);
    }
  }
  const PoolStats stats = pool->stats();
  EXPECT(stats.used - stats.requested < 16 * blocks.size());
  EXPECT_THROWS(ValueError, "alignment", pool->allocate(1, uint64_t{1} << 40));
}

TEST(size_zero) {
  const auto pool = HostPool::create(options_of(4096));
  const PoolBlock all = pool->allocate(4096);
  const PoolBlock empty = pool->allocate(0);
  EXPECT(empty.data() != nullptr && empty.data() != all.data());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(empty.data()) % kMaxAlignment, 0u);
  EXPECT(find_pool(empty.data()) == pool);
  EXPECT_EQ(pool->stats().live_blocks, 2u);
  EXPECT_THROWS(OutOfMemoryError, "asked for 1 bytes", pool->allocate(1));
}

TEST(find_pool_knows_every_address) {
  const auto a = HostPool::create(options_of(kMiB));
  const auto b = HostPool::create(options_of(kMiB));
  for (const auto& pool : {a, b}) {
    EXPECT(find_pool(pool->base()) == pool);
    EXPECT(find_pool(pool->base() + kMiB - 1) == pool);
    EXPECT(pool->contains(pool->base()) && !pool->contains(pool->base() + kMiB));
  }
  int local = 0;
  EXPECT(find_pool(&local) == nullptr);
  EXPECT(find_pool(nullptr) == nullptr);
}

TEST(wrong_frees_are_counted_and_change_nothing) {
  const auto pool = HostPool::create(options_of(kMiB));
  auto* const raw = static_cast<std::byte*>(pool->allocate_raw(256));
  const PoolBlock block = pool->allocate(256);
  int local = 0;
  EXPECT(pool->free_raw(raw + 16) == FreeResult::kInterior);
  EXPECT(pool->free_raw(&local) == FreeResult::kForeign);
  EXPECT(pool->free_raw(nullptr) == FreeResult::kForeign);
  EXPECT(pool->free_raw(block.data()) == FreeResult::kForeign);  // it has an owner
  EXPECT(pool->free_raw(raw) == FreeResult::kFreed);
  EXPECT(pool->free_raw(raw) == FreeResult::kDoubleFree);
  const PoolBlock next_owner = pool->allocate(256);
  EXPECT(next_owner.data() == raw);
  std::memset(next_owner.data(), 9, 256);
  EXPECT(pool->free_raw(raw) == FreeResult::kForeign);
  for (int i = 0; i < 256; ++i) EXPECT(raw[i] == std::byte{9});
  const PoolStats stats = pool->stats();
  EXPECT_EQ(stats.double_frees, 1u);
  EXPECT_EQ(stats.foreign_frees, 5u);
  EXPECT_EQ(stats.live_blocks, 2u);
}

TEST(memory_outlives_close_until_the_last_block) {
  auto pool = HostPool::create(options_of(kMiB));
  const std::weak_ptr<HostPool> weak = pool;
  PoolBlock block = pool->allocate(100);
  PoolBlock later = pool->allocate(100);
  pool->close();
  pool->close();
  EXPECT(pool->closed());
  EXPECT_THROWS(StateError, "got a closed one", pool->allocate(1));
  EXPECT(pool->stats().closed);
  pool.reset();
  std::memset(block.data(), 1, 100);
  block.reset();
  EXPECT(!weak.expired());
  std::memset(later.data(), 1, 100);
  later.reset();
  EXPECT(weak.expired());
}

TEST(a_closed_pool_with_raw_blocks_holds_itself) {
  auto pool = HostPool::create(options_of(kMiB));
  const std::weak_ptr<HostPool> weak = pool;
  void* const a = pool->allocate_raw(100);
  void* const b = pool->allocate_raw(0);
  pool->close();
  pool.reset();
  EXPECT(!weak.expired());
  std::memset(a, 1, 100);
  EXPECT(find_pool(a)->free_raw(a) == FreeResult::kFreed);
  EXPECT(!weak.expired());
  EXPECT(find_pool(b)->free_raw(b) == FreeResult::kFreed);
  EXPECT(weak.expired());
  EXPECT(find_pool(a) == nullptr);
}

TEST(close_waits_for_copies) {
  const auto pool = HostPool::create(options_of(kMiB));
  std::atomic<bool> ended{false};
  auto guard = std::make_unique<CopyGuard>(pool);
  EXPECT(static_cast<bool>(*guard));
  std::thread closer([&] {
    pool->close();
    EXPECT(ended);
  });
  while (!pool->closed()) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ended = true;
  guard.reset();
  closer.join();
  EXPECT(!CopyGuard(pool));
}

TEST(close_during_copies_of_many_threads) {
  for (int round = 0; round < 20; ++round) {
    auto pool = HostPool::create(options_of(kMiB));
    std::atomic<int> running{0};
    std::atomic<int64_t> copies{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&, i, block = pool->allocate(4096)] {
        while (true) {
          const CopyGuard guard(pool);
          if (!guard) return;
          ++running;
          std::memset(block.data(), i, 4096);
          ++copies;
          --running;
        }
      });
    }
    while (copies < 100) std::this_thread::yield();
    pool->close();
    EXPECT_EQ(running.load(), 0);
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(deferred_blocks) {
  auto pool = HostPool::create(options_of(4096));
  std::atomic<bool> ready{false};
  pool->allocate(4096).reset_when([&] { return ready.load(); });
  EXPECT_EQ(pool->stats().deferred_blocks, 1u);
  EXPECT_EQ(pool->stats().used, 4096u);
  EXPECT_THROWS(OutOfMemoryError, "", pool->allocate(64));
  ready = true;
  EXPECT_EQ(pool->allocate(4096).size(), 4096u);
  EXPECT_EQ(pool->stats().deferred_blocks, 0u);
  // The end of the pool waits.
  ready = false;
  pool->allocate(4096).reset_when([&] { return ready.load(); });
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    ready = true;
  });
  pool.reset();
  EXPECT(ready);
  later.join();
}

TEST(a_view_holds_the_pool_but_owns_nothing) {
  auto pool = HostPool::create(options_of(kMiB));
  PoolBlock block = pool->allocate(256);
  const PoolBlock view = pool->view(pool->offset_of(block.data()), 256);
  EXPECT(view.data() == block.data());
  EXPECT_THROWS(ValueError, "view", pool->view(kMiB, 1));
  EXPECT_THROWS(ValueError, "view", pool->view(1, UINT64_MAX));
  EXPECT_EQ(pool->view(kMiB, 0).size(), 0u);
  block.reset();
  pool.reset();
  std::memset(view.data(), 1, 256);
  EXPECT_EQ(view.pool()->stats().live_blocks, 0u);
}

// Threads hand blocks to each other through `slots`; each block is filled with its maker's mark.
TEST(threads_allocate_fill_verify_and_free_elsewhere) {
#ifdef OFFLOAD_TEST_SMALL
  constexpr int kRounds = 1000;
#else
  constexpr int kRounds = 10000;
#endif
  constexpr int kThreads = 16;
  struct Item {
    PoolBlock block;
    int mark = 0;
  };
  const auto pool = HostPool::create(options_of(4 * kMiB));
  std::mutex mutex;
  std::vector<Item> slots;
  std::atomic<int64_t> wrong{0}, inconsistent{0}, refused{0};
  std::atomic<bool> done{false};
  std::thread poller([&] {
    while (!done) {
      const PoolStats stats = pool->stats();
      inconsistent += stats.used + stats.free != stats.capacity || stats.largest_free > stats.free ||
                      stats.allocations - stats.frees != stats.live_blocks || stats.used > stats.peak;
      uint64_t used = 0;
      for (const BlockInfo& block : pool->blocks()) used += block.free ? 0 : block.size;
      inconsistent += used > stats.capacity;
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> threads;
  for (int t = 1; t <= kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int round = 0; round < kRounds; ++round) {
        Item mine;
        try {
          mine = {pool->allocate(random() % 8192, random() % 4 ? 0 : 16 << random() % 10), t};
          std::memset(mine.block.data(), t, mine.block.size() > 0 ? mine.block.size() : 0);
        } catch (const OutOfMemoryError&) {
          ++refused;
        }
        Item other;
        {
          const std::lock_guard<std::mutex> lock(mutex);
          if (mine.block.data() != nullptr) slots.push_back(std::move(mine));
          if (slots.size() > 500) {
            std::swap(slots[random() % slots.size()], slots.back());
            other = std::move(slots.back());
            slots.pop_back();
          }
        }
        const auto* bytes = static_cast<const unsigned char*>(other.block.data());
        for (uint64_t i = 0; i < other.block.size(); ++i) wrong += bytes[i] != other.mark;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  done = true;
  poller.join();
  slots.clear();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_EQ(inconsistent.load(), 0);
  EXPECT_EQ(pool->stats().used, 0u);
  EXPECT_EQ(pool->stats().free_blocks, 1u);
}

TEST(default_pool_life) {
  EXPECT(!default_pool_is_initialized());
  EXPECT_THROWS(StateError, "call init first", default_pool());
  EXPECT_THROWS(OutOfMemoryError, "", init_default_pool(options_of(uint64_t{1} << 60)));
  EXPECT(!default_pool_is_initialized());
  const auto pool = init_default_pool(options_of(kMiB));
  EXPECT(init_default_pool(options_of(kMiB)) == pool);
  EXPECT_THROWS(StateError, "expected the arguments of the first call", init_default_pool(options_of(2 * kMiB)));
  EXPECT(default_pool() == pool);
  PoolBlock block = default_pool()->allocate(100);
  uninit_default_pool();
  uninit_default_pool();
  EXPECT(!default_pool_is_initialized());
  EXPECT(pool->closed());
  std::memset(block.data(), 1, 100);
  EXPECT(init_default_pool(options_of(2 * kMiB)) != pool);
  uninit_default_pool();
}

TEST(a_thousand_cycles_leave_nothing) {
  const auto cycle = [] {
    const auto pool = init_default_pool(options_of(kMiB));
    std::memset(pool->allocate(kMiB).data(), 1, kMiB);
    uninit_default_pool();
  };
  for (int i = 0; i < 50; ++i) cycle();
  const uint64_t before = resident_pages();
  for (int i = 0; i < 1000; ++i) cycle();
#ifndef OFFLOAD_TEST_SMALL  // the sanitizers keep freed memory
  EXPECT(resident_pages() < before + 256);
#else
  (void)before;
#endif
}

TEST(an_eighth_a_thousand_times) {
  const auto pool = HostPool::create(options_of(8 * kMiB));
  for (int i = 0; i < 1000; ++i) static_cast<char*>(pool->allocate(kMiB).data())[0] = 1;
  EXPECT_EQ(pool->stats().used, 0u);
}

}  // namespace

CHECK_MAIN()
