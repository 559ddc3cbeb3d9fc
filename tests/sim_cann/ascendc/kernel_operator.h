// SPDX-License-Identifier: Apache-2.0
// The AscendC calls that op_kernel/ uses, for the host: the same names and signatures as the vendor's header
// of this name, with the limits of the vendor's documentation enforced. What is not here does not compile, so
// that a kernel can use no call whose behaviour nobody has written down.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core.h"
#include "launch.h"

#define __aicore__
#define __global__
#define __gm__
#define GM_ADDR __gm__ uint8_t*

enum KernelType { KERNEL_TYPE_AIV_ONLY };
#define KERNEL_TASK_TYPE_DEFAULT(type) static_assert((type) == KERNEL_TYPE_AIV_ONLY, "the only type simulated")

enum pipe_t { PIPE_S, PIPE_V, PIPE_MTE2, PIPE_MTE3, PIPE_ALL };

namespace AscendC {

using TEventID = int8_t;
using ascendc_sim::Core;
using ascendc_sim::Pipe;

enum class TPosition : uint8_t { GM, VECIN, VECOUT, VECCALC };
using QuePosition = TPosition;

enum class HardEvent : uint8_t {
  MTE2_S,
  S_MTE2,
  MTE3_S,
  S_MTE3,
  V_S,
  S_V,
  MTE2_MTE3,
  MTE3_MTE2,
  MTE2_V,
  V_MTE2,
  V_MTE3,
  MTE3_V
};

// Source and destination of an event.
constexpr Pipe kEventEnds[][2] = {
    {ascendc_sim::kMte2, ascendc_sim::kScalar},   {ascendc_sim::kScalar, ascendc_sim::kMte2},
    {ascendc_sim::kMte3, ascendc_sim::kScalar},   {ascendc_sim::kScalar, ascendc_sim::kMte3},
    {ascendc_sim::kVector, ascendc_sim::kScalar}, {ascendc_sim::kScalar, ascendc_sim::kVector},
    {ascendc_sim::kMte2, ascendc_sim::kMte3},     {ascendc_sim::kMte3, ascendc_sim::kMte2},
    {ascendc_sim::kMte2, ascendc_sim::kVector},   {ascendc_sim::kVector, ascendc_sim::kMte2},
    {ascendc_sim::kVector, ascendc_sim::kMte3},   {ascendc_sim::kMte3, ascendc_sim::kVector}};
constexpr Pipe EventFrom(HardEvent event) { return kEventEnds[static_cast<int>(event)][0]; }
constexpr Pipe EventTo(HardEvent event) { return kEventEnds[static_cast<int>(event)][1]; }

inline int64_t GetBlockIdx() { return Core::current().index(); }
inline int64_t GetBlockNum() { return Core::current().cores(); }

// Memory that only DMA and the scalar calls below may reach. The address is the device's: never a host
// pointer.
template <typename T>
class GlobalTensor {
 public:
  void SetGlobalBuffer(__gm__ T* buffer, uint64_t size) {
    address_ = reinterpret_cast<uint64_t>(buffer);
    size_ = size;
  }
  void SetGlobalBuffer(__gm__ T* buffer) { SetGlobalBuffer(buffer, UINT64_MAX); }
  GlobalTensor operator[](uint64_t offset) const {
    GlobalTensor part = *this;
    part.address_ += offset * sizeof(T);
    if (part.size_ != UINT64_MAX) part.size_ -= offset;
    return part;
  }
  T GetValue(uint64_t offset) const {
    T value;
    memcpy(&value, Core::current().scalarGlobal(address_ + offset * sizeof(T), sizeof(T), false), sizeof(T));
    return value;
  }
  void SetValue(uint64_t offset, T value) const {
    memcpy(Core::current().scalarGlobal(address_ + offset * sizeof(T), sizeof(T), true), &value, sizeof(T));
  }
  __gm__ T* GetPhyAddr() const { return reinterpret_cast<T*>(address_); }
  uint64_t address() const { return address_; }
  uint64_t GetSize() const { return size_; }

 private:
  uint64_t address_ = 0;
  uint64_t size_ = 0;
};

// A part of the unified buffer, `bytes_` long: nothing reached through it may lie beyond.
template <typename T>
class LocalTensor {
 public:
  LocalTensor() = default;
  LocalTensor(uint32_t begin, uint32_t bytes) : begin_(begin), bytes_(bytes) {}

  LocalTensor operator[](uint32_t offset) const {
    const uint64_t skipped = uint64_t{offset} * sizeof(T);
    if (skipped > bytes_) ascendc_sim::fault("LocalTensor: offset %u of %u bytes", offset, bytes_);
    return LocalTensor(begin_ + static_cast<uint32_t>(skipped), bytes_ - static_cast<uint32_t>(skipped));
  }
  T GetValue(uint32_t offset) const {
    T value;
    memcpy(&value, scalar(offset, false), sizeof(T));
    return value;
  }
  void SetValue(uint32_t offset, T value) const { memcpy(scalar(offset, true), &value, sizeof(T)); }
  template <typename U>
  LocalTensor<U> ReinterpretCast() const {
    return LocalTensor<U>(begin_, bytes_);
  }
  uint32_t GetSize() const { return bytes_ / sizeof(T); }

  uint32_t begin() const { return begin_; }
  uint32_t bytes() const { return bytes_; }
  T* data() const { return reinterpret_cast<T*>(Core::current().ub() + begin_); }

