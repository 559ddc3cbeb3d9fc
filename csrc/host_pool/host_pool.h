// SPDX-License-Identifier: Apache-2.0
//
// HostPool: one mapping, the allocator over it, and the rules of their lifetime.
//
// Ownership: a pool is held by std::shared_ptr. Every PoolBlock holds its pool. A pool with raw blocks (allocate_raw)
// holds itself until the last of them is freed. The mapping goes with the pool, its registration with a device before.
//
// Streams: work that a device was given may use a block after its holder has dropped it. record_use() tells the pool,
// which then hands the block out again only once the streams have passed the point where it was given back.
//
// Locking: `State::mutex` guards everything in State; it is held for O(log n) work only, never while a predicate,
// a call of the device backend, a system call that may wait, or code of the caller runs. The mapping and the options
// never change. The copy gate is lock free. The registry of pools has its own mutex, which is never held together with
// another one.
//
// Fork: in a child of the process that made the pool, reading and writing the memory works (private memory is the
// child's own copy), allocation throws StateError, freeing and closing do nothing. None of them touches State, which
// another thread may have been changing at the fork.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "host_pool/block_allocator.h"
#include "host_pool/copy_gate.h"
#include "host_pool/device_backend.h"
#include "host_pool/mapping.h"
#include "visibility.h"

namespace torch_offload {

inline constexpr int32_t kNoDevice = -1;

struct PoolOptions {
  uint64_t capacity = 0;    // rounded up to the system's page size and to the alignment
  uint64_t alignment = 64;  // of every block; power of two from 16 B to 2 MiB
  HugePages huge_pages = HugePages::kAuto;
  int numa_node = kNoNumaNode;
  bool shared = false;       // share() needs it
  bool lock = false;         // lock the memory (mlock) where allowed
  int prefault_threads = 0;  // 0: pages come with their first touch
  int32_t device = kNoDevice;
  std::string name = "host_pool";

  bool operator==(const PoolOptions&) const = default;
};

// One consistent snapshot.
struct PoolStats : AllocatorStats {
  uint64_t deferred_blocks = 0;  // freed, but a stream may still use them; counted as live and used
  uint64_t double_frees = 0;     // refused
  uint64_t foreign_frees = 0;    // refused, interior pointers included
  uint64_t page_size = 0;        // the smallest page that backs the memory
  uint64_t huge_bytes = 0;       // bytes known to be backed by huge pages
  int numa_node = kNoNumaNode;   // kNoNumaNode unless bound
  bool locked = false;
  bool device_registered = false;
  bool shared = false;
  bool attached = false;  // another process's memory
  bool closed = false;
};

// How another process of the same user finds the memory. Valid as long as the owner process lives and holds the pool.
struct PoolHandle {
  int64_t pid = 0;
  int32_t fd = -1;
  uint64_t inode = 0;  // tells a reused pid or descriptor
  uint64_t capacity = 0;
  uint64_t length = 0;  // of the mapping
  uint64_t page_size = 0;
  std::string name;

  bool operator==(const PoolHandle&) const = default;
};

class HostPool;

// A block that gives itself back. Move only; the pool lives at least as long.
class OFFLOAD_CORE_API PoolBlock {
 public:
  PoolBlock() = default;
  PoolBlock(PoolBlock&& other) noexcept;
  PoolBlock& operator=(PoolBlock&& other) noexcept;
  ~PoolBlock() { reset(); }

  void* data() const { return data_; }
  uint64_t size() const { return size_; }  // as asked
  const std::shared_ptr<HostPool>& pool() const { return pool_; }

  // Gives the block back now.
  void reset() noexcept;
  // Gives the block back once `ready` returns true. The pool asks when it allocates and when it ends, without holding
  // a lock, possibly in another thread; `ready` must not use the pool and must return true at the latest when the
  // device is gone.
  void reset_when(std::function<bool()> ready);

 private:
  friend class HostPool;
  PoolBlock(std::shared_ptr<HostPool> pool, void* data, uint64_t size, bool owns)
      : pool_(std::move(pool)), data_(data), size_(size), owns_(owns) {}

  std::shared_ptr<HostPool> pool_;
  void* data_ = nullptr;
  uint64_t size_ = 0;
  bool owns_ = false;  // false for views
};

class OFFLOAD_CORE_API HostPool : public std::enable_shared_from_this<HostPool> {
 public:
  // @throws ValueError, OutOfMemoryError, StateError (cancelled) and what `progress` throws; nothing is left behind
  static std::shared_ptr<HostPool> create(const PoolOptions& options, const Progress& progress = nullptr,
                                          const SystemCalls& calls = system_calls());

  // Maps the memory of another process's pool. Only its owner allocates: here view() gives the blocks.
  // `device` may address it here, whatever the owner has chosen.
  // @throws StateError when the owner is gone or may not be read, OutOfMemoryError when the addresses cannot be had
  static std::shared_ptr<HostPool> attach(const PoolHandle& handle, int32_t device = kNoDevice);
  // The same with a descriptor that was passed over a socket; takes `fd` over, also when it throws.
  static std::shared_ptr<HostPool> attach_fd(int fd, const PoolHandle& handle, int32_t device = kNoDevice);

