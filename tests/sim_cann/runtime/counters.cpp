// SPDX-License-Identifier: Apache-2.0
// Counters by name: one per runtime call, and those of the kernels.
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "api.h"

namespace sim {
namespace {

struct Counters {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<Counter>> byName;
};
Counters& counters() {
  static auto* instance = new Counters;
  return *instance;
}

}  // namespace

Counter& counter(const std::string& name) {
  std::lock_guard guard(counters().mutex);
  auto& slot = counters().byName[name];
  if (!slot) slot = std::make_unique<Counter>(0);
  return *slot;
}

uint64_t copyText(const std::string& text, char* out, uint64_t size) {
  if (out && size) {
    uint64_t n = std::min<uint64_t>(text.size(), size - 1);
    memcpy(out, text.data(), n);
    out[n] = 0;
  }
  return text.size() + 1;
}

}  // namespace sim
using namespace sim;

SIM_EXPORT void simCounterAdd(const char* name, uint64_t amount) { counter(name) += amount; }

SIM_EXPORT void simCounterMax(const char* name, uint64_t value) {
  Counter& slot = counter(name);
  uint64_t seen = slot;
  while (seen < value && !slot.compare_exchange_weak(seen, value)) {
  }
}

SIM_EXPORT uint64_t simCounterGet(const char* name) {
  std::lock_guard guard(counters().mutex);
  auto it = counters().byName.find(name);
  return it == counters().byName.end() ? 0 : it->second->load();
}

SIM_EXPORT void simCountersReset(void) {
  std::lock_guard guard(counters().mutex);
  for (auto& [name, value] : counters().byName) value->store(0);
}

SIM_EXPORT uint64_t simCountersText(char* text, uint64_t size) {
  std::string all;
  {
    std::lock_guard guard(counters().mutex);
    for (auto& [name, value] : counters().byName)
      if (uint64_t v = value->load()) all += name + " " + std::to_string(v) + "\n";
  }
  return copyText(all, text, size);
}
