// SPDX-License-Identifier: Apache-2.0
// The model itself: limits are enforced, DMA runs when it may, and what no order shows is found by the rules.
#include <cstring>
#include <functional>

#include "check.h"
#include "kernel_operator.h"
#include "stand_in.h"

using namespace AscendC;

namespace {

using Buffer = TBuf<TPosition::VECCALC>;

struct Setup {
  int order = kAscendcSimLatest;
  uint32_t cores = 1;
  uint32_t ub_bytes = 196608;
  int allow_same_writes = 0;
};

// Runs a kernel body; the fault it ended with, or "".
std::string run(const std::function<void(TPipe&)>& body, Setup setup = {}) {
  AscendcSimSettings settings{setup.order, 2, 1, setup.ub_bytes, setup.allow_same_writes, 0};
  ascendcSimSetSettings(&settings);
  stand_in::takeFault();
  ascendc_sim::launch("test", setup.cores, [&] {
    TPipe pipe;
    body(pipe);
  });
  return stand_in::takeFault();
}

GlobalTensor<uint8_t> at(uint64_t address) {
  GlobalTensor<uint8_t> tensor;
  tensor.SetGlobalBuffer(reinterpret_cast<uint8_t*>(address));
  return tensor;
}

void load(const LocalTensor<uint8_t>& to, uint64_t from, uint32_t bytes, uint16_t blocks = 1, uint32_t gap = 0) {
  DataCopyPad(to, at(from), DataCopyExtParams(blocks, bytes, gap, 0, 0), DataCopyPadExtParams<uint8_t>(false, 0, 0, 0));
}

void store(uint64_t to, const LocalTensor<uint8_t>& from, uint32_t bytes, uint16_t blocks = 1, uint32_t gap = 0) {
  DataCopyPad(at(to), from, DataCopyExtParams(blocks, bytes, 0, gap, 0));
}

template <HardEvent event>
void order(TPipe& pipe) {
  TEventID id = pipe.AllocEventID<event>();
  SetFlag<event>(id);
  WaitFlag<event>(id);
  pipe.ReleaseEventID<event>(id);
}

struct Memory : stand_in::DeviceMemory {
  explicit Memory(uint64_t bytes) : DeviceMemory(bytes) {
    for (uint64_t i = 0; i < bytes; i++) host()[i] = static_cast<uint8_t>(i * 13 + 5);
  }
};

LocalTensor<uint8_t> tensorOf(TPipe& pipe, uint32_t bytes) {
  Buffer buffer;
  pipe.InitBuffer(buffer, bytes);
  return buffer.Get<uint8_t>();
}

}  // namespace

TEST(a_right_copy_is_right_in_every_order) {
  for (int order_of_dma = 0; order_of_dma <= kAscendcSimStoresEarly; order_of_dma++) {
    Memory from(100), to(100);
    memset(to.host(), 0, 100);
    CHECK_EQ(run(
                 [&](TPipe& pipe) {
                   auto ub = tensorOf(pipe, 100);
                   load(ub, from.address(), 100);
                   order<HardEvent::MTE2_MTE3>(pipe);
                   store(to.address(), ub, 100);
                 },
                 {order_of_dma}),
             "");
    CHECK_EQ(memcmp(from.host(), to.host(), 100), 0);
    AscendcSimCounters counters;
    ascendcSimCountersOfCore(0, &counters);
    CHECK_EQ(counters.load_bytes, 100u);
    CHECK_EQ(counters.store_instructions, 1u);
    CHECK_EQ(counters.ub_high_water, 128u);
    CHECK_EQ(counters.set_flags, 1u);
  }
}

TEST(strided_blocks) {
  Memory from(1000), to(1000);
  memset(to.host(), 0, 1000);
  CHECK_EQ(run([&](TPipe& pipe) {
             auto ub = tensorOf(pipe, 4 * 32);
             load(ub, from.address() + 1, 10, 4, 90);
             order<HardEvent::MTE2_MTE3>(pipe);
             store(to.address() + 3, ub, 10, 4, 5);
           }),
           "");
  for (int b = 0; b < 4; b++) CHECK_EQ(memcmp(to.host() + 3 + b * 15, from.host() + 1 + b * 100, 10), 0);
  CHECK_EQ(int{to.host()[13]}, 0);
}

