// SPDX-License-Identifier: Apache-2.0
// libhccl.so: no communication, only what torch_npu calls in a single process.
#include <cstdint>

#include "sim_cann.h"

#define SIM_EXPORT extern "C" __attribute__((visibility("default")))

union HcclConfigValue {
  int32_t value;
};

// A hint on determinism: there is nothing to be deterministic about.
SIM_EXPORT int HcclSetConfig(int, HcclConfigValue) { return simCountCall(__func__); }
SIM_EXPORT int HcclGetConfig(int, HcclConfigValue* value) {
  value->value = 0;
  return simCountCall(__func__);
}
