// SPDX-License-Identifier: Apache-2.0
//
// How this backend calls the ACL runtime: every failing call becomes an error that names the call, its code and what
// the runtime says about it; functions younger than the oldest supported CANN are looked up when they are needed.
#pragma once

#include <acl/acl.h>

#include <exception>
#include <string>

// Calls a function that every CANN has, and throws if it fails.
#define OFFLOAD_ACL(function, ...) ::torch_offload::npu::check_acl(#function, function(__VA_ARGS__))

// The function as a pointer, null where the runtime of this machine lacks it. Looked up once.
#define OFFLOAD_ACL_OPTIONAL(function)                                                               \
  ([] {                                                                                              \
    static const auto found =                                                                        \
        reinterpret_cast<decltype(&::function)>(::torch_offload::npu::find_acl_function(#function)); \
    return found;                                                                                    \
  }())

// The same for a function that this backend cannot do without: an error that says which CANN it takes.
#define OFFLOAD_ACL_REQUIRED(function)                                             \
  ([] {                                                                            \
    const auto found = OFFLOAD_ACL_OPTIONAL(function);                             \
    if (found == nullptr) ::torch_offload::npu::throw_missing_function(#function); \
    return found;                                                                  \
  }())

namespace torch_offload::npu {

// RuntimeError "<call>: expected success, got code <code>: <text of the runtime>" unless `code` is 0.
void check_acl(const char* call, aclError code);

// What an error says, without the trace that torch puts behind it.
std::string first_line(const std::exception& error);

// What the runtime last said in this thread, or "no details".
std::string recent_acl_message();

void* find_acl_function(const char* name);
[[noreturn]] void throw_missing_function(const char* name);

// The version of CANN on this machine, like "8.5.0"; empty if the runtime does not tell.
std::string cann_version();

// RuntimeError if CANN is older than the oldest one that this backend supports. Makes no call that needs a device.
void check_cann_version();

// The graph into which the stream is being captured, or null.
aclmdlRI captured_graph(aclrtStream stream);

// Whether ACL may be called: torch_npu has brought the runtime up, and not down again at the end of the process.
bool runtime_is_up();

// While it lives, this thread may make calls that have nothing to do with a capture that is going on elsewhere or on
// another stream (allocate, load). Does nothing where the runtime has no captures.
class RelaxedCapture {
 public:
  RelaxedCapture();
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  aclmdlRICaptureMode mode_;
};

}  // namespace torch_offload::npu