 private:
  uint8_t* scalar(uint32_t offset, bool write) const {
    if ((uint64_t{offset} + 1) * sizeof(T) > bytes_)
      ascendc_sim::fault("LocalTensor: element %u of %zu", offset, bytes_ / sizeof(T));
    const uint32_t at = begin_ + offset * static_cast<uint32_t>(sizeof(T));
    Core::current().scalarUb(at, sizeof(T), write);
    return Core::current().ub() + at;
  }
  uint32_t begin_ = 0;
  uint32_t bytes_ = 0;
};

template <TPosition position>
class TBuf {
 public:
  template <typename T>
  LocalTensor<T> Get() const {
    return LocalTensor<T>(begin_, bytes_);
  }
  template <typename T>
  LocalTensor<T> GetWithOffset(uint32_t size, uint32_t offset) const {
    if (uint64_t{offset} + uint64_t{size} * sizeof(T) > bytes_)
      ascendc_sim::fault("TBuf::GetWithOffset: %zu bytes at %u of %u", size * sizeof(T), offset, bytes_);
    return LocalTensor<T>(begin_ + offset, static_cast<uint32_t>(size * sizeof(T)));
  }

 private:
  friend class TPipe;
  uint32_t begin_ = 0;
  uint32_t bytes_ = 0;
};

class TPipe {
 public:
  template <TPosition position>
  bool InitBuffer(TBuf<position>& buffer, uint32_t bytes) {
    buffer.begin_ = Core::current().allocateUb(bytes);
    buffer.bytes_ = (bytes + ascendc_sim::kUbAlignment - 1) / ascendc_sim::kUbAlignment * ascendc_sim::kUbAlignment;
    return true;
  }
  template <HardEvent event>
  TEventID AllocEventID() {
    return static_cast<TEventID>(Core::current().allocateEvent(EventFrom(event), EventTo(event)));
  }
  template <HardEvent event>
  void ReleaseEventID(TEventID id) {
    Core::current().releaseEvent(EventFrom(event), EventTo(event), id);
  }
};

template <HardEvent event>
void SetFlag(int32_t id) {
  Core::current().setFlag(EventFrom(event), EventTo(event), id);
}

template <HardEvent event>
void WaitFlag(int32_t id) {
  Core::current().waitFlag(EventFrom(event), EventTo(event), id);
}

template <pipe_t pipe>
void PipeBarrier() {
  static_assert(pipe != PIPE_S, "PipeBarrier<PIPE_S> is not legal");
  if constexpr (pipe == PIPE_ALL)
    Core::current().barrierAll();
  else
    Core::current().barrier(pipe == PIPE_V      ? ascendc_sim::kVector
                            : pipe == PIPE_MTE2 ? ascendc_sim::kMte2
                                                : ascendc_sim::kMte3);
}

struct DataCopyExtParams {
  DataCopyExtParams() = default;
  DataCopyExtParams(uint16_t count, uint32_t len, uint32_t srcGap, uint32_t dstGap, uint32_t reserved)
      : blockCount(count), blockLen(len), srcStride(srcGap), dstStride(dstGap), rsv(reserved) {}
  uint16_t blockCount = 1;
  uint32_t blockLen = 0;
  uint32_t srcStride = 0;
  uint32_t dstStride = 0;
  uint32_t rsv = 0;
};

template <typename T>
struct DataCopyPadExtParams {
  DataCopyPadExtParams() = default;
  DataCopyPadExtParams(bool pad, uint8_t left, uint8_t right, T value)
      : isPad(pad), leftPadding(left), rightPadding(right), paddingValue(value) {}
  bool isPad = false;
  uint8_t leftPadding = 0;
  uint8_t rightPadding = 0;
  T paddingValue = 0;
};

// The part of the unified buffer that the instruction takes must lie in the tensor it was given.
inline void CheckInside(const char* call, uint32_t bytes, const DataCopyExtParams& p, uint32_t ubGap) {
  const uint64_t padded = (uint64_t{p.blockLen} + ascendc_sim::kUbAlignment - 1) / 32 * 32;
  if (p.blockCount && p.blockLen && padded * p.blockCount + uint64_t{ubGap} * 32 * (p.blockCount - 1u) > bytes)
    ascendc_sim::fault("%s: %u blocks of %u bytes in a tensor of %u bytes", call, p.blockCount, p.blockLen, bytes);
}

// Global memory to unified buffer (MTE2).
template <typename T>
void DataCopyPad(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const DataCopyExtParams& p,
                 const DataCopyPadExtParams<T>& pad) {
  if (p.blockLen % sizeof(T))
    ascendc_sim::fault("DataCopyPad: blockLen %u of elements of %zu bytes", p.blockLen, sizeof(T));
  if (pad.isPad) ascendc_sim::fault("DataCopyPad: padding is not simulated");
  CheckInside("DataCopyPad to the unified buffer", dst.bytes(), p, p.dstStride);
  Core::current().transfer({true, src.address(), dst.begin(), p.blockCount, p.blockLen, p.srcStride, p.dstStride});
}

// Unified buffer to global memory (MTE3).
template <typename T>
void DataCopyPad(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyExtParams& p) {
  if (p.blockLen % sizeof(T))
    ascendc_sim::fault("DataCopyPad: blockLen %u of elements of %zu bytes", p.blockLen, sizeof(T));
  CheckInside("DataCopyPad to global memory", src.bytes(), p, p.srcStride);
  Core::current().transfer({false, dst.address(), src.begin(), p.blockCount, p.blockLen, p.dstStride, p.srcStride});
}

}  // namespace AscendC

#include "kernel_vector.h"
