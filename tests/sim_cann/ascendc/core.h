// SPDX-License-Identifier: Apache-2.0
// One simulated AI vector core: its unified buffer, its instruction queues and the flags between them.
//
// The scalar unit is the thread that runs the kernel. What it issues goes to the queue of a pipe; when a
// queue moves on is up to the order in the settings. A queue starts its instructions in order and stops at a
// flag that is not set; transfers between two synchronising instructions may end in any order.
#pragma once
#include <deque>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "ascendc_sim.h"
#include "global_memory.h"
#include "race_checker.h"

namespace ascendc_sim {

// Thrown where the kernel breaks a rule; unwinds the core's thread.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};
[[noreturn]] void fault(const char* format, ...) __attribute__((format(printf, 1, 2)));

constexpr uint32_t kUbAlignment = 32;
constexpr int kEventIds = 8;     // per ordered pair of pipes
constexpr int kMaxBuffers = 64;  // per kernel
constexpr uint32_t kMaxBlockCount = 4095;
constexpr uint32_t kMaxBlockBytes = 2097151;
constexpr uint64_t kMaxStride = UINT32_MAX;

struct Transfer {
  bool load;  // global memory to unified buffer
  uint64_t global;
  uint32_t ub;
  uint32_t blocks, block_bytes;
  uint64_t global_gap;  // from the end of a block to the start of the next, bytes
  uint32_t ub_gap;      // the same in 32-byte blocks
};

struct UbRange {
  uint32_t begin, end;
};

class Core {
 public:
  Core(const AscendcSimSettings& settings, uint32_t index, uint32_t cores);

  // The core that this thread runs.
  static Core& current();
  static void setCurrent(Core* core);

  uint32_t index() const { return index_; }
  uint32_t cores() const { return cores_; }
  uint8_t* ub() { return ub_.data(); }

  uint32_t allocateUb(uint32_t bytes);
  int allocateEvent(Pipe from, Pipe to);
  void releaseEvent(Pipe from, Pipe to, int id);

  void transfer(const Transfer& transfer);
  void vector(std::function<void()> work, std::vector<UbRange> reads, UbRange write);
  void setFlag(Pipe from, Pipe to, int id);
  void waitFlag(Pipe from, Pipe to, int id);
  void barrier(Pipe pipe);
  void barrierAll();
  void scalarUb(uint32_t offset, uint32_t bytes, bool write);
  char* scalarGlobal(uint64_t address, uint32_t bytes, bool write);

  // Lets everything end that was issued, then checks that nothing was left behind.
  void finish();

  AscendcSimCounters counters{};
  GlobalTrace trace;  // what it touched in global memory

 private:
  enum class Kind : uint8_t { kTransfer, kVector, kSet, kWait, kBarrier };
  struct Flag {
    bool set = false;
    bool allocated = false;
    Knowledge knowledge;
  };
  struct Instruction {
    Kind kind;
    uint64_t number;
    Flag* flag = nullptr;
    Pipe other = kScalar;  // the pipe at the flag's other end
    Transfer transfer{};
    std::function<void()> work = {};
    std::vector<UbRange> reads = {};
    UbRange write{};
  };

  enum class When : uint8_t { kLatest, kEarliest, kRandom };
  When when(Pipe pipe) const;
  Flag& flag(Pipe from, Pipe to, int id, const char* call);
  void push(Pipe pipe, Instruction instruction);
  bool step(Pipe pipe);
  size_t pick(Pipe pipe);
  void run(Pipe pipe, Instruction& instruction);
  void runTransfer(const Transfer& transfer, Pipe pipe, uint64_t number);
  void check(Pipe pipe, uint64_t number, uint32_t begin, uint32_t end, bool write);
  void moveOn();
  void runUntilSet(Flag& flag, Pipe from);
  void drain();

  const AscendcSimSettings settings_;
  const uint32_t index_, cores_;
  std::vector<uint8_t> ub_;
  uint32_t ub_used_ = 0;
  int buffers_ = 0;
  std::deque<Instruction> queues_[kPipes];
  uint64_t issued_[kPipes] = {};
  Knowledge knowledge_[kPipes];
  Flag flags_[kPipes][kPipes][kEventIds];
  RaceChecker checker_;
  std::mt19937_64 random_;
  int64_t bursts_in_flight_ = 0, bytes_in_flight_ = 0;
};

}  // namespace ascendc_sim
