// SPDX-License-Identifier: Apache-2.0
// The tiling of plan_residency's two kernels. Pure, as sparse_copy_tiling.h: no torch, no CANN, no state.
#ifndef PLAN_RESIDENCY_TILING_H
#define PLAN_RESIDENCY_TILING_H

#include <cstdint>

#include "../op_kernel/plan_residency_tiling_data.h"
#include "sparse_copy_tiling.h"

namespace plan_residency_tiling {

using sparse_copy_tiling::Launch;
using sparse_copy_tiling::Platform;
using sparse_copy_tiling::Table;

// R requests, topK tokens each, slotCount slots each. Addresses are the device's; matrices are contiguous but for topk
// and blockTable.
struct Request {
    uint64_t requests = 0;
    uint64_t topK = 0;
    uint64_t slotCount = 0;
    uint64_t owners = 0;
    uint64_t slotTokens = 0;
    uint64_t lru = 0;
    uint64_t slots = 0;
    uint64_t srcIndex = 0;
    uint64_t dstIndex = 0;
    uint64_t count = 0;
    uint32_t countBytes = 0;  // 4 or 8
    uint64_t totals = 0;
    uint64_t scratch = 0;  // ScratchBytes, which nobody else uses between the two launches
    uint64_t statusAddress = 0;
    Table topk;  // row 0
    uint64_t topkRowStride = 0;
    Table requestIds;
    Table stablePrefix;  // entryBytes 0: there is none
    Table blockTable;    // row 0; entryBytes 0: there is none
    uint64_t blockRowStride = 0;
    uint64_t blocks = 0;     // entries of a row of it
    uint64_t blockSize = 1;  // below 2^31
};

struct Launches {
    Launch plan;  // blockDim 0: there is nothing to plan
    Launch list;
};

uint64_t ScratchBytes(uint64_t requests, uint64_t topK);

// Unified buffer that one core needs.
uint64_t BufferBytes(uint64_t topK, uint64_t slotCount);

// False if a request does not fit into the unified buffer of a core, or there is no core.
bool Tile(const Request& request, const Platform& platform, Launches& launches);

}  // namespace plan_residency_tiling

#endif  // PLAN_RESIDENCY_TILING_H
