// SPDX-License-Identifier: Apache-2.0
// The first kernel of plan_residency: one request at a time on each core, with its whole state in the unified buffer.
// It looks the tokens of the slots up in the step's top-k, not the other way round: the state needs no index then, and
// the work is O(topK + slots) whatever the context. Nothing of a request's state is stored before all of the request
// has been checked; one that is refused leaves slots of -1 and a note in the status.
#ifndef PLAN_RESIDENCY_H
#define PLAN_RESIDENCY_H

#include "plan_residency_misses.h"
#include "plan_residency_tokens.h"

namespace PlanResidency {

class Planner {
public:
    __aicore__ inline void Run(AscendC::TPipe* pipe, GM_ADDR tiling, uint64_t tilingBytes)
    {
        t_ = FetchTiling(pipe, tiling, tilingBytes);
        core_ = static_cast<uint64_t>(AscendC::GetBlockIdx());
        uint64_t cores = static_cast<uint64_t>(AscendC::GetBlockNum());
        Init(pipe);
        uint64_t end = FirstRequest(t_.requests, core_ + 1, cores);
        for (uint64_t r = FirstRequest(t_.requests, core_, cores); r < end; ++r) {
            Plan(r);
        }
        wanted_.Drain();
        RecordRefusals();
    }

private:
    static constexpr uint32_t BITS = 32;  // of a word of them

    __aicore__ inline void Init(AscendC::TPipe* pipe)
    {
        const PlanResidencyPlaces& at = t_.places;
        pipe->InitBuffer(buffer_, at.bytes);
        numbers_ = Part<uint32_t>(at.numbers, at.tokens);
        tokens_ = Part<int32_t>(at.tokens, at.lru);
        lru_ = Part<int16_t>(at.lru, at.order);
        order_ = Part<int16_t>(at.order, at.used);
        used_ = Part<int32_t>(at.used, at.loaded);
        loaded_ = Part<int32_t>(at.loaded, at.rest);
        rest_ = Part<int32_t>(at.rest, at.wanted);
        tokensOfStep_ = Part<int32_t>(at.wanted, at.slots);
        slots_ = Part<int32_t>(at.slots, at.heads);
        status_ = Part<uint32_t>(at.src, at.dst);
        wanted_.Init(pipe, t_, tokensOfStep_, slots_, Part<int16_t>(at.heads, at.blocks));
        missing_.Init(pipe, t_, Part<uint32_t>(at.blocks, at.src), status_, Part<uint32_t>(at.dst, at.bytes));
        flags_.Init(pipe);
        fetched_ = pipe->AllocEventID<AscendC::HardEvent::MTE2_S>();
        free_ = pipe->AllocEventID<AscendC::HardEvent::S_MTE2>();
    }

    template <typename T>
    __aicore__ inline AscendC::LocalTensor<T> Part(uint32_t begin, uint32_t end)
    {
        return buffer_.GetWithOffset<T>((end - begin) / static_cast<uint32_t>(sizeof(T)), begin);
    }

    __aicore__ inline void Plan(uint64_t r)
    {
        StartFetching(r);
        hits_ = 0;
        refusal_ = wanted_.Read(flags_) ? RESIDENCY_REFUSED_NONE : RESIDENCY_REFUSED_TOKEN;
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_S>(fetched_);
        request_ = Number(REQUEST, t_.requestIds.entryBytes);
        isFresh_ = Number(OWNER, sizeof(int64_t)) != request_;
        if (request_ < 0) {
            StoreNothing(r);
            return;
        }
        if (wanted_.Distinct() > t_.slotCount) {
            Refuse(RESIDENCY_REFUSED_SLOTS);
        }
        if (refusal_ == RESIDENCY_REFUSED_NONE) {
            FindHits();
        }
        if (refusal_ == RESIDENCY_REFUSED_NONE) {
            RenewOrder();
            TakeSlots(r);
        }
        if (refusal_ == RESIDENCY_REFUSED_NONE) {
            Store(r);
            return;
        }
        ++refused_;
        lastRefusal_ = r << 8 | refusal_;
        StoreNothing(r);
    }

    // The first error counts.
    __aicore__ inline void Refuse(uint32_t refusal)
    {
        refusal_ = refusal_ == RESIDENCY_REFUSED_NONE ? refusal : refusal_;
    }