TEST(limits_of_a_transfer) {
  Memory memory(1 << 16);
  const uint64_t a = memory.address();
  auto fault = [&](std::function<void(LocalTensor<uint8_t>)> body) {
    return run([&](TPipe& pipe) { body(tensorOf(pipe, 4096)); });
  };
  CHECK_CONTAINS(fault([&](auto ub) { load(ub[16], a, 8); }), "no multiple of 32");
  CHECK_CONTAINS(fault([&](auto ub) { store(a, ub[8], 8); }), "no multiple of 32");
  CHECK_CONTAINS(fault([&](auto ub) { load(ub, a, 4097); }), "in a tensor of 4096 bytes");
  CHECK_CONTAINS(fault([&](auto ub) { load(ub, a, 1, 129); }), "in a tensor of 4096 bytes");
  CHECK_CONTAINS(fault([&](auto ub) { load(ub, a, 0, 4096); }), "blockCount 4096");
  CHECK_CONTAINS(fault([&](auto ub) { load(ub, a, 2097152, 0); }), "blockLen 2097152");
  CHECK_CONTAINS(fault([&](auto ub) { ub[5000]; }), "offset 5000 of 4096");
  CHECK_CONTAINS(fault([&](auto ub) { ub.GetValue(4096); }), "element 4096 of 4096");
  CHECK_CONTAINS(fault([&](auto ub) { load(ub, a + (1 << 16) - 4, 8); }), "outside of live memory");
  CHECK_CONTAINS(fault([&](auto ub) { load(ub, 64, 8); }), "outside of live memory");
  CHECK_EQ(fault([&](auto ub) { load(ub, a, 0, 1); }), "");  // nothing to do is allowed
}

TEST(limits_of_the_unified_buffer) {
  for (uint32_t bytes : {196608u, 253952u}) {
    CHECK_EQ(run([&](TPipe& pipe) { tensorOf(pipe, bytes); }, {0, 1, bytes}), "");
    CHECK_CONTAINS(run([&](TPipe& pipe) { tensorOf(pipe, bytes + 1); }, {0, 1, bytes}), "InitBuffer");
    CHECK_CONTAINS(run([&](TPipe& pipe) { tensorOf(pipe, bytes - 32), tensorOf(pipe, 33); }, {0, 1, bytes}),
                   "InitBuffer");
  }
  CHECK_CONTAINS(run([&](TPipe& pipe) {
                   for (int i = 0; i < 65; i++) tensorOf(pipe, 32);
                 }),
                 "more than 64 buffers");
}

TEST(limits_of_flags) {
  CHECK_CONTAINS(run([](TPipe& pipe) {
                   for (int i = 0; i < 9; i++) pipe.AllocEventID<HardEvent::MTE2_S>();
                 }),
                 "all 8 ids are taken");
  CHECK_CONTAINS(run([](TPipe&) { SetFlag<HardEvent::MTE2_S>(8); }), "no such flag");
  CHECK_CONTAINS(run([](TPipe&) { SetFlag<HardEvent::MTE2_S>(0); }), "not awaited when the kernel ended");
  CHECK_CONTAINS(run([](TPipe&) { WaitFlag<HardEvent::MTE2_S>(0); }), "hangs");
  CHECK_CONTAINS(run([](TPipe&) { WaitFlag<HardEvent::MTE2_MTE3>(0); }), "hangs");
  CHECK_CONTAINS(run([](TPipe&) { SetFlag<HardEvent::MTE2_MTE3>(0), SetFlag<HardEvent::MTE2_MTE3>(0); }), "set twice");
  CHECK_CONTAINS(run([](TPipe& pipe) { pipe.ReleaseEventID<HardEvent::MTE2_S>(3); }), "not allocated");
}

TEST(a_store_that_does_not_wait_for_its_load) {
  Memory from(64), to(64);
  for (int dma : {kAscendcSimLatest, kAscendcSimEarliest, kAscendcSimRandom}) {
    std::string seen = run(
        [&](TPipe& pipe) {
          auto ub = tensorOf(pipe, 64);
          load(ub, from.address(), 64);
          store(to.address(), ub, 64);
        },
        {dma});
    CHECK(!seen.empty());
  }
}

