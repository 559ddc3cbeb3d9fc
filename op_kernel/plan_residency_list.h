// SPDX-License-Identifier: Apache-2.0
// The second kernel of plan_residency: one list of what has to move, over all requests in their order, out of the
// pieces that the first one has staged. How many of them each request has is known now, so every core finds the place
// of its own and moves them as they are.
#ifndef PLAN_RESIDENCY_LIST_H
#define PLAN_RESIDENCY_LIST_H

#include "plan_residency_common.h"

namespace PlanResidency {

class Lister {
public:
    __aicore__ inline void Run(AscendC::TPipe* pipe, GM_ADDR tiling, uint64_t tilingBytes)
    {
        t_ = FetchTiling(pipe, tiling, tilingBytes);
        uint64_t core = static_cast<uint64_t>(AscendC::GetBlockIdx());
        uint64_t cores = static_cast<uint64_t>(AscendC::GetBlockNum());
        pipe->InitBuffer(totals_, 2 * UB_BLOCK);
        records_.Init(pipe, t_.buffers);
        records_.SetTable(0, {t_.records, sizeof(PlanResidencyRecord), sizeof(uint64_t), sizeof(PlanResidencyRecord)});
        ring_.Init(pipe, t_.buffers.slotCount, t_.buffers.slotBytes);
        if (core == 0) {  // they may lie in host memory: nothing should have to wait for them
            StartTotals(pipe);
        }
        uint64_t end = FirstRequest(t_.requests, core + 1, cores);
        MoveRequests(FirstRequest(t_.requests, core, cores), end, core == 0 ? t_.requests : end);
        if (core == 0) {
            FinishTotals(pipe);
        }
        ring_.Drain();
        records_.Drain();
    }

private:
    // Sums over requests [0, last) and moves the misses of [begin, end).
    __aicore__ inline void MoveRequests(uint64_t begin, uint64_t end, uint64_t last)
    {
        uint32_t entries = PieceFrom(0, last);
        if (entries != 0) {
            records_.Fetch(0, entries);
        }
        for (uint64_t first = 0; first < last;) {
            records_.Await();
            uint64_t next = first + entries;
            uint32_t nextEntries = PieceFrom(next, last);
            if (nextEntries != 0) {
                records_.Fetch(next, nextEntries);
            }
            for (uint32_t i = 0; i < entries; ++i) {
                uint64_t record = static_cast<uint64_t>(records_.Value(0, i));
                uint64_t misses = record & UINT32_MAX;
                if (first + i >= begin && first + i < end) {
                    uint64_t from = (first + i) * t_.topK * sizeof(int64_t);
                    Move(t_.stagedSrc + from, t_.srcIndex + misses_ * sizeof(int64_t), misses * sizeof(int64_t));
                    Move(t_.stagedDst + from, t_.dstIndex + misses_ * sizeof(int64_t), misses * sizeof(int64_t));
                }
                misses_ += misses;
                hits_ += record >> 32;
            }
            records_.Release();
            first = next;
            entries = nextEntries;
        }
    }

    __aicore__ inline void Move(uint64_t from, uint64_t to, uint64_t bytes)
    {
        while (bytes != 0) {
            uint32_t piece = static_cast<uint32_t>(SparseCopy::Min(bytes, t_.buffers.slotBytes));
            ring_.BeginLoad();
            LoadBlocks(ring_.Slot(), from, 1, piece, 0);
            ring_.BeginStore();
            StoreBlocks(to, ring_.Slot(), 1, piece, 0);
            ring_.EndStore();
            from += piece;
            to += piece;
            bytes -= piece;
        }
    }

    __aicore__ inline void StartTotals(AscendC::TPipe* pipe)
    {
        fetched_ = pipe->AllocEventID<AscendC::HardEvent::MTE2_S>();
        LoadBlocks(totals_.GetWithOffset<uint8_t>(UB_BLOCK, 0), t_.totals, 1, 2 * sizeof(uint64_t), 0);
        AscendC::SetFlag<AscendC::HardEvent::MTE2_S>(fetched_);
    }

    // Totals, and the count behind them in the buffer.
    __aicore__ inline void FinishTotals(AscendC::TPipe* pipe)
    {
        AscendC::LocalTensor<uint32_t> words = totals_.Get<uint32_t>();
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_S>(fetched_);
        WriteStruct(words, ReadWide(words, 0) + hits_);
        WriteStruct(words[2], ReadWide(words, 2) + misses_);
        WriteStruct(words[UB_BLOCK / sizeof(uint32_t)], misses_);
        AscendC::TEventID written = pipe->AllocEventID<AscendC::HardEvent::S_MTE3>();
        AscendC::SetFlag<AscendC::HardEvent::S_MTE3>(written);
        AscendC::WaitFlag<AscendC::HardEvent::S_MTE3>(written);
        StoreBlocks(t_.totals, totals_.GetWithOffset<uint8_t>(UB_BLOCK, 0), 1, 2 * sizeof(uint64_t), 0);
        StoreBlocks(t_.count, totals_.GetWithOffset<uint8_t>(UB_BLOCK, UB_BLOCK), 1, t_.countBytes, 0);
    }

    __aicore__ inline uint32_t PieceFrom(uint64_t first, uint64_t last) const
    {
        return static_cast<uint32_t>(
            SparseCopy::Min(last - first, t_.buffers.tableBytes / sizeof(PlanResidencyRecord)));
    }

    PlanResidencyTilingData t_;
    AscendC::TBuf<AscendC::TPosition::VECCALC> totals_;
    TableReader<1> records_;
    SparseCopy::SlotRing ring_;
    AscendC::TEventID fetched_ = 0;
    uint64_t misses_ = 0;
    uint64_t hits_ = 0;
};

}  // namespace PlanResidency

#endif  // PLAN_RESIDENCY_LIST_H
