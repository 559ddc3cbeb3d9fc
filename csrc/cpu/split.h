// SPDX-License-Identifier: Apache-2.0
//
// Numbers and arithmetic that the two CPU copies (rows by index, ranges by address) share when they split
// work.
#pragma once

#include <algorithm>
#include <cstdint>

namespace torch_offload {

constexpr int64_t kCacheLine = 64;

// Fewer bytes than this for a part cost more in waking a thread than they save.
constexpr int64_t kMinBytesPerPart = 64 << 10;

// The number of parts that `bytes` deserve, out of at most `max_parts`.
inline int parts_for(int64_t bytes, int max_parts) {
  return static_cast<int>(std::clamp<int64_t>(bytes / kMinBytesPerPart, 1, std::max(max_parts, 1)));
}

// Where part `part` of `parts` begins in a range of `total`, without overflow; part `parts` begins at the
// end.
inline int64_t part_begin(int64_t total, int part, int parts) {
  return static_cast<int64_t>(static_cast<__int128>(total) * part / parts);
}

// Which of `parts` owns block number `block`: a multiplicative hash, so that neither a dense nor a strided
// set of blocks falls on few owners.
inline int owner_of(int64_t block, int parts) {
  const uint64_t hash = static_cast<uint64_t>(block) * 0x9E3779B97F4A7C15u;
  return static_cast<int>(((hash >> 32) * static_cast<uint64_t>(parts)) >> 32);
}

}  // namespace torch_offload
