// SPDX-License-Identifier: Apache-2.0
#include "host_pool/block_allocator.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include "error.h"

namespace torch_offload {

namespace {

constexpr uint64_t kMaxCapacity = uint64_t{1} << 62;  // sums of two sizes never wrap
constexpr size_t kSpareNodes = 1024;
constexpr int kProbes = 16;

}  // namespace

void check_alignment(uint64_t alignment) {
  if (!std::has_single_bit(alignment) || alignment < kMinAlignment || alignment > kMaxAlignment) {
    throw ValueError(
        join("alignment: expected a power of two from ", kMinAlignment, " to ", kMaxAlignment, ", got ", alignment));
  }
}

BlockAllocator::BlockAllocator(uint64_t capacity, uint64_t alignment, std::vector<uint64_t> seams)
    : capacity_(capacity), alignment_(alignment), seams_(std::move(seams)) {
  check_alignment(alignment);
  if (capacity == 0 || capacity >= kMaxCapacity || capacity % alignment != 0) {
    throw ValueError(join("capacity: expected a positive multiple of ", alignment, " below 2^62, got ", capacity));
  }
  spare_.reserve(kSpareNodes);
  stats_.capacity = capacity;
  for (size_t i = 0; i <= seams_.size(); ++i) {
    Blocks::node_type node = make_node();
    node.key() = i == 0 ? 0 : seams_[i - 1];
    node.mapped().size = (i == seams_.size() ? capacity : seams_[i]) - node.key();
    insert_free_entry(blocks_.insert(std::move(node)).position);
  }
}

bool BlockAllocator::fits(uint64_t size, uint64_t alignment) {
  if (size == 0) return true;
  if (size > capacity_) return false;
  return find_fit(align_up(size, alignment_), std::max(alignment, alignment_)) != free_by_size_.end();
}

uint64_t BlockAllocator::block_at(uint64_t offset) const noexcept {
  if (offset >= capacity_) return UINT64_MAX;
  const auto block = std::prev(blocks_.upper_bound(offset));
  return block->second.free ? UINT64_MAX : block->first;
}

bool BlockAllocator::is_seam(uint64_t offset) const noexcept {
  return std::binary_search(seams_.begin(), seams_.end(), offset);
}

uint64_t BlockAllocator::allocate(uint64_t size, uint64_t alignment, BlockOwner owner) {
  if (alignment == 0) {
    alignment = alignment_;
  } else {
    check_alignment(alignment);
    alignment = std::max(alignment, alignment_);
  }
  if (size == 0) {
    ++live_zero_size_[static_cast<int>(owner)];
    ++stats_.live_blocks;
    stats_.live_raw_blocks += owner == BlockOwner::kRaw;
    ++stats_.allocations;
    return zero_size_offset();
  }
  // Compared before rounding, which would wrap for sizes close to 2^64.
  if (size > capacity_) throw_out_of_memory(size, alignment);
  const uint64_t rounded = align_up(size, alignment_);
  const BySize::iterator fit = find_fit(rounded, alignment);
  if (fit == free_by_size_.end()) throw_out_of_memory(size, alignment);
  return carve(fit, rounded, alignment, size, owner);
}

// The smallest free block that holds `size` bytes at a multiple of `alignment`.
BlockAllocator::BySize::iterator BlockAllocator::find_fit(uint64_t size, uint64_t alignment) {
  const auto smallest = free_by_size_.lower_bound({size, 0});
  if (alignment == alignment_) return smallest;  // every block starts at a multiple of it
  const auto fits = [&](const std::pair<uint64_t, uint64_t>& block) {
    return align_up(block.second, alignment) + size <= block.second + block.first;
  };
  auto probe = smallest;
  for (int i = 0; i < kProbes && probe != free_by_size_.end(); ++i, ++probe) {
    if (fits(*probe)) return probe;
  }
  const auto sure = free_by_size_.lower_bound({size + alignment - alignment_, 0});
  if (sure != free_by_size_.end()) return sure;
  return std::find_if(probe, free_by_size_.end(), fits);
}

// Turns the free block `fit` into an optional free one in front (alignment), the live one, and an optional free rest.
uint64_t BlockAllocator::carve(BySize::iterator fit, uint64_t size, uint64_t alignment, uint64_t requested,
                               BlockOwner owner) {
  const auto [whole, offset] = *fit;
  const uint64_t start = align_up(offset, alignment);
  const uint64_t front = start - offset;
  const uint64_t rest = whole - front - size;
  // All that may throw comes first: the state changes only once both nodes are there.
  Blocks::node_type front_node = front != 0 ? make_node() : Blocks::node_type();
  Blocks::node_type rest_node = rest != 0 ? make_node() : Blocks::node_type();

  Blocks::iterator block = blocks_.find(offset);
  remove_free_entry(block);
  if (front != 0) {
    block->second.size = front;
    insert_free_entry(block);
    front_node.key() = start;
    block = blocks_.insert(std::next(block), std::move(front_node));
  }
  block->second.size = size;
  block->second.requested = requested;
  block->second.free = false;
  block->second.owner = owner;
  if (rest != 0) {
    rest_node.key() = start + size;
    rest_node.mapped().size = rest;
    insert_free_entry(blocks_.insert(std::next(block), std::move(rest_node)));
  }
  stats_.used += size;
  stats_.requested += requested;
  stats_.peak = std::max(stats_.peak, stats_.used);
  ++stats_.live_blocks;
  stats_.live_raw_blocks += owner == BlockOwner::kRaw;
  ++stats_.allocations;
  return start;
}

FreeResult BlockAllocator::check_free(uint64_t offset, BlockOwner owner) const noexcept {
  if (offset == zero_size_offset()) {
    return live_zero_size_[static_cast<int>(owner)] == 0 ? FreeResult::kDoubleFree : FreeResult::kFreed;
  }
  if (offset >= capacity_) return FreeResult::kForeign;
  const auto block = std::prev(blocks_.upper_bound(offset));
  if (block->second.free) return FreeResult::kDoubleFree;
  if (block->first != offset) return FreeResult::kInterior;
  return block->second.owner == owner ? FreeResult::kFreed : FreeResult::kForeign;
}

FreeResult BlockAllocator::free(uint64_t offset, BlockOwner owner) noexcept {
  if (const FreeResult result = check_free(offset, owner); result != FreeResult::kFreed) return result;
  if (offset == zero_size_offset()) {
    free_zero_size(owner);
    return FreeResult::kFreed;
  }
  Blocks::iterator block = blocks_.find(offset);
  stats_.used -= block->second.size;
  stats_.requested -= block->second.requested;
  --stats_.live_blocks;
  stats_.live_raw_blocks -= owner == BlockOwner::kRaw;
  ++stats_.frees;
  block->second.requested = 0;

  const Blocks::iterator next = std::next(block);
  if (next != blocks_.end() && next->second.free && !is_seam(next->first)) {
    remove_free_entry(next);
    block->second.size += next->second.size;
    recycle(blocks_.extract(next));
  }
  if (block != blocks_.begin() && std::prev(block)->second.free && !is_seam(block->first)) {
    const Blocks::iterator previous = std::prev(block);
    remove_free_entry(previous);
    previous->second.size += block->second.size;
    recycle(blocks_.extract(block));
    block = previous;
  }
  insert_free_entry(block);
  return FreeResult::kFreed;
}

void BlockAllocator::free_zero_size(BlockOwner owner) noexcept {
  --live_zero_size_[static_cast<int>(owner)];
  --stats_.live_blocks;
  stats_.live_raw_blocks -= owner == BlockOwner::kRaw;
  ++stats_.frees;
}

AllocatorStats BlockAllocator::stats() const noexcept {
  AllocatorStats out = stats_;
  out.free = capacity_ - out.used;
  out.largest_free = free_by_size_.empty() ? 0 : free_by_size_.rbegin()->first;
  out.free_blocks = free_by_size_.size();
  return out;
}

std::vector<BlockInfo> BlockAllocator::blocks() const {
  std::vector<BlockInfo> out;
  out.reserve(blocks_.size());
  for (const auto& [offset, block] : blocks_) {
    out.push_back({offset, block.size, block.requested, block.free, block.owner});
  }
  return out;
}

// A block that is in neither structure yet, with its entry for `free_by_size_`.
BlockAllocator::Blocks::node_type BlockAllocator::make_node() {
  if (!spare_.empty()) {
    Blocks::node_type node = std::move(spare_.back());
    spare_.pop_back();
    return node;
  }
  Blocks blocks;
  BySize entries;
  Blocks::node_type node = blocks.extract(blocks.try_emplace(0).first);
  node.mapped().entry = entries.extract(entries.emplace(0, 0).first);
  return node;
}

void BlockAllocator::recycle(Blocks::node_type node) noexcept {
  if (spare_.size() < spare_.capacity()) spare_.push_back(std::move(node));
}

void BlockAllocator::insert_free_entry(Blocks::iterator block) noexcept {
  block->second.free = true;
  block->second.entry.value() = {block->second.size, block->first};
  free_by_size_.insert(std::move(block->second.entry));
}

void BlockAllocator::remove_free_entry(Blocks::iterator block) noexcept {
  block->second.entry = free_by_size_.extract({block->second.size, block->first});
}

void BlockAllocator::throw_out_of_memory(uint64_t size, uint64_t alignment) const {
  const AllocatorStats now = stats();
  throw OutOfMemoryError(join("HostPool: out of memory: asked for ", size, " bytes (alignment ", alignment, "), free ",
                              now.free, " bytes, largest free block ", now.largest_free, " bytes, capacity ", capacity_,
                              " bytes"));
}

}  // namespace torch_offload
