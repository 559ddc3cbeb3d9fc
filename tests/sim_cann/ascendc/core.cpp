// SPDX-License-Identifier: Apache-2.0
#include "core.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace ascendc_sim {
namespace {

thread_local Core* current_core = nullptr;

constexpr Pipe kQueues[] = {kMte3, kVector, kMte2};  // from the last of a pipeline to the first

}  // namespace

void fault(const char* format, ...) {
  char text[512];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  throw Fault(text);
}

Core::Core(const AscendcSimSettings& settings, uint32_t index, uint32_t cores)
    : settings_(settings),
      index_(index),
      cores_(cores),
      ub_(settings.ub_bytes),
      checker_(settings.ub_bytes),
      random_(settings.seed * 1000003 + index) {
  // Whatever is stored without having been loaded should not look like data.
  for (size_t i = 0; i < ub_.size(); i++) ub_[i] = static_cast<uint8_t>(0xE0 ^ (i * 7) ^ index);
}

Core& Core::current() {
  if (!current_core) throw Fault("an AscendC call outside of a kernel");
  return *current_core;
}

void Core::setCurrent(Core* core) { current_core = core; }

uint32_t Core::allocateUb(uint32_t bytes) {
  if (bytes == 0) fault("InitBuffer of 0 bytes");
  if (++buffers_ > kMaxBuffers) fault("InitBuffer: more than %d buffers", kMaxBuffers);
  const uint32_t begin = ub_used_;
  const uint64_t end = begin + ((uint64_t{bytes} + kUbAlignment - 1) / kUbAlignment) * kUbAlignment;
  if (end > ub_.size())
    fault("InitBuffer of %u bytes: %zu bytes of unified buffer, %u of them in use", bytes, ub_.size(), begin);
  ub_used_ = static_cast<uint32_t>(end);
  counters.ub_high_water = ub_used_;
  return begin;
}

int Core::allocateEvent(Pipe from, Pipe to) {
  for (int id = 0; id < kEventIds; id++) {
    Flag& flag = flags_[from][to][id];
    if (flag.allocated) continue;
    flag.allocated = true;
    return id;
  }
  fault("AllocEventID %s_%s: all %d ids are taken", pipeName(from), pipeName(to), kEventIds);
}

void Core::releaseEvent(Pipe from, Pipe to, int id) {
  Flag& released = flag(from, to, id, "ReleaseEventID");
  if (!released.allocated) fault("ReleaseEventID %s_%s %d: not allocated", pipeName(from), pipeName(to), id);
  released.allocated = false;
}

Core::Flag& Core::flag(Pipe from, Pipe to, int id, const char* call) {
  if (from == to || id < 0 || id >= kEventIds)
    fault("%s<%s_%s>(%d): no such flag", call, pipeName(from), pipeName(to), id);
  return flags_[from][to][id];
}

Core::When Core::when(Pipe pipe) const {
  switch (settings_.order) {
    case kAscendcSimEarliest:
      return When::kEarliest;
    case kAscendcSimRandom:
      return When::kRandom;
    case kAscendcSimLoadsEarly:
      return pipe == kMte3 ? When::kLatest : When::kEarliest;
    case kAscendcSimStoresEarly:
      return pipe == kMte3 ? When::kEarliest : When::kLatest;
    default:
      return When::kLatest;
  }
}

void Core::push(Pipe pipe, Instruction instruction) {
  instruction.number = ++issued_[pipe];
  queues_[pipe].push_back(std::move(instruction));
  moveOn();
}

// Lets the queues go on by themselves, as far as the order in the settings says.
void Core::moveOn() {
  for (bool moved = true; moved;) {
    moved = false;
    for (Pipe pipe : kQueues) {
      if (when(pipe) == When::kLatest) continue;
      if (when(pipe) == When::kRandom && random_() % 4 != 0) continue;
      moved |= step(pipe);
    }
  }
}

// The instruction that the queue runs next: transfers that nothing separates may overtake each other.
size_t Core::pick(Pipe pipe) {
  const auto& queue = queues_[pipe];
  const When order = when(pipe);
  if (order == When::kEarliest || queue.front().kind != Kind::kTransfer) return 0;
  size_t group = 1;
  while (group < queue.size() && group < 64 && queue[group].kind == Kind::kTransfer) group++;
  return order == When::kLatest ? group - 1 : random_() % group;
}

