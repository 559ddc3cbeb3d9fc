// SPDX-License-Identifier: Apache-2.0
// The frame of both forms of the operator: a core takes its share of the entries, fetches their tables piece by piece
// and moves rows through the ring of slots. A Form says what an entry is (sparse_copy.h, sparse_copy_ptrs.h).
#ifndef SPARSE_COPY_KERNEL_H
#define SPARSE_COPY_KERNEL_H

#include "sparse_copy_tables.h"
#include "sparse_copy_transfer.h"
#include "sparse_copy_weights.h"

namespace SparseCopy {

constexpr uint64_t LINE = 512;  // requests of several cores to one such line of global memory wait for each other
constexpr uint32_t MIN_CUT_PIECE =
    4096;  // a row goes on in the next slot only if at least this much of it fits in this one

// Where part `index` of `parts` of `total` begins: total * index / parts without an overflow. The larger parts are
// spread evenly, so that as many cuts as possible fall on multiples of large powers of two, that is on lines of the
// tables.
__aicore__ inline uint64_t EvenCut(uint64_t total, uint64_t parts, uint64_t index)
{
    return total / parts * index + total % parts * index / parts;
}

// Where a core's share begins or ends: at a byte of an entry's payload.
struct Position {
    uint64_t entry;
    uint64_t byte;
};

struct Share {
    Position begin;
    Position end;
};

// Whether the entries are weighed before they are shared out (sparse_copy_weights.h).
enum class Weighing : uint8_t { NEVER, IF_SAMPLE_SAYS, ALWAYS };

enum class EntryState : uint8_t { COPY, SKIP, BAD };

// One row to move, or the part of it that is this core's.
struct Row {
    uint64_t src;
    uint64_t dst;
    uint64_t bytes;
    uint64_t workOffset;  // where the row lies in the entry's payload
};

struct Totals {
    uint64_t copied = 0;
    uint64_t skipped = 0;
    uint64_t bad = 0;
    uint64_t firstBad = 0;  // position
};

// The kernel's parameters, as they stand in the launch.
struct Arguments {
    GM_ADDR count;        // device address of the count; null: all entries
    uint64_t countBytes;  // 0, 4 or 8
    GM_ADDR tiling;
    uint64_t tilingBytes;
};

template <typename Form>
class Kernel {
public:
    __aicore__ inline void Run(AscendC::TPipe* pipe, const Arguments& arguments)
    {
        FetchArguments(pipe, arguments);
        core_ = static_cast<uint64_t>(AscendC::GetBlockIdx());
        cores_ = static_cast<uint64_t>(AscendC::GetBlockNum());
        form_.Init(pipe, tilingWords_, statusWords_, core_);
        entries_ = ClampCount(arguments);
        ring_.Init(pipe, form_.Buffers().slotCount, form_.Buffers().slotBytes);
        ShareOut(pipe);
        MoveShare();
        form_.Finish(totals_);
        ring_.Drain();
        form_.Tables().Drain();
    }

private:
    // A place in the order in which a piece of the tables is worked off: row by row of the first component, then of the
    // next one. Loads and stores of a slot walk the same way from the same place.
    struct Cursor {
        uint32_t item = 0;
        uint32_t entry = 0;
        uint64_t done = 0;  // bytes of the row
    };

    // Everything the host says comes in one round trip, by DMA.
    __aicore__ inline void FetchArguments(AscendC::TPipe* pipe, const Arguments& arguments)
    {
        uint32_t tilingBytes = static_cast<uint32_t>(arguments.tilingBytes);
        uint32_t tilingRoom = static_cast<uint32_t>(RoundUp(tilingBytes, UB_BLOCK));
        pipe->InitBuffer(arguments_, tilingRoom + UB_BLOCK + sizeof(SparseCopyStatusRecord));
        AscendC::LocalTensor<uint8_t> tiling = arguments_.GetWithOffset<uint8_t>(tilingRoom, 0);
        AscendC::LocalTensor<uint8_t> count = arguments_.GetWithOffset<uint8_t>(UB_BLOCK, tilingRoom);
        tilingWords_ = tiling.ReinterpretCast<uint32_t>();
        countWords_ = count.ReinterpretCast<uint32_t>();
        statusWords_ = arguments_.GetWithOffset<uint8_t>(sizeof(SparseCopyStatusRecord), tilingRoom + UB_BLOCK)
                           .template ReinterpretCast<uint32_t>();
        LoadBlocks(tiling, reinterpret_cast<uint64_t>(arguments.tiling), 1, tilingBytes, 0);
        if (arguments.countBytes != 0) {
            LoadBlocks(count, reinterpret_cast<uint64_t>(arguments.count), 1,
                       static_cast<uint32_t>(arguments.countBytes), 0);
        }
        AscendC::TEventID fetched = pipe->AllocEventID<AscendC::HardEvent::MTE2_S>();
        AscendC::SetFlag<AscendC::HardEvent::MTE2_S>(fetched);
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_S>(fetched);
        pipe->ReleaseEventID<AscendC::HardEvent::MTE2_S>(fetched);
    }

