// SPDX-License-Identifier: Apache-2.0
// What a request has to load, staged for the second kernel: a host row and a slot for each miss, a chunk at a time. The
// block numbers of a chunk come by transfers that are all under way at once.
#ifndef PLAN_RESIDENCY_MISSES_H
#define PLAN_RESIDENCY_MISSES_H

#include "plan_residency_common.h"

namespace PlanResidency {

class StagedMisses {
public:
    __aicore__ inline void Init(AscendC::TPipe* pipe, const PlanResidencyTilingData& tiling,
                                const AscendC::LocalTensor<uint32_t>& blocks, const AscendC::LocalTensor<uint32_t>& src,
                                const AscendC::LocalTensor<uint32_t>& dst)
    {
        table_ = tiling.blockTable;
        rowStride_ = tiling.blockRowStride;
        blockLimit_ = tiling.blockLimit;
        blockSize_ = tiling.blockSize;
        stagedSrc_ = tiling.stagedSrc;
        stagedDst_ = tiling.stagedDst;
        rowBytes_ = tiling.topK * sizeof(int64_t);
        blocks_ = blocks;
        src_ = src;
        dst_ = dst;
        fetched_ = pipe->AllocEventID<AscendC::HardEvent::MTE2_S>();
        free_ = pipe->AllocEventID<AscendC::HardEvent::S_MTE2>();
    }

    __aicore__ inline void Begin(uint64_t request)
    {
        request_ = request;
        stored_ = pending_ = 0;
        isValid_ = true;
    }

    // Until the chunk is complete, the token stands in the place of its host row.
    __aicore__ inline void Add(const Flags& flags, int32_t token, uint64_t slotRow)
    {
        if (table_.entryBytes != 0) {
            uint64_t entry = static_cast<uint32_t>(token) / blockSize_;
            LoadBlocks(blocks_[pending_ * BLOCK_WORDS].ReinterpretCast<uint8_t>(),
                       table_.address + request_ * rowStride_ + entry * table_.stride, 1, table_.entryBytes, 0);
        }
        WriteStruct(src_[pending_ * WIDE_WORDS], static_cast<uint64_t>(token));
        WriteStruct(dst_[pending_ * WIDE_WORDS], slotRow);
        if (++pending_ == RESIDENCY_CHUNK) {
            Flush(flags);
        }
    }

    // Behind the last one. False if a token has no block.
    __aicore__ inline bool End(const Flags& flags)
    {
        if (pending_ != 0) {
            Flush(flags);
        }
        return isValid_;
    }

private:
    __aicore__ inline void Flush(const Flags& flags)
    {
        if (table_.entryBytes != 0) {
            FindHostRows();
        }
        uint64_t offset = request_ * rowBytes_ + stored_ * sizeof(int64_t);
        uint32_t bytes = pending_ * static_cast<uint32_t>(sizeof(int64_t));
        flags.BeginStore();
        StoreBlocks(stagedSrc_ + offset, src_.ReinterpretCast<uint8_t>(), 1, bytes, 0);
        StoreBlocks(stagedDst_ + offset, dst_.ReinterpretCast<uint8_t>(), 1, bytes, 0);
        flags.EndStore();
        stored_ += pending_;
        pending_ = 0;
    }

    __aicore__ inline void FindHostRows()
    {
        AscendC::SetFlag<AscendC::HardEvent::MTE2_S>(fetched_);
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_S>(fetched_);
        for (uint32_t i = 0; i < pending_; ++i) {
            int64_t block = ReadNumber(blocks_, i * BLOCK_WORDS, table_.entryBytes);
            if (block < 0 || static_cast<uint64_t>(block) >= blockLimit_) {
                isValid_ = false;
                continue;
            }
            uint64_t inBlock = src_.GetValue(i * WIDE_WORDS) % blockSize_;
            WriteStruct(src_[i * WIDE_WORDS], static_cast<uint64_t>(block) * blockSize_ + inBlock);
        }
        AscendC::SetFlag<AscendC::HardEvent::S_MTE2>(free_);
        AscendC::WaitFlag<AscendC::HardEvent::S_MTE2>(free_);
    }

    static constexpr uint32_t WIDE_WORDS = sizeof(uint64_t) / sizeof(uint32_t);

    SparseCopyTable table_;
    AscendC::LocalTensor<uint32_t> blocks_;
    AscendC::LocalTensor<uint32_t> src_;
    AscendC::LocalTensor<uint32_t> dst_;
    AscendC::TEventID fetched_ = 0;
    AscendC::TEventID free_ = 0;
    uint64_t rowStride_ = 0;
    uint64_t blockLimit_ = 0;
    uint64_t stagedSrc_ = 0;
    uint64_t stagedDst_ = 0;
    uint64_t rowBytes_ = 0;
    uint64_t request_ = 0;
    uint32_t blockSize_ = 1;
    uint32_t stored_ = 0;
    uint32_t pending_ = 0;
    bool isValid_ = true;
};

}  // namespace PlanResidency

#endif  // PLAN_RESIDENCY_MISSES_H
