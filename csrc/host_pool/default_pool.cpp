// SPDX-License-Identifier: Apache-2.0
#include "host_pool/default_pool.h"

#include <atomic>
#include <mutex>
#include <utility>

#include "error.h"
#include "host_pool/process_generation.h"

namespace torch_offload {

namespace {

struct DefaultPool {
  std::mutex changing;  // held by init and uninit
  std::mutex mutex;     // guards `pool`
  std::shared_ptr<HostPool> pool;
};

PerProcess<DefaultPool> instance;
std::atomic<uint64_t> initialized_in{0};  // the generation of the process that has a default pool

std::shared_ptr<HostPool> current() {
  DefaultPool& global = instance.get();
  const std::lock_guard<std::mutex> lock(global.mutex);
  return global.pool;
}

}  // namespace

std::shared_ptr<HostPool> init_default_pool(const PoolOptions& options, const Progress& progress) {
  DefaultPool& global = instance.get();
  const std::lock_guard<std::mutex> changing(global.changing);
  // One that was closed through its handle hands nothing out any more: the new one takes its place.
  if (const std::shared_ptr<HostPool> pool = current(); pool != nullptr && !pool->closed()) {
    if (pool->options() == options) return pool;
    throw StateError(join("init: expected the arguments of the first call (capacity ", pool->options().capacity,
                          "), got others (capacity ", options.capacity, "); call uninit first"));
  }
  std::shared_ptr<HostPool> pool = HostPool::create(options, progress);
  const std::lock_guard<std::mutex> lock(global.mutex);
  global.pool = pool;
  initialized_in = process_generation();
  return pool;
}

void uninit_default_pool() noexcept {
  DefaultPool& global = instance.get();
  const std::lock_guard<std::mutex> changing(global.changing);
  std::shared_ptr<HostPool> pool;
  {
    const std::lock_guard<std::mutex> lock(global.mutex);
    pool = std::exchange(global.pool, nullptr);
    initialized_in = 0;
  }
  if (pool != nullptr) pool->close();
}

bool default_pool_is_initialized() noexcept {
  const std::shared_ptr<HostPool> pool = current();
  return pool != nullptr && !pool->closed();
}

std::shared_ptr<HostPool> default_pool() {
  if (std::shared_ptr<HostPool> pool = current()) return pool;
  const uint64_t generation = initialized_in;
  if (generation != 0 && generation != process_generation()) {
    throw StateError(
        "the default pool belongs to the parent of this forked process: call init here for one of its own");
  }
  throw StateError("the default pool is not initialized: call init first");
}

}  // namespace torch_offload