  ~HostPool();
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  // `alignment` 0 is the pool's. Size 0 is valid, also when full; its address must not be accessed.
  // OutOfMemoryError also counts blocks as used that a stream may still use: see wait_for_streams.
  // @throws ValueError (alignment), OutOfMemoryError, StateError (closed, attached, forked)
  PoolBlock allocate(uint64_t size, uint64_t alignment = 0);
  void* allocate_raw(uint64_t size, uint64_t alignment = 0);

  // Frees a block of allocate_raw, from any thread, also after close(). Wrong frees are counted and change nothing.
  FreeResult free_raw(void* data) noexcept;

  // Blocks that were given back while a stream was using them come free with time. Waits until that has happened to one
  // that holds `size` bytes, and returns true; false when that cannot come or `patience` has ended.
  bool wait_for_streams(uint64_t size, uint64_t alignment, std::chrono::milliseconds patience);
  // Whether there are such blocks. Takes no lock.
  bool has_deferred_blocks() const noexcept;

  // The work that the stream has been given so far may use the block around `data`, an address in the pool. It protects
  // the block as told above, and the memory as a whole.
  void record_use(const void* data, const StreamUse& use);

  // The device that addresses the memory, or kNoDevice.
  int32_t device() const { return options_.device; }
  // Where that device finds [data, data + bytes) of this memory; 0 unless it finds it in one piece.
  uint64_t device_address(const void* data, uint64_t bytes) const noexcept;
  // The other way round; null unless the device's address is one of this memory.
  void* host_address(uint64_t device_address) const noexcept;
  const std::vector<DevicePiece>& device_pieces() const { return pieces_; }

  // [offset, offset + size) of the memory, keeping the pool alive but owning no block.
  // @throws ValueError when it is not inside the capacity
  PoolBlock view(uint64_t offset, uint64_t size);

  // Refuses new allocations and copies, waits for the copies that have started. The memory stays until the last block
  // is gone. Any number of times, from any thread except one that holds a CopyGuard.
  void close() noexcept;
  bool closed() const noexcept;

  // @throws StateError in a forked child, as blocks() does
  PoolStats stats();
  std::vector<BlockInfo> blocks() const;

  // @throws StateError unless the pool was made with `shared`
  PoolHandle share() const;

  std::byte* base() const { return mapping_->base(); }
  uint64_t capacity() const { return capacity_; }
  // Whether `data` lies in the memory, or is the address of its blocks of size 0.
  bool contains(const void* data) const noexcept;
  uint64_t offset_of(const void* data) const { return static_cast<const std::byte*>(data) - base(); }
  const PoolOptions& options() const { return options_; }  // as given
  // What was wished for and denied, one text each. Never changes.
  const std::vector<std::string>& warnings() const { return warnings_; }
  bool forked() const noexcept;  // this process inherited the pool from its parent

 private:
  friend class PoolBlock;
  friend class CopyGuard;
  struct State;
  struct Deferred;

  HostPool(const PoolOptions& options, std::unique_ptr<Mapping> mapping, uint64_t capacity, bool attached);
  static std::shared_ptr<HostPool> make(const PoolOptions& options, std::unique_ptr<Mapping> mapping, uint64_t capacity,
                                        bool attached, std::vector<std::string> warnings);

  void* allocate_block(uint64_t size, uint64_t alignment, BlockOwner owner);
  FreeResult free_block(const void* data, BlockOwner owner) noexcept;
  FreeResult release_block(const void* data, BlockOwner owner) noexcept;
  FreeResult check_free(const void* data, BlockOwner owner) const noexcept;
  FreeResult count_wrong_free(FreeResult result) noexcept;
  void defer(const void* data, BlockOwner owner, std::function<bool()> ready);
  void poll_deferred();
  bool wait_for_deferred() noexcept;
  void map_for_device();
  std::vector<uint64_t> seams() const;
  void check_not_forked(const char* what) const;

  const PoolOptions options_;
  const uint64_t generation_;
  const bool attached_;
  const uint64_t capacity_;
  std::unique_ptr<Mapping> mapping_;
  DeviceBackend* backend_ = nullptr;  // set while the memory is registered with the device
  std::vector<DevicePiece> pieces_;
  std::vector<std::string> warnings_;
  CopyGate gate_;
  std::unique_ptr<State> state_;  // leaked in a forked child
};

// Held while a copy uses the memory of `pool`. False when the pool is closed: no copy may start.
class CopyGuard {
 public:
  explicit CopyGuard(std::shared_ptr<HostPool> pool) : pool_(std::move(pool)), entered_(pool_->gate_.enter()) {}
  ~CopyGuard() {
    if (entered_) pool_->gate_.leave();
  }
  CopyGuard(const CopyGuard&) = delete;
  CopyGuard& operator=(const CopyGuard&) = delete;
  explicit operator bool() const { return entered_; }

 private:
  std::shared_ptr<HostPool> pool_;
  bool entered_;
};

// The open pool, or the closed one with live blocks, that `data` belongs to; null if none does. O(log pools).
OFFLOAD_CORE_API std::shared_ptr<HostPool> find_pool(const void* data);

// The same by an address of the device.
OFFLOAD_CORE_API std::shared_ptr<HostPool> find_pool_of_device(int32_t device, uint64_t address);

}  // namespace torch_offload
