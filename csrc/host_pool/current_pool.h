// SPDX-License-Identifier: Apache-2.0
//
// Which pool the plain allocation functions of the C interface serve from, by thread.
#pragma once

#include <memory>

#include "host_pool/host_pool.h"
#include "visibility.h"

namespace torch_offload {

// From now on, in this thread, the pool takes the default pool's place, until the matching pop.
OFFLOAD_CORE_API void push_current_pool(std::shared_ptr<HostPool> pool);
OFFLOAD_CORE_API void pop_current_pool() noexcept;

// What was pushed last in this thread, else the default pool.
// @throws StateError when there is neither
std::shared_ptr<HostPool> current_pool();

}  // namespace torch_offload
