// SPDX-License-Identifier: Apache-2.0
// The index form: dst[c][dst_index[i]] = src[c][src_index[i]] for every component c.
#ifndef SPARSE_COPY_H
#define SPARSE_COPY_H

#include "sparse_copy_kernel.h"

namespace SparseCopy {

class IndexForm {
public:
    __aicore__ inline void Init(AscendC::TPipe* pipe, const AscendC::LocalTensor<uint32_t>& tilingWords,
                                const AscendC::LocalTensor<uint32_t>& statusWords, uint64_t core)
    {
        tilingWords_ = tilingWords;
        statusWords_ = statusWords;
        tiling_ = ReadStruct<SparseCopyTilingData>(tilingWords_, 0);
        tables_.Init(pipe, tiling_.buffers);
        tables_.SetTable(SRC, tiling_.srcIndex);
        tables_.SetTable(DST, tiling_.dstIndex);
        core_ = core;
        if (tiling_.statusAddress != 0) {
            FetchStatus(pipe);
        }
    }

    __aicore__ inline const SparseCopyBuffers& Buffers() const
    {
        return tiling_.buffers;
    }

    __aicore__ inline TableReader<2>& Tables()
    {
        return tables_;
    }

    __aicore__ inline uint64_t EntryCount() const
    {
        return tiling_.entryCount;
    }

    __aicore__ inline uint32_t Items() const
    {
        return tiling_.componentCount;
    }

    __aicore__ inline void SelectItem(uint32_t item)
    {
        uint32_t offset = sizeof(SparseCopyTilingData) + item * sizeof(SparseCopyComponent);
        component_ = ReadStruct<SparseCopyComponent>(tilingWords_, offset / sizeof(uint32_t));
    }

    // Whole entries where that leaves no core with more than 5 % above the mean, else bytes.
    __aicore__ inline Share EvenShare(uint64_t core, uint64_t cores, uint64_t entries) const
    {
        uint64_t unit = tiling_.buffers.cutEntries;
        if (entries / cores >= unit * TOLERANCE) {  // whole lines of the tables
            uint64_t units = (entries + unit - 1) / unit;
            return {{Min(EvenCut(units, cores, core) * unit, entries), 0},
                    {Min(EvenCut(units, cores, core + 1) * unit, entries), 0}};
        }
        uint64_t heaviest = (entries + cores - 1) / cores;
        if (heaviest * cores - entries <= entries / TOLERANCE) {
            return {{EvenCut(entries, cores, core), 0}, {EvenCut(entries, cores, core + 1), 0}};
        }
        uint64_t bytes = entries * tiling_.entryBytes;
        uint64_t begin = EvenCut(bytes, cores, core);
        uint64_t end = EvenCut(bytes, cores, core + 1);
        return {{begin / tiling_.entryBytes, begin % tiling_.entryBytes},
                {end / tiling_.entryBytes, end % tiling_.entryBytes}};
    }

    // Weighing costs every core all of the tables, so a few entries are looked at first.
    __aicore__ inline Weighing WeighingOf(uint64_t entries) const
    {
        const SparseCopyTable& src = tiling_.srcIndex;
        const SparseCopyTable& dst = tiling_.dstIndex;
        bool both = src.entryBytes != 0 && dst.entryBytes != 0;
        bool fits = (src.entryBytes == 0 || BlockWeights::Takes(src, entries)) &&
                    (dst.entryBytes == 0 || BlockWeights::Takes(dst, entries)) &&
                    (!both || src.entryBytes == dst.entryBytes) && src.entryBytes + dst.entryBytes != 0;
        return fits && entries >= MIN_WEIGHED ? Weighing::IF_SAMPLE_SAYS : Weighing::NEVER;
    }

