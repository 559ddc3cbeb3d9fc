// SPDX-License-Identifier: Apache-2.0
// The tiling function: golden values of typical calls, and what must hold for every call.
#include <cstring>
#include <random>

#include "check.h"
#include "op_host/sparse_copy_tiling.h"

using namespace sparse_copy_tiling;

namespace {

constexpr Platform kA2{48, 196608};
constexpr Platform kA5{64, 253952};

Request gather(uint64_t entries, std::vector<uint64_t> row_bytes, uint32_t entry_bytes = 8) {
  Request request;
  request.entryCount = entries;
  request.srcIndex = {0x1000, entry_bytes, entry_bytes};
  for (uint64_t bytes : row_bytes) request.components.push_back({0x2000, 0x3000, bytes, bytes, 1000, 100, bytes});
  return request;
}

struct Parts {
  SparseCopyLaunchArguments arguments;
  SparseCopyTilingData tiling;
  std::vector<SparseCopyComponent> components;
};

Parts unpack(const Launch& launch) {
  Parts parts;
  const auto* bytes = reinterpret_cast<const uint8_t*>(launch.arguments.data());
  memcpy(&parts.arguments, bytes, sizeof parts.arguments);
  memcpy(&parts.tiling, bytes + launch.placeholderDataOffset, sizeof parts.tiling);
  parts.components.resize(parts.tiling.componentCount);
  memcpy(parts.components.data(), bytes + launch.placeholderDataOffset + sizeof parts.tiling,
         parts.components.size() * sizeof(SparseCopyComponent));
  return parts;
}

Parts tile(const Request& request, const Platform& platform, Launch& launch) {
  CHECK(Tile(request, platform, launch) == Result::LAUNCH);
  return unpack(launch);
}

uint64_t ubNeeded(const SparseCopyBuffers& b, uint64_t tiling_bytes, uint32_t tables) {
  return (tiling_bytes + 31) / 32 * 32 + 32 + 64 + uint64_t{2} * tables * b.tableBytes +
         uint64_t{b.slotCount} * b.slotBytes;
}

}  // namespace

TEST(golden_one_component) {
  Launch launch;
  const Parts parts = tile(gather(4096, {1152}), kA2, launch);
  CHECK_EQ(launch.blockDim, 48u);
  CHECK_EQ(launch.ArgumentBytes(), 32u + 120 + 48);
  CHECK_EQ(launch.placeholderAddressOffset, 16u);
  CHECK_EQ(launch.placeholderDataOffset, 32u);
  CHECK_EQ(parts.arguments.countBytes, 0u);
  CHECK_EQ(parts.arguments.tilingBytes, 168u);
  CHECK_EQ(parts.tiling.entryCount, 4096u);
  CHECK_EQ(parts.tiling.entryBytes, 1152u);
  CHECK_EQ(parts.tiling.srcRows, 1000u);
  CHECK_EQ(parts.tiling.dstRows, 100u);
  CHECK_EQ(parts.tiling.srcIndex.pitch, 8u);
  CHECK_EQ(parts.tiling.dstIndex.entryBytes, 0u);
  CHECK_EQ(parts.tiling.buffers.pieceEntries, 512u);
  CHECK_EQ(parts.tiling.buffers.tableBytes, 4096u);
  CHECK_EQ(parts.tiling.buffers.slotCount, 6u);
  CHECK_EQ(parts.tiling.buffers.slotBytes, 16896u);  // a sixth of 86 rows, in whole lines
  CHECK_EQ(parts.tiling.buffers.cutEntries, 64u);
}

TEST(golden_three_components_on_a5) {
  Launch launch;
  Request request = gather(2048, {1024, 128, 0, 132}, 4);
  request.countAddress = 0x7000;
  request.countBytes = 4;
  request.statusAddress = 0x9000;
  const Parts parts = tile(request, kA5, launch);
  CHECK_EQ(launch.blockDim, 64u);
  CHECK_EQ(parts.arguments.count, 0x7000u);
  CHECK_EQ(parts.arguments.countBytes, 4u);
  CHECK_EQ(parts.tiling.statusAddress, 0x9000u);
  CHECK_EQ(parts.tiling.componentCount, 3u);  // rows of no bytes are left out
  CHECK_EQ(parts.tiling.entryBytes, 1284u);
  CHECK_EQ(parts.components[2].workOffset, 1152u);
  CHECK_EQ(parts.components[2].rowBytes, 132u);
  CHECK_EQ(parts.tiling.buffers.cutEntries, 128u);
  CHECK_EQ(parts.tiling.buffers.slotBytes, 8192u);
}