bool Core::step(Pipe pipe) {
  auto& queue = queues_[pipe];
  if (queue.empty()) return false;
  if (queue.front().kind == Kind::kWait && !queue.front().flag->set) return false;
  const size_t chosen = pick(pipe);
  Instruction instruction = std::move(queue[chosen]);
  queue.erase(queue.begin() + static_cast<long>(chosen));
  run(pipe, instruction);
  return true;
}

void Core::run(Pipe pipe, Instruction& instruction) {
  Knowledge& knowledge = knowledge_[pipe];
  switch (instruction.kind) {
    case Kind::kTransfer:
      runTransfer(instruction.transfer, pipe, instruction.number);
      break;
    case Kind::kVector:
      for (UbRange range : instruction.reads) check(pipe, instruction.number, range.begin, range.end, false);
      check(pipe, instruction.number, instruction.write.begin, instruction.write.end, true);
      instruction.work();
      break;
    case Kind::kSet:
      if (instruction.flag->set)
        fault("SetFlag<%s_%s>: set twice without a wait", pipeName(pipe), pipeName(instruction.other));
      instruction.flag->set = true;
      instruction.flag->knowledge = knowledge;
      instruction.flag->knowledge.done[pipe] = instruction.number;  // a flag waits for all that stands before it
      break;
    case Kind::kWait:
      instruction.flag->set = false;
      knowledge.join(instruction.flag->knowledge);
      break;
    case Kind::kBarrier:
      knowledge.done[pipe] = instruction.number;
      break;
  }
}

void Core::check(Pipe pipe, uint64_t number, uint32_t begin, uint32_t end, bool write) {
  if (settings_.no_rules) return;
  std::string wrong = checker_.access(pipe, number, knowledge_[pipe], begin, end, write);
  if (!wrong.empty()) throw Fault(wrong);
}

void Core::runTransfer(const Transfer& transfer, Pipe pipe, uint64_t number) {
  uint64_t global = transfer.global;
  uint32_t ub = transfer.ub;
  const uint32_t padded = (transfer.block_bytes + kUbAlignment - 1) / kUbAlignment * kUbAlignment;
  for (uint32_t b = 0; b < transfer.blocks; b++) {
    char* host = trace.touch(transfer.load ? GlobalTrace::kLoad : GlobalTrace::kStore, global, transfer.block_bytes);
    check(pipe, number, ub, ub + padded, transfer.load);
    if (transfer.load) {
      memcpy(&ub_[ub], host, transfer.block_bytes);
      for (uint32_t i = transfer.block_bytes; i < padded; i++) ub_[ub + i] = 0xDB;  // dummy bytes
    } else {
      memcpy(host, &ub_[ub], transfer.block_bytes);
    }
    global += transfer.block_bytes + transfer.global_gap;
    ub += padded + transfer.ub_gap * kUbAlignment;
  }
  const int64_t direction = transfer.load ? 1 : -1;
  bursts_in_flight_ += direction * transfer.blocks;
  bytes_in_flight_ += direction * static_cast<int64_t>(transfer.blocks) * transfer.block_bytes;
  if (bursts_in_flight_ > static_cast<int64_t>(counters.peak_bursts_in_flight))
    counters.peak_bursts_in_flight = static_cast<uint64_t>(bursts_in_flight_);
  if (bytes_in_flight_ > static_cast<int64_t>(counters.peak_bytes_in_flight))
    counters.peak_bytes_in_flight = static_cast<uint64_t>(bytes_in_flight_);
}

void Core::transfer(const Transfer& t) {
  const char* call = t.load ? "DataCopyPad to the unified buffer" : "DataCopyPad to global memory";
  if (t.blocks > kMaxBlockCount) fault("%s: blockCount %u, at most %u", call, t.blocks, kMaxBlockCount);
  if (t.block_bytes > kMaxBlockBytes) fault("%s: blockLen %u, at most %u", call, t.block_bytes, kMaxBlockBytes);
  if (t.global_gap > kMaxStride) fault("%s: a stride of %llu bytes", call, (unsigned long long)t.global_gap);
  if (t.ub % kUbAlignment) fault("%s: unified buffer offset %u is no multiple of %u", call, t.ub, kUbAlignment);
  (t.load ? counters.load_instructions : counters.store_instructions)++;
  if (!t.blocks || !t.block_bytes) {
    counters.zero_length_instructions++;
    return;
  }
  const uint64_t padded = (t.block_bytes + kUbAlignment - 1) / kUbAlignment * kUbAlignment;
  const uint64_t end = t.ub + padded * t.blocks + uint64_t{t.ub_gap} * kUbAlignment * (t.blocks - 1);
  if (end > ub_.size())
    fault("%s: ends at %llu of %zu bytes of unified buffer", call, (unsigned long long)end, ub_.size());
  (t.load ? counters.load_bursts : counters.store_bursts) += t.blocks;
  (t.load ? counters.load_bytes : counters.store_bytes) += uint64_t{t.blocks} * t.block_bytes;
  for (uint32_t b = 0; b < t.blocks; b++)
    counters.unaligned32_bursts += (t.global + b * (t.block_bytes + t.global_gap)) % 32 != 0;
  Instruction instruction{Kind::kTransfer, 0};
  instruction.transfer = t;
  push(t.load ? kMte2 : kMte3, std::move(instruction));
}

