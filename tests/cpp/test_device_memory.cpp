// SPDX-License-Identifier: Apache-2.0
//
// A pool on a device, with a backend of this file's: seams, streams, the plain allocation functions, the end.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "c_api/offload.h"
#include "check.h"
#include "error.h"
#include "host_pool/current_pool.h"
#include "host_pool/host_pool.h"

namespace {

using namespace torch_offload;

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kFar = uint64_t{1} << 40;

// Device 7 finds memory far from where the host does; with `piece_bytes`, in pieces that lie apart.
class FakeBackend final : public DeviceBackend {
 public:
  std::vector<DevicePiece> map(int32_t device, std::byte* base, uint64_t bytes, uint64_t unit,
                               std::vector<std::string>* warnings) override {
    if (fails) throw StateError("map: expected success, got code 5");
    EXPECT_EQ(device, 7);
    warnings->push_back("mapped");
    ++live;
    std::vector<DevicePiece> pieces;
    const uint64_t step = piece_bytes == 0 ? bytes : align_up(piece_bytes, unit);
    for (uint64_t offset = 0; offset < bytes; offset += step) {
      const uint64_t hole = pieces.size() * kMiB;
      pieces.push_back(
          {offset, std::min(step, bytes - offset), reinterpret_cast<uintptr_t>(base) + kFar + offset + hole});
    }
    return pieces;
  }

  bool unmap(int32_t, std::byte*) noexcept override {
    --live;
    return true;
  }

  std::vector<StreamUse> current_streams(int32_t) noexcept override { return current; }

  std::function<bool()> fence(const std::vector<StreamUse>& uses) override {
    if (uses.empty()) return [] { return true; };
    ++fences;
    const std::lock_guard<std::mutex> lock(mutex);
    streams = uses;
    return [this] { return passed.load(); };
  }

  bool fails = false;
  uint64_t piece_bytes = 0;
  int live = 0;
  std::atomic<int> fences = 0;
  std::mutex mutex;
  std::vector<StreamUse> current;
  std::vector<StreamUse> streams;
  std::atomic<bool> passed{true};
};

FakeBackend& backend() {
  static FakeBackend instance;
  instance.fails = false;
  instance.piece_bytes = 0;
  instance.passed = true;
  instance.current.clear();
  set_device_backend(&instance);
  return instance;
}

PoolOptions options_of(uint64_t capacity) {
  PoolOptions options;
  options.capacity = capacity;
  options.huge_pages = HugePages::kNever;
  options.device = 7;
  return options;
}

int stream_a = 0, stream_b = 0;

TEST(without_a_backend_there_is_no_device) {
  set_device_backend(nullptr);
  EXPECT_THROWS(ValueError, "got 7; others need a device backend", HostPool::create(options_of(kMiB)));
}

TEST(addresses_both_ways) {
  FakeBackend& device = backend();
  {
    const auto pool = HostPool::create(options_of(kMiB));
    EXPECT_EQ(device.live, 1);
    EXPECT(pool->stats().device_registered);
    EXPECT(pool->warnings().back() == "mapped");
    const PoolBlock block = pool->allocate(1000);
    const auto host = reinterpret_cast<uintptr_t>(block.data());
    EXPECT_EQ(pool->device_address(block.data(), 1000), host + kFar);
    EXPECT(pool->host_address(host + kFar + 5) == static_cast<std::byte*>(block.data()) + 5);
    EXPECT(pool->host_address(host) == nullptr);
    EXPECT_EQ(pool->device_address(block.data(), kMiB + 1), 0u);
    EXPECT_EQ(pool->device_address(&device, 1), 0u);
    EXPECT(find_pool_of_device(7, host + kFar) == pool);
    EXPECT(find_pool_of_device(6, host + kFar) == nullptr);
    EXPECT(find_pool_of_device(7, host) == nullptr);
  }
  EXPECT_EQ(device.live, 0);
}

TEST(what_the_backend_refuses_leaves_nothing_behind) {
  FakeBackend& device = backend();
  device.fails = true;
  EXPECT_THROWS(StateError, "got code 5", HostPool::create(options_of(kMiB)));
  EXPECT_EQ(device.live, 0);
  device.fails = false;
  EXPECT_EQ(HostPool::create(options_of(kMiB))->stats().live_blocks, 0u);
}

TEST(no_block_crosses_a_seam) {
  FakeBackend& device = backend();
  device.piece_bytes = kMiB;
  const auto pool = HostPool::create(options_of(4 * kMiB + 4096));
  EXPECT_EQ(pool->stats().largest_free, kMiB);
  EXPECT_THROWS(OutOfMemoryError, "largest free block 1048576", pool->allocate(kMiB + 64));
  for (int round = 0; round < 3; ++round) {
    std::vector<PoolBlock> blocks;
    for (int i = 0; i < 12; ++i) blocks.push_back(pool->allocate(300'000));
    for (const PoolBlock& block : blocks) EXPECT(pool->device_address(block.data(), block.size()) != 0);
    EXPECT_THROWS(OutOfMemoryError, "", pool->allocate(300'000));
  }
  const PoolStats stats = pool->stats();
  EXPECT_EQ(stats.free_blocks, 5u);
  EXPECT_EQ(stats.free, stats.capacity);
}

TEST(a_block_waits_for_its_streams) {
  FakeBackend& device = backend();
  const auto pool = HostPool::create(options_of(8192));
  PoolBlock block = pool->allocate(8192);
  pool->record_use(static_cast<std::byte*>(block.data()) + 100, {7, &stream_a});
  pool->record_use(block.data(), {7, &stream_b});
  pool->record_use(block.data(), {7, &stream_a});
  device.passed = false;
  device.fences = 0;
  block.reset();
  EXPECT_EQ(device.fences.load(), 1);
  EXPECT_EQ(device.streams.size(), 2u);
  EXPECT_EQ(pool->stats().deferred_blocks, 1u);
  EXPECT_THROWS(OutOfMemoryError, "", pool->allocate(64));
  EXPECT(!pool->wait_for_streams(64, 0, std::chrono::milliseconds(20)));
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    device.passed = true;
  });
  EXPECT(pool->wait_for_streams(64, 0, std::chrono::seconds(10)));
  later.join();
  EXPECT(!pool->wait_for_streams(9000, 0, std::chrono::seconds(10)));
  // The next holder of the memory starts without streams.
  pool->allocate(8192).reset();
  EXPECT_EQ(device.fences.load(), 1);
}

TEST(a_block_waits_for_the_current_stream_although_nobody_has_recorded_it) {
  FakeBackend& device = backend();
  const auto pool = HostPool::create(options_of(8192));
  device.current = {{7, &stream_b}};
  pool->allocate(8192).reset();
  EXPECT_EQ(pool->stats().deferred_blocks, 0u);  // it was idle
  device.passed = false;
  pool->allocate(8192).reset();
  EXPECT(device.streams == device.current);
  EXPECT_EQ(pool->stats().deferred_blocks, 1u);
  device.passed = true;
  EXPECT_EQ(pool->stats().used, 0u);
}

TEST(the_end_waits_for_streams_before_the_device_lets_go) {
  FakeBackend& device = backend();
  auto pool = HostPool::create(options_of(kMiB));
  pool->record_use(pool->base() + 4096, {7, &stream_a});  // of no block
  PoolBlock block = pool->allocate(100);
  pool->record_use(block.data(), {7, &stream_a});
  device.passed = false;
  pool.reset();
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    EXPECT_EQ(device.live, 1);
    device.passed = true;
  });
  block.reset();
  EXPECT(device.passed);
  EXPECT_EQ(device.live, 0);
  later.join();
}

TEST(raw_blocks_hold_the_pool_and_wait_for_their_stream) {
  FakeBackend& device = backend();
  auto pool = HostPool::create(options_of(kMiB));
  const std::weak_ptr<HostPool> weak = pool;
  push_current_pool(pool);
  void* const at_device = offload_alloc_fn(1000, 7, nullptr);
  EXPECT(offload_alloc_fn(1000, 6, nullptr) == nullptr);
  EXPECT(std::strstr(offload_last_error(), "device: expected the pool's device 7, got 6") != nullptr);
  EXPECT(offload_alloc_fn(2 * kMiB, 7, nullptr) == nullptr);
  EXPECT(std::strstr(offload_last_error(), "out of memory") != nullptr);
  pop_current_pool();
  void* const host = pool->host_address(reinterpret_cast<uintptr_t>(at_device));
  EXPECT(host != nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(host) % 512, 0u);
  pool.reset();
  EXPECT(!weak.expired());
  std::memset(host, 1, 1000);
  device.passed = false;
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    EXPECT_EQ(device.live, 1);
    device.passed = true;
  });
  offload_free_fn(at_device, 1000, 7, &stream_a);
  EXPECT(weak.expired());
  EXPECT_EQ(device.live, 0);
  later.join();
}

