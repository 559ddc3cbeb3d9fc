// SPDX-License-Identifier: Apache-2.0
// Finds accesses to the unified buffer that no flag or barrier orders, whatever the moment they ran at.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace ascendc_sim {

enum Pipe : uint8_t { kScalar, kVector, kMte2, kMte3, kPipes };
const char* pipeName(Pipe pipe);

// What one pipe knows of the others: all instructions of pipe q with a number up to done[q] have ended before
// the pipe's next instruction starts. Flags carry it from one pipe to another.
struct Knowledge {
  uint64_t done[kPipes] = {};
  void join(const Knowledge& other) {
    for (int q = 0; q < kPipes; q++)
      if (other.done[q] > done[q]) done[q] = other.done[q];
  }
};

// Remembers the last accesses to each 32-byte block. 32 bytes, because that is what a DMA instruction touches
// at least: the dummy bytes behind an odd length included.
class RaceChecker {
 public:
  explicit RaceChecker(uint32_t ub_bytes) : blocks_(ub_bytes / kBlock + 1) {}

  // Instruction `number` (from 1) of `pipe`, which knows `knowledge`, reads or writes [begin, end). Returns
  // "" or what is wrong.
  std::string access(Pipe pipe, uint64_t number, const Knowledge& knowledge, uint32_t begin, uint32_t end, bool write);

 private:
  static constexpr uint32_t kBlock = 32;
  struct Block {
    Pipe writer = kScalar;
    uint64_t written = 0;  // number of the last instruction that wrote; 0: nobody has
    uint64_t read[kPipes] = {};
  };
  std::vector<Block> blocks_;
};

}  // namespace ascendc_sim
