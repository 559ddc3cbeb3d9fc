// SPDX-License-Identifier: Apache-2.0
//
// The part of HostPool that deals with a device: its view of the memory, and blocks that its streams may still use.
#include <algorithm>
#include <atomic>
#include <iterator>
#include <thread>

#include "error.h"
#include "host_pool/host_pool.h"
#include "host_pool/host_pool_state.h"

namespace torch_offload {

namespace {

constexpr auto kDeferredPollInterval = std::chrono::microseconds(50);
constexpr auto kDeferredPatience = std::chrono::seconds(10);

std::atomic<DeviceBackend*> the_backend{nullptr};

}  // namespace

void set_device_backend(DeviceBackend* backend) { the_backend = backend; }
DeviceBackend* device_backend() { return the_backend; }

// The device's view.

void HostPool::map_for_device() {
  DeviceBackend* const backend = device_backend();
  if (backend == nullptr) throw ValueError("device: expected a loaded device backend, got none");
  pieces_ = backend->map(device(), base(), mapping_->length(), options_.alignment, &warnings_);
  backend_ = backend;
}

std::vector<uint64_t> HostPool::seams() const {
  std::vector<uint64_t> out;
  for (const DevicePiece& piece : pieces_) {
    if (piece.offset != 0 && piece.offset < capacity_) out.push_back(piece.offset);
  }
  return out;
}

uint64_t HostPool::device_address(const void* data, uint64_t bytes) const noexcept {
  const auto* const at = static_cast<const std::byte*>(data);
  if (at < base() || at >= base() + capacity_) return 0;
  const uint64_t offset = offset_of(data);
  auto piece = std::upper_bound(pieces_.begin(), pieces_.end(), offset,
                                [](uint64_t value, const DevicePiece& other) { return value < other.offset; });
  if (piece == pieces_.begin()) return 0;
  --piece;
  const uint64_t inside = offset - piece->offset;
  return inside < piece->bytes && bytes <= piece->bytes - inside ? piece->address + inside : 0;
}

void* HostPool::host_address(uint64_t device_address) const noexcept {
  for (const DevicePiece& piece : pieces_) {
    const uint64_t inside = device_address - piece.address;
    if (inside < piece.bytes && piece.offset + inside < capacity_) return base() + piece.offset + inside;
  }
  return nullptr;
}

// Streams.

void HostPool::record_use(const void* data, const StreamUse& use) {
  if (forked() || backend_ == nullptr || !contains(data)) return;
  const std::lock_guard<std::mutex> lock(state_->mutex);
  const uint64_t block = attached_ ? UINT64_MAX : state_->allocator.block_at(offset_of(data));
  std::vector<StreamUse>& uses = block == UINT64_MAX ? state_->other_uses : state_->uses[block].streams;
  add_uses(uses, {use});
}

void HostPool::defer(const void* data, BlockOwner owner, std::function<bool()> ready) {
  if (forked()) return;
  std::shared_ptr<HostPool> last_reference;  // dropped after the lock: it may end this pool
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->deferred.push_back({data, owner, std::move(ready)});
  state_->has_deferred.store(true, std::memory_order_release);
  state_->deferred_raw_blocks += owner == BlockOwner::kRaw;
  if (state_->allocator.stats().live_raw_blocks == state_->deferred_raw_blocks) {
    last_reference = std::move(state_->keep_alive);
  }
}

bool HostPool::has_deferred_blocks() const noexcept {
  return !forked() && state_->has_deferred.load(std::memory_order_acquire);
}

void HostPool::poll_deferred() {
  std::vector<Deferred> asked;
  if (!state_->has_deferred.load(std::memory_order_acquire)) return;  // the usual case, without the lock
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
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
  for (auto block = asked.begin(); block != still_used; ++block) {
    if (block->owner == BlockOwner::kRaw) {
      const std::lock_guard<std::mutex> lock(state_->mutex);
      --state_->deferred_raw_blocks;
    }
    release_block(block->data, block->owner);
  }
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->being_polled -= taken;
  state_->deferred.insert(state_->deferred.end(), std::make_move_iterator(still_used),
                          std::make_move_iterator(asked.end()));
  state_->has_deferred.store(!state_->deferred.empty(), std::memory_order_release);
}

bool HostPool::wait_for_streams(uint64_t size, uint64_t alignment, std::chrono::milliseconds patience) {
  check_not_forked("allocation");
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (true) {
    const bool some_were_left = has_deferred_blocks();
    poll_deferred();
    {
      const std::lock_guard<std::mutex> lock(state_->mutex);
      if (state_->allocator.fits(size, alignment)) return true;
    }
    if (!some_were_left || std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(kDeferredPollInterval);
  }
}

// Before the end. False when streams have not passed in time.
bool HostPool::wait_for_deferred() noexcept {
  const auto deadline = std::chrono::steady_clock::now() + kDeferredPatience;
  std::function<bool()> others_passed;
  while (true) {
    try {
      poll_deferred();
      if (!state_->other_uses.empty() && !others_passed) others_passed = backend_->fence(state_->other_uses);
      if (state_->deferred.empty() && (!others_passed || others_passed())) return true;
    } catch (...) {  // out of memory: ask again
    }
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(kDeferredPollInterval);
  }
}

}  // namespace torch_offload
