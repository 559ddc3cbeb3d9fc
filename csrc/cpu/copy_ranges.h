// SPDX-License-Identifier: Apache-2.0
//
// The CPU copy loop of sparse_copy_ptrs, free of torch: the same three steps as copy_rows.h, on ranges of
// bytes. The addresses are trusted; nothing else in the tables is.
#pragma once

#include <cstdint>

#include "sparse_copy_params.h"
#include "visibility.h"

namespace torch_offload {

struct RangeScan {
  PointerCopyStatus status;
  int64_t bytes = 0;           // of all entries that are copied
  bool dst_increasing = true;  // no two destinations overlap, and they come in the order of their addresses
  bool may_alias = false;      // a source and a destination may share bytes: copy in order, on one thread
};

enum class RangeSplit {
  kBytes,     // each part takes an equal share of the bytes; needs increasing destinations
  kGranules,  // each part takes the pieces of destination memory that hash to it
};

struct RangePlan {
  RangeSplit split = RangeSplit::kBytes;
  int parts = 1;
  int64_t bytes = 0;
};

// Classifies the first n entries: refused are negative lengths and null addresses with a length; a length of
// zero is skipped.
OFFLOAD_CORE_API RangeScan scan_ranges(const PointerCopyParams& params);

OFFLOAD_CORE_API RangePlan plan_ranges(const RangeScan& scan, int max_parts);

// Copies what belongs to `part`, 0 <= part < plan.parts. The tables must not change between the scan and this
// call.
OFFLOAD_CORE_API void copy_ranges_part(const PointerCopyParams& params, const RangePlan& plan, int part) noexcept;

}  // namespace torch_offload
