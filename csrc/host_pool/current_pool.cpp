// SPDX-License-Identifier: Apache-2.0
#include "host_pool/current_pool.h"

#include <utility>
#include <vector>

#include "host_pool/default_pool.h"

namespace torch_offload {

namespace {

thread_local std::vector<std::shared_ptr<HostPool>> pushed;

}  // namespace

void push_current_pool(std::shared_ptr<HostPool> pool) { pushed.push_back(std::move(pool)); }

void pop_current_pool() noexcept {
  if (!pushed.empty()) pushed.pop_back();
}

std::shared_ptr<HostPool> current_pool() { return pushed.empty() ? default_pool() : pushed.back(); }

}  // namespace torch_offload
