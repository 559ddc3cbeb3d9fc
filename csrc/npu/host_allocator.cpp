// SPDX-License-Identifier: Apache-2.0
#include "npu/host_allocator.h"

#include <ATen/core/CachingHostAllocator.h>
#include <torch_npu/csrc/core/npu/NPUStream.h>

#include <memory>
#include <utility>

#include "host_pool/host_pool.h"

namespace torch_offload::npu {
namespace {

class PoolAwareHostAllocator final : public at::HostAllocator {
 public:
  explicit PoolAwareHostAllocator(at::HostAllocator* inner) : inner_(inner) {}

  bool record_event(void* ptr, void* ctx, c10::Stream stream) override {
    const std::shared_ptr<HostPool> pool = find_pool(ptr);
    if (pool == nullptr) return inner_->record_event(ptr, ctx, stream);
    const c10_npu::NPUStream npu_stream(c10_npu::NPUStream::UNCHECKED, stream);
    pool->record_use(ptr, {stream.device_index(), npu_stream.stream(false)});
    return true;
  }

  at::DataPtr allocate(size_t bytes) override { return inner_->allocate(bytes); }
  at::DeleterFnPtr raw_deleter() const override { return inner_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { inner_->copy_data(to, from, bytes); }
  void empty_cache() override { inner_->empty_cache(); }
  at::HostStats get_stats() override { return inner_->get_stats(); }
  void reset_accumulated_stats() override { inner_->reset_accumulated_stats(); }
  void reset_peak_stats() override { inner_->reset_peak_stats(); }
  void begin_allocate_to_pool(c10::MempoolId_t pool_id, std::function<bool(c10::Stream)> filter) override {
    inner_->begin_allocate_to_pool(pool_id, std::move(filter));
  }
  void end_allocate_to_pool(c10::MempoolId_t pool_id) override { inner_->end_allocate_to_pool(pool_id); }
  void release_pool(c10::MempoolId_t pool_id) override { inner_->release_pool(pool_id); }

 private:
  at::HostAllocator* const inner_;
};

}  // namespace

void watch_host_copies() {
  // Never destroyed: DataPtrs and torch keep pointers to it.
  static auto* const layer = new PoolAwareHostAllocator(at::getHostAllocator(at::kPrivateUse1));
  at::setHostAllocator(at::kPrivateUse1, layer);
}

}  // namespace torch_offload::npu
