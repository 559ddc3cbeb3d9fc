// SPDX-License-Identifier: Apache-2.0
// Rows beyond 2 GiB and 4 GiB of their tensor, in memory of which only the touched pages exist.
#include <cstring>

#include "check.h"
#include "run_launch.h"
#include "stand_in.h"

namespace {

constexpr uint64_t kRowBytes = 132;
constexpr uint64_t kStride = (uint64_t{1} << 20) + 64;
constexpr uint64_t kRows = 5 << 10;  // 5 GiB

// The row as it should be: bytes that depend on the row number.
uint8_t byteOf(uint64_t row, uint64_t i) { return static_cast<uint8_t>(row * 31 + i * 7 + 1); }

void run(bool large_source, uint32_t index_bytes) {
  stand_in::DeviceMemory large(kRows * kStride, 0, true), small(16 * kRowBytes);
  const int64_t rows[] = {0, 2047, 2048, 2049, 4094, 4095, 4096, 4097, 5119};
  constexpr uint64_t kEntries = sizeof rows / 8;
  stand_in::DeviceMemory table(kEntries * index_bytes);
  for (uint64_t i = 0; i < kEntries; i++) memcpy(table.host() + i * index_bytes, &rows[i], index_bytes);
  for (uint64_t i = 0; i < kEntries; i++)
    for (uint64_t b = 0; b < kRowBytes; b++)
      (large_source ? large.host() + static_cast<uint64_t>(rows[i]) * kStride : small.host() + i * kRowBytes)[b] =
          byteOf(static_cast<uint64_t>(rows[i]), b);

  sparse_copy_tiling::Request request;
  request.entryCount = kEntries;
  (large_source ? request.srcIndex : request.dstIndex) = {table.address(), index_bytes, index_bytes};
  if (large_source)
    request.components = {{large.address(), small.address(), kStride, kRowBytes, kRows, 16, kRowBytes}};
  else
    request.components = {{small.address(), large.address(), kRowBytes, kStride, 16, kRows, kRowBytes}};
  sparse_copy_tiling::Launch launch;
  CHECK(sparse_copy_tiling::Tile(request, {48, 196608}, launch) == sparse_copy_tiling::Result::LAUNCH);
  CHECK_EQ(test::runLaunch(sparse_copy_sim, launch, {kAscendcSimLatest, 2, 1, 196608, 0, 0}), "");

  for (uint64_t i = 0; i < kEntries; i++) {
    const uint64_t row = static_cast<uint64_t>(rows[i]);
    const uint8_t* seen = large_source ? small.host() + i * kRowBytes : large.host() + row * kStride;
    uint64_t wrong = 0;
    for (uint64_t b = 0; b < kRowBytes; b++) wrong += seen[b] != byteOf(row, b);
    CHECK_EQ(wrong, 0u);
    if (large_source) continue;
    // What stands around the row and at the addresses that 32-bit arithmetic would hit stays as it was.
    CHECK_EQ(int{seen[kRowBytes]}, 0);
    for (uint64_t wrap : {uint64_t{1} << 31, uint64_t{1} << 32})
      if (row * kStride >= wrap) CHECK_EQ(int{(large.host() + (row * kStride - wrap))[1]}, 0);
  }
}

}  // namespace

TEST(source_rows_beyond_four_gigabytes) {
  run(true, 4);
  run(true, 8);
}

TEST(destination_rows_beyond_four_gigabytes) {
  run(false, 4);
  run(false, 8);
}
