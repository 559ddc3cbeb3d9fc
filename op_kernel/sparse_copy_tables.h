// SPDX-License-Identifier: Apache-2.0
// Row numbers, addresses and lengths: brought into the unified buffer by DMA, a piece at a time and one piece ahead,
// because a scalar load from global memory costs about as much as a whole transfer.
#ifndef SPARSE_COPY_TABLES_H
#define SPARSE_COPY_TABLES_H

#include "sparse_copy_transfer.h"

namespace SparseCopy {

template <uint32_t TABLES>
class TableReader {
public:
    __aicore__ inline void Init(AscendC::TPipe* pipe, const SparseCopyBuffers& buffers)
    {
        tableBytes_ = buffers.tableBytes;
        pipe->InitBuffer(buffer_, BUFFERS * TABLES * tableBytes_);
        for (uint32_t i = 0; i < BUFFERS; ++i) {
            fetched_[i] = pipe->AllocEventID<AscendC::HardEvent::MTE2_S>();
            released_[i] = pipe->AllocEventID<AscendC::HardEvent::S_MTE2>();
            mustWait_[i] = false;
        }
    }

    __aicore__ inline void SetTable(uint32_t table, const SparseCopyTable& description)
    {
        tables_[table] = description;
    }

    // Starts to bring entries [first, first + entries) of all tables into the other buffer.
    __aicore__ inline void Fetch(uint64_t first, uint32_t entries)
    {
        next_ = current_ ^ 1;
        if (mustWait_[next_]) {
            AscendC::WaitFlag<AscendC::HardEvent::S_MTE2>(released_[next_]);
            mustWait_[next_] = false;
        }
        for (uint32_t t = 0; t < TABLES; ++t) {
            FetchTable(tables_[t], first, entries, BufferOf(next_, t));
        }
        AscendC::SetFlag<AscendC::HardEvent::MTE2_S>(fetched_[next_]);
    }

    // Makes the piece that was fetched the current one.
    __aicore__ inline void Await()
    {
        current_ = next_;
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_S>(fetched_[current_]);
        for (uint32_t t = 0; t < TABLES; ++t) {
            words_[t] = BufferOf(current_, t).template ReinterpretCast<uint32_t>();
        }
    }

    // The current piece is not read any more.
    __aicore__ inline void Release()
    {
        AscendC::SetFlag<AscendC::HardEvent::S_MTE2>(released_[current_]);
        mustWait_[current_] = true;
    }

    // Every flag that was set must have been awaited when the kernel ends.
    __aicore__ inline void Drain()
    {
        for (uint32_t i = 0; i < BUFFERS; ++i) {
            if (mustWait_[i]) {
                AscendC::WaitFlag<AscendC::HardEvent::S_MTE2>(released_[i]);
            }
        }
    }

    __aicore__ inline bool Has(uint32_t table) const
    {
        return tables_[table].entryBytes != 0;
    }

    // Entry `local` of the current piece.
    __aicore__ inline int64_t Value(uint32_t table, uint32_t local) const
    {
        uint32_t word = local * tables_[table].pitch / sizeof(uint32_t);
        if (tables_[table].entryBytes == sizeof(uint64_t)) {
            return static_cast<int64_t>(ReadWide(words_[table], word));
        }
        return static_cast<int32_t>(words_[table].GetValue(word));
    }

private:
    static constexpr uint32_t BUFFERS = 2;

    __aicore__ inline AscendC::LocalTensor<uint8_t> BufferOf(uint32_t buffer, uint32_t table)
    {
        return buffer_.GetWithOffset<uint8_t>(tableBytes_, (buffer * TABLES + table) * tableBytes_);
    }

    __aicore__ inline void FetchTable(const SparseCopyTable& table, uint64_t first, uint32_t entries,
                                      const AscendC::LocalTensor<uint8_t>& to)
    {
        if (table.entryBytes == 0) {
            return;
        }
        uint64_t address = table.address + first * table.stride;
        if (table.stride ==
            table.pitch) {  // close together: the gaps come along. Nothing behind the last entry is read
            LoadBlocks(to, address, 1, (entries - 1) * table.pitch + table.entryBytes, 0);
            return;
        }
        uint64_t gap = table.stride - table.entryBytes;
        if (gap <= MAX_GAP) {
            LoadBlocks(to, address, entries, table.entryBytes, static_cast<uint32_t>(gap));
            return;
        }
        for (uint32_t i = 0; i < entries; ++i) {
            LoadBlocks(to[i * table.pitch], address + i * table.stride, 1, table.entryBytes, 0);
        }
    }

    AscendC::TBuf<AscendC::TPosition::VECCALC> buffer_;
    AscendC::LocalTensor<uint32_t> words_[TABLES];
    SparseCopyTable tables_[TABLES];
    AscendC::TEventID fetched_[BUFFERS];
    AscendC::TEventID released_[BUFFERS];
    bool mustWait_[BUFFERS];
    uint32_t tableBytes_ = 0;
    uint32_t current_ = 1;
    uint32_t next_ = 0;
};

}  // namespace SparseCopy

#endif  // SPARSE_COPY_TABLES_H
