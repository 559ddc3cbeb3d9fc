// SPDX-License-Identifier: Apache-2.0
//
// Tensors in a pool's memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "host_pool/host_pool.h"

namespace torch_offload {

// An uninitialized contiguous tensor that owns its block: it goes back when the storage dies, in whatever thread that
// is, with or without the GIL. A storage that is resized moves to another block of the same pool, or, with a warning,
// to ordinary memory where the pool has no block for it.
// @throws ValueError (sizes), OutOfMemoryError, StateError (closed, attached, forked)
at::Tensor empty_in_pool(const std::shared_ptr<HostPool>& pool, const std::vector<int64_t>& sizes,
                         at::ScalarType dtype);

// A tensor over bytes of the pool that keeps the pool alive but owns no block: memory that another process, or another
// tensor, owns. Its storage begins at `offset`; one that is resized moves as above.
// @throws ValueError when the strided tensor does not lie inside the pool
at::Tensor view_of_pool(const std::shared_ptr<HostPool>& pool, uint64_t offset, const std::vector<int64_t>& sizes,
                        const std::vector<int64_t>& strides, at::ScalarType dtype);

}  // namespace torch_offload