void Core::vector(std::function<void()> work, std::vector<UbRange> reads, UbRange write) {
  counters.vector_instructions++;
  Instruction instruction{Kind::kVector, 0};
  instruction.work = std::move(work);
  instruction.reads = std::move(reads);
  instruction.write = write;
  push(kVector, std::move(instruction));
}

void Core::setFlag(Pipe from, Pipe to, int id) {
  Flag& target = flag(from, to, id, "SetFlag");
  counters.set_flags++;
  Instruction instruction{Kind::kSet, 0};
  instruction.flag = &target;
  instruction.other = to;
  if (from != kScalar) return push(from, std::move(instruction));
  instruction.number = ++issued_[kScalar];
  run(kScalar, instruction);
  moveOn();
}

void Core::waitFlag(Pipe from, Pipe to, int id) {
  Flag& target = flag(from, to, id, "WaitFlag");
  counters.wait_flags++;
  Instruction instruction{Kind::kWait, 0};
  instruction.flag = &target;
  instruction.other = from;
  if (to != kScalar) return push(to, std::move(instruction));
  counters.scalar_waits++;
  runUntilSet(target, from);
  run(kScalar, instruction);
}

void Core::runUntilSet(Flag& target, Pipe from) {
  while (!target.set) {
    if (from == kScalar || queues_[from].empty())
      fault("a wait for %s that nobody sets: the core hangs", pipeName(from));
    if (step(from)) continue;
    const Instruction& blocked = queues_[from].front();
    runUntilSet(*blocked.flag, blocked.other);
  }
}

void Core::barrier(Pipe pipe) {
  if (pipe == kScalar) fault("PipeBarrier<PIPE_S>: not legal");
  counters.pipe_barriers++;
  push(pipe, Instruction{Kind::kBarrier, 0});
}

void Core::drain() {
  for (;;) {
    moveOn();
    bool moved = false, left = false;
    const size_t first = settings_.order == kAscendcSimRandom ? random_() % 3 : 0;
    for (size_t i = 0; i < 3 && !moved; i++) {
      Pipe pipe = kQueues[(first + i) % 3];
      left |= !queues_[pipe].empty();
      moved = step(pipe);
    }
    if (moved) continue;
    if (left) fault("the queues wait for flags that nobody sets: the core hangs");
    return;
  }
}

void Core::barrierAll() {
  counters.all_barriers++;
  drain();
  Knowledge everything;
  for (int q = 0; q < kPipes; q++) everything.done[q] = issued_[q];
  for (Knowledge& knowledge : knowledge_) knowledge.join(everything);
}

void Core::scalarUb(uint32_t offset, uint32_t bytes, bool write) {
  if (uint64_t{offset} + bytes > ub_.size())
    fault("scalar access at %u of %zu bytes of unified buffer", offset, ub_.size());
  if (offset % bytes) fault("scalar access of %u bytes at unified buffer offset %u", bytes, offset);
  (write ? counters.scalar_ub_stores : counters.scalar_ub_loads)++;
  check(kScalar, ++issued_[kScalar], offset, offset + bytes, write);
}

char* Core::scalarGlobal(uint64_t address, uint32_t bytes, bool write) {
  (write ? counters.scalar_global_stores : counters.scalar_global_loads)++;
  if (address % bytes) fault("scalar access of %u bytes at global address 0x%llx", bytes, (unsigned long long)address);
  return trace.touch(write ? GlobalTrace::kScalarStore : GlobalTrace::kScalarLoad, address, bytes);
}

void Core::finish() {
  drain();
  for (int from = 0; from < kPipes; from++)
    for (int to = 0; to < kPipes; to++)
      for (int id = 0; id < kEventIds; id++)
        if (flags_[from][to][id].set)
          fault("flag %s_%s %d: set and not awaited when the kernel ended", pipeName(Pipe(from)), pipeName(Pipe(to)),
                id);
}

}  // namespace ascendc_sim
