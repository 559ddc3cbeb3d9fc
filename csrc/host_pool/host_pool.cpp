// SPDX-License-Identifier: Apache-2.0
#include "host_pool/host_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iterator>
#include <mutex>
#include <thread>
#include <utility>

#include "error.h"
#include "host_pool/adaptive_mutex.h"
#include "host_pool/pool_registry.h"
#include "host_pool/process_generation.h"

namespace torch_offload {

namespace {

constexpr auto kHugePageMeasureInterval = std::chrono::seconds(1);
constexpr auto kDeferredPollInterval = std::chrono::microseconds(50);
constexpr auto kDeferredPatience = std::chrono::seconds(10);

uint64_t rounded_capacity(const PoolOptions& options) {
  check_alignment(options.alignment);
  const uint64_t unit = std::max(small_page_size(), options.alignment);
  if (options.capacity == 0) throw ValueError("capacity: expected at least 1 byte, got 0");
  // A value that rounding would wrap is far beyond any memory; the mapping refuses it with the right words.
  return options.capacity > UINT64_MAX - unit ? options.capacity : align_up(options.capacity, unit);
}

}  // namespace

struct HostPool::Deferred {
  const void* data;
  std::function<bool()> ready;
};

struct HostPool::State {
  State(uint64_t capacity, uint64_t alignment) : allocator(capacity, alignment) {}