TEST(a_buffer_that_is_loaded_again_before_its_store) {
  Memory from(64), to(128);
  for (int dma = 0; dma <= kAscendcSimStoresEarly; dma++)
    CHECK_CONTAINS(run(
                       [&](TPipe& pipe) {
                         auto ub = tensorOf(pipe, 64);
                         for (int i = 0; i < 2; i++) {
                           load(ub, from.address(), 64);
                           order<HardEvent::MTE2_MTE3>(pipe);
                           store(to.address() + i * 64, ub, 64);
                         }
                       },
                       {dma}),
                   "no flag or barrier orders");
}

TEST(scalar_access_against_dma) {
  Memory memory(64);
  CHECK_CONTAINS(run([&](TPipe& pipe) {
                   auto ub = tensorOf(pipe, 64);
                   load(ub, memory.address(), 64);
                   ub.GetValue(0);
                 }),
                 "reads what nobody has written");
  auto readThenLoad = [&](bool flag) {
    return run([&](TPipe& pipe) {
      auto ub = tensorOf(pipe, 64);
      load(ub, memory.address(), 64);
      order<HardEvent::MTE2_S>(pipe);
      CHECK_EQ(int{ub.GetValue(5)}, 5 * 13 + 5);
      if (flag) order<HardEvent::S_MTE2>(pipe);
      load(ub, memory.address(), 64);
    });
  };
  // The first load is known to be over through the scalar unit, so only the scalar read is in question.
  CHECK_CONTAINS(readThenLoad(false), "no flag or barrier orders the write of MTE2");
  CHECK_EQ(readThenLoad(true), "");
  auto writeThenStore = [&](bool flag) {
    return run([&](TPipe& pipe) {
      auto ub = tensorOf(pipe, 32);
      for (uint32_t i = 0; i < 32; i++) ub.SetValue(i, 7);
      if (flag) order<HardEvent::S_MTE3>(pipe);
      store(memory.address(), ub, 32);
    });
  };
  CHECK_CONTAINS(writeThenStore(false), "no flag or barrier orders the read of MTE3 after the write of S");
  CHECK_EQ(writeThenStore(true), "");
}

TEST(two_loads_to_one_place_need_a_barrier) {
  Memory memory(64);
  for (bool barrier : {false, true}) {
    std::string seen = run([&](TPipe& pipe) {
      auto ub = tensorOf(pipe, 64);
      load(ub, memory.address(), 64);
      if (barrier) PipeBarrier<PIPE_MTE2>();
      load(ub, memory.address(), 64);
    });
    CHECK_EQ(seen.empty(), barrier);
  }
}

TEST(a_barrier_over_all_pipes_orders_everything) {
  Memory from(64), to(64);
  CHECK_EQ(run([&](TPipe& pipe) {
             auto ub = tensorOf(pipe, 64);
             load(ub, from.address(), 64);
             PipeBarrier<PIPE_ALL>();
             ub.SetValue(0, 1);
             PipeBarrier<PIPE_ALL>();
             store(to.address(), ub, 64);
           }),
           "");
  AscendcSimCounters counters;
  ascendcSimCountersOfCore(0, &counters);
  CHECK_EQ(counters.all_barriers, 2u);
  CHECK_EQ(int{to.host()[0]}, 1);
}

TEST(two_cores_and_the_same_bytes) {
  Memory memory(4096);
  auto writeAt = [&](uint64_t pitch, int allow) {
    return run(
        [&](TPipe& pipe) {
          auto ub = tensorOf(pipe, 64);
          load(ub, memory.address() + 2048, 64);
          order<HardEvent::MTE2_MTE3>(pipe);
          store(memory.address() + static_cast<uint64_t>(GetBlockIdx()) * pitch, ub, 64);
        },
        {kAscendcSimLatest, 4, 196608, allow});
  };
  CHECK_EQ(writeAt(64, 0), "");
  uint64_t lines, excess;
  ascendcSimSharedLines(1, memory.address(), 4096, &lines, &excess);
  CHECK_EQ(lines, 1u);
  CHECK_EQ(excess, 3u);
  CHECK_CONTAINS(writeAt(63, 0), "both write at");
  CHECK_EQ(writeAt(63, 1), "");
  CHECK_CONTAINS(writeAt(683, 0), "write and read at");  // core 3 writes over what core 0 loads
  CHECK_EQ(writeAt(512, 0), "");
  ascendcSimSharedLines(1, memory.address(), 4096, &lines, &excess);
  CHECK_EQ(lines, 0u);
}

