// SPDX-License-Identifier: Apache-2.0
#include "host_pool/host_pool.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <utility>

#include "error.h"
#include "host_pool/host_pool_state.h"
#include "host_pool/pool_registry.h"
#include "host_pool/process_generation.h"

namespace torch_offload {

namespace {

constexpr auto kHugePageMeasureInterval = std::chrono::seconds(1);

uint64_t rounded_capacity(const PoolOptions& options) {
  check_alignment(options.alignment);
  const uint64_t unit = std::max(small_page_size(), options.alignment);
  if (options.capacity == 0) throw ValueError("capacity: expected at least 1 byte, got 0");
  // A value that rounding would wrap is far beyond any memory; the mapping refuses it with the right words.
  return options.capacity > UINT64_MAX - unit ? options.capacity : align_up(options.capacity, unit);
}

}  // namespace

std::shared_ptr<HostPool> HostPool::create(const PoolOptions& options, const Progress& progress,
                                           const SystemCalls& calls) {
  if (options.device != kNoDevice && device_backend() == nullptr) {
    throw ValueError(join("device: expected ", kNoDevice, " (host only), got ", options.device,
                          "; others need a device backend, and none is loaded"));
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
  if (options.device != kNoDevice) pool->map_for_device();
  pool->state_ = std::make_unique<State>(capacity, options.alignment, pool->seams());
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
  bool idle = true;
  if (state_ != nullptr) {  // else creation failed half way
    unregister_pool(*this);
    idle = wait_for_deferred();
  }
  // Memory that a stream may still use is given up, with its registration.
  if (!idle || (backend_ != nullptr && !backend_->unmap(device(), base()))) (void)mapping_.release();
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
  const std::lock_guard<std::mutex> lock(state_->mutex);
  if (state_->closed) throw StateError("HostPool: expected an open pool, got a closed one");
  void* const data = base() + state_->allocator.allocate(size, alignment, owner);
  if (owner == BlockOwner::kRaw && state_->keep_alive == nullptr) state_->keep_alive = shared_from_this();
  return data;
}

FreeResult HostPool::free_raw(void* data) noexcept { return free_block(data, BlockOwner::kRaw); }

FreeResult HostPool::free_block(const void* data, BlockOwner owner) noexcept {
  if (forked()) return FreeResult::kForked;
  if (backend_ == nullptr) return release_block(data, owner);
  try {
    std::vector<StreamUse> streams = backend_->current_streams(device());
    {
      const std::lock_guard<std::mutex> lock(state_->mutex);
      const FreeResult result = check_free(data, owner);
      if (result != FreeResult::kFreed) return count_wrong_free(result);
      BlockUses& uses = state_->uses[offset_of(data)];
      uses.freed = true;
      add_uses(uses.streams, streams);
      streams = std::move(uses.streams);
    }
    std::function<bool()> passed = backend_->fence(streams);
    if (!passed()) {
      defer(data, owner, std::move(passed));
      return FreeResult::kFreed;
    }
  } catch (...) {  // no memory to remember the block: it is lost, not handed out
    return FreeResult::kFreed;
  }
  return release_block(data, owner);
}

FreeResult HostPool::check_free(const void* data, BlockOwner owner) const noexcept {
  if (!contains(data) || attached_) return FreeResult::kForeign;
  const auto uses = state_->uses.find(offset_of(data));
  if (uses != state_->uses.end() && uses->second.freed) return FreeResult::kDoubleFree;
  return state_->allocator.check_free(offset_of(data), owner);
}

FreeResult HostPool::count_wrong_free(FreeResult result) noexcept {
  state_->double_frees += result == FreeResult::kDoubleFree;
  state_->foreign_frees += result == FreeResult::kForeign || result == FreeResult::kInterior;
  return result;
}

// Gives a block back that no stream uses.
FreeResult HostPool::release_block(const void* data, BlockOwner owner) noexcept {
  std::shared_ptr<HostPool> last_reference;  // dropped after the lock: it may end this pool
  const std::lock_guard<std::mutex> lock(state_->mutex);
  const bool mine = contains(data) && !attached_;
  const FreeResult result = mine ? state_->allocator.free(offset_of(data), owner) : FreeResult::kForeign;
  if (result == FreeResult::kFreed) {
    state_->uses.erase(offset_of(data));
  } else {
    count_wrong_free(result);
  }
  if (state_->allocator.stats().live_raw_blocks == state_->deferred_raw_blocks) {
    last_reference = std::move(state_->keep_alive);
  }
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
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->closed = true;
  }
  gate_.close_and_wait();
}

bool HostPool::closed() const noexcept {
  if (forked()) return true;
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->closed;
}

PoolStats HostPool::stats() {
  check_not_forked("stats");
  poll_deferred();
  PoolStats out;
  bool measure = false;
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
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
  out.device_registered = backend_ != nullptr;
  if (measure) {  // reads /proc: not under the lock
    out.huge_bytes = mapping_->measure_huge_bytes();
    out.page_size = out.huge_bytes == mapping_->length() ? kHugePageSize : small_page_size();
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->huge_bytes = out.huge_bytes;
    state_->page_size = out.page_size;
  }
  return out;
}

std::vector<BlockInfo> HostPool::blocks() const {
  check_not_forked("blocks");
  if (attached_) return {};
  const std::lock_guard<std::mutex> lock(state_->mutex);
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
    pool_->defer(data_, BlockOwner::kHandle, std::move(ready));
    owns_ = false;
  }
  reset();
}

}  // namespace torch_offload