TEST(large_calls_use_the_whole_buffer) {
  Launch launch;
  const Parts parts = tile(gather(294912, {656}), kA2, launch);
  const uint64_t used = ubNeeded(parts.tiling.buffers, 168, 2);
  CHECK(used <= 196608);
  CHECK(used > 196608 - 6 * 512);
}

TEST(core_counts) {
  CHECK_EQ(ChooseCoreCount(4096, 1152, 48), 48u);
  CHECK_EQ(ChooseCoreCount(1, 1, 48), 1u);
  CHECK_EQ(ChooseCoreCount(16, 128, 48), 2u);
  CHECK_EQ(ChooseCoreCount(1, 1 << 20, 48), 48u);
  CHECK_EQ(ChooseCoreCount(UINT64_MAX, UINT64_MAX, 40), 40u);
  CHECK_EQ(ChooseCoreCount(4096, 1152, 8), 8u);
}

TEST(tables_described) {
  CHECK_EQ(DescribeTable({1, 8, 8}).pitch, 8u);
  CHECK_EQ(DescribeTable({1, 24, 8}).pitch, 24u);
  CHECK_EQ(DescribeTable({1, 40, 8}).pitch, 32u);
  CHECK_EQ(DescribeTable({1, 0, 4}).pitch, 0u);
  CHECK_EQ(DescribeTable({}).entryBytes, 0u);
}

TEST(refusals) {
  Launch launch;
  CHECK(Tile(gather(0, {8}), kA2, launch) == Result::NOTHING_TO_DO);
  CHECK(Tile(gather(5, {0}), kA2, launch) == Result::NOTHING_TO_DO);
  CHECK(Tile(gather(5, {}), kA2, launch) == Result::NOTHING_TO_DO);
  CHECK(Tile(gather(5, std::vector<uint64_t>(257, 8)), kA2, launch) == Result::TOO_MANY_COMPONENTS);
  CHECK(Tile(gather(5, std::vector<uint64_t>(256, 8)), kA2, launch) == Result::LAUNCH);
  CHECK(Tile(gather(5, {8}), {0, 196608}, launch) == Result::BAD_PLATFORM);
  CHECK(Tile(gather(5, {8}), {48, 65536}, launch) == Result::BAD_PLATFORM);
}

TEST(every_call_fits) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 20000; i++) {
    std::vector<uint64_t> rows(1 + random() % 256);
    for (auto& bytes : rows) bytes = random() % (uint64_t{1} << random() % 33);
    Request request = gather(1 + random() % (uint64_t{1} << random() % 40), rows, random() % 2 ? 4 : 8);
    request.dstIndex = {0x100, (random() % 12) * 8, 8};
    const Platform platform{static_cast<uint32_t>(1 + random() % 72), random() % 2 ? 196608u : 253952u};
    Launch launch;
    if (Tile(request, platform, launch) == Result::NOTHING_TO_DO) continue;
    const Parts parts = unpack(launch);
    const SparseCopyBuffers& b = parts.tiling.buffers;
    CHECK(launch.blockDim >= 1 && launch.blockDim <= platform.coreCount);
    CHECK(ubNeeded(b, parts.arguments.tilingBytes, 2) <= platform.ubBytes);
    CHECK(b.slotCount >= 2 && b.slotCount <= SPARSE_COPY_MAX_SLOTS);
    CHECK(b.slotBytes >= 8192 && b.slotBytes % 512 == 0);
    CHECK(b.pieceEntries >= 1 && b.pieceEntries <= 4095);
    for (const auto& table : {parts.tiling.srcIndex, parts.tiling.dstIndex})
      CHECK((b.pieceEntries - 1) * table.pitch + 8 <= b.tableBytes);
    CHECK(launch.ArgumentBytes() <= 43584);  // what every launch path takes
    uint64_t offset = 0;
    for (const auto& component : parts.components) {
      CHECK_EQ(component.workOffset, offset);
      offset += component.rowBytes;
    }
    CHECK_EQ(parts.tiling.entryBytes, offset);
  }
}
