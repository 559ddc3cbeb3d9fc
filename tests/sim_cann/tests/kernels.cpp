// SPDX-License-Identifier: Apache-2.0
// A "device binary" for the tests.
#include <cstring>
#include <thread>
#include <vector>

#include "sim_memory.h"

#define KERNEL(name) \
  extern "C" __attribute__((visibility("default"))) void name##_sim(void* args, uint32_t bytes, uint32_t blocks)

namespace {

struct CopyArgs {
  uint64_t src, dst, bytes;
};

void copyPart(const CopyArgs& args, uint32_t block, uint32_t blocks) {
  uint64_t part = (args.bytes + blocks - 1) / blocks, begin = block * part;
  if (begin >= args.bytes) return;
  uint64_t n = begin + part > args.bytes ? args.bytes - begin : part;
  void* to = simTranslate(args.dst + begin, n, 1);
  void* from = simTranslate(args.src + begin, n, 0);
  if (!to || !from) {
    char text[300];
    simDescribeAddress(to ? args.src + begin : args.dst + begin, n, text, sizeof text);
    return simKernelFault(text);
  }
  memcpy(to, from, n);
  simCounterAdd("copy.bytes", n);
  simCounterMax("copy.largest_part", n);
}

}  // namespace

// Copies with one thread per block, as a model of vector cores does.
KERNEL(copy) {
  CopyArgs copy;
  if (bytes < sizeof copy) return simKernelFault("too few arguments");
  memcpy(&copy, args, sizeof copy);
  void* task = simCurrentTask();
  std::vector<std::thread> cores;
  for (uint32_t block = 0; block < blocks; block++)
    cores.emplace_back([=] {
      simAdoptTask(task);
      copyPart(copy, block, blocks);
    });
  for (auto& core : cores) core.join();
}

// Adds up the 64-bit words of a table that comes with the launch: pointer to the table, their number, pointer
// to the result.
KERNEL(sum_table) {
  struct {
    uint64_t table, count, result;
  } sum;
  if (bytes < sizeof sum) return simKernelFault("too few arguments");
  memcpy(&sum, args, sizeof sum);
  auto* table = static_cast<uint64_t*>(simTranslate(sum.table, sum.count * 8, 0));
  auto* result = static_cast<uint64_t*>(simTranslate(sum.result, 8, 1));
  if (!table || !result) return simKernelFault("no table or no result");
  if (simTranslate(sum.table, 8, 1)) return simKernelFault("arguments must be read-only");
  *result = blocks;
  for (uint64_t i = 0; i < sum.count; i++) *result += table[i];
}

// A fault in a thread that has not adopted the task.
KERNEL(stray_fault) {
  (void)args;
  (void)bytes;
  (void)blocks;
  std::thread([] { simKernelFault("from a stray thread"); }).join();
}
