// SPDX-License-Identifier: Apache-2.0
//
// Best-fit allocator over the offsets [0, capacity) of some memory that it never touches.
//
// Structures: `blocks_` holds every block, live or free, ordered by offset, without a gap between them; two free
// blocks are never neighbours, except at a seam. `free_by_size_` holds the free ones ordered by (size, offset). Each
// block owns its entry for `free_by_size_` for its whole life, so that freeing allocates nothing and cannot fail.
//
// Cost: O(log n). One exception: a request aligned more strictly than the allocator itself that no free block is
// sure to hold looks at every block of sufficient size before it is refused.
//
// Locking: none. The caller serialises all calls (HostPool does so with its mutex).
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "visibility.h"

namespace torch_offload {

inline constexpr uint64_t kMinAlignment = 16;
inline constexpr uint64_t kMaxAlignment = uint64_t{2} << 20;

// Rounds up to a power of two. The caller rules out overflow.
constexpr uint64_t align_up(uint64_t value, uint64_t alignment) { return (value + alignment - 1) & ~(alignment - 1); }

// Throws ValueError unless `alignment` is a power of two in [kMinAlignment, kMaxAlignment].
OFFLOAD_CORE_API void check_alignment(uint64_t alignment);

// Who gives a block back. A block of one owner that is freed as the other's is refused.
enum class BlockOwner : uint8_t {
  kHandle,  // a PoolBlock, when it dies
  kRaw,     // the holder of a plain pointer
};

enum class FreeResult : uint8_t {
  kFreed,
  kDoubleFree,  // the address lies in free memory
  kInterior,    // the address lies inside a live block, not at its start
  kForeign,     // the address is not of this allocator, or the block belongs to the other kind of owner
  kForked,      // the pool was made by the parent process: nothing was done
};

struct BlockInfo {
  uint64_t offset;
  uint64_t size;       // rounded to the alignment
  uint64_t requested;  // as asked; 0 for free blocks
  bool free;
  BlockOwner owner;  // of live blocks
};

struct AllocatorStats {
  uint64_t capacity = 0;
  uint64_t used = 0;       // bytes in live blocks, rounding included
  uint64_t free = 0;       // capacity - used
  uint64_t requested = 0;  // bytes in live blocks as asked: used - requested is what rounding costs
  uint64_t largest_free = 0;
  uint64_t peak = 0;  // highest `used` so far
  uint64_t free_blocks = 0;
  uint64_t live_blocks = 0;  // blocks of size 0 included
  uint64_t live_raw_blocks = 0;
  uint64_t allocations = 0;  // successful ones so far
  uint64_t frees = 0;
};

class OFFLOAD_CORE_API BlockAllocator {
 public:
  // `capacity` is a positive multiple of `alignment`, below 2^62. No block reaches across one of the `seams`, which are
  // multiples of `alignment` inside the capacity in ascending order.
  // @throws ValueError
  BlockAllocator(uint64_t capacity, uint64_t alignment, std::vector<uint64_t> seams = {});

  // Whether allocate() would succeed.
  bool fits(uint64_t size, uint64_t alignment = 0);

  // The offset of the live block that holds the byte at `offset`; UINT64_MAX if none does.
  uint64_t block_at(uint64_t offset) const noexcept;

  // Returns the offset of a block of `size` bytes at a multiple of `alignment` (0: the allocator's own; a smaller
  // one is raised to it). Size 0 never fails and takes no memory: its offset is zero_size_offset().
  // @throws ValueError for a bad alignment, OutOfMemoryError when nothing fits; the state is unchanged then.
  uint64_t allocate(uint64_t size, uint64_t alignment = 0, BlockOwner owner = BlockOwner::kRaw);

  // Gives the block that starts at `offset` back and merges it with its free neighbours. Anything but kFreed leaves
  // the state unchanged.
  FreeResult free(uint64_t offset, BlockOwner owner = BlockOwner::kRaw) noexcept;
  // What free() would return.
  FreeResult check_free(uint64_t offset, BlockOwner owner) const noexcept;

  // One offset for all blocks of size 0, behind the memory and aligned to kMaxAlignment.
  uint64_t zero_size_offset() const { return align_up(capacity_, kMaxAlignment); }

  AllocatorStats stats() const noexcept;

  // All blocks in address order, without those of size 0.
  std::vector<BlockInfo> blocks() const;

 private:
  using BySize = std::set<std::pair<uint64_t, uint64_t>>;
  struct Block {
    uint64_t size = 0;
    uint64_t requested = 0;
    bool free = true;
    BlockOwner owner = BlockOwner::kRaw;
    BySize::node_type entry;  // parked here while the block is live
  };
  using Blocks = std::map<uint64_t, Block>;

  BySize::iterator find_fit(uint64_t size, uint64_t alignment);
  uint64_t carve(BySize::iterator fit, uint64_t size, uint64_t alignment, uint64_t requested, BlockOwner owner);
  Blocks::node_type make_node();
  void recycle(Blocks::node_type node) noexcept;
  void insert_free_entry(Blocks::iterator block) noexcept;
  void remove_free_entry(Blocks::iterator block) noexcept;
  void free_zero_size(BlockOwner owner) noexcept;
  bool is_seam(uint64_t offset) const noexcept;
  [[noreturn]] void throw_out_of_memory(uint64_t size, uint64_t alignment) const;

  const uint64_t capacity_;
  const uint64_t alignment_;
  const std::vector<uint64_t> seams_;
  Blocks blocks_;
  BySize free_by_size_;
  std::vector<Blocks::node_type> spare_;  // nodes of merged blocks, for the next splits
  AllocatorStats stats_;                  // counters; largest_free and free_blocks are filled in by stats()
  uint64_t live_zero_size_[2] = {0, 0};   // by owner
};

}  // namespace torch_offload
