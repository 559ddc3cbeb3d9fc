// SPDX-License-Identifier: Apache-2.0
//
// Which pool an address belongs to. Holds no pool alive. Has one mutex, under which no pool is destroyed.
#pragma once

#include "host_pool/host_pool.h"

namespace torch_offload {

void register_pool(const std::shared_ptr<HostPool>& pool);

// Before the mapping goes, so that a new pool at the same addresses cannot be registered earlier.
void unregister_pool(const HostPool& pool) noexcept;

}  // namespace torch_offload
