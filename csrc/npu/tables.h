// SPDX-License-Identifier: Apache-2.0
//
// Tables of row numbers, addresses and lengths, as the tiling wants them.
#pragma once

#include "../op_host/sparse_copy_tiling.h"
#include "sparse_copy_params.h"

namespace torch_offload::npu {

inline sparse_copy_tiling::Table table_of(const IndexView& index) {
  if (index.is_identity()) return {};
  const uint32_t bytes = index.is_int64 ? sizeof(int64_t) : sizeof(int32_t);
  return {reinterpret_cast<uint64_t>(index.data), static_cast<uint64_t>(index.stride) * bytes, bytes};
}

}  // namespace torch_offload::npu
