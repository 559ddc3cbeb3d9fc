// SPDX-License-Identifier: Apache-2.0
// The tiling of sparse_copy and sparse_copy_ptrs: from sizes and the platform's figures to what the kernel is told.
// Pure: no torch, no CANN, no state. The core count and the size of the unified buffer come from the platform, never
// from a constant.
#ifndef SPARSE_COPY_TILING_H
#define SPARSE_COPY_TILING_H

#include <cstdint>
#include <vector>

#include "../op_kernel/sparse_copy_tiling_data.h"

namespace sparse_copy_tiling {

struct Platform {
    uint32_t coreCount;  // AI vector cores to use at most
    uint64_t ubBytes;    // unified buffer of one of them
};

struct Table {
    uint64_t address = 0;
    uint64_t strideBytes = 0;  // from an entry to the next; 0: all entries are the first one
    uint32_t entryBytes = 0;   // 4 or 8; 0: no table, entry i is i
};

struct Component {
    uint64_t srcAddress;
    uint64_t dstAddress;
    uint64_t srcStrideBytes;
    uint64_t dstStrideBytes;
    uint64_t srcRows;
    uint64_t dstRows;
    uint64_t rowBytes;
};

struct Request {
    uint64_t entryCount = 0;
    Table srcIndex;
    Table dstIndex;
    uint64_t countAddress = 0;  // with countBytes: the count on the device
    uint32_t countBytes = 0;    // 0, 4 or 8
    uint64_t statusAddress = 0;
    std::vector<Component> components;  // those of rowBytes 0 are left out
};

// The pointer form. An entry beyond what the tables hold does not exist; the rest is said by their contents.
struct PointerRequest {
    uint64_t entryCount = 0;
    Table srcPointers;
    Table dstPointers;
    Table lengths;
    uint64_t countAddress = 0;
    uint32_t countBytes = 0;
    uint64_t recordsAddress = 0;  // scratch for one SparseCopyStatusRecord per core, SPARSE_COPY_STATUS_PITCH apart
};

enum class Result {
    LAUNCH,
    NOTHING_TO_DO,        // no entries or no bytes
    TOO_MANY_COMPONENTS,  // more than SPARSE_COPY_MAX_COMPONENTS: use several launches
    BAD_PLATFORM,         // no cores, or too little unified buffer
};

// One launch: `arguments` as aclrtLaunchKernelWithHostArgs takes them, with one placeholder at most.
struct Launch {
    uint32_t blockDim = 0;
    std::vector<uint64_t> arguments;  // the parameters; behind a SparseCopyLaunchArguments, the tiling data, components
    uint32_t placeholderAddressOffset = 0;
    uint32_t placeholderDataOffset = 0;  // where the parameters end

    uint64_t ArgumentBytes() const
    {
        return arguments.size() * sizeof(uint64_t);
    }

    bool HasPlaceholder() const
    {
        return placeholderDataOffset < ArgumentBytes();
    }
};

Result Tile(const Request& request, const Platform& platform, Launch& launch);

Result TilePointers(const PointerRequest& request, const Platform& platform, Launch& launch);

// The launch of sparse_copy_ptrs_status that has to follow on the same stream.
Launch TilePointerStatus(const SparseCopyPtrsStatusArguments& arguments);

// The parts of them, for tests and for callers with a launch of their own.
uint32_t ChooseCoreCount(uint64_t entryCount, uint64_t entryBytes, uint32_t available);
SparseCopyTable DescribeTable(const Table& table);
// `tableCount` tables are fetched at once, the widest with `pitch`; `argumentBytes` of the unified buffer are taken.
// False if too little is left for a slot.
bool DivideBuffer(uint64_t ubBytes, uint64_t argumentBytes, uint32_t tableCount, uint32_t pitch, uint32_t entryBytes,
                  uint64_t shareBytes, SparseCopyBuffers& buffers);

}  // namespace sparse_copy_tiling

#endif  // SPARSE_COPY_TILING_H
