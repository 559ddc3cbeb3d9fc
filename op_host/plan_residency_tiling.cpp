// SPDX-License-Identifier: Apache-2.0
#include "plan_residency_tiling.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "../op_kernel/residency_state.h"

namespace plan_residency_tiling {
namespace {

constexpr uint64_t UB_BLOCK = 32;
constexpr uint64_t VECTOR_BYTES = 256;  // what a repetition of a vector instruction writes at most
constexpr uint64_t NUMBERS = 4;         // of PlanResidencyPlaces::numbers
constexpr uint32_t TABLE_BYTES = 4096;  // a piece of topk, or of the records; there are two buffers
constexpr uint32_t LIST_SLOTS = 4;      // of the ring through which the list passes
constexpr uint32_t LIST_SLOT_BYTES = 16384;

constexpr uint64_t RoundUp(uint64_t value)
{
    return (value + UB_BLOCK - 1) / UB_BLOCK * UB_BLOCK;
}

constexpr uint64_t FIXED_BYTES = RoundUp(sizeof(PlanResidencyTilingData)) + 2 * TABLE_BYTES;

// Of the heads, which are at most half full.
uint32_t LeastHashBits(uint64_t topK)
{
    uint32_t bits = 4;
    while ((uint64_t{1} << bits) < 2 * topK) {
        ++bits;
    }
    return bits;
}

uint64_t Divide(uint64_t topK, uint64_t slotCount, uint32_t hashBits, PlanResidencyPlaces& places)
{
    uint64_t end = 0;
    auto take = [&end](uint64_t bytes) {
        uint64_t begin = end;
        end += RoundUp(bytes);
        return static_cast<uint32_t>(begin);
    };
    places.numbers = take(NUMBERS * UB_BLOCK);
    places.tokens = take(slotCount * sizeof(int32_t));
    places.lru = take(slotCount * sizeof(int16_t));
    places.order = take(slotCount * sizeof(int16_t) + 3 * UB_BLOCK + VECTOR_BYTES);
    places.used = take((slotCount + 31) / 32 * sizeof(int32_t));
    places.loaded = take((slotCount + 31) / 32 * sizeof(int32_t));
    places.rest = take((slotCount + 31) / 32 * sizeof(int32_t));
    places.wanted = take(topK * sizeof(int32_t));
    places.slots = take(topK * sizeof(int32_t));
    places.heads = take(sizeof(int16_t) << hashBits);
    places.blocks = take(RESIDENCY_CHUNK * UB_BLOCK);
    places.src = take(RESIDENCY_CHUNK * sizeof(int64_t));
    places.dst = take(RESIDENCY_CHUNK * sizeof(int64_t));
    places.bytes = static_cast<uint32_t>(end);
    return end;
}

Launch Pack(uint32_t blockDim, const PlanResidencyTilingData& tiling)
{
    PlanResidencyLaunchArguments arguments{0, sizeof(tiling)};
    Launch launch;
    launch.blockDim = blockDim;
    launch.arguments.resize((sizeof(arguments) + sizeof(tiling)) / sizeof(uint64_t));
    auto* bytes = reinterpret_cast<uint8_t*>(launch.arguments.data());
    std::memcpy(bytes, &arguments, sizeof(arguments));
    std::memcpy(bytes + sizeof(arguments), &tiling, sizeof(tiling));
    launch.placeholderAddressOffset = offsetof(PlanResidencyLaunchArguments, tiling);
    launch.placeholderDataOffset = sizeof(arguments);
    return launch;
}

SparseCopyBuffers PiecesOf(uint32_t pitch)
{
    SparseCopyBuffers buffers{};
    buffers.tableBytes = TABLE_BYTES;
    buffers.pieceEntries = TABLE_BYTES / std::max<uint32_t>(pitch, sizeof(uint64_t));
    buffers.slotCount = LIST_SLOTS;
    buffers.slotBytes = LIST_SLOT_BYTES;
    return buffers;
}

}  // namespace

uint64_t ScratchBytes(uint64_t requests, uint64_t topK)
{
    return requests * (sizeof(PlanResidencyRecord) + 2 * topK * sizeof(int64_t));
}

uint64_t BufferBytes(uint64_t topK, uint64_t slotCount)
{
    PlanResidencyPlaces places{};
    uint64_t list = 2 * UB_BLOCK + LIST_SLOTS * LIST_SLOT_BYTES;
    return FIXED_BYTES + std::max(list, Divide(topK, slotCount, LeastHashBits(topK), places));
}

bool Tile(const Request& request, const Platform& platform, Launches& launches)
{
    if (platform.coreCount == 0 || BufferBytes(request.topK, request.slotCount) > platform.ubBytes) {
        return false;
    }
    PlanResidencyTilingData tiling{};
    tiling.requests = request.topK == 0 ? 0 : request.requests;
    tiling.owners = request.owners;
    tiling.slotTokens = request.slotTokens;
    tiling.lru = request.lru;
    tiling.slots = request.slots;
    tiling.srcIndex = request.srcIndex;
    tiling.dstIndex = request.dstIndex;
    tiling.count = request.count;
    tiling.totals = request.totals;
    tiling.records = request.scratch;
    tiling.stagedSrc = tiling.records + request.requests * sizeof(PlanResidencyRecord);
    tiling.stagedDst = tiling.stagedSrc + request.requests * request.topK * sizeof(int64_t);
    tiling.statusAddress = request.statusAddress;
    tiling.topkRowStride = request.topkRowStride;
    tiling.blockRowStride = request.blockRowStride;
    tiling.tokenLimit = RESIDENCY_TOKEN_LIMIT;
    if (request.blockTable.entryBytes != 0 && request.blocks < tiling.tokenLimit / request.blockSize + 1) {
        tiling.tokenLimit = std::min<uint64_t>(tiling.tokenLimit, request.blocks * request.blockSize);
    }
    tiling.blockLimit = INT64_MAX / request.blockSize;
    tiling.topk = sparse_copy_tiling::DescribeTable(request.topk);
    tiling.requestIds = sparse_copy_tiling::DescribeTable(request.requestIds);
    tiling.stablePrefix = sparse_copy_tiling::DescribeTable(request.stablePrefix);
    tiling.blockTable = sparse_copy_tiling::DescribeTable(request.blockTable);
    tiling.buffers = PiecesOf(tiling.topk.pitch);
    // Twice as many heads if there is room: fewer of them are in the way.
    uint32_t hashBits = LeastHashBits(request.topK) + 1;
    if (FIXED_BYTES + Divide(request.topK, request.slotCount, hashBits, tiling.places) > platform.ubBytes) {
        Divide(request.topK, request.slotCount, --hashBits, tiling.places);
    }
    tiling.topK = static_cast<uint32_t>(request.topK);
    tiling.slotCount = static_cast<uint32_t>(request.slotCount);
    tiling.hashShift = 32 - hashBits;
    tiling.blockSize = static_cast<uint32_t>(request.blockSize);
    tiling.countBytes = request.countBytes;

    uint32_t cores = static_cast<uint32_t>(std::min<uint64_t>(platform.coreCount, tiling.requests));
    launches.plan = Pack(cores, tiling);
    launches.list = Pack(std::max<uint32_t>(cores, 1), tiling);  // the count is written in any case
    return true;
}

}  // namespace plan_residency_tiling