TEST(scalar_access_to_global_memory_is_counted) {
  Memory memory(64);
  CHECK_EQ(run([&](TPipe&) {
             GlobalTensor<uint32_t> words;
             words.SetGlobalBuffer(reinterpret_cast<uint32_t*>(memory.address()), 16);
             words.SetValue(1, words.GetValue(0));
           }),
           "");
  CHECK_EQ(memcmp(memory.host(), memory.host() + 4, 4), 0);
  AscendcSimCounters counters;
  ascendcSimCountersOfCore(0, &counters);
  CHECK_EQ(counters.scalar_global_loads, 1u);
  CHECK_EQ(counters.scalar_global_stores, 1u);
}

TEST(vector_instructions) {
  Memory memory(512);
  auto* words = reinterpret_cast<int32_t*>(memory.host());
  for (int i = 0; i < 128; i++) words[i] = i % 3 ? i : -i;
  uint64_t odd[2] = {0xAAAAAAAAAAAAAAAAull, 0};
  auto sumOfSigns = [&](bool barriers, float* sums) {
    return run([&](TPipe& pipe) {
      auto ub = tensorOf(pipe, 512);
      auto out = tensorOf(pipe, 32).ReinterpretCast<float>();
      load(ub, memory.address(), 512);
      order<HardEvent::MTE2_V>(pipe);
      auto values = ub.ReinterpretCast<int32_t>();
      ShiftRight(values, values, int32_t{31}, 128);
      if (barriers) PipeBarrier<PIPE_V>();
      Cast(ub.ReinterpretCast<float>(), values, RoundMode::CAST_RINT, 128);
      if (barriers) PipeBarrier<PIPE_V>();
      WholeReduceSum(out, ub.ReinterpretCast<float>(), odd, 2, 1, 1, 8);
      order<HardEvent::V_S>(pipe);
      for (uint32_t i = 0; i < 2; i++) sums[i] = out.GetValue(i);
    });
  };
  float sums[2];
  CHECK_EQ(sumOfSigns(true, sums), "");
  CHECK_EQ(sums[0], -11.f);  // 3, 9, 15, ... 63
  CHECK_EQ(sums[1], -10.f);
  CHECK_CONTAINS(sumOfSigns(false, sums), "of V after the write of V");

  auto fault = [&](std::function<void(LocalTensor<int32_t>)> body) {
    return run([&](TPipe& pipe) { body(tensorOf(pipe, 512).ReinterpretCast<int32_t>()); });
  };
  CHECK_CONTAINS(fault([](auto t) { Maxs(t, t, 0, 129); }), "129 elements");
  CHECK_CONTAINS(fault([](auto t) { Maxs(t[1], t, 0, 8); }), "no multiple of 32");
  CHECK_CONTAINS(fault([](auto t) { Maxs(t, t, 0, 8); }), "reads what nobody has written");
}

TEST(fills_by_the_vector_unit) {
  auto fill = [](uint32_t begin, int32_t count, bool awaited, int16_t* seen) {
    return run([&](TPipe& pipe) {
      auto numbers = tensorOf(pipe, 64).ReinterpretCast<int16_t>();
      Duplicate(numbers[begin], int16_t{-7}, count);
      if (awaited) order<HardEvent::V_S>(pipe);
      *seen = numbers.GetValue(begin + static_cast<uint32_t>(count) - 1);
    });
  };
  int16_t seen = 0;
  CHECK_EQ(fill(16, 5, true, &seen), "");
  CHECK_EQ(seen, -7);
  CHECK_CONTAINS(fill(16, 5, false, &seen), "nobody has written");
  CHECK_CONTAINS(fill(1, 5, true, &seen), "no multiple of 32");
  CHECK_CONTAINS(fill(0, 33, true, &seen), "33 elements");
  CHECK_CONTAINS(fill(0, 0, true, &seen), "count 0");
}

