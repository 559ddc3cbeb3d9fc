// SPDX-License-Identifier: Apache-2.0
#include "launch.h"

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "../sim_memory.h"
#include "core.h"

// Test programs that stand in for the runtime need only simTranslate and simKernelFault.
extern "C" {
void* simCurrentTask(void) __attribute__((weak));
void simAdoptTask(void*) __attribute__((weak));
void simCounterAdd(const char*, uint64_t) __attribute__((weak));
}

namespace ascendc_sim {
namespace {

constexpr uint32_t kMaxCores = 128;

struct LastLaunch {
  std::vector<AscendcSimCounters> counters;
  std::vector<GlobalTrace> traces;
  std::string fault;
};

std::mutex mutex;  // guards everything below
LastLaunch last;
std::string last_fault_text;

AscendcSimSettings fromEnvironment() {
  AscendcSimSettings settings{kAscendcSimLatest, 0, 1, 196608, 0, 0};
  auto number = [](const char* name, auto* value) {
    if (const char* text = getenv(name))
      *value = static_cast<std::remove_pointer_t<decltype(value)>>(strtoull(text, nullptr, 0));
  };
  number("ASCENDC_SIM_SEED", &settings.seed);
  number("ASCENDC_SIM_UB_BYTES", &settings.ub_bytes);
  number("ASCENDC_SIM_THREADS", &settings.threads);
  number("ASCENDC_SIM_ALLOW_SAME_WRITES", &settings.allow_same_writes);
  if (const char* text = getenv("ASCENDC_SIM_ORDER")) {
    static const char* const kNames[] = {"latest", "earliest", "random", "loads_early", "stores_early"};
    for (int order = 0; order < 5; order++)
      if (std::string(text) == kNames[order]) settings.order = order;
  }
  return settings;
}

AscendcSimSettings& settings() {
  static AscendcSimSettings settings = fromEnvironment();
  return settings;
}

std::string runCore(const AscendcSimSettings& how, uint32_t index, uint32_t cores, const std::function<void()>& body,
                    LastLaunch& result) {
  Core core(how, index, cores);
  std::string wrong;
  Core::setCurrent(&core);
  try {
    body();
    core.finish();
  } catch (const Fault& fault) {
    wrong = fault.what();
  }
  Core::setCurrent(nullptr);
  core.trace.close();
  result.counters[index] = core.counters;
  result.traces[index] = std::move(core.trace);
  return wrong;
}

void addToRuntime(const char* kernel, const LastLaunch& result) {
  if (!simCounterAdd) return;
  AscendcSimCounters sum{};
  auto* total = reinterpret_cast<uint64_t*>(&sum);
  for (const auto& counters : result.counters)
    for (size_t i = 0; i < sizeof sum / 8; i++) total[i] += reinterpret_cast<const uint64_t*>(&counters)[i];
  const std::string name = std::string(kernel) + ".";
  simCounterAdd((name + "load_instructions").c_str(), sum.load_instructions);
  simCounterAdd((name + "load_bytes").c_str(), sum.load_bytes);
  simCounterAdd((name + "store_instructions").c_str(), sum.store_instructions);
  simCounterAdd((name + "store_bytes").c_str(), sum.store_bytes);
  simCounterAdd((name + "scalar_global_loads").c_str(), sum.scalar_global_loads);
  simCounterAdd((name + "scalar_ub_accesses").c_str(), sum.scalar_ub_loads + sum.scalar_ub_stores);
}

}  // namespace

void launch(const char* kernel, uint32_t cores, const std::function<void()>& body) {
  AscendcSimSettings how;
  ascendcSimGetSettings(&how);
  LastLaunch result;
  std::vector<std::string> wrong(cores);
  if (!body) {
    result.fault = "fewer bytes of arguments than parameters";
  } else if (cores < 1 || cores > kMaxCores) {
    result.fault = "a launch on " + std::to_string(cores) + " cores";
  } else {
    result.counters.resize(cores);
    result.traces.resize(cores);
    void* task = simCurrentTask ? simCurrentTask() : nullptr;
    std::atomic<uint32_t> next{0};
    auto work = [&] {
      if (task && simAdoptTask) simAdoptTask(task);
      for (uint32_t i; (i = next++) < cores;) wrong[i] = runCore(how, i, cores, body, result);
    };
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < (how.threads ? std::min(how.threads, cores) : cores); t++) threads.emplace_back(work);
    for (auto& thread : threads) thread.join();
    for (uint32_t i = 0; i < cores && result.fault.empty(); i++)
      if (!wrong[i].empty()) result.fault = "core " + std::to_string(i) + ": " + wrong[i];
    if (result.fault.empty()) result.fault = findConflict(result.traces, how.allow_same_writes != 0);
  }
  addToRuntime(kernel, result);
  if (!result.fault.empty()) simKernelFault((std::string(kernel) + ": " + result.fault).c_str());
  std::lock_guard<std::mutex> lock(mutex);
  last = std::move(result);
}

}  // namespace ascendc_sim

using namespace ascendc_sim;

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void ascendcSimGetSettings(AscendcSimSettings* out) {
  std::lock_guard<std::mutex> lock(mutex);
  *out = settings();
}

EXPORT void ascendcSimSetSettings(const AscendcSimSettings* in) {
  std::lock_guard<std::mutex> lock(mutex);
  settings() = *in;
}

EXPORT uint32_t ascendcSimCores() {
  std::lock_guard<std::mutex> lock(mutex);
  return static_cast<uint32_t>(last.counters.size());
}

EXPORT void ascendcSimCountersOfCore(uint32_t core, AscendcSimCounters* counters) {
  std::lock_guard<std::mutex> lock(mutex);
  *counters = core < last.counters.size() ? last.counters[core] : AscendcSimCounters{};
}

EXPORT void ascendcSimSharedLines(int kind, uint64_t address, uint64_t bytes, uint64_t* lines, uint64_t* excess) {
  static const unsigned kMasks[] = {1u << GlobalTrace::kLoad, 1u << GlobalTrace::kStore,
                                    1u << GlobalTrace::kScalarLoad | 1u << GlobalTrace::kScalarStore, ~0u};
  std::lock_guard<std::mutex> lock(mutex);
  countSharedLines(last.traces, kMasks[kind & 3], {address, address + bytes}, lines, excess);
}

EXPORT const char* ascendcSimLastFault() {
  std::lock_guard<std::mutex> lock(mutex);
  last_fault_text = last.fault;
  return last_fault_text.c_str();
}
