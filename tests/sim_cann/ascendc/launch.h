// SPDX-License-Identifier: Apache-2.0
// Runs a kernel on all its cores, and gives it the entry that the simulated runtime calls.
#pragma once
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <utility>

namespace ascendc_sim {

// Runs `body` once per core, checks what only all cores together show and reports the first fault.
void launch(const char* kernel, uint32_t cores, const std::function<void()>& body);

// Calls `kernel` with its parameters from the packed argument block (8 bytes each, as the launch calls lay
// them).
template <typename... Parameters>
void launchPacked(const char* name, void (*kernel)(Parameters...), void* args, uint32_t args_bytes, uint32_t cores) {
  static_assert(((sizeof(Parameters) == 8) && ...), "kernel parameters are addresses and 64-bit integers");
  if (args_bytes < sizeof...(Parameters) * 8) return launch(name, 0, nullptr);
  std::tuple<Parameters...> values;
  size_t offset = 0;
  std::apply([&](auto&... value) { ((memcpy(&value, static_cast<char*>(args) + offset, 8), offset += 8), ...); },
             values);
  launch(name, cores, [&] { std::apply(kernel, values); });
}

}  // namespace ascendc_sim

// The entry `<kernel>_sim` of a kernel whose source is included above.
#define ASCENDC_SIM_KERNEL(kernel)                                                                     \
  extern "C" __attribute__((visibility("default"))) void kernel##_sim(void* args, uint32_t args_bytes, \
                                                                      uint32_t block_dim) {            \
    ascendc_sim::launchPacked(#kernel, kernel, args, args_bytes, block_dim);                           \
  }