    // Everything that the request needs at once: its tokens, which are read first, then its state.
    __aicore__ inline void StartFetching(uint64_t r)
    {
        // What was read and stored of the request before makes room.
        AscendC::SetFlag<AscendC::HardEvent::S_MTE2>(free_);
        AscendC::WaitFlag<AscendC::HardEvent::S_MTE2>(free_);
        wanted_.StartFetching(r);
        LoadNumber(REQUEST, t_.requestIds.address + r * t_.requestIds.stride, t_.requestIds.entryBytes);
        LoadNumber(OWNER, t_.owners + r * sizeof(int64_t), sizeof(int64_t));
        if (t_.stablePrefix.entryBytes != 0) {
            LoadNumber(STABLE, t_.stablePrefix.address + r * t_.stablePrefix.stride, t_.stablePrefix.entryBytes);
        }
        LoadBlocks(tokens_.ReinterpretCast<uint8_t>(), t_.slotTokens + r * TokensBytes(), 1, TokensBytes(), 0);
        LoadBlocks(lru_.ReinterpretCast<uint8_t>(), t_.lru + r * LruBytes(), 1, LruBytes(), 0);
        AscendC::SetFlag<AscendC::HardEvent::MTE2_S>(fetched_);
    }

    // Goes through the slots, least recently used first, and tells those that hold a token of this step from the rest,
    // by a bit for each place in that order. Slots of tokens that may have changed since, and all of another request,
    // become empty.
    __aicore__ inline void FindHits()
    {
        isChanged_ = isFresh_;
        if (isFresh_) {
            StartEmpty();
            return;
        }
        int64_t stable = t_.stablePrefix.entryBytes != 0 ? Number(STABLE, t_.stablePrefix.entryBytes) : INT64_MAX;
        AscendC::LocalTensor<uint32_t> pairs = lru_.ReinterpretCast<uint32_t>();
        uint32_t pair = 0;
        for (uint32_t word = 0; word < Words(); ++word) {
            uint32_t first = word * BITS;
            uint32_t count = t_.slotCount - first < BITS ? t_.slotCount - first : BITS;
            uint32_t used = 0;
            for (uint32_t bit = 0; bit < count; ++bit) {
                pair = bit % 2 == 0 ? pairs.GetValue((first + bit) / 2) : pair >> 16;
                int32_t slot = static_cast<int16_t>(pair);
                if (slot < 0 || slot >= static_cast<int32_t>(t_.slotCount)) {
                    Refuse(RESIDENCY_REFUSED_STATE);
                    return;
                }
                used |= IsHit(static_cast<uint32_t>(slot), stable) ? 1u << bit : 0;
            }
            used_.SetValue(word, static_cast<int32_t>(used));
            rest_.SetValue(word, static_cast<int32_t>(~used));
        }
    }

    // As if the slots had been used one after the other, and hold nothing.
    __aicore__ inline void StartEmpty()
    {
        flags_.Fill(tokens_, RESIDENCY_EMPTY, t_.slotCount);
        flags_.Fill(used_, 0, Words());
        flags_.Fill(rest_, -1, Words());
        AscendC::LocalTensor<uint32_t> pairs = lru_.ReinterpretCast<uint32_t>();
        for (uint32_t slot = 0; slot < t_.slotCount; slot += 2) {
            pairs.SetValue(slot / 2, (slot + 1) << 16 | slot);
        }
    }

    __aicore__ inline bool IsHit(uint32_t slot, int64_t stable)
    {
        int32_t token = tokens_.GetValue(slot);
        if (token < 0) {
            return false;
        }
        if (token >= stable) {
            tokens_.SetValue(slot, RESIDENCY_EMPTY);
            isChanged_ = true;
            return false;
        }
        int32_t position = wanted_.Find(token);
        if (position < 0 || slots_.GetValue(position) != StepTokens::MISSING) {
            return false;
        }
        slots_.SetValue(position, static_cast<int32_t>(slot));
        ++hits_;
        return true;
    }

    // The order after this step: slots that it does not use, those that it loads (the oldest of the rest), those that
    // it reads again; each as they were.
    __aicore__ inline void RenewOrder()
    {
        misses_ = wanted_.Distinct() - hits_;
        flags_.Fill(loaded_, 0, Words());
        uint32_t left = misses_;
        for (uint32_t word = 0; left != 0; ++word) {
            uint32_t rest = static_cast<uint32_t>(rest_.GetValue(word));
            uint32_t loaded = 0;
            for (; rest != 0 && left != 0; --left) {
                uint32_t oldest = rest & (~rest + 1);
                loaded |= oldest;
                rest ^= oldest;
            }
            loaded_.SetValue(word, static_cast<int32_t>(loaded));
            rest_.SetValue(word, static_cast<int32_t>(rest));
        }
        restCount_ = t_.slotCount - hits_ - misses_;
        loadedAt_ = Aligned(restCount_);
        usedAt_ = loadedAt_ + Aligned(misses_);
        flags_.BeginVector();
        // In the order of their places, since what stands behind the last slot of a part is undefined.
        Collect(0, rest_, restCount_);
        Collect(loadedAt_, loaded_, misses_);
        Collect(usedAt_, used_, hits_);
        flags_.EndVector();
    }