    __aicore__ inline void StartSample(AscendC::TPipe* pipe, const AscendC::LocalTensor<uint8_t>& scratch,
                                       uint64_t entries)
    {
        uint64_t step = entries / SAMPLES;
        for (uint32_t t = 0; t < 2; ++t) {
            const SparseCopyTable& table = t == SRC ? tiling_.srcIndex : tiling_.dstIndex;
            if (table.entryBytes != 0) {
                LoadBlocks(scratch[t * SAMPLES * UB_BLOCK], table.address + step / 2 * table.stride, SAMPLES,
                           table.entryBytes, static_cast<uint32_t>((step - 1) * table.entryBytes));
            }
        }
        sampled_ = pipe->AllocEventID<AscendC::HardEvent::MTE2_S>();
        AscendC::SetFlag<AscendC::HardEvent::MTE2_S>(sampled_);
    }

    __aicore__ inline bool SampleSaysWeigh(const AscendC::LocalTensor<uint8_t>& scratch) const
    {
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_S>(sampled_);
        AscendC::LocalTensor<int32_t> words = scratch.ReinterpretCast<int32_t>();
        uint32_t skipped = 0;
        for (uint32_t i = 0; i < SAMPLES; ++i) {
            bool skip = false;
            for (uint32_t t = 0; t < 2; ++t) {
                uint32_t entryBytes = t == SRC ? tiling_.srcIndex.entryBytes : tiling_.dstIndex.entryBytes;
                if (entryBytes != 0) {  // the sign is in the last word
                    uint32_t word = ((t * SAMPLES + i) * UB_BLOCK + entryBytes) / sizeof(int32_t) - 1;
                    skip = words.GetValue(word) < 0 || skip;
                }
            }
            skipped += skip ? 1 : 0;
        }
        return skipped >= MIN_SAMPLES_SKIPPED;
    }

    __aicore__ inline void Weigh(BlockWeights& weights, uint64_t entries) const
    {
        weights.CountValid(tiling_.srcIndex, tiling_.dstIndex, entries);
    }

    // The even share of the entries that are not skipped. Of the others, the weights know the number: nobody needs to
    // come past those before the first and behind the last.
    __aicore__ inline Share WeighedShare(const BlockWeights& weights, uint64_t core, uint64_t cores, uint64_t entries)
    {
        weighed_ = true;
        weighedSkipped_ = core == 0 ? entries - weights.Total() : 0;
        if (weights.Total() == 0) {
            return {{0, 0}, {0, 0}};
        }
        Share share = EvenShare(core, cores, weights.Total());
        return {PlaceOf(weights, share.begin, entries), PlaceOf(weights, share.end, entries)};
    }

    // The row of the selected component that entry `local` of the current piece names.
    __aicore__ inline EntryState Locate(uint32_t local, uint64_t entry, Row& row) const
    {
        int64_t src = tables_.Has(SRC) ? tables_.Value(SRC, local) : static_cast<int64_t>(entry);
        int64_t dst = tables_.Has(DST) ? tables_.Value(DST, local) : static_cast<int64_t>(entry);
        if (src < 0 || dst < 0) {
            return EntryState::SKIP;
        }
        if (static_cast<uint64_t>(src) >= tiling_.srcRows || static_cast<uint64_t>(dst) >= tiling_.dstRows) {
            return EntryState::BAD;
        }
        row.src = component_.srcAddress + static_cast<uint64_t>(src) * component_.srcStride;
        row.dst = component_.dstAddress + static_cast<uint64_t>(dst) * component_.dstStride;
        row.bytes = component_.rowBytes;
        row.workOffset = component_.workOffset;
        return EntryState::COPY;
    }

    __aicore__ inline void RecordClampedCount(int64_t count)
    {
        countClamped_ = core_ == 0;
        clampedCount_ = count;
    }

