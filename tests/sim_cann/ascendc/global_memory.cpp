// SPDX-License-Identifier: Apache-2.0
#include "global_memory.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "../sim_memory.h"
#include "core.h"

// The runtime may describe an address; test programs that stand in for it need not.
extern "C" void simDescribeAddress(uint64_t, uint64_t, char*, uint64_t) __attribute__((weak));

namespace ascendc_sim {
namespace {

constexpr uint64_t kLine = 512;

std::string hex(uint64_t value) {
  char text[32];
  snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

struct Owned {
  GlobalRange range;
  size_t core;
};

std::vector<Owned> collect(const std::vector<GlobalTrace>& cores, GlobalTrace::Kind kind) {
  std::vector<Owned> all;
  for (size_t core = 0; core < cores.size(); core++)
    for (GlobalRange range : cores[core].ranges(kind)) all.push_back({range, core});
  std::sort(all.begin(), all.end(), [](const Owned& a, const Owned& b) { return a.range.begin < b.range.begin; });
  return all;
}

// The first pair of ranges of different cores that overlap; both lists are sorted.
std::string crossing(const std::vector<Owned>& writes, const std::vector<Owned>& others, const char* verb) {
  size_t first = 0;
  for (const Owned& write : writes) {
    while (first < others.size() && others[first].range.end <= write.range.begin) first++;
    for (size_t i = first; i < others.size() && others[i].range.begin < write.range.end; i++) {
      if (others[i].core == write.core || others[i].range.end <= write.range.begin) continue;
      return "cores " + std::to_string(write.core) + " and " + std::to_string(others[i].core) + verb +
             hex(std::max(write.range.begin, others[i].range.begin));
    }
  }
  return "";
}

}  // namespace

char* GlobalTrace::touch(Kind kind, uint64_t address, uint64_t bytes) {
  const bool write = kind == kStore || kind == kScalarStore;
  void* host = simTranslate(address, bytes, write);
  if (!host) {
    char where[256] = "";
    if (simDescribeAddress) simDescribeAddress(address, bytes, where, sizeof where);
    fault("%s of %llu bytes at %s outside of live memory%s%s", write ? "write" : "read", (unsigned long long)bytes,
          hex(address).c_str(), *where ? ": " : "", where);
  }
  auto& ranges = ranges_[kind];
  if (!ranges.empty() && ranges.back().end == address)
    ranges.back().end += bytes;
  else
    ranges.push_back({address, address + bytes});
  return static_cast<char*>(host);
}

void GlobalTrace::close() {
  for (int kind = 0; kind < kKinds; kind++) {
    auto& ranges = ranges_[kind];
    std::sort(ranges.begin(), ranges.end(), [](GlobalRange a, GlobalRange b) { return a.begin < b.begin; });
    std::vector<GlobalRange> joined;
    for (GlobalRange range : ranges) {
      if (!joined.empty() && range.begin < joined.back().end && kind == kStore && !overlaps_) {
        overlaps_ = true;
        overlap_ = {range.begin, std::min(range.end, joined.back().end)};
      }
      if (!joined.empty() && range.begin <= joined.back().end)
        joined.back().end = std::max(joined.back().end, range.end);
      else
        joined.push_back(range);
    }
    ranges = std::move(joined);
  }
}

std::string findConflict(const std::vector<GlobalTrace>& cores, bool allow_same_writes) {
  const auto stores = collect(cores, GlobalTrace::kStore);
  const auto scalar_stores = collect(cores, GlobalTrace::kScalarStore);
  if (!allow_same_writes) {
    for (size_t core = 0; core < cores.size(); core++)
      if (cores[core].overlaps())
        return "core " + std::to_string(core) + " stores twice to " + hex(cores[core].overlap().begin);
    for (const auto* writes : {&stores, &scalar_stores})
      for (const auto* others : {&stores, &scalar_stores}) {
        std::string wrong = crossing(*writes, *others, " both write at ");
        if (!wrong.empty()) return wrong;
      }
  }
  for (auto kind : {GlobalTrace::kLoad, GlobalTrace::kScalarLoad}) {
    const auto reads = collect(cores, kind);
    for (const auto* writes : {&stores, &scalar_stores}) {
      std::string wrong = crossing(*writes, reads, " write and read at ");
      if (!wrong.empty()) return wrong;
    }
  }
  return "";
}

void countSharedLines(const std::vector<GlobalTrace>& cores, unsigned mask, GlobalRange within, uint64_t* lines,
                      uint64_t* excess) {
  std::map<uint64_t, std::set<size_t>> touched;
  for (size_t core = 0; core < cores.size(); core++)
    for (int kind = 0; kind < GlobalTrace::kKinds; kind++) {
      if (!(mask >> kind & 1)) continue;
      for (GlobalRange range : cores[core].ranges(GlobalTrace::Kind(kind))) {
        const uint64_t begin = std::max(range.begin, within.begin), end = std::min(range.end, within.end);
        for (uint64_t line = begin / kLine; begin < end && line * kLine < end; line++) touched[line].insert(core);
      }
    }
  *lines = *excess = 0;
  for (const auto& [line, owners] : touched) {
    *lines += owners.size() > 1;
    *excess += owners.size() - 1;
  }
}

}  // namespace ascendc_sim