  AdaptiveMutex mutex;
  BlockAllocator allocator;
  std::vector<Deferred> deferred;
  std::atomic<bool> has_deferred{false};  // written under the mutex
  uint64_t being_polled = 0;              // deferred blocks that a thread has taken out to ask for
  uint64_t double_frees = 0;
  uint64_t foreign_frees = 0;
  uint64_t page_size = 0;
  uint64_t huge_bytes = 0;
  std::chrono::steady_clock::time_point last_measured;
  bool closed = false;
  std::shared_ptr<HostPool> keep_alive;  // set while closed with raw blocks
};

std::shared_ptr<HostPool> HostPool::create(const PoolOptions& options, const Progress& progress,
                                           const SystemCalls& calls) {
  if (options.device != kNoDevice) {
    throw ValueError(join("device: expected ", kNoDevice, " (host only), got ", options.device));
  }
  MappingOptions wanted;
  wanted.length = rounded_capacity(options);
  wanted.huge_pages = options.huge_pages;
  wanted.shared = options.shared;
  wanted.numa_node = options.numa_node;
  wanted.lock = options.lock;
  wanted.prefault_threads = options.prefault_threads;
  wanted.name = options.name;
  std::vector<std::string> warnings;
  std::unique_ptr<Mapping> mapping = Mapping::create(wanted, progress, &warnings, calls);
  return make(options, std::move(mapping), wanted.length, false, std::move(warnings));
}

std::shared_ptr<HostPool> HostPool::make(const PoolOptions& options, std::unique_ptr<Mapping> mapping,
                                         uint64_t capacity, bool attached, std::vector<std::string> warnings) {
  std::shared_ptr<HostPool> pool(new HostPool(options, std::move(mapping), capacity, attached));
  pool->warnings_ = std::move(warnings);
  pool->state_ = std::make_unique<State>(capacity, options.alignment);
  pool->state_->page_size = pool->mapping_->page_size();
  pool->state_->huge_bytes = pool->mapping_->huge_bytes();
  register_pool(pool);
  return pool;
}

HostPool::HostPool(const PoolOptions& options, std::unique_ptr<Mapping> mapping, uint64_t capacity, bool attached)
    : options_(options),
      generation_(process_generation()),
      attached_(attached),
      capacity_(capacity),
      mapping_(std::move(mapping)) {}

HostPool::~HostPool() {
  if (forked()) {
    // NOLINTNEXTLINE: leaked, see the header; the mapping is this process's own view and may go.
    (void)state_.release();
    return;
  }
  if (state_ == nullptr) return;  // creation failed half way
  unregister_pool(*this);
  wait_for_deferred();
}

PoolBlock HostPool::allocate(uint64_t size, uint64_t alignment) {
  void* const data = allocate_block(size, alignment, BlockOwner::kHandle);
  return PoolBlock(shared_from_this(), data, size, true);
}

void* HostPool::allocate_raw(uint64_t size, uint64_t alignment) {
  return allocate_block(size, alignment, BlockOwner::kRaw);
}

void* HostPool::allocate_block(uint64_t size, uint64_t alignment, BlockOwner owner) {
  check_not_forked("allocation");
  if (attached_) throw StateError("HostPool: only the process that owns a shared pool allocates from it");
  poll_deferred();
  const std::lock_guard<AdaptiveMutex> lock(state_->mutex);
  if (state_->closed) throw StateError("HostPool: expected an open pool, got a closed one");
  return base() + state_->allocator.allocate(size, alignment, owner);
}

FreeResult HostPool::free_raw(void* data) noexcept { return free_block(data, BlockOwner::kRaw); }

FreeResult HostPool::free_block(const void* data, BlockOwner owner) noexcept {
  if (forked()) return FreeResult::kForked;
  std::shared_ptr<HostPool> last_reference;  // dropped after the lock: it may end this pool
  const std::lock_guard<AdaptiveMutex> lock(state_->mutex);
  const bool mine = contains(data) && !attached_;
  const FreeResult result = mine ? state_->allocator.free(offset_of(data), owner) : FreeResult::kForeign;
  if (result == FreeResult::kDoubleFree) ++state_->double_frees;
  if (result == FreeResult::kForeign || result == FreeResult::kInterior) ++state_->foreign_frees;
  if (state_->closed && state_->allocator.stats().live_raw_blocks == 0) last_reference = std::move(state_->keep_alive);
  return result;
}

PoolBlock HostPool::view(uint64_t offset, uint64_t size) {
  if (offset > capacity_ || size > capacity_ - offset) {
    throw ValueError(
        join("view: expected a range inside ", capacity_, " bytes, got offset ", offset, " and size ", size));
  }
  return PoolBlock(shared_from_this(), base() + offset, size, false);
}

void HostPool::close() noexcept {
  if (forked()) return;
  {
    const std::lock_guard<AdaptiveMutex> lock(state_->mutex);
    if (!state_->closed && state_->allocator.stats().live_raw_blocks != 0) state_->keep_alive = shared_from_this();
    state_->closed = true;
  }
  gate_.close_and_wait();
}

bool HostPool::closed() const noexcept {
  if (forked()) return true;
  const std::lock_guard<AdaptiveMutex> lock(state_->mutex);
  return state_->closed;
}

PoolStats HostPool::stats() {
  check_not_forked("stats");
  PoolStats out;
  bool measure = false;
  {
    const std::lock_guard<AdaptiveMutex> lock(state_->mutex);
    static_cast<AllocatorStats&>(out) = state_->allocator.stats();
    out.deferred_blocks = state_->deferred.size() + state_->being_polled;
    out.double_frees = state_->double_frees;
    out.foreign_frees = state_->foreign_frees;
    out.page_size = state_->page_size;
    out.huge_bytes = state_->huge_bytes;
    out.closed = state_->closed;
    const auto now = std::chrono::steady_clock::now();
    measure = mapping_->huge_pages_may_come() && out.huge_bytes != mapping_->length() &&
              now - state_->last_measured >= kHugePageMeasureInterval;
    if (measure) state_->last_measured = now;
  }
  out.capacity = capacity_;
  out.numa_node = mapping_->numa_node();
  out.locked = mapping_->locked();
  out.shared = mapping_->shared();
  out.attached = attached_;
  if (measure) {  // reads /proc: not under the lock
    out.huge_bytes = mapping_->measure_huge_bytes();
    out.page_size = out.huge_bytes == mapping_->length() ? kHugePageSize : small_page_size();
    const std::lock_guard<AdaptiveMutex> lock(state_->mutex);
    state_->huge_bytes = out.huge_bytes;
    state_->page_size = out.page_size;
  }
  return out;
}

std::vector<BlockInfo> HostPool::blocks() const {
  check_not_forked("blocks");
  if (attached_) return {};
  const std::lock_guard<AdaptiveMutex> lock(state_->mutex);
  return state_->allocator.blocks();
}

bool HostPool::contains(const void* data) const noexcept {
  const auto* const at = static_cast<const std::byte*>(data);
  const std::byte* const begin = base();
  return (at >= begin && at < begin + capacity_) || at == begin + align_up(capacity_, kMaxAlignment);
}

bool HostPool::forked() const noexcept { return generation_ != process_generation(); }

void HostPool::check_not_forked(const char* what) const {
  if (forked()) {
    throw StateError(join("HostPool: expected ", what,
                          " in the process that made the pool, got a forked child; make a pool of its own there, or "
                          "share the memory with share() and attach()"));
  }
}

// Deferred blocks. A block in `deferred` is live for the allocator; only its handle has gone.

void HostPool::defer(const void* data, std::function<bool()> ready) {
  if (forked()) return;
  const std::lock_guard<AdaptiveMutex> lock(state_->mutex);
  state_->deferred.push_back({data, std::move(ready)});
  state_->has_deferred.store(true, std::memory_order_release);
}

void HostPool::poll_deferred() {
  std::vector<Deferred> asked;
  if (!state_->has_deferred.load(std::memory_order_acquire)) return;  // the usual case, without the lock
  {
    const std::lock_guard<AdaptiveMutex> lock(state_->mutex);
    asked.swap(state_->deferred);
    state_->being_polled += asked.size();
  }
  const auto taken = asked.size();
  const auto still_used = std::stable_partition(asked.begin(), asked.end(), [](Deferred& block) {
    try {
      return block.ready();
    } catch (...) {
      return false;  // not known to be ready
    }
  });
  for (auto block = asked.begin(); block != still_used; ++block) free_block(block->data, BlockOwner::kHandle);
  const std::lock_guard<AdaptiveMutex> lock(state_->mutex);
  state_->being_polled -= taken;
  state_->deferred.insert(state_->deferred.end(), std::make_move_iterator(still_used),
                          std::make_move_iterator(asked.end()));
  state_->has_deferred.store(!state_->deferred.empty(), std::memory_order_release);
}

// Memory that a stream may still write is never unmapped: after some patience it is given up instead.
void HostPool::wait_for_deferred() noexcept {
  const auto deadline = std::chrono::steady_clock::now() + kDeferredPatience;
  while (true) {
    try {
      poll_deferred();
    } catch (...) {  // out of memory: ask again
    }
    if (state_->deferred.empty()) return;
    if (std::chrono::steady_clock::now() > deadline) {
      (void)mapping_.release();
      return;
    }
    std::this_thread::sleep_for(kDeferredPollInterval);
  }
}

PoolBlock::PoolBlock(PoolBlock&& other) noexcept
    : pool_(std::move(other.pool_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      owns_(std::exchange(other.owns_, false)) {}

PoolBlock& PoolBlock::operator=(PoolBlock&& other) noexcept {
  if (this == &other) return *this;
  reset();
  pool_ = std::move(other.pool_);
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  owns_ = std::exchange(other.owns_, false);
  return *this;
}

void PoolBlock::reset() noexcept {
  if (owns_) pool_->free_block(data_, BlockOwner::kHandle);
  owns_ = false;
  data_ = nullptr;
  size_ = 0;
  pool_.reset();
}

void PoolBlock::reset_when(std::function<bool()> ready) {
  if (owns_) {
    pool_->defer(data_, std::move(ready));
    owns_ = false;
  }
  reset();
}

}  // namespace torch_offload
