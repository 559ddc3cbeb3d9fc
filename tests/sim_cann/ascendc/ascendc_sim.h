// SPDX-License-Identifier: Apache-2.0
// What the model of the AscendC calls offers to tests, in plain C so that ctypes can reach it. Every kernel
// object that is built on the model exports these functions and has its own settings and counters.
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// When DMA runs. Whatever the order, a transfer never passes a flag or a barrier of the kernel, and transfers
// of one queue that no flag or barrier separates have no order among themselves.
enum AscendcSimOrder {
  kAscendcSimLatest = 0,       // only when somebody waits for it; between two flags, the last one first
  kAscendcSimEarliest = 1,     // as soon as the flags before it allow
  kAscendcSimRandom = 2,       // at a moment drawn from the seed
  kAscendcSimLoadsEarly = 3,   // global memory to unified buffer at the earliest, the way back at the latest
  kAscendcSimStoresEarly = 4,  // the other way round
};

typedef struct AscendcSimSettings {
  int32_t order;              // AscendcSimOrder; ASCENDC_SIM_ORDER=latest|earliest|random|loads_early|stores_early
  uint32_t threads;           // 0: one per core; n: the cores share n threads; ASCENDC_SIM_THREADS
  uint64_t seed;              // ASCENDC_SIM_SEED
  uint32_t ub_bytes;          // unified buffer of a core: 196608 (default) or 253952; ASCENDC_SIM_UB_BYTES
  int32_t allow_same_writes;  // do not report stores to the same bytes (duplicate destination rows)
  int32_t no_rules;           // only what the order of transfers shows, no checks of missing flags
} AscendcSimSettings;

void ascendcSimGetSettings(AscendcSimSettings* settings);
void ascendcSimSetSettings(const AscendcSimSettings* settings);

// One core in one launch. "load" is MTE2, "store" is MTE3; a burst is one block of an instruction.
typedef struct AscendcSimCounters {
  uint64_t load_instructions, load_bursts, load_bytes;
  uint64_t store_instructions, store_bursts, store_bytes;
  uint64_t zero_length_instructions;
  uint64_t unaligned32_bursts;  // bursts whose global address is no multiple of 32
  uint64_t scalar_global_loads, scalar_global_stores;
  uint64_t scalar_ub_loads, scalar_ub_stores;
  uint64_t vector_instructions;
  uint64_t set_flags, wait_flags, scalar_waits;  // scalar_waits: waits that stop the scalar unit
  uint64_t pipe_barriers, all_barriers;          // all_barriers without the one of the pipe's teardown
  uint64_t cache_line_cleans;
  uint64_t ub_high_water;
  // The most that was loaded and not yet stored. With kAscendcSimLoadsEarly: the most that the kernel lets be
  // so.
  uint64_t peak_bursts_in_flight, peak_bytes_in_flight;
} AscendcSimCounters;

// Of the last launch that ended.
uint32_t ascendcSimCores(void);
void ascendcSimCountersOfCore(uint32_t core, AscendcSimCounters* counters);

// The 512-byte lines in [address, address + bytes) that several cores touched in the last launch (kind 0:
// loads, 1: stores, 2: scalar accesses, 3: any). `excess` is the sum of (cores - 1) over these lines.
void ascendcSimSharedLines(int kind, uint64_t address, uint64_t bytes, uint64_t* lines, uint64_t* excess);

// The first fault of the last launch, or "".
const char* ascendcSimLastFault(void);

#ifdef __cplusplus
}
#endif