    // Adds to this core's record. Nobody else writes it: see SparseCopyStatusRecord.
    __aicore__ inline void Finish(const Totals& totals)
    {
        if (tiling_.statusAddress == 0) {
            return;
        }
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_S>(statusFetched_);
        uint64_t skipped = weighed_ ? weighedSkipped_ : totals.skipped;
        if (totals.copied + skipped + totals.bad == 0 && !countClamped_) {
            return;
        }
        SparseCopyStatusRecord record = ReadStruct<SparseCopyStatusRecord>(statusWords_, 0);
        record.copied += totals.copied;
        record.skipped += skipped;
        record.outOfRange += totals.bad;
        if (totals.bad != 0 && (record.firstBad == 0 || totals.firstBad + 1 < record.firstBad)) {
            record.firstBad = totals.firstBad + 1;
        }
        if (countClamped_) {
            record.clampedCounts += 1;
            record.lastClampedCount = clampedCount_;
        }
        WriteStruct(statusWords_, record);
        AscendC::SetFlag<AscendC::HardEvent::S_MTE3>(statusWritten_);
        AscendC::WaitFlag<AscendC::HardEvent::S_MTE3>(statusWritten_);
        StoreBlocks(StatusAddress(), statusWords_.ReinterpretCast<uint8_t>(), 1, sizeof(record), 0);
    }

private:
    static constexpr uint32_t SRC = 0;
    static constexpr uint32_t DST = 1;
    static constexpr uint64_t TOLERANCE = 20;  // a core may have 1 / TOLERANCE more than the mean

    static constexpr uint64_t MIN_WEIGHED = 64;
    static constexpr uint32_t SAMPLES = 8;
    static constexpr uint32_t MIN_SAMPLES_SKIPPED = 2;

    // From the number of an entry among those that are not skipped to its place in the tables.
    __aicore__ inline Position PlaceOf(const BlockWeights& weights, const Position& valid, uint64_t entries)
    {
        bool behind = valid.entry >= weights.Total();  // the place right behind the last one
        uint64_t wanted = behind ? weights.Total() - 1 : valid.entry;
        uint64_t before = 0;
        uint64_t first = weights.Find(wanted, before) * weights.BlockEntries();
        uint32_t inBlock = static_cast<uint32_t>(Min(weights.BlockEntries(), entries - first));
        tables_.Fetch(first, inBlock);
        tables_.Await();
        uint32_t local = 0;
        for (uint64_t left = wanted - before; local < inBlock; ++local) {
            if ((tables_.Has(SRC) && tables_.Value(SRC, local) < 0) ||
                (tables_.Has(DST) && tables_.Value(DST, local) < 0)) {
                continue;
            }
            if (left == 0) {
                break;
            }
            --left;
        }
        tables_.Release();
        return behind ? Position{first + local + 1, 0} : Position{first + local, valid.byte};
    }

    __aicore__ inline uint64_t StatusAddress() const
    {
        return tiling_.statusAddress + core_ * SPARSE_COPY_STATUS_PITCH;
    }

    __aicore__ inline void FetchStatus(AscendC::TPipe* pipe)
    {
        statusFetched_ = pipe->AllocEventID<AscendC::HardEvent::MTE2_S>();
        statusWritten_ = pipe->AllocEventID<AscendC::HardEvent::S_MTE3>();
        LoadBlocks(statusWords_.ReinterpretCast<uint8_t>(), StatusAddress(), 1, sizeof(SparseCopyStatusRecord), 0);
        AscendC::SetFlag<AscendC::HardEvent::MTE2_S>(statusFetched_);
    }

    AscendC::LocalTensor<uint32_t> tilingWords_;
    AscendC::LocalTensor<uint32_t> statusWords_;
    SparseCopyTilingData tiling_;
    SparseCopyComponent component_;
    TableReader<2> tables_;
    AscendC::TEventID statusFetched_ = 0;
    AscendC::TEventID statusWritten_ = 0;
    AscendC::TEventID sampled_ = 0;
    uint64_t core_ = 0;
    int64_t clampedCount_ = 0;
    uint64_t weighedSkipped_ = 0;
    bool weighed_ = false;
    bool countClamped_ = false;
};

}  // namespace SparseCopy

#endif  // SPARSE_COPY_H
