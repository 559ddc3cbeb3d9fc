// SPDX-License-Identifier: Apache-2.0
// The tokens that a request asks for in a step: from the tables into the unified buffer, and from a token to the
// position that names it first.
#ifndef PLAN_RESIDENCY_TOKENS_H
#define PLAN_RESIDENCY_TOKENS_H

#include "plan_residency_common.h"

namespace PlanResidency {

class StepTokens {
public:
    // What stands in `slots` for a position until its slot is known: MISSING where a token is named first,
    // REPEATED - first where it is named again. That of padding is known: none.
    static constexpr int32_t MISSING = INT32_MIN;
    static constexpr int32_t REPEATED = -2;

    // `heads`: its size a power of two above the number of tokens, of which 32 - hashShift is the logarithm.
    __aicore__ inline void Init(AscendC::TPipe* pipe, const PlanResidencyTilingData& tiling,
                                const AscendC::LocalTensor<int32_t>& tokens, const AscendC::LocalTensor<int32_t>& slots,
                                const AscendC::LocalTensor<int16_t>& heads)
    {
        topk_ = tiling.topk;
        rowStride_ = tiling.topkRowStride;
        count_ = tiling.topK;
        pieceEntries_ = tiling.buffers.pieceEntries;
        limit_ = static_cast<int64_t>(tiling.tokenLimit);
        hashShift_ = tiling.hashShift;
        tokens_ = tokens;
        slots_ = slots;
        heads_ = heads;
        table_.Init(pipe, tiling.buffers);
    }

    __aicore__ inline void StartFetching(uint64_t request)
    {
        SparseCopyTable row = topk_;
        row.address += request * rowStride_;
        table_.SetTable(0, row);
        table_.Fetch(0, PieceFrom(0));
    }

    // Behind StartFetching. False if a token is too large.
    __aicore__ inline bool Read(const Flags& flags)
    {
        flags.Fill(heads_, static_cast<int16_t>(-1), 1u << (HASH_BITS - hashShift_));
        flags.Fill(slots_, MISSING, count_);
        distinct_ = 0;
        isValid_ = true;
        uint32_t entries = PieceFrom(0);
        for (uint32_t first = 0; first < count_;) {
            table_.Await();
            uint32_t next = first + entries;
            uint32_t nextEntries = PieceFrom(next);
            if (nextEntries != 0) {
                table_.Fetch(next, nextEntries);
            }
            for (uint32_t i = 0; i < entries; ++i) {
                Add(table_.Value(0, i), static_cast<int32_t>(first + i));
            }
            table_.Release();
            first = next;
            entries = nextEntries;
        }
        return isValid_;
    }

    __aicore__ inline uint32_t Distinct() const
    {
        return distinct_;
    }

    // The first position of a token in this step, or -1.
    __aicore__ inline int32_t Find(int32_t token) const
    {
        return heads_.GetValue(PlaceOf(token));
    }

    __aicore__ inline void Drain()
    {
        table_.Drain();
    }

private:
    static constexpr uint32_t HASH_BITS = 32;

    __aicore__ inline void Add(int64_t token, int32_t position)
    {
        if (token < 0) {
            slots_.SetValue(position, RESIDENCY_EMPTY);
            return;
        }
        if (token >= limit_) {
            isValid_ = false;
            return;
        }
        tokens_.SetValue(position, static_cast<int32_t>(token));
        uint32_t place = PlaceOf(static_cast<int32_t>(token));
        int32_t head = heads_.GetValue(place);
        if (head < 0) {
            heads_.SetValue(place, static_cast<int16_t>(position));
            ++distinct_;
        } else {
            slots_.SetValue(position, REPEATED - head);
        }
    }

    // Where the token's head stands in `heads_`, or would. They are at most half full: there is an end.
    __aicore__ inline uint32_t PlaceOf(int32_t token) const
    {
        uint32_t last = (1u << (HASH_BITS - hashShift_)) - 1;
        uint32_t place = static_cast<uint32_t>(token) * 0x9E3779B1u >> hashShift_;
        for (int16_t head = heads_.GetValue(place); head >= 0 && tokens_.GetValue(head) != token;
             head = heads_.GetValue(place)) {
            place = (place + 1) & last;
        }
        return place;
    }

    __aicore__ inline uint32_t PieceFrom(uint32_t first) const
    {
        return count_ - first < pieceEntries_ ? count_ - first : pieceEntries_;
    }

    TableReader<1> table_;
    SparseCopyTable topk_;
    AscendC::LocalTensor<int32_t> tokens_;
    AscendC::LocalTensor<int32_t> slots_;
    AscendC::LocalTensor<int16_t> heads_;
    uint64_t rowStride_ = 0;
    int64_t limit_ = 0;
    uint32_t count_ = 0;
    uint32_t pieceEntries_ = 0;
    uint32_t hashShift_ = 0;
    uint32_t distinct_ = 0;
    bool isValid_ = true;
};

}  // namespace PlanResidency

#endif  // PLAN_RESIDENCY_TOKENS_H
