// SPDX-License-Identifier: Apache-2.0
// What blocks of entries weigh, so that cores can share the work evenly although entries differ: skipped ones weigh
// nothing, and those of the pointer form have lengths of their own. Every core weighs all entries by itself, with the
// vector unit: cores that waited for each other could hang when two launches share a chip.
#ifndef SPARSE_COPY_WEIGHTS_H
#define SPARSE_COPY_WEIGHTS_H

#include "sparse_copy_transfer.h"

namespace SparseCopy {

// Bits of a float that holds an integer. The scalar unit has no conversion to 64 bits.
__aicore__ inline int64_t IntegerOfFloat(uint32_t bits)
{
    int32_t exponent = static_cast<int32_t>(bits >> 23 & 0xFF) - 150;
    int64_t value = (bits & 0x7FFFFF) | 0x800000;
    if (exponent <= -24) {
        return 0;
    }
    value = exponent >= 0 ? value << exponent : value >> -exponent;
    return bits >> 31 != 0 ? -value : value;
}

class BlockWeights {
public:
    // The scratch memory that is needed; it is free again when Done() has been called.
    static constexpr uint32_t SCRATCH_BYTES = 48 * 1024;

    __aicore__ inline void Init(AscendC::TPipe* pipe, const AscendC::LocalTensor<uint8_t>& scratch)
    {
        scratch_ = scratch;
        loaded_ = pipe->AllocEventID<AscendC::HardEvent::MTE2_V>();
        free_ = pipe->AllocEventID<AscendC::HardEvent::V_MTE2>();
        summed_ = pipe->AllocEventID<AscendC::HardEvent::V_S>();
        read_ = pipe->AllocEventID<AscendC::HardEvent::S_MTE2>();
    }

    // Whether the vector unit can take this table: contiguous, and all sums fit.
    __aicore__ inline static bool Takes(const SparseCopyTable& table, uint64_t entries)
    {
        return table.stride == table.entryBytes && entries <= MAX_SUMS * EntriesPerBlock(table.entryBytes);
    }

    // A block weighs the number of its entries that are not negative, in both tables if there are two of one width.
    __aicore__ inline void CountValid(const SparseCopyTable& a, const SparseCopyTable& b, uint64_t entries)
    {
        const SparseCopyTable& first = a.entryBytes != 0 ? a : b;
        bool both = a.entryBytes != 0 && b.entryBytes != 0;
        Begin(first.entryBytes, entries);
        signs_ = true;
        for (uint64_t done = 0; done < entries_; done += pieceEntries_) {
            uint32_t words = LoadPiece(first, done, 0);
            if (both) {
                LoadPiece(b, done, PIECE_BYTES);
            }
            AwaitPiece();
            AscendC::LocalTensor<int32_t> values = Part<int32_t>(0);
            if (both) {
                AscendC::Min(values, values, Part<int32_t>(PIECE_BYTES), static_cast<int32_t>(words));
                AscendC::PipeBarrier<PIPE_V>();
            }
            // The sign is in the last word of an entry: -1 or 0 after the shift.
            AscendC::ShiftRight(values, values, static_cast<int32_t>(31), static_cast<int32_t>(words));
            Sum(0, SUMS_OFFSET, done, words, entryWords_ == 1 ? ALL : ODD);
            ReleasePiece();
        }
        End();
    }

    // A block weighs the sum of its lengths. Floats round it, the same way on every core.
    __aicore__ inline void AddLengths(const SparseCopyTable& lengths, uint64_t entries)
    {
        Begin(lengths.entryBytes, entries);
        signs_ = false;
        for (uint64_t done = 0; done < entries_; done += pieceEntries_) {
            uint32_t words = LoadPiece(lengths, done, 0);
            AwaitPiece();
            AscendC::LocalTensor<int32_t> values = Part<int32_t>(0);
            if (entryWords_ == 2) {  // low words are unsigned: halved, they fit the conversion from int32
                AscendC::ShiftRight(Part<uint32_t>(PIECE_BYTES), Part<uint32_t>(0), static_cast<uint32_t>(1),
                                    static_cast<int32_t>(words));
                Sum(PIECE_BYTES, LOW_SUMS_OFFSET, done, words, EVEN);
            }
            AscendC::PipeBarrier<PIPE_V>();
            AscendC::Maxs(values, values, static_cast<int32_t>(0), static_cast<int32_t>(words));
            Sum(0, SUMS_OFFSET, done, words, entryWords_ == 1 ? ALL : ODD);
            ReleasePiece();
        }
        End();
    }

    __aicore__ inline uint64_t Total() const
    {
        return total_;
    }

    __aicore__ inline uint32_t BlockEntries() const
    {
        return blockEntries_;
    }

    // The first block whose end lies beyond `target`, and what stands before it. `target` < Total().
    __aicore__ inline uint64_t Find(uint64_t target, uint64_t& before) const
    {
        before = 0;
        for (uint32_t block = 0; block < blocks_; ++block) {
            uint64_t weight = WeightOf(block);
            if (before + weight > target) {
                return block;
            }
            before += weight;
        }
        return blocks_;
    }