    // The device's count may be any number: it never reaches beyond the tables.
    __aicore__ inline uint64_t ClampCount(const Arguments& arguments)
    {
        uint64_t capacity = form_.EntryCount();
        if (arguments.countBytes == 0) {
            return capacity;
        }
        int64_t count = arguments.countBytes == sizeof(int64_t) ? static_cast<int64_t>(ReadWide(countWords_, 0))
                                                                : static_cast<int32_t>(countWords_.GetValue(0));
        if (count < 0) {
            form_.RecordClampedCount(count);
            return 0;
        }
        if (static_cast<uint64_t>(count) > capacity) {
            form_.RecordClampedCount(count);
            return capacity;
        }
        return static_cast<uint64_t>(count);
    }

    // Finds this core's share, and starts to fetch its tables: with the even share while the sample is still on its
    // way, because most calls keep it.
    __aicore__ inline void ShareOut(AscendC::TPipe* pipe)
    {
        AscendC::LocalTensor<uint8_t> scratch = ring_.Scratch();
        weights_.Init(pipe, scratch);
        share_ = form_.EvenShare(core_, cores_, entries_);
        Weighing weighing = form_.WeighingOf(entries_);
        bool weigh = weighing == Weighing::ALWAYS;
        if (!weigh) {
            if (weighing == Weighing::IF_SAMPLE_SAYS) {
                form_.StartSample(pipe, scratch, entries_);
            }
            FetchFirst();
        }
        if (weighing == Weighing::IF_SAMPLE_SAYS) {
            weigh = form_.SampleSaysWeigh(scratch);
            weights_.Done();
            if (weigh && !IsEmpty()) {
                form_.Tables().Await();
                form_.Tables().Release();
            }
        }
        if (weigh) {
            form_.Weigh(weights_, entries_);
            share_ = form_.WeighedShare(weights_, core_, cores_, entries_);
            weights_.Done();
            FetchFirst();
        }
    }

    __aicore__ inline uint64_t EndEntry() const
    {
        return share_.end.entry + (share_.end.byte != 0 ? 1 : 0);
    }

    __aicore__ inline bool IsEmpty() const
    {
        return share_.begin.entry >= EndEntry();
    }

    __aicore__ inline void FetchFirst()
    {
        if (!IsEmpty()) {
            uint64_t first = share_.begin.entry;
            form_.Tables().Fetch(first, static_cast<uint32_t>(Min(form_.Buffers().pieceEntries, EndEntry() - first)));
        }
    }

    __aicore__ inline void MoveShare()
    {
        uint64_t first = share_.begin.entry;
        uint64_t end = EndEntry();
        if (IsEmpty()) {
            return;
        }
        uint32_t pieceEntries = form_.Buffers().pieceEntries;
        uint32_t entries = static_cast<uint32_t>(Min(pieceEntries, end - first));
        while (first < end) {
            form_.Tables().Await();
            uint64_t next = first + entries;
            uint32_t nextEntries = static_cast<uint32_t>(Min(pieceEntries, end - next));
            if (nextEntries != 0) {
                form_.Tables().Fetch(next, nextEntries);
            }
            MovePiece(first, entries);
            form_.Tables().Release();
            first = next;
            entries = nextEntries;
        }
    }

