// SPDX-License-Identifier: Apache-2.0
// What the host tells the kernels of plan_residency, and what the first of them leaves for the second: plain structs
// without padding, as in sparse_copy_tiling_data.h.
#ifndef PLAN_RESIDENCY_TILING_DATA_H
#define PLAN_RESIDENCY_TILING_DATA_H

#include <cstdint>

#include "sparse_copy_tiling_data.h"

// Misses whose host rows are found together: one block number each is fetched, 32 bytes apart.
constexpr uint32_t RESIDENCY_CHUNK = 128;

// Where the parts of a request lie in the unified buffer: byte offsets, multiples of 32, each up to the next one.
struct PlanResidencyPlaces {
    uint32_t numbers;  // 32 bytes each: request id, owner, stable prefix; then the record that goes out
    uint32_t tokens;   // int32[slots] the request's row of slot_tokens
    uint32_t lru;      // int16[slots]
    uint32_t order;    // int16[slots] lru of the next step in three parts, and what the vector unit spills behind them
    uint32_t used;     // a bit for each place in lru: this step reads the slot again
    uint32_t loaded;   // it loads it
    uint32_t rest;     // neither
    uint32_t wanted;   // int32[topK] the step's tokens
    uint32_t slots;    // int32[topK] the slot of each
    uint32_t heads;    // int16[1 << (32 - hashShift)] from token to its first position in `wanted`, open addressing
    uint32_t blocks;   // RESIDENCY_CHUNK block numbers
    uint32_t src;      // int64[RESIDENCY_CHUNK] host rows
    uint32_t dst;      // int64[RESIDENCY_CHUNK] where they go
    uint32_t bytes;    // of all of it
};

// Both kernels take it. Row r of a matrix starts at address + r * (its columns), or rowStride bytes where it is given.
struct PlanResidencyTilingData {
    uint64_t requests;
    uint64_t owners;
    uint64_t slotTokens;
    uint64_t lru;
    uint64_t slots;     // [requests, topK] int32
    uint64_t srcIndex;  // int64, what has to move
    uint64_t dstIndex;
    uint64_t count;
    uint64_t totals;     // int64[2], hits and misses are added
    uint64_t records;    // PlanResidencyRecord of request 0, scratch
    uint64_t stagedSrc;  // [requests, topK] int64, scratch: the misses of each request
    uint64_t stagedDst;
    uint64_t statusAddress;  // SparseCopyStatusRecord of core 0
    uint64_t topkRowStride;
    uint64_t blockRowStride;
    uint64_t tokenLimit;  // tokens from here on are refused
    uint64_t blockLimit;  // block numbers from here on, too
    SparseCopyTable topk;
    SparseCopyTable requestIds;
    SparseCopyTable stablePrefix;  // entryBytes 0: every token is stable
    SparseCopyTable blockTable;    // entryBytes 0: a token is its host row
    SparseCopyBuffers buffers;  // pieces of topk in the first kernel; pieces of records and slots of rows in the second
    PlanResidencyPlaces places;
    uint32_t topK;
    uint32_t slotCount;
    uint32_t hashShift;  // the heads number 1 << (32 - hashShift), at least twice topK
    uint32_t blockSize;
    uint32_t countBytes;  // 4 or 8
    uint32_t reserved;
};

// What the planning of one request has found.
struct PlanResidencyRecord {
    uint32_t misses;
    uint32_t hits;
    uint32_t reserved[6];  // 32 bytes: no two cores in one block
};

// The parameters of both kernels, as they are packed for the launch; the tiling data stands behind them.
struct PlanResidencyLaunchArguments {
    uint64_t tiling;
    uint64_t tilingBytes;
};

// Why a request was refused: its state is as it was, its slots are -1. In SparseCopyStatusRecord::refusal.
enum PlanResidencyRefusal : uint32_t {
    RESIDENCY_REFUSED_NONE = 0,
    RESIDENCY_REFUSED_TOKEN = 1,  // a token at or beyond tokenLimit
    RESIDENCY_REFUSED_SLOTS = 2,  // more distinct tokens than slots
    RESIDENCY_REFUSED_BLOCK = 3,  // a token whose entry of the block table is no block
    RESIDENCY_REFUSED_STATE = 4,  // an order that is not every slot once
};

static_assert(sizeof(PlanResidencyPlaces) == 56 && sizeof(PlanResidencyTilingData) == 336 &&
                  sizeof(PlanResidencyRecord) == 32 && sizeof(PlanResidencyLaunchArguments) == 16,
              "the kernels read these structs word by word");

#endif  // PLAN_RESIDENCY_TILING_DATA_H
