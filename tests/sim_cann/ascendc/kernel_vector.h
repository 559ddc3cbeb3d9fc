// SPDX-License-Identifier: Apache-2.0
// The vector instructions that op_kernel/ uses (included by kernel_operator.h). They run in the queue of the
// vector unit; like transfers, two of them that touch the same bytes need a PipeBarrier<PIPE_V> between them.
#pragma once

#include <algorithm>
#include <cmath>

namespace AscendC {

enum class RoundMode { CAST_NONE, CAST_RINT, CAST_FLOOR, CAST_CEIL, CAST_ROUND, CAST_TRUNC, CAST_ODD };

constexpr uint32_t kRepeatBytes = 256;  // what one repetition of a vector instruction works on
constexpr int32_t kMaxRepeats = 255;

template <typename T>
ascendc_sim::UbRange VectorRange(const char* call, const LocalTensor<T>& tensor, uint64_t elements) {
  if (elements * sizeof(T) > tensor.bytes())
    ascendc_sim::fault("%s: %llu elements in a tensor of %u bytes", call, (unsigned long long)elements, tensor.bytes());
  return {tensor.begin(), tensor.begin() + static_cast<uint32_t>(elements * sizeof(T))};
}

template <typename T>
void CheckAligned(const char* call, const LocalTensor<T>& tensor, uint32_t alignment) {
  if (tensor.begin() % alignment)
    ascendc_sim::fault("%s: unified buffer offset %u is no multiple of %u", call, tensor.begin(), alignment);
}

// dst[i] = f(src[i]) for the first `count` elements.
template <typename D, typename S, typename F>
void Elementwise(const char* call, const LocalTensor<D>& dst, const LocalTensor<S>& src, int32_t count, F f) {
  CheckAligned(call, dst, ascendc_sim::kUbAlignment);
  CheckAligned(call, src, ascendc_sim::kUbAlignment);
  if (count <= 0) ascendc_sim::fault("%s: count %d", call, count);
  const auto n = static_cast<uint64_t>(count);
  const auto read = VectorRange(call, src, n), write = VectorRange(call, dst, n);
  D* to = dst.data();
  const S* from = src.data();
  Core::current().vector(
      [=] {
        for (uint64_t i = 0; i < n; i++) to[i] = f(from[i]);
      },
      {read}, write);
}

template <typename T>
void Maxs(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalar, const int32_t& count) {
  static_assert(std::is_same_v<T, int32_t> || std::is_same_v<T, float>, "a type of Maxs on A2");
  Elementwise("Maxs", dst, src, count, [scalar](T x) { return std::max(x, scalar); });
}

template <typename T>
void ShiftRight(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalar, const int32_t& count) {
  static_assert(std::is_same_v<T, int32_t> || std::is_same_v<T, uint32_t>, "a type of ShiftRight on A2");
  Elementwise("ShiftRight", dst, src, count, [scalar](T x) { return static_cast<T>(x >> scalar); });
}

template <typename T>
void Duplicate(const LocalTensor<T>& dst, const T& value, const int32_t& count) {
  static_assert(std::is_same_v<T, int16_t> || std::is_same_v<T, int32_t>, "the only types of Duplicate simulated");
  CheckAligned("Duplicate", dst, ascendc_sim::kUbAlignment);
  if (count <= 0) ascendc_sim::fault("Duplicate: count %d", count);
  const auto write = VectorRange("Duplicate", dst, static_cast<uint64_t>(count));
  Core::current().vector([to = dst.data(), value, count] { std::fill_n(to, count, value); }, {}, write);
}

struct GatherMaskParams {
  GatherMaskParams(uint8_t blockStride, uint16_t repeats, uint16_t repeatStride, uint8_t patternStride)
      : src0BlockStride(blockStride),
        repeatTimes(repeats),
        src0RepeatStride(repeatStride),
        src1RepeatStride(patternStride) {}
  uint8_t src0BlockStride;
  uint16_t repeatTimes;
  uint16_t src0RepeatStride;
  uint8_t src1RepeatStride;
};

// The elements whose bit is set in the pattern, one behind the other. What stands behind them, up to the end of a
// repetition, is undefined afterwards. Only one repetition of `mask` elements in counter mode is simulated, and not the
// count that comes back.
template <typename T, typename U>
void GatherMask(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<U>& src1Pattern,
                const bool reduceMode, const uint32_t mask, const GatherMaskParams& params, uint64_t& rsvdCnt) {
  static_assert(std::is_same_v<T, int16_t> && std::is_same_v<U, uint16_t>, "the only types of GatherMask simulated");
  if (!reduceMode || params.repeatTimes != 1 || params.src0BlockStride != 1)
    ascendc_sim::fault("GatherMask: only one repetition in counter mode is simulated");
  if (mask == 0) ascendc_sim::fault("GatherMask: mask 0");
  CheckAligned("GatherMask", dst, ascendc_sim::kUbAlignment);
  CheckAligned("GatherMask", src0, ascendc_sim::kUbAlignment);
  CheckAligned("GatherMask", src1Pattern, ascendc_sim::kUbAlignment);
  constexpr uint32_t kBits = 8 * sizeof(U);
  const auto read = VectorRange("GatherMask", src0, mask);
  const auto pattern = VectorRange("GatherMask", src1Pattern, (mask + kBits - 1) / kBits);
  const uint64_t longest = (uint64_t{mask} * sizeof(T) + kRepeatBytes - 1) / kRepeatBytes * kRepeatBytes;
  rsvdCnt = UINT64_MAX;
  const uint32_t room = dst.bytes();
  T* to = dst.data();
  const T* from = src0.data();
  const U* bits = src1Pattern.data();
  Core::current().vector(
      [=] {
        uint64_t count = 0;
        for (uint32_t i = 0; i < mask; i++) count += bits[i / kBits] >> i % kBits & 1;
        const uint64_t end = (count * sizeof(T) + kRepeatBytes - 1) / kRepeatBytes * kRepeatBytes;
        if (end > room)
          ascendc_sim::fault("GatherMask: %llu elements in a tensor of %u bytes", (unsigned long long)count, room);
        uint64_t next = 0;
        for (uint32_t i = 0; i < mask; i++)
          if (bits[i / kBits] >> i % kBits & 1) to[next++] = from[i];
        memset(to + next, 0xDB, end - next * sizeof(T));
      },
      {read, pattern}, {dst.begin(), dst.begin() + static_cast<uint32_t>(std::min<uint64_t>(longest, room))});
}

template <typename D, typename S>
void Cast(const LocalTensor<D>& dst, const LocalTensor<S>& src, const RoundMode& mode, const uint32_t count) {
  static_assert(std::is_same_v<D, float> && std::is_same_v<S, int32_t>, "the only Cast simulated");
  if (mode != RoundMode::CAST_RINT) ascendc_sim::fault("Cast: only CAST_RINT is simulated");
  Elementwise("Cast", dst, src, static_cast<int32_t>(count), [](S x) { return static_cast<D>(x); });
}

template <typename T>
void Min(const LocalTensor<T>& dst, const LocalTensor<T>& a, const LocalTensor<T>& b, const int32_t& count) {
  static_assert(std::is_same_v<T, int32_t> || std::is_same_v<T, float>, "a type of Min on A2");
  for (const auto* tensor : {&dst, &a, &b}) CheckAligned("Min", *tensor, ascendc_sim::kUbAlignment);
  if (count <= 0) ascendc_sim::fault("Min: count %d", count);
  const auto n = static_cast<uint64_t>(count);
  T *to = dst.data(), *x = a.data(), *y = b.data();
  const auto write = VectorRange("Min", dst, n);
  Core::current().vector(
      [=] {
        for (uint64_t i = 0; i < n; i++) to[i] = std::min(x[i], y[i]);
      },
      {VectorRange("Min", a, n), VectorRange("Min", b, n)}, write);
}

// One sum per repetition, of the elements whose bit is set in the mask. Only contiguous repetitions are
// simulated.
template <typename T>
void WholeReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint64_t mask[], const int32_t repeats,
                    const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride) {
  static_assert(std::is_same_v<T, float>, "the only WholeReduceSum simulated");
  constexpr uint32_t kElements = kRepeatBytes / sizeof(T);
  if (repeats < 0 || repeats > kMaxRepeats) ascendc_sim::fault("WholeReduceSum: %d repetitions", repeats);
  if (dstRepStride != 1 || srcBlkStride != 1 || srcRepStride != 8)
    ascendc_sim::fault("WholeReduceSum: only contiguous repetitions are simulated");
  if (mask[0] == 0 || mask[1] != 0) ascendc_sim::fault("WholeReduceSum: mask of 64 elements");
  CheckAligned("WholeReduceSum", dst, sizeof(T));
  CheckAligned("WholeReduceSum", src, ascendc_sim::kUbAlignment);
  if (repeats == 0) return;
  const uint64_t bits = mask[0];
  const uint64_t last = 64 - static_cast<uint64_t>(__builtin_clzll(bits));  // elements behind it are not touched
  const auto read = VectorRange("WholeReduceSum", src, static_cast<uint64_t>(repeats - 1) * kElements + last);
  const auto write = VectorRange("WholeReduceSum", dst, static_cast<uint64_t>(repeats));
  T* to = dst.data();
  const T* from = src.data();
  Core::current().vector(
      [=] {
        for (int32_t r = 0; r < repeats; r++) {
          T part[kElements] = {};
          for (uint32_t i = 0; i < kElements; i++)
            if (bits >> i & 1) part[i] = from[static_cast<uint32_t>(r) * kElements + i];
          for (uint32_t width = kElements / 2; width; width /= 2)  // pair by pair, as the unit does
            for (uint32_t i = 0; i < width; i++) part[i] = part[2 * i] + part[2 * i + 1];
          to[r] = part[0];
        }
      },
      {read}, write);
}

}  // namespace AscendC