    __aicore__ inline void MovePiece(uint64_t first, uint32_t entries)
    {
        Cursor cursor;
        form_.SelectItem(0);
        while (cursor.item < form_.Items()) {
            Cursor stores = cursor;
            if (!Walk<true>(cursor, first, entries)) {
                return;  // nothing but skipped entries was left
            }
            ring_.BeginStore();
            form_.SelectItem(stores.item);
            Walk<false>(stores, first, entries);
            ring_.EndStore();
        }
    }

    // Fills one slot from where the cursor stands, or empties it again. Returns whether there was anything.
    template <bool IS_LOAD>
    __aicore__ inline bool Walk(Cursor& cursor, uint64_t first, uint32_t entries)
    {
        uint32_t slotBytes = form_.Buffers().slotBytes;
        uint32_t used = 0;
        TransferRun<IS_LOAD> run(ring_.Slot());
        while (cursor.item < form_.Items()) {
            for (; cursor.entry < entries; ++cursor.entry, cursor.done = 0) {
                Row row;
                EntryState state = form_.Locate(cursor.entry, first + cursor.entry, row);
                if (state == EntryState::COPY) {
                    Trim(first + cursor.entry, row);
                    while (cursor.done < row.bytes) {
                        uint64_t bytes = row.bytes - cursor.done;
                        uint64_t room = slotBytes - used;
                        if (bytes > room) {
                            bytes = room >= MIN_CUT_PIECE ? room / LINE * LINE : 0;
                        }
                        if (bytes == 0) {
                            run.Flush();
                            return true;
                        }
                        if constexpr (IS_LOAD) {
                            if (used == 0) {
                                ring_.BeginLoad();
                            }
                        }
                        run.Add((IS_LOAD ? row.src : row.dst) + cursor.done, used, static_cast<uint32_t>(bytes));
                        used += static_cast<uint32_t>(RoundUp(bytes, UB_BLOCK));
                        cursor.done += bytes;
                    }
                }
                if constexpr (IS_LOAD) {
                    if (cursor.item == 0) {  // here every entry of the share comes past once
                        Account(first + cursor.entry, state);
                    }
                }
            }
            ++cursor.item;
            cursor.entry = 0;
            if (cursor.item < form_.Items()) {
                form_.SelectItem(cursor.item);
            }
        }
        run.Flush();
        return used != 0;
    }

    // Cuts away what other cores move of the first and the last entry. Both cores find the same byte: the next one at
    // which a line of the destination begins, so that no line is written by two cores.
    __aicore__ inline void Trim(uint64_t entry, Row& row) const
    {
        uint64_t end = entry == share_.end.entry ? CutIn(row, share_.end.byte) : row.bytes;
        uint64_t begin = entry == share_.begin.entry ? CutIn(row, share_.begin.byte) : 0;
        row.src += begin;
        row.dst += begin;
        row.bytes = begin < end ? end - begin : 0;
    }

    __aicore__ inline uint64_t CutIn(const Row& row, uint64_t byte) const
    {
        if (byte <= row.workOffset) {
            return 0;
        }
        uint64_t inRow = byte - row.workOffset;
        return inRow >= row.bytes ? row.bytes : Min(row.bytes, RoundUp(row.dst + inRow, LINE) - row.dst);
    }

    // An entry counts for the core that has its first byte.
    __aicore__ inline void Account(uint64_t entry, EntryState state)
    {
        if (entry == share_.begin.entry && share_.begin.byte != 0) {
            return;
        }
        if (state == EntryState::COPY) {
            ++totals_.copied;
        } else if (state == EntryState::SKIP) {
            ++totals_.skipped;
        } else {
            if (totals_.bad == 0) {
                totals_.firstBad = entry;
            }
            ++totals_.bad;
        }
    }

    AscendC::TBuf<AscendC::TPosition::VECCALC> arguments_;
    AscendC::LocalTensor<uint32_t> tilingWords_;
    AscendC::LocalTensor<uint32_t> countWords_;
    AscendC::LocalTensor<uint32_t> statusWords_;
    Form form_;
    SlotRing ring_;
    BlockWeights weights_;
    Share share_;
    Totals totals_;
    uint64_t core_ = 0;
    uint64_t cores_ = 1;
    uint64_t entries_ = 0;
};

}  // namespace SparseCopy

#endif  // SPARSE_COPY_KERNEL_H