TEST(a_raw_block_that_waits_is_not_freed_twice) {
  FakeBackend& device = backend();
  const auto pool = HostPool::create(options_of(kMiB));
  void* const block = pool->allocate_raw(4096);
  pool->record_use(block, {7, &stream_a});
  device.passed = false;
  EXPECT(pool->free_raw(block) == FreeResult::kFreed);
  EXPECT(pool->free_raw(block) == FreeResult::kDoubleFree);
  EXPECT_EQ(pool->stats().double_frees, 1u);
  EXPECT_EQ(pool->stats().used, 4096u);
  device.passed = true;
  EXPECT_EQ(pool->stats().used, 0u);
  EXPECT(pool->free_raw(block) == FreeResult::kDoubleFree);
}

TEST(threads_use_and_drop_blocks) {
  FakeBackend& device = backend();
  const auto pool = HostPool::create(options_of(kMiB));
  std::atomic<bool> done{false};
  std::thread flicker([&] {
    while (!done) {
      device.passed = !device.passed;
      std::this_thread::yield();
    }
    device.passed = true;
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 2000; ++round) {
        try {
          PoolBlock block = pool->allocate(4096 * (1 + round % 7));
          std::memset(block.data(), t, block.size());
          if (round % 2 == 0) pool->record_use(block.data(), {7, &stream_a});
          const auto* const bytes = static_cast<const unsigned char*>(block.data());
          EXPECT_EQ(static_cast<int>(bytes[block.size() - 1]), t);
        } catch (const OutOfMemoryError&) {
          pool->wait_for_streams(4096, 0, std::chrono::milliseconds(5));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  done = true;
  flicker.join();
  EXPECT_EQ(pool->stats().used, 0u);
  EXPECT_EQ(pool->stats().free_blocks, 1u);
}

}  // namespace

CHECK_MAIN()