TEST(elements_are_collected_by_a_pattern) {
  auto collect = [](uint32_t room, uint32_t count, uint16_t repeats, uint32_t offset, int16_t* seen) {
    return run([&](TPipe& pipe) {
      auto from = tensorOf(pipe, 512).ReinterpretCast<int16_t>();
      auto bits = tensorOf(pipe, 32).ReinterpretCast<uint16_t>();
      auto to = tensorOf(pipe, room).ReinterpretCast<int16_t>();
      for (uint32_t i = 0; i < 256; i++) from.SetValue(i, static_cast<int16_t>(1000 + i));
      for (uint32_t i = 0; i < 16; i++) bits.SetValue(i, 0x8001);
      order<HardEvent::S_V>(pipe);
      uint64_t found = 0;
      GatherMask(to[offset], from, bits, true, count, {1, repeats, 0, 0}, found);
      order<HardEvent::V_S>(pipe);
      for (uint32_t i = 0; i < 6; i++) seen[i] = to.GetValue(i);
    });
  };
  int16_t seen[6];
  CHECK_EQ(collect(256, 37, 1, 0, seen), "");
  const int16_t expected[] = {1000, 1015, 1016, 1031, 1032};  // element 47 is behind the 37
  for (int i = 0; i < 5; i++) CHECK_EQ(seen[i], expected[i]);
  CHECK_EQ(static_cast<uint16_t>(seen[5]), 0xDBDBu);  // undefined
  CHECK_CONTAINS(collect(128, 37, 1, 0, seen), "5 elements in a tensor of 128 bytes");
  CHECK_CONTAINS(collect(512, 257, 1, 0, seen), "257 elements");
  CHECK_CONTAINS(collect(256, 0, 1, 0, seen), "mask 0");
  CHECK_CONTAINS(collect(256, 37, 2, 0, seen), "one repetition");
  CHECK_CONTAINS(collect(512, 37, 1, 3, seen), "no multiple of 32");
}

TEST(a_missing_wait_is_a_wrong_byte_even_without_the_rules) {
  // Stores that do not wait for their loads, loads that do not wait for the store before: without the checker
  // of the rules some order of the transfers still shows each.
  for (bool load_waits : {false, true}) {
    int wrong = 0;
    for (int dma = 0; dma <= kAscendcSimStoresEarly; dma++) {
      Memory from(128), to(128);
      memset(to.host(), 0, 128);
      AscendcSimSettings settings{dma, 1, 1, 196608, 0, 1};
      ascendcSimSetSettings(&settings);
      ascendc_sim::launch("test", 1, [&] {
        TPipe pipe;
        auto ub = tensorOf(pipe, 64);
        for (int i = 0; i < 2; i++) {
          load(ub, from.address() + i * 64, 64);
          if (!load_waits) SetFlag<HardEvent::MTE2_MTE3>(i), WaitFlag<HardEvent::MTE2_MTE3>(i);
          store(to.address() + i * 64, ub, 64);
          if (load_waits) SetFlag<HardEvent::MTE3_MTE2>(i), WaitFlag<HardEvent::MTE3_MTE2>(i);
        }
      });
      CHECK_EQ(stand_in::takeFault(), "");
      wrong += memcmp(from.host(), to.host(), 128) != 0;
    }
    CHECK(wrong > 0);
  }
}

TEST(launches_that_cannot_be) {
  CHECK_CONTAINS(run([](TPipe&) {}, {0, 0}), "a launch on 0 cores");
  CHECK_CONTAINS(run([](TPipe&) {}, {0, 129}), "a launch on 129 cores");
  CHECK_CONTAINS(
      run([](TPipe&) { PipeBarrier<PIPE_V>(), GetBlockIdx() == 2 ? ascendc_sim::fault("x") : void(); }, {0, 4}),
      "core 2: x");
}
