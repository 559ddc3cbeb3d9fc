// SPDX-License-Identifier: Apache-2.0
// The pointer form: lengths[i] bytes from src_ptrs[i] to dst_ptrs[i].
#ifndef SPARSE_COPY_PTRS_H
#define SPARSE_COPY_PTRS_H

#include "sparse_copy_kernel.h"

namespace SparseCopy {

class PointerForm {
public:
    __aicore__ inline void Init(AscendC::TPipe* pipe, const AscendC::LocalTensor<uint32_t>& tilingWords,
                                const AscendC::LocalTensor<uint32_t>& statusWords, uint64_t core)
    {
        statusWords_ = statusWords;
        tiling_ = ReadStruct<SparseCopyPtrsTilingData>(tilingWords, 0);
        tables_.Init(pipe, tiling_.buffers);
        tables_.SetTable(SRC, tiling_.srcPointers);
        tables_.SetTable(DST, tiling_.dstPointers);
        tables_.SetTable(LENGTH, tiling_.lengths);
        statusWritten_ = pipe->AllocEventID<AscendC::HardEvent::S_MTE3>();
        core_ = core;
    }

    __aicore__ inline const SparseCopyBuffers& Buffers() const
    {
        return tiling_.buffers;
    }

    __aicore__ inline TableReader<3>& Tables()
    {
        return tables_;
    }

    __aicore__ inline uint64_t EntryCount() const
    {
        return tiling_.entryCount;
    }

    __aicore__ inline uint32_t Items() const
    {
        return 1;
    }

    __aicore__ inline void SelectItem(uint32_t) {}

    // Where the lengths cannot be weighed, entries count alike.
    __aicore__ inline Share EvenShare(uint64_t core, uint64_t cores, uint64_t entries) const
    {
        return {{EvenCut(entries, cores, core), 0}, {EvenCut(entries, cores, core + 1), 0}};
    }

    // Nothing but all the lengths shows whether one entry holds most of the bytes.
    __aicore__ inline Weighing WeighingOf(uint64_t entries) const
    {
        return entries != 0 && BlockWeights::Takes(tiling_.lengths, entries) ? Weighing::ALWAYS : Weighing::NEVER;
    }

    __aicore__ inline void StartSample(AscendC::TPipe*, const AscendC::LocalTensor<uint8_t>&, uint64_t) {}

    __aicore__ inline bool SampleSaysWeigh(const AscendC::LocalTensor<uint8_t>&) const
    {
        return false;
    }

    __aicore__ inline void Weigh(BlockWeights& weights, uint64_t entries) const
    {
        weights.AddLengths(tiling_.lengths, entries);
    }

    __aicore__ inline Share WeighedShare(const BlockWeights& weights, uint64_t core, uint64_t cores, uint64_t entries)
    {
        uint64_t total = weights.Total();
        if (total == 0) {
            return EvenShare(core, cores, entries);
        }
        return {PlaceOf(weights, EvenCut(total, cores, core), entries),
                PlaceOf(weights, EvenCut(total, cores, core + 1), entries)};
    }

    __aicore__ inline EntryState Locate(uint32_t local, uint64_t, Row& row) const
    {
        int64_t bytes = tables_.Value(LENGTH, local);
        if (bytes == 0) {
            return EntryState::SKIP;
        }
        row.src = static_cast<uint64_t>(tables_.Value(SRC, local));
        row.dst = static_cast<uint64_t>(tables_.Value(DST, local));
        if (bytes < 0 || row.src == 0 || row.dst == 0) {
            return EntryState::BAD;
        }
        row.bytes = static_cast<uint64_t>(bytes);
        row.workOffset = 0;
        return EntryState::COPY;
    }

    // The tables hold what they hold: a count beyond them is cut off, and the status says how many entries there were.
    __aicore__ inline void RecordClampedCount(int64_t) {}

    // Overwrites this core's record. sparse_copy_ptrs_status adds them up.
    __aicore__ inline void Finish(const Totals& totals)
    {
        SparseCopyStatusRecord record = {};
        record.copied = totals.copied;
        record.skipped = totals.skipped;
        record.outOfRange = totals.bad;
        record.firstBad = totals.bad != 0 ? totals.firstBad + 1 : 0;
        WriteStruct(statusWords_, record);
        AscendC::SetFlag<AscendC::HardEvent::S_MTE3>(statusWritten_);
        AscendC::WaitFlag<AscendC::HardEvent::S_MTE3>(statusWritten_);
        StoreBlocks(tiling_.recordsAddress + core_ * SPARSE_COPY_STATUS_PITCH, statusWords_.ReinterpretCast<uint8_t>(),
                    1, sizeof(record), 0);
    }

private:
    static constexpr uint32_t SRC = 0;
    static constexpr uint32_t DST = 1;
    static constexpr uint32_t LENGTH = 2;

