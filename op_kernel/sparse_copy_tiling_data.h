// SPDX-License-Identifier: Apache-2.0
// What the host tells the kernel: plain structs without padding, shared by op_host/, csrc/npu/ and the kernel. C++17,
// no other header of the project, no CANN.
#ifndef SPARSE_COPY_TILING_DATA_H
#define SPARSE_COPY_TILING_DATA_H

#include <cstdint>

// More would cost unified buffer that rows in flight need: the table of components is held there.
constexpr uint32_t SPARSE_COPY_MAX_COMPONENTS = 256;

// Slots of the ring of buffers: each takes one event id in two directions, and some flows leave only 0..5 to the user.
constexpr uint32_t SPARSE_COPY_MAX_SLOTS = 6;

// One table of the call: row numbers (or addresses, or lengths), any stride between its entries.
struct SparseCopyTable {
    uint64_t address;
    uint64_t stride;      // bytes from an entry to the next; 0: all entries are the first one
    uint32_t entryBytes;  // 4 (int32) or 8 (int64); 0: there is no table, entry i is i
    uint32_t pitch;       // bytes from an entry to the next in the unified buffer
};

// One pair of tensors. Row r starts at address + r * stride.
struct SparseCopyComponent {
    uint64_t srcAddress;
    uint64_t dstAddress;
    uint64_t srcStride;
    uint64_t dstStride;
    uint64_t rowBytes;
    uint64_t workOffset;  // bytes of the components before this one, of one entry
};

// How a core uses its unified buffer, the same for both forms of the operator.
struct SparseCopyBuffers {
    uint32_t pieceEntries;  // entries of the tables that are fetched at once
    uint32_t tableBytes;    // room for so many entries of one table
    uint32_t slotCount;
    uint32_t slotBytes;
    uint32_t cutEntries;  // large calls are cut between cores at multiples of this: 512 bytes of the widest table
    uint32_t reserved;
};

// Followed in memory by componentCount SparseCopyComponent.
struct SparseCopyTilingData {
    uint64_t entryCount;  // length of the tables
    uint64_t srcRows;     // the smallest number of rows among the sources: an entry beyond it is skipped and recorded
    uint64_t dstRows;
    uint64_t entryBytes;     // payload of one entry: the sum of the components' rowBytes
    uint64_t statusAddress;  // SparseCopyStatusRecord of core 0; 0: nothing is recorded
    SparseCopyTable srcIndex;
    SparseCopyTable dstIndex;
    SparseCopyBuffers buffers;
    uint32_t componentCount;
    uint32_t reserved;
};

// The same for sparse_copy_ptrs.
struct SparseCopyPtrsTilingData {
    uint64_t entryCount;
    uint64_t recordsAddress;  // SparseCopyStatusRecord of core 0, scratch: each core overwrites its own
    SparseCopyTable srcPointers;
    SparseCopyTable dstPointers;
    SparseCopyTable lengths;
    SparseCopyBuffers buffers;
};

// The parameters of sparse_copy_ptrs_status, which follows sparse_copy_ptrs on the stream, on one core.
struct SparseCopyPtrsStatusArguments {
    uint64_t records;
    uint64_t cores;         // blockDim of the launch before; 0: there was none, because there are no entries
    uint64_t status;        // int64[4]: copied, skipped, refused, position of the first refused entry or -1
    uint64_t statusStride;  // bytes from a number of the status to the next
};

// The parameters of sparse_copy and sparse_copy_ptrs, as they are packed for the launch. The tiling data (and its
// components) stands behind them in the argument block; `tiling` is a placeholder, which the runtime fills with the
// device address of that data.
struct SparseCopyLaunchArguments {
    uint64_t count;       // device address of the count; 0: all entries
    uint64_t countBytes;  // 4, 8; 0: there is no count
    uint64_t tiling;
    uint64_t tilingBytes;
};

// What one core has seen since its record was last filled with zeros. A core writes only its own record, and only the
// launches of one stream may share an array of records: then nothing is lost, and the reader sums over the cores.
struct SparseCopyStatusRecord {
    uint64_t copied;
    uint64_t skipped;
    uint64_t outOfRange;
    uint64_t firstBad;       // 1 + the smallest position of an entry that was out of range; 0: there was none
    uint64_t clampedCounts;  // launches whose count lay outside of [0, entryCount]; only core 0 counts them
    int64_t lastClampedCount;
    uint64_t refusedRequests;  // requests that plan_residency refused
    uint64_t refusal;          // of the last of them: its row << 8 | PlanResidencyRefusal
};

// Bytes between the records of two cores: two cores in one line of 512 bytes would wait for each other.
constexpr uint32_t SPARSE_COPY_STATUS_PITCH = 512;

static_assert(sizeof(SparseCopyTable) == 24 && sizeof(SparseCopyComponent) == 48 && sizeof(SparseCopyBuffers) == 24 &&
                  sizeof(SparseCopyTilingData) == 120 && sizeof(SparseCopyStatusRecord) == 64 &&
                  sizeof(SparseCopyLaunchArguments) == 32 && sizeof(SparseCopyPtrsTilingData) == 112 &&
                  sizeof(SparseCopyPtrsStatusArguments) == 32,
              "the kernel reads these structs word by word");

#endif  // SPARSE_COPY_TILING_DATA_H
