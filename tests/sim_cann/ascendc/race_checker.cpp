// SPDX-License-Identifier: Apache-2.0
#include "race_checker.h"

namespace ascendc_sim {

const char* pipeName(Pipe pipe) {
  static const char* const kNames[] = {"S", "V", "MTE2", "MTE3", "?"};
  return kNames[pipe];
}

std::string RaceChecker::access(Pipe pipe, uint64_t number, const Knowledge& knowledge, uint32_t begin, uint32_t end,
                                bool write) {
  // The scalar unit runs its own instructions one after the other; DMA of one queue may overlap in time.
  auto unordered = [&](Pipe other, uint64_t instruction) {
    return instruction > knowledge.done[other] && !(other == kScalar && pipe == kScalar);
  };
  for (uint32_t b = begin / kBlock; b * kBlock < end; b++) {
    Block& block = blocks_[b];
    std::string where = "at unified buffer offset " + std::to_string(b * kBlock);
    if (!write && block.written == 0) return std::string(pipeName(pipe)) + " reads what nobody has written, " + where;
    if (block.written && unordered(block.writer, block.written) && !(block.written == number && block.writer == pipe))
      return std::string("no flag or barrier orders the ") + (write ? "write" : "read") + " of " + pipeName(pipe) +
             " after the write of " + pipeName(block.writer) + ", " + where;
    if (write) {
      for (int q = 0; q < kPipes; q++)
        if (block.read[q] && unordered(Pipe(q), block.read[q]) && !(block.read[q] == number && q == pipe))
          return std::string("no flag or barrier orders the write of ") + pipeName(pipe) + " after the read of " +
                 pipeName(Pipe(q)) + ", " + where;
      block.writer = pipe;
      block.written = number;
      for (uint64_t& read : block.read) read = 0;
    } else if (number > block.read[pipe]) {
      block.read[pipe] = number;
    }
  }
  return "";
}

}  // namespace ascendc_sim
