// SPDX-License-Identifier: Apache-2.0
//
// The process-wide pool behind `torch_offload.init` and the C interface.
//
// Locking: one mutex is held by init and uninit from start to end, so that they exclude each other, waiting copies
// and prefaulting included; another one guards the pointer, so that get never waits for them. `progress` must not call
// init or uninit. A forked child starts without a pool.
#pragma once

#include <memory>

#include "host_pool/host_pool.h"
#include "visibility.h"

namespace torch_offload {

// Makes the default pool. Again with equal options: returns it. A closed one is replaced. A failure leaves none behind.
// @throws StateError when it exists with other options, and what HostPool::create throws
OFFLOAD_CORE_API std::shared_ptr<HostPool> init_default_pool(const PoolOptions& options,
                                                             const Progress& progress = nullptr);

// Closes it, if there is one: waits for copies under way; live blocks keep their memory.
OFFLOAD_CORE_API void uninit_default_pool() noexcept;

// Whether there is one, and it is open.
OFFLOAD_CORE_API bool default_pool_is_initialized() noexcept;

// @throws StateError when there is none
OFFLOAD_CORE_API std::shared_ptr<HostPool> default_pool();

}  // namespace torch_offload