    // From a byte among all bytes to an entry and a byte of it. The weights are rounded: the end of a block may lie a
    // little before or behind its weight, but every core finds the same place for the same byte, and later ones for
    // later bytes.
    __aicore__ inline Position PlaceOf(const BlockWeights& weights, uint64_t byte, uint64_t entries)
    {
        if (byte == 0) {
            return {0, 0};
        }
        if (byte >= weights.Total()) {
            return {entries, 0};
        }
        uint64_t left = 0;
        uint64_t first = weights.Find(byte, left) * weights.BlockEntries();
        left = byte - left;
        uint32_t inBlock = static_cast<uint32_t>(Min(weights.BlockEntries(), entries - first));
        tables_.Fetch(first, inBlock);
        tables_.Await();
        uint32_t local = 0;
        for (; local < inBlock; ++local) {
            int64_t bytes = tables_.Value(LENGTH, local);
            if (bytes > 0) {
                if (static_cast<uint64_t>(bytes) > left) {
                    break;
                }
                left -= static_cast<uint64_t>(bytes);
            }
        }
        tables_.Release();
        return {first + local, local < inBlock ? left : 0};
    }

    AscendC::LocalTensor<uint32_t> statusWords_;
    SparseCopyPtrsTilingData tiling_;
    TableReader<3> tables_;
    AscendC::TEventID statusWritten_ = 0;
    uint64_t core_ = 0;
};

// Adds up the records of the cores of a launch that has ended, and writes the operator's status tensor, which may have
// gaps between its numbers: one core, one transfer in, one out for each number.
__aicore__ inline void ReduceStatus(AscendC::TPipe* pipe, const SparseCopyPtrsStatusArguments& arguments)
{
    constexpr uint32_t RECORD_WORDS = sizeof(SparseCopyStatusRecord) / sizeof(uint32_t);
    constexpr uint32_t NUMBERS = 4;
    AscendC::TBuf<AscendC::TPosition::VECCALC> buffer;
    uint32_t bytes = static_cast<uint32_t>(arguments.cores * sizeof(SparseCopyStatusRecord));
    pipe->InitBuffer(buffer, bytes + NUMBERS * UB_BLOCK);
    AscendC::LocalTensor<uint8_t> out = buffer.GetWithOffset<uint8_t>(NUMBERS * UB_BLOCK, bytes);
    int64_t status[NUMBERS] = {0, 0, 0, -1};  // copied, skipped, refused, first refused
    if (arguments.cores != 0) {
        AscendC::LocalTensor<uint8_t> in = buffer.GetWithOffset<uint8_t>(bytes, 0);
        LoadBlocks(in, arguments.records, static_cast<uint32_t>(arguments.cores), sizeof(SparseCopyStatusRecord),
                   SPARSE_COPY_STATUS_PITCH - sizeof(SparseCopyStatusRecord));
        AscendC::TEventID fetched = pipe->AllocEventID<AscendC::HardEvent::MTE2_S>();
        AscendC::SetFlag<AscendC::HardEvent::MTE2_S>(fetched);
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_S>(fetched);
        for (uint32_t core = 0; core < arguments.cores; ++core) {
            SparseCopyStatusRecord record =
                ReadStruct<SparseCopyStatusRecord>(in.ReinterpretCast<uint32_t>(), core * RECORD_WORDS);
            status[0] += static_cast<int64_t>(record.copied);
            status[1] += static_cast<int64_t>(record.skipped);
            status[2] += static_cast<int64_t>(record.outOfRange);
            int64_t position = static_cast<int64_t>(record.firstBad) - 1;
            if (position >= 0 && (status[3] < 0 || position < status[3])) {
                status[3] = position;
            }
        }
    }
    for (uint32_t i = 0; i < NUMBERS; ++i) {
        WriteStruct(out[i * UB_BLOCK].ReinterpretCast<uint32_t>(), status[i]);
    }
    AscendC::TEventID written = pipe->AllocEventID<AscendC::HardEvent::S_MTE3>();
    AscendC::SetFlag<AscendC::HardEvent::S_MTE3>(written);
    AscendC::WaitFlag<AscendC::HardEvent::S_MTE3>(written);
    for (uint32_t i = 0; i < NUMBERS; ++i) {
        StoreBlocks(arguments.status + i * arguments.statusStride, out[i * UB_BLOCK], 1, sizeof(int64_t), 0);
    }
}

}  // namespace SparseCopy

#endif  // SPARSE_COPY_PTRS_H
