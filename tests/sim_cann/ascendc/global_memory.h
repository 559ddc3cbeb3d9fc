// SPDX-License-Identifier: Apache-2.0
// What a core touches in global memory: the only way there, and the record for the checks over all cores.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace ascendc_sim {

struct GlobalRange {
  uint64_t begin, end;
};

class GlobalTrace {
 public:
  enum Kind { kLoad, kStore, kScalarLoad, kScalarStore, kKinds };

  // The host address of these bytes; a fault if the runtime knows no live memory there.
  char* touch(Kind kind, uint64_t address, uint64_t bytes);

  const std::vector<GlobalRange>& ranges(Kind kind) const { return ranges_[kind]; }

  // Sorts and joins. What overlaps among the core's own stores is kept in `overlap`.
  void close();
  bool overlaps() const { return overlaps_; }
  GlobalRange overlap() const { return overlap_; }

 private:
  std::vector<GlobalRange> ranges_[kKinds];
  bool overlaps_ = false;
  GlobalRange overlap_{};
};

// "" or which bytes two cores, or one core twice without order, wrote, or one wrote and another read.
std::string findConflict(const std::vector<GlobalTrace>& cores, bool allow_same_writes);

// Lines of 512 bytes in `within` that more than one core touched with the kinds of `mask` (bit per kind).
void countSharedLines(const std::vector<GlobalTrace>& cores, unsigned mask, GlobalRange within, uint64_t* lines,
                      uint64_t* excess);

}  // namespace ascendc_sim
