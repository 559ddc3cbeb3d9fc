// SPDX-License-Identifier: Apache-2.0
// Devices, the current one of each thread, versions.
#pragma once
#include <initializer_list>
#include <memory>
#include <vector>

#include "api.h"

namespace sim {

class Stream;

bool validDevice(int device);
int currentDevice();                                         // -1 if this thread has none
std::vector<std::shared_ptr<Stream>> streamsOf(int device);  // kAllDevices: of every one
constexpr int kAllDevices = -1;
aclError synchronizeDevice(int timeoutMs);  // the current one

int64_t vectorCores();
int64_t cubeCores();
bool cannAtLeast(int major, int minor);
bool socIsAny(std::initializer_list<const char*> prefixes);
bool inForkedChild();  // threads of streams do not survive fork()

}  // namespace sim

#define SIM_REQUIRE_DEVICE(device)                          \
  [[maybe_unused]] const int device = sim::currentDevice(); \
  if (device < 0) return sim::fail(ACL_ERROR_RT_CONTEXT_NULL, "%s: this thread has no device", __func__)