    // The slots whose bit is set, to a place in `order_`.
    __aicore__ inline void Collect(uint32_t to, const AscendC::LocalTensor<int32_t>& bits, uint32_t count)
    {
        if (count == 0) {
            return;
        }
        uint64_t found = 0;  // known before
        AscendC::GatherMask(order_[to], lru_, bits.ReinterpretCast<uint16_t>(), true, t_.slotCount, {1, 1, 8, 8},
                            found);
        AscendC::PipeBarrier<PIPE_V>();
    }

    __aicore__ inline uint32_t Aligned(uint32_t slots) const
    {
        constexpr uint32_t IN_BLOCK = UB_BLOCK / sizeof(int16_t);
        return (slots + IN_BLOCK - 1) / IN_BLOCK * IN_BLOCK;
    }

    __aicore__ inline uint32_t Words() const
    {
        return (t_.slotCount + BITS - 1) / BITS;
    }

    // Gives every missing token its slot, in the order of the step's tokens, and stages what has to move.
    __aicore__ inline void TakeSlots(uint64_t r)
    {
        uint32_t taken = 0;
        missing_.Begin(r);
        for (uint32_t i = 0; i < t_.topK; ++i) {
            int32_t slot = slots_.GetValue(i);
            if (slot == StepTokens::MISSING) {
                slot = order_.GetValue(loadedAt_ + taken);
                ++taken;
                int32_t token = tokensOfStep_.GetValue(i);
                tokens_.SetValue(slot, token);
                slots_.SetValue(i, slot);
                missing_.Add(flags_, token, r * t_.slotCount + static_cast<uint64_t>(slot));
            } else if (slot <= StepTokens::REPEATED) {
                slots_.SetValue(i, slots_.GetValue(StepTokens::REPEATED - slot));
            }
        }
        isChanged_ = isChanged_ || taken != 0;
        if (!missing_.End(flags_)) {
            Refuse(RESIDENCY_REFUSED_BLOCK);
        }
    }

    __aicore__ inline void Store(uint64_t r)
    {
        WriteStruct(numbers_[RECORD * BLOCK_WORDS], PlanResidencyRecord{misses_, hits_, {}});
        WriteStruct(numbers_[OWNER * BLOCK_WORDS], request_);
        flags_.BeginStore();
        StoreRow(t_.slots, r, slots_.ReinterpretCast<uint8_t>(), SlotsBytes());
        if (isChanged_) {
            StoreRow(t_.slotTokens, r, tokens_.ReinterpretCast<uint8_t>(), TokensBytes());
        }
        uint64_t lru = t_.lru + r * LruBytes();
        StoreSlots(lru, 0, restCount_);
        StoreSlots(lru + restCount_ * sizeof(int16_t), loadedAt_, misses_);
        StoreSlots(lru + (restCount_ + misses_) * sizeof(int16_t), usedAt_, hits_);
        if (isFresh_) {
            StoreBlocks(t_.owners + r * sizeof(int64_t), Place(OWNER), 1, sizeof(int64_t), 0);
        }
        StoreRecord(r);
        flags_.EndStore();
    }

    // Nobody's request, or one that is refused: no slots, no misses, the state as it was.
    __aicore__ inline void StoreNothing(uint64_t r)
    {
        flags_.Fill(slots_, RESIDENCY_EMPTY, t_.topK);
        WriteStruct(numbers_[RECORD * BLOCK_WORDS], PlanResidencyRecord{});
        flags_.BeginStore();
        StoreRow(t_.slots, r, slots_.ReinterpretCast<uint8_t>(), SlotsBytes());
        StoreRecord(r);
        flags_.EndStore();
    }

    __aicore__ inline void StoreRow(uint64_t matrix, uint64_t r, const AscendC::LocalTensor<uint8_t>& row,
                                    uint32_t bytes) const
    {
        StoreBlocks(matrix + r * bytes, row, 1, bytes, 0);
    }

