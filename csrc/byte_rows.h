// SPDX-License-Identifier: Apache-2.0
//
// Exact answer to "do these two sets of rows share a byte?", for rows at any stride: views of one storage
// that interleave (K beside V in one buffer) do not overlap although their extents do.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace torch_offload {

// `rows` runs of `row_bytes` bytes; run i begins at begin + i * stride. Strides are not negative.
struct ByteRows {
  int64_t begin = 0;
  int64_t stride = 0;
  int64_t rows = 0;
  int64_t row_bytes = 0;

  bool empty() const { return rows == 0 || row_bytes == 0; }
  int64_t end() const { return begin + (rows - 1) * stride + row_bytes; }
};

inline bool extents_overlap(const ByteRows& a, const ByteRows& b) {
  return !a.empty() && !b.empty() && a.begin < b.end() && b.begin < a.end();
}

inline bool rows_overlap(const ByteRows& a, const ByteRows& b) {
  if (!extents_overlap(a, b)) return false;
  // Distances between a run of a and a run of b are (b.begin - a.begin) modulo the strides' common divisor g.
  // They share bytes exactly when that distance lies in (-b.row_bytes, a.row_bytes).
  const int64_t g = std::gcd(a.stride, b.stride);
  if (g > 0) {
    const int64_t distance = ((b.begin - a.begin) % g + g) % g;
    if (distance >= a.row_bytes && g - distance >= b.row_bytes) return false;
  }
  // The lattice would allow a hit, the ends of the rows may not: look at each run of the side with fewer.
  const ByteRows& few = a.rows <= b.rows ? a : b;
  const ByteRows& many = a.rows <= b.rows ? b : a;
  for (int64_t i = 0; i < few.rows; ++i) {
    const int64_t low = few.begin + i * few.stride - many.row_bytes;  // a run of `many` that begins after this ...
    const int64_t high = few.begin + i * few.stride + few.row_bytes;  // ... and before this shares bytes with run i
    if (many.stride == 0) {
      if (low < many.begin && many.begin < high) return true;
      continue;
    }
    int64_t j = low < many.begin ? 0 : (low - many.begin) / many.stride + 1;
    if (j < many.rows && many.begin + j * many.stride < high) return true;
    if (few.stride == 0) break;
  }
  return false;
}

}  // namespace torch_offload
