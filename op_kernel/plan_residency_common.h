// SPDX-License-Identifier: Apache-2.0
// What the kernels of plan_residency share: their tiling data, requests by core, and the flags between the scalar unit
// and the queues that fill and store what it works on.
#ifndef PLAN_RESIDENCY_COMMON_H
#define PLAN_RESIDENCY_COMMON_H

#include "plan_residency_tiling_data.h"
#include "residency_state.h"
#include "sparse_copy_tables.h"

namespace PlanResidency {

using SparseCopy::LoadBlocks;
using SparseCopy::ReadStruct;
using SparseCopy::ReadWide;
using SparseCopy::StoreBlocks;
using SparseCopy::TableReader;
using SparseCopy::UB_BLOCK;
using SparseCopy::WriteStruct;

// The tiling data, fetched by one transfer.
__aicore__ inline PlanResidencyTilingData FetchTiling(AscendC::TPipe* pipe, GM_ADDR tiling, uint64_t tilingBytes)
{
    AscendC::TBuf<AscendC::TPosition::VECCALC> buffer;
    pipe->InitBuffer(buffer, static_cast<uint32_t>(tilingBytes));
    LoadBlocks(buffer.Get<uint8_t>(), reinterpret_cast<uint64_t>(tiling), 1, static_cast<uint32_t>(tilingBytes), 0);
    AscendC::TEventID fetched = pipe->AllocEventID<AscendC::HardEvent::MTE2_S>();
    AscendC::SetFlag<AscendC::HardEvent::MTE2_S>(fetched);
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_S>(fetched);
    pipe->ReleaseEventID<AscendC::HardEvent::MTE2_S>(fetched);
    return ReadStruct<PlanResidencyTilingData>(buffer.Get<uint32_t>(), 0);
}

// The first of the requests that are this core's; those of the next core begin where its end.
__aicore__ inline uint64_t FirstRequest(uint64_t requests, uint64_t core, uint64_t cores)
{
    return requests * core / cores;
}

constexpr uint32_t BLOCK_WORDS = UB_BLOCK / sizeof(uint32_t);

// An int32 or int64 out of the unified buffer.
__aicore__ inline int64_t ReadNumber(const AscendC::LocalTensor<uint32_t>& words, uint32_t word, uint32_t bytes)
{
    return bytes == sizeof(int64_t) ? static_cast<int64_t>(ReadWide(words, word))
                                    : static_cast<int32_t>(words.GetValue(word));
}

// The scalar unit waits at each end: the work of a request is its own, and little of it could overlap.
class Flags {
public:
    __aicore__ inline void Init(AscendC::TPipe* pipe)
    {
        written_ = pipe->AllocEventID<AscendC::HardEvent::S_MTE3>();
        stored_ = pipe->AllocEventID<AscendC::HardEvent::MTE3_S>();
        before_ = pipe->AllocEventID<AscendC::HardEvent::S_V>();
        done_ = pipe->AllocEventID<AscendC::HardEvent::V_S>();
    }

    // By the vector unit, between two accesses of the scalar unit.
    template <typename T>
    __aicore__ inline void Fill(const AscendC::LocalTensor<T>& to, T value, uint32_t count) const
    {
        BeginVector();
        AscendC::Duplicate(to, value, static_cast<int32_t>(count));
        EndVector();
    }

    __aicore__ inline void BeginVector() const
    {
        AscendC::SetFlag<AscendC::HardEvent::S_V>(before_);
        AscendC::WaitFlag<AscendC::HardEvent::S_V>(before_);
    }

    __aicore__ inline void EndVector() const
    {
        AscendC::SetFlag<AscendC::HardEvent::V_S>(done_);
        AscendC::WaitFlag<AscendC::HardEvent::V_S>(done_);
    }

    // Stores between the two send what the scalar unit has written before, and have read it afterwards.
    __aicore__ inline void BeginStore() const
    {
        AscendC::SetFlag<AscendC::HardEvent::S_MTE3>(written_);
        AscendC::WaitFlag<AscendC::HardEvent::S_MTE3>(written_);
    }

    __aicore__ inline void EndStore() const
    {
        AscendC::SetFlag<AscendC::HardEvent::MTE3_S>(stored_);
        AscendC::WaitFlag<AscendC::HardEvent::MTE3_S>(stored_);
    }

private:
    AscendC::TEventID written_ = 0;
    AscendC::TEventID stored_ = 0;
    AscendC::TEventID before_ = 0;
    AscendC::TEventID done_ = 0;
};

}  // namespace PlanResidency

#endif  // PLAN_RESIDENCY_COMMON_H
