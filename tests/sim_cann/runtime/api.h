// SPDX-License-Identifier: Apache-2.0
// What every file of the runtime needs: the ACL headers, how a call begins (it is counted, traced, and may be
// made to fail), how it ends with an error.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <string>

#include "acl/acl.h"
#include "acl/acl_mdl.h"
#include "acl/acl_op.h"
#include "acl/acl_op_compiler.h"
#include "acl/acl_rt.h"
#include "acl/error_codes/rt_error_codes.h"
#include "sim_cann.h"

#define SIM_EXPORT extern "C" __attribute__((visibility("default")))
#define SIM_PRINTF(text, rest) __attribute__((format(printf, text, rest)))

namespace sim {

using Counter = std::atomic<uint64_t>;
Counter& counter(const std::string& name);  // made on first use, never removed

// One per function: what SIM_CALL keeps between calls.
class CallSite {
 public:
  explicit CallSite(const char* function) : function_(function), calls_(counter(function)) {}
  // Counts and traces; the code that fault injection wants, or 0.
  aclError enter(const char* format = nullptr, ...) SIM_PRINTF(2, 3);

 private:
  const char* function_;
  Counter& calls_;
};

// The code with which this call (or "kernel...") has to fail, or 0. Counts calls against the rules.
aclError injectedFault(const char* function);

// Keeps the text for aclGetRecentErrMsg of this thread and returns the code.
aclError fail(aclError code, const char* format, ...) SIM_PRINTF(2, 3);
// The same for what is not simulated; also printed, because callers often swallow the text.
aclError notSimulated(const char* function);
std::string takeLastError();

// Copies a text as far as it fits, with a closing zero; returns the bytes that all of it needs.
uint64_t copyText(const std::string& text, char* out, uint64_t size);

}  // namespace sim

#define SIM_CALL(...)                     \
  static sim::CallSite simSite(__func__); \
  if (aclError simInjected = simSite.enter(__VA_ARGS__)) return simInjected

// For functions that return no code.
#define SIM_COUNT(...)                    \
  static sim::CallSite simSite(__func__); \
  (void)simSite.enter(__VA_ARGS__)

// A switch or hint without an effect on results: nothing to simulate, success is the truth.
#define SIM_NO_EFFECT(...) \
  do {                     \
    SIM_CALL(__VA_ARGS__); \
    return ACL_SUCCESS;    \
  } while (0)

#define SIM_NOT_SIMULATED()             \
  do {                                  \
    SIM_CALL();                         \
    return sim::notSimulated(__func__); \
  } while (0)

#define SIM_REQUIRE(condition, ...) \
  if (!(condition)) return sim::fail(ACL_ERROR_RT_PARAM_INVALID, __VA_ARGS__)
