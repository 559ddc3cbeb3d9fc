// SPDX-License-Identifier: Apache-2.0
//
// The CPU copy loop of sparse_copy, free of torch. A copy has three steps: `scan_indices` checks every entry
// before anything is written, `plan_copy` decides how the work splits, and `copy_part` is run once for each
// part, on any threads, at the same time or one after another: the result is the same.
#pragma once

#include <cstdint>

#include "sparse_copy_params.h"
#include "visibility.h"

namespace torch_offload {

// What a pass over the indices finds out.
struct IndexScan {
  bool dst_repeats = false;  // a destination row may be written twice
  int64_t copied = 0;        // entries that are not skipped
};

// Ways to share the work such that every destination byte is written by one part only, in the order of the
// entries. That makes "the last entry wins" hold for any number of parts.
enum class Split {
  kEntries,  // each part takes a range of entries; needs destinations that do not repeat
  kColumns,  // each part takes a range of bytes of every row; for large rows
  kOwners,   // each part takes the destination rows that hash to it
};

struct CopyPlan {
  Split split = Split::kEntries;
  int parts = 1;
  bool streaming = false;  // past the caches
};

// Checks the first n entries. Throws IndexError that names the argument, the position, the value and the row
// count for the first entry that is neither skipped nor inside the rows.
OFFLOAD_CORE_API IndexScan scan_indices(const SparseCopyParams& params);

// Chooses the split for at most `max_parts` parts; small copies get one part.
OFFLOAD_CORE_API CopyPlan plan_copy(const SparseCopyParams& params, const IndexScan& scan, int max_parts);

// Copies what belongs to `part`, 0 <= part < plan.parts. The indices must not change between the scan and
// this call.
OFFLOAD_CORE_API void copy_part(const SparseCopyParams& params, const CopyPlan& plan, int part) noexcept;

}  // namespace torch_offload
