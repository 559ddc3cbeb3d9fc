// SPDX-License-Identifier: Apache-2.0
// The moving parts that both forms of the operator share: reading words that DMA has brought, merging transfers, and
// the ring of buffers.
#ifndef SPARSE_COPY_TRANSFER_H
#define SPARSE_COPY_TRANSFER_H

#include "kernel_operator.h"
#include "sparse_copy_tiling_data.h"

namespace SparseCopy {

constexpr uint32_t UB_BLOCK = 32;          // every DMA address in the unified buffer is a multiple of this
constexpr uint32_t MAX_BLOCKS = 4095;      // of one DMA instruction
constexpr uint64_t MAX_GAP = 0xFFFFFFFFu;  // between two blocks of one instruction: 32 bits on A2 and A3

__aicore__ inline uint64_t RoundUp(uint64_t value, uint64_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

__aicore__ inline uint64_t Min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

// 64-bit values are read as two words: 64-bit scalar access to the unified buffer is said to be
// unreliable on A5.
__aicore__ inline uint64_t ReadWide(const AscendC::LocalTensor<uint32_t>& words, uint32_t index)
{
    uint64_t low = words.GetValue(index);
    uint64_t high = words.GetValue(index + 1);
    return high << 32 | low;
}

// The same bytes as a struct and as words; a union, because compilers may take a cast pointer for another object.
template <typename Struct>
union Words {
    Struct value;
    uint32_t word[sizeof(Struct) / sizeof(uint32_t)];
};

// Takes a struct out of the unified buffer, or puts one there.
template <typename Struct>
__aicore__ inline Struct ReadStruct(const AscendC::LocalTensor<uint32_t>& words, uint32_t firstWord)
{
    Words<Struct> out;
    for (uint32_t i = 0; i < sizeof(Struct) / sizeof(uint32_t); ++i) {
        out.word[i] = words.GetValue(firstWord + i);
    }
    return out.value;
}

template <typename Struct>
__aicore__ inline void WriteStruct(const AscendC::LocalTensor<uint32_t>& words, const Struct& value)
{
    Words<Struct> in;
    in.value = value;
    for (uint32_t i = 0; i < sizeof(Struct) / sizeof(uint32_t); ++i) {
        words.SetValue(i, in.word[i]);
    }
}

// Starts a load of `blocks` blocks that stand `gap` bytes apart in global memory and at multiples of 32 bytes in the
// unified buffer.
__aicore__ inline void LoadBlocks(const AscendC::LocalTensor<uint8_t>& to, uint64_t address, uint32_t blocks,
                                  uint32_t blockBytes, uint32_t gap)
{
    AscendC::GlobalTensor<uint8_t> from;
    from.SetGlobalBuffer(reinterpret_cast<__gm__ uint8_t*>(address));
    AscendC::DataCopyExtParams params(static_cast<uint16_t>(blocks), blockBytes, gap, 0, 0);
    AscendC::DataCopyPadExtParams<uint8_t> noPadding(false, 0, 0, 0);
    AscendC::DataCopyPad(to, from, params, noPadding);
}

__aicore__ inline void StoreBlocks(uint64_t address, const AscendC::LocalTensor<uint8_t>& from, uint32_t blocks,
                                   uint32_t blockBytes, uint32_t gap)
{
    AscendC::GlobalTensor<uint8_t> to;
    to.SetGlobalBuffer(reinterpret_cast<__gm__ uint8_t*>(address));
    AscendC::DataCopyExtParams params(static_cast<uint16_t>(blocks), blockBytes, 0, gap, 0);
    AscendC::DataCopyPad(to, from, params);
}

// Collects pieces of rows on one side of the copy and makes one instruction of those that have the same length and
// the same distance from each other. In the slot the pieces follow each other at multiples of 32 bytes.
template <bool IS_LOAD>
class TransferRun {
public:
    __aicore__ inline explicit TransferRun(const AscendC::LocalTensor<uint8_t>& slot) : slot_(slot) {}

    __aicore__ inline void Add(uint64_t address, uint32_t slotOffset, uint32_t bytes)
    {
        if (blocks_ != 0 && !Extends(address, bytes)) {
            Flush();
        }
        if (blocks_ == 0) {
            first_ = address;
            offset_ = slotOffset;
            bytes_ = bytes;
        } else {
            gap_ = address - end_;
        }
        end_ = address + bytes;
        ++blocks_;
    }

    __aicore__ inline void Flush()
    {
        if (blocks_ == 0) {
            return;
        }
        uint32_t blocks = blocks_;
        uint32_t bytes = bytes_;
        uint32_t gap = blocks == 1 ? 0 : static_cast<uint32_t>(gap_);
        if (gap == 0 && bytes % UB_BLOCK == 0) {  // no gap on either side: one long block
            bytes *= blocks;
            blocks = 1;
        }
        if constexpr (IS_LOAD) {
            LoadBlocks(slot_[offset_], first_, blocks, bytes, gap);
        } else {
            StoreBlocks(first_, slot_[offset_], blocks, bytes, gap);
        }
        blocks_ = 0;
    }

private:
    __aicore__ inline bool Extends(uint64_t address, uint32_t bytes) const
    {
        if (bytes != bytes_ || address < end_ || blocks_ == MAX_BLOCKS) {
            return false;
        }
        uint64_t gap = address - end_;
        return gap <= MAX_GAP && (blocks_ == 1 || gap == gap_);
    }

    const AscendC::LocalTensor<uint8_t> slot_;
    uint64_t first_ = 0;
    uint64_t end_ = 0;
    uint64_t gap_ = 0;
    uint32_t offset_ = 0;
    uint32_t bytes_ = 0;
    uint32_t blocks_ = 0;
};

// The slots through which rows pass. While one is being stored, the others load: only the queues wait for each other,
// never the scalar unit, and no barrier is needed.
class SlotRing {
public:
    __aicore__ inline void Init(AscendC::TPipe* pipe, uint32_t slots, uint32_t slotBytes)
    {
        slots_ = slots;
        slotBytes_ = slotBytes;
        pipe->InitBuffer(buffer_, slots * slotBytes);
        for (uint32_t i = 0; i < slots_; ++i) {
            loaded_[i] = pipe->AllocEventID<AscendC::HardEvent::MTE2_MTE3>();
            stored_[i] = pipe->AllocEventID<AscendC::HardEvent::MTE3_MTE2>();
            inUse_[i] = false;
        }
    }

    __aicore__ inline AscendC::LocalTensor<uint8_t> Slot()
    {
        return buffer_.GetWithOffset<uint8_t>(slotBytes_, current_ * slotBytes_);
    }

    // All slots as one buffer, for as long as no row has been loaded.
    __aicore__ inline AscendC::LocalTensor<uint8_t> Scratch()
    {
        return buffer_.Get<uint8_t>();
    }

    // Before the first load into the slot: its last store must have read it.
    __aicore__ inline void BeginLoad()
    {
        if (inUse_[current_]) {
            AscendC::WaitFlag<AscendC::HardEvent::MTE3_MTE2>(stored_[current_]);
        }
    }

    // Between the last load and the first store.
    __aicore__ inline void BeginStore()
    {
        AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE3>(loaded_[current_]);
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE3>(loaded_[current_]);
    }

    __aicore__ inline void EndStore()
    {
        AscendC::SetFlag<AscendC::HardEvent::MTE3_MTE2>(stored_[current_]);
        inUse_[current_] = true;
        current_ = current_ + 1 == slots_ ? 0 : current_ + 1;
    }

    // Every flag that was set must have been awaited when the kernel ends.
    __aicore__ inline void Drain()
    {
        for (uint32_t i = 0; i < slots_; ++i) {
            if (inUse_[i]) {
                AscendC::WaitFlag<AscendC::HardEvent::MTE3_MTE2>(stored_[i]);
            }
        }
    }

private:
    AscendC::TBuf<AscendC::TPosition::VECCALC> buffer_;
    AscendC::TEventID loaded_[SPARSE_COPY_MAX_SLOTS];
    AscendC::TEventID stored_[SPARSE_COPY_MAX_SLOTS];
    bool inUse_[SPARSE_COPY_MAX_SLOTS];
    uint32_t slots_ = 0;
    uint32_t slotBytes_ = 0;
    uint32_t current_ = 0;
};

}  // namespace SparseCopy

#endif  // SPARSE_COPY_TRANSFER_H