    // The scratch memory may be loaded again.
    __aicore__ inline void Done()
    {
        AscendC::SetFlag<AscendC::HardEvent::S_MTE2>(read_);
        AscendC::WaitFlag<AscendC::HardEvent::S_MTE2>(read_);
    }

private:
    static constexpr uint32_t REPEAT_WORDS = 64;  // one sum
    static constexpr uint32_t PIECE_BYTES = 16 * 1024;
    static constexpr uint32_t SUMS_OFFSET = 2 * PIECE_BYTES;
    static constexpr uint32_t SUMS_BYTES = 8 * 1024;
    static constexpr uint32_t LOW_SUMS_OFFSET = SUMS_OFFSET + SUMS_BYTES;
    static constexpr uint64_t MAX_SUMS = SUMS_BYTES / sizeof(float);
    static constexpr uint64_t ALL = ~0ull;
    static constexpr uint64_t EVEN = 0x5555555555555555ull;
    static constexpr uint64_t ODD = ~EVEN;

    __aicore__ inline static uint32_t EntriesPerBlock(uint32_t entryBytes)
    {
        return entryBytes == sizeof(uint64_t) ? REPEAT_WORDS / 2 : REPEAT_WORDS;
    }

    template <typename T>
    __aicore__ inline AscendC::LocalTensor<T> Part(uint32_t offset) const
    {
        return scratch_[offset].template ReinterpretCast<T>();
    }

    __aicore__ inline void Begin(uint32_t entryBytes, uint64_t entries)
    {
        entries_ = entries;
        entryWords_ = entryBytes / sizeof(uint32_t);
        pieceEntries_ = PIECE_BYTES / entryBytes;
        blockEntries_ = EntriesPerBlock(entryBytes);
        blocks_ = static_cast<uint32_t>((entries + blockEntries_ - 1) / blockEntries_);
    }

    __aicore__ inline uint32_t LoadPiece(const SparseCopyTable& table, uint64_t first, uint32_t offset)
    {
        uint32_t bytes = static_cast<uint32_t>(Min(pieceEntries_, entries_ - first)) * table.entryBytes;
        LoadBlocks(scratch_[offset], table.address + first * table.stride, 1, bytes, 0);
        return bytes / sizeof(uint32_t);
    }

    __aicore__ inline void AwaitPiece()
    {
        AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(loaded_);
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(loaded_);
    }

    __aicore__ inline void ReleasePiece()
    {
        AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(free_);
        AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(free_);
    }

    // One sum per 64 words at `offset`, which the vector unit has just written. Words behind the last entry are left
    // out.
    __aicore__ inline void Sum(uint32_t offset, uint32_t sumsOffset, uint64_t firstEntry, uint32_t words,
                               uint64_t pattern)
    {
        AscendC::LocalTensor<float> floats = Part<float>(offset);
        AscendC::LocalTensor<float> sums = Part<float>(sumsOffset)[firstEntry / blockEntries_];
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Cast(floats, Part<int32_t>(offset), AscendC::RoundMode::CAST_RINT, words);
        AscendC::PipeBarrier<PIPE_V>();
        uint32_t whole = words / REPEAT_WORDS;
        uint64_t mask[2] = {pattern, 0};
        AscendC::WholeReduceSum(sums, floats, mask, static_cast<int32_t>(whole), 1, 1, 8);
        if (words % REPEAT_WORDS != 0) {
            AscendC::PipeBarrier<PIPE_V>();  // both may write into one block of 32 bytes
            mask[0] = pattern & ((1ull << words % REPEAT_WORDS) - 1);
            AscendC::WholeReduceSum(sums[whole], floats[whole * REPEAT_WORDS], mask, 1, 1, 1, 8);
        }
    }

    __aicore__ inline void End()
    {
        AscendC::SetFlag<AscendC::HardEvent::V_S>(summed_);
        AscendC::WaitFlag<AscendC::HardEvent::V_S>(summed_);
        total_ = 0;
        for (uint32_t block = 0; block < blocks_; ++block) {
            total_ += WeightOf(block);
        }
    }

    __aicore__ inline uint64_t WeightOf(uint32_t block) const
    {
        int64_t sum = IntegerOfFloat(Part<uint32_t>(SUMS_OFFSET).GetValue(block));
        if (signs_) {  // minus the number of negative entries
            uint64_t inBlock = Min(blockEntries_, entries_ - static_cast<uint64_t>(block) * blockEntries_);
            return inBlock - static_cast<uint64_t>(-sum);
        }
        if (entryWords_ == 1) {
            return static_cast<uint64_t>(sum);
        }
        int64_t halves = IntegerOfFloat(Part<uint32_t>(LOW_SUMS_OFFSET).GetValue(block));
        return (static_cast<uint64_t>(sum) << 32) + 2 * static_cast<uint64_t>(halves);
    }

    AscendC::LocalTensor<uint8_t> scratch_;
    AscendC::TEventID loaded_ = 0;
    AscendC::TEventID free_ = 0;
    AscendC::TEventID summed_ = 0;
    AscendC::TEventID read_ = 0;
    uint64_t entries_ = 0;
    uint64_t total_ = 0;
    uint32_t entryWords_ = 1;
    uint32_t pieceEntries_ = 0;
    uint32_t blockEntries_ = 1;
    uint32_t blocks_ = 0;
    bool signs_ = false;
};

}  // namespace SparseCopy

#endif  // SPARSE_COPY_WEIGHTS_H
