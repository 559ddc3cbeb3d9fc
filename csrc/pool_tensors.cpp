// SPDX-License-Identifier: Apache-2.0
#include "pool_tensors.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "error.h"
#include "host_pool/process_generation.h"

namespace torch_offload {
namespace {

at::DataPtr to_data_ptr(PoolBlock block) {
  void* const data = block.data();
  auto* const owner = new PoolBlock(std::move(block));
  return {data, owner, [](void* context) { delete static_cast<PoolBlock*>(context); }, at::kCPU};
}

// What torch asks when a storage of the pool is resized. It must not fail because of the pool: by then torch has given
// the tensor its new sizes (Resize.h), and would let it reach behind its old block. A storage of 0 bytes may outlive
// the pool, so the allocator holds it weakly and is never destroyed itself.
class PoolAllocator final : public c10::Allocator {
 public:
  explicit PoolAllocator(std::weak_ptr<HostPool> pool) : pool_(std::move(pool)) {}

  bool serves(const std::shared_ptr<HostPool>& pool) const { return pool_.lock() == pool; }

  at::DataPtr allocate(size_t bytes) override {
    std::string why_not = "the pool has ended";
    if (const std::shared_ptr<HostPool> pool = pool_.lock()) {
      try {
        return to_data_ptr(pool->allocate(bytes));
      } catch (const Error& error) {
        why_not = error.what();
      }
    }
    TORCH_WARN("HostPool: a tensor that was resized to ", bytes, " bytes has moved to ordinary memory: ", why_not);
    return c10::GetCPUAllocator()->allocate(bytes);
  }

  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  const std::weak_ptr<HostPool> pool_;
};

// One allocator for each pool. Fresh in a forked child, where another thread's lock would never be released.
class Allocators {
 public:
  PoolAllocator* of(const std::shared_ptr<HostPool>& pool) {
    const std::lock_guard<std::mutex> lock(mutex_);
    PoolAllocator*& allocator = by_pool_[pool.get()];
    // The address may have been that of an earlier pool.
    if (allocator == nullptr || !allocator->serves(pool)) allocator = &all_.emplace_back(pool);
    return allocator;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<const HostPool*, PoolAllocator*> by_pool_;
  std::deque<PoolAllocator> all_;
};

PerProcess<Allocators> allocators;

// Bytes of a contiguous tensor; ValueError where no tensor can be that large. A tensor without elements has strides all
// the same, and torch multiplies them without a check: dimensions of size 0 count as 1 there.
uint64_t checked_bytes(const char* what, const std::vector<int64_t>& sizes, int64_t itemsize) {
  for (const int64_t size : sizes) {
    if (size < 0) throw ValueError(join(what, ": expected size to be non-negative, got ", size));
  }
  const bool no_elements = std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
  int64_t bytes = no_elements ? 1 : itemsize;
  bool overflows = false;
  for (const int64_t size : sizes) overflows |= __builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes);
  if (overflows) {
    throw ValueError(join(what, ": expected size to address fewer than 2^63 bytes, got ", c10::IntArrayRef(sizes)));
  }
  return no_elements ? 0 : static_cast<uint64_t>(bytes);
}

// Bytes from the first element of a strided tensor to the end of its last one.
uint64_t checked_extent(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides, int64_t itemsize) {
  if (sizes.size() != strides.size()) {
    throw ValueError(join("view: expected as many strides as sizes (", sizes.size(), "), got ", strides.size()));
  }
  if (checked_bytes("view", sizes, itemsize) == 0) return 0;
  int64_t last = 0;
  bool overflows = false;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (strides[i] < 0) throw ValueError(join("view: expected strides to be non-negative, got ", strides[i]));
    int64_t distance = 0;
    overflows |= __builtin_mul_overflow(sizes[i] - 1, strides[i], &distance);
    overflows |= __builtin_add_overflow(last, distance, &last);
  }
  int64_t bytes = 0;
  overflows |= __builtin_add_overflow(last, 1, &last);
  overflows |= __builtin_mul_overflow(last, itemsize, &bytes);
  if (overflows)
    throw ValueError(join("view: expected strides to address fewer than 2^63 bytes, got ", c10::IntArrayRef(strides)));
  return static_cast<uint64_t>(bytes);
}

at::Tensor make_tensor(PoolBlock block, c10::IntArrayRef sizes, c10::IntArrayRef strides, at::ScalarType dtype) {
  const uint64_t bytes = block.size();
  PoolAllocator* const allocator = allocators.get().of(block.pool());
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, to_data_ptr(std::move(block)), allocator,
                       /*resizable=*/true);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

}  // namespace

at::Tensor empty_in_pool(const std::shared_ptr<HostPool>& pool, const std::vector<int64_t>& sizes,
                         at::ScalarType dtype) {
  const uint64_t bytes = checked_bytes("HostPool.empty", sizes, static_cast<int64_t>(c10::elementSize(dtype)));
  return make_tensor(pool->allocate(bytes), sizes, c10::contiguous_strides(sizes), dtype);
}

at::Tensor view_of_pool(const std::shared_ptr<HostPool>& pool, uint64_t offset, const std::vector<int64_t>& sizes,
                        const std::vector<int64_t>& strides, at::ScalarType dtype) {
  const auto itemsize = static_cast<int64_t>(c10::elementSize(dtype));
  PoolBlock block = pool->view(offset, checked_extent(sizes, strides, itemsize));
  if (reinterpret_cast<uintptr_t>(block.data()) % itemsize != 0) {
    throw ValueError(join("view: expected offset to be a multiple of ", itemsize, ", got ", offset));
  }
  return make_tensor(std::move(block), sizes, strides, dtype);
}

}  // namespace torch_offload
