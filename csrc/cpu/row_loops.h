// SPDX-License-Identifier: Apache-2.0
//
// The innermost loops: rows of one component, one after another, while later ones are on their way. Every variant
// copies the same bytes; which one is fastest depends on the processor.
#pragma once

#include <cstddef>
#include <cstdint>

#include "visibility.h"

namespace torch_offload {

// One entry of a copy, both rows inside their tensors.
struct Entry {
  int64_t dst;
  int64_t src;
};

// Most rows that a loop fetches ahead.
constexpr int64_t kMaxRowsAhead = 32;

// `bytes` bytes of each of `count` rows; row r of a side begins at its base + r * stride. Copies in order. Behind them
// in `entries` stand `upcoming` more, which the next block begins with: a loop fetches up to kMaxRowsAhead of them, so
// that the next block, with `fetched` set, need not wait for its first rows.
struct RowBlock {
  std::byte* dst;
  const std::byte* src;
  int64_t dst_stride;
  int64_t src_stride;
  int64_t bytes;
  const Entry* entries;
  int64_t count;
  int64_t upcoming = 0;
  bool fetched = false;
  bool streaming = false;  // the destinations are too many to stay in a cache: better not bring them there
};

using RowLoop = void (*)(const RowBlock& block);

// Fetches a later row at once, then calls memcpy, which knows the processor.
OFFLOAD_CORE_API void copy_rows_portable(const RowBlock& block);

#if defined(__x86_64__)
// Copies line by line with 32-byte registers and fetches a line of a later row with each: the memory system always
// has both to do. Streams past the caches where it is asked to and the rows are aligned. Needs AVX2.
OFFLOAD_CORE_API void copy_rows_avx2(const RowBlock& block);
#endif

// The best loop for this processor.
OFFLOAD_CORE_API RowLoop best_row_loop();

}  // namespace torch_offload
