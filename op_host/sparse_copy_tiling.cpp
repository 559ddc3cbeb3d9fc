// SPDX-License-Identifier: Apache-2.0
#include "sparse_copy_tiling.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace sparse_copy_tiling {
namespace {

constexpr uint64_t UB_BLOCK = 32;
constexpr uint64_t LINE = 512;

// A core costs start-up time; below this it is not worth it.
constexpr uint64_t MIN_BYTES_PER_CORE = 1024;

// Room for one table in one of its two buffers: large enough for a transfer to be efficient, small against the rows.
constexpr uint32_t TABLE_BYTES = 4096;

// Below this a slot could take a single piece of a large row at a time (see MIN_CUT_PIECE in the kernel). Small calls
// use small slots, so that the first rows are stored while others still load.
constexpr uint64_t MIN_SLOT_BYTES = 8192;

// What the kernel takes beside tiling data, tables and slots: the count and the status record.
constexpr uint64_t FIXED_BYTES = UB_BLOCK + sizeof(SparseCopyStatusRecord);

uint64_t RoundUp(uint64_t value, uint64_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

uint64_t SaturatingProduct(uint64_t a, uint64_t b)
{
    return b != 0 && a > UINT64_MAX / b ? UINT64_MAX : a * b;
}

// The argument block: parameters, tiling data, components.
void Pack(uint64_t countAddress, uint32_t countBytes, const void* tiling, uint64_t size,
          const std::vector<SparseCopyComponent>& components, Launch& launch)
{
    uint64_t tilingBytes = size + components.size() * sizeof(SparseCopyComponent);
    SparseCopyLaunchArguments arguments{countBytes != 0 ? countAddress : 0, countBytes, 0, tilingBytes};
    launch.arguments.assign((sizeof(arguments) + tilingBytes) / sizeof(uint64_t), 0);
    auto* bytes = reinterpret_cast<uint8_t*>(launch.arguments.data());
    std::memcpy(bytes, &arguments, sizeof(arguments));
    std::memcpy(bytes + sizeof(arguments), tiling, size);
    if (!components.empty()) {
        std::memcpy(bytes + sizeof(arguments) + size, components.data(),
                    components.size() * sizeof(SparseCopyComponent));
    }
    launch.placeholderAddressOffset = offsetof(SparseCopyLaunchArguments, tiling);
    launch.placeholderDataOffset = sizeof(arguments);
}

}  // namespace

uint32_t ChooseCoreCount(uint64_t entryCount, uint64_t entryBytes, uint32_t available)
{
    uint64_t worthwhile = SaturatingProduct(entryCount, entryBytes) / MIN_BYTES_PER_CORE;
    return static_cast<uint32_t>(std::max<uint64_t>(1, std::min<uint64_t>(available, worthwhile)));
}

SparseCopyTable DescribeTable(const Table& table)
{
    if (table.entryBytes == 0) {
        return {0, 0, 0, 0};
    }
    // Entries that stand close together come with the gaps between them; others are picked, one per 32 bytes.
    uint64_t pitch = std::min<uint64_t>(table.strideBytes, UB_BLOCK);
    return {table.address, table.strideBytes, table.entryBytes, static_cast<uint32_t>(pitch)};
}

bool DivideBuffer(uint64_t ubBytes, uint64_t argumentBytes, uint32_t tableCount, uint32_t pitch, uint32_t entryBytes,
                  uint64_t shareBytes, SparseCopyBuffers& buffers)
{
    buffers = {};
    buffers.tableBytes = TABLE_BYTES;
    buffers.pieceEntries = TABLE_BYTES / std::max<uint32_t>(pitch, sizeof(uint64_t));
    buffers.cutEntries = static_cast<uint32_t>(LINE / std::max<uint32_t>(entryBytes, sizeof(uint32_t)));
    buffers.slotCount = SPARSE_COPY_MAX_SLOTS;
    uint64_t taken = RoundUp(argumentBytes, UB_BLOCK) + 2 * tableCount * TABLE_BYTES;
    if (taken + buffers.slotCount * MIN_SLOT_BYTES > ubBytes) {
        return false;
    }
    uint64_t largest = (ubBytes - taken) / buffers.slotCount / LINE * LINE;
    uint64_t wanted = std::max(MIN_SLOT_BYTES, RoundUp(std::min(shareBytes, ubBytes) / buffers.slotCount, LINE));
    buffers.slotBytes = static_cast<uint32_t>(std::min(largest, wanted));
    return true;
}

Result Tile(const Request& request, const Platform& platform, Launch& launch)
{
    SparseCopyTilingData tiling{};
    std::vector<SparseCopyComponent> components;
    tiling.srcRows = tiling.dstRows = UINT64_MAX;
    uint64_t paddedBytes = 0;
    for (const Component& c : request.components) {
        tiling.srcRows = std::min(tiling.srcRows, c.srcRows);
        tiling.dstRows = std::min(tiling.dstRows, c.dstRows);
        if (c.rowBytes == 0) {
            continue;
        }
        components.push_back(
            {c.srcAddress, c.dstAddress, c.srcStrideBytes, c.dstStrideBytes, c.rowBytes, tiling.entryBytes});
        tiling.entryBytes += c.rowBytes;
        paddedBytes += RoundUp(c.rowBytes, UB_BLOCK);
    }
    if (request.entryCount == 0 || components.empty()) {
        return Result::NOTHING_TO_DO;
    }
    if (components.size() > SPARSE_COPY_MAX_COMPONENTS) {
        return Result::TOO_MANY_COMPONENTS;
    }
    if (platform.coreCount == 0) {
        return Result::BAD_PLATFORM;
    }
    tiling.entryCount = request.entryCount;
    tiling.statusAddress = request.statusAddress;
    tiling.srcIndex = DescribeTable(request.srcIndex);
    tiling.dstIndex = DescribeTable(request.dstIndex);
    tiling.componentCount = static_cast<uint32_t>(components.size());

    launch.blockDim = ChooseCoreCount(request.entryCount, tiling.entryBytes, platform.coreCount);
    uint64_t tilingBytes = sizeof(tiling) + components.size() * sizeof(SparseCopyComponent);
    uint64_t share = SaturatingProduct(request.entryCount / launch.blockDim + 1, paddedBytes);
    if (!DivideBuffer(platform.ubBytes, RoundUp(tilingBytes, UB_BLOCK) + FIXED_BYTES, 2,
                      std::max(tiling.srcIndex.pitch, tiling.dstIndex.pitch),
                      std::max(request.srcIndex.entryBytes, request.dstIndex.entryBytes), share, tiling.buffers)) {
        return Result::BAD_PLATFORM;
    }

    Pack(request.countAddress, request.countBytes, &tiling, sizeof(tiling), components, launch);
    return Result::LAUNCH;
}

Result TilePointers(const PointerRequest& request, const Platform& platform, Launch& launch)
{
    if (request.entryCount == 0) {
        return Result::NOTHING_TO_DO;
    }
    if (platform.coreCount == 0) {
        return Result::BAD_PLATFORM;
    }
    SparseCopyPtrsTilingData tiling{};
    tiling.entryCount = request.entryCount;
    tiling.recordsAddress = request.recordsAddress;
    tiling.srcPointers = DescribeTable(request.srcPointers);
    tiling.dstPointers = DescribeTable(request.dstPointers);
    tiling.lengths = DescribeTable(request.lengths);
    launch.blockDim = platform.coreCount;  // only the device knows the lengths
    uint32_t pitch = std::max({tiling.srcPointers.pitch, tiling.dstPointers.pitch, tiling.lengths.pitch});
    if (!DivideBuffer(platform.ubBytes, RoundUp(sizeof(tiling), UB_BLOCK) + FIXED_BYTES, 3, pitch, sizeof(uint64_t),
                      UINT64_MAX, tiling.buffers)) {
        return Result::BAD_PLATFORM;
    }
    Pack(request.countAddress, request.countBytes, &tiling, sizeof(tiling), {}, launch);
    return Result::LAUNCH;
}

Launch TilePointerStatus(const SparseCopyPtrsStatusArguments& arguments)
{
    Launch launch;
    launch.blockDim = 1;
    launch.arguments = {arguments.records, arguments.cores, arguments.status, arguments.statusStride};
    launch.placeholderAddressOffset = launch.placeholderDataOffset = static_cast<uint32_t>(launch.ArgumentBytes());
    return launch;
}

}  // namespace sparse_copy_tiling