    __aicore__ inline void StoreSlots(uint64_t address, uint32_t from, uint32_t count) const
    {
        if (count != 0) {
            StoreBlocks(address, order_[from].ReinterpretCast<uint8_t>(), 1,
                        count * static_cast<uint32_t>(sizeof(int16_t)), 0);
        }
    }

    __aicore__ inline void StoreRecord(uint64_t r) const
    {
        StoreBlocks(t_.records + r * sizeof(PlanResidencyRecord), Place(RECORD), 1, sizeof(PlanResidencyRecord), 0);
    }

    // Adds to this core's record of the stream, which sparse_copy's launches use in their turn.
    __aicore__ inline void RecordRefusals()
    {
        if (refused_ == 0) {
            return;
        }
        AscendC::SetFlag<AscendC::HardEvent::S_MTE2>(free_);
        AscendC::WaitFlag<AscendC::HardEvent::S_MTE2>(free_);
        AscendC::LocalTensor<uint8_t> place = status_.ReinterpretCast<uint8_t>();
        uint64_t address = t_.statusAddress + core_ * SPARSE_COPY_STATUS_PITCH;
        LoadBlocks(place, address, 1, sizeof(SparseCopyStatusRecord), 0);
        AscendC::SetFlag<AscendC::HardEvent::MTE2_S>(fetched_);
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_S>(fetched_);
        SparseCopyStatusRecord record = ReadStruct<SparseCopyStatusRecord>(status_, 0);
        record.refusedRequests += refused_;
        record.refusal = lastRefusal_;
        WriteStruct(status_, record);
        flags_.BeginStore();
        StoreBlocks(address, place, 1, sizeof(record), 0);
        flags_.EndStore();
    }

    // Places in `numbers_`, 32 bytes each.
    static constexpr uint32_t REQUEST = 0;
    static constexpr uint32_t OWNER = 1;
    static constexpr uint32_t STABLE = 2;
    static constexpr uint32_t RECORD = 3;

    __aicore__ inline AscendC::LocalTensor<uint8_t> Place(uint32_t place) const
    {
        return numbers_[place * BLOCK_WORDS].ReinterpretCast<uint8_t>();
    }

    __aicore__ inline void LoadNumber(uint32_t place, uint64_t address, uint32_t bytes) const
    {
        LoadBlocks(Place(place), address, 1, bytes, 0);
    }

    __aicore__ inline int64_t Number(uint32_t place, uint32_t bytes) const
    {
        return ReadNumber(numbers_, place * BLOCK_WORDS, bytes);
    }

    __aicore__ inline uint32_t TokensBytes() const
    {
        return t_.slotCount * static_cast<uint32_t>(sizeof(int32_t));
    }

    __aicore__ inline uint32_t LruBytes() const
    {
        return t_.slotCount * static_cast<uint32_t>(sizeof(int16_t));
    }

    __aicore__ inline uint32_t SlotsBytes() const
    {
        return t_.topK * static_cast<uint32_t>(sizeof(int32_t));
    }

    PlanResidencyTilingData t_;
    AscendC::TBuf<AscendC::TPosition::VECCALC> buffer_;
    AscendC::LocalTensor<uint32_t> numbers_;
    AscendC::LocalTensor<int32_t> tokens_;
    AscendC::LocalTensor<int16_t> lru_;
    AscendC::LocalTensor<int16_t> order_;
    AscendC::LocalTensor<int32_t> used_;    // bits, by the place in lru_: read again by this step
    AscendC::LocalTensor<int32_t> loaded_;  // loaded by it
    AscendC::LocalTensor<int32_t> rest_;    // neither
    AscendC::LocalTensor<int32_t> tokensOfStep_;
    AscendC::LocalTensor<int32_t> slots_;
    AscendC::LocalTensor<uint32_t> status_;  // the place of `missing_`, when all requests are done
    StepTokens wanted_;
    StagedMisses missing_;
    Flags flags_;
    AscendC::TEventID fetched_ = 0;
    AscendC::TEventID free_ = 0;
    uint64_t core_ = 0;
    int64_t request_ = 0;
    uint64_t refused_ = 0;
    uint64_t lastRefusal_ = 0;
    uint32_t hits_ = 0;
    uint32_t misses_ = 0;
    uint32_t restCount_ = 0;
    uint32_t loadedAt_ = 0;  // in order_
    uint32_t usedAt_ = 0;
    uint32_t refusal_ = RESIDENCY_REFUSED_NONE;
    bool isFresh_ = false;
    bool isChanged_ = false;
};

}  // namespace PlanResidency

#endif  // PLAN_RESIDENCY_H
