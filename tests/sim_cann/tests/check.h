// SPDX-License-Identifier: Apache-2.0
// Test cases and checks. The closing line of a test program is "N passed, N failed"; N counts cases.
#pragma once
#include <cstdio>
#include <functional>
#include <sstream>
#include <string>

#include "acl/acl.h"
#include "acl/acl_rt.h"
#include "acl/error_codes/rt_error_codes.h"
#include "sim_cann.h"

namespace check {

void addCase(const char* name, void (*body)());
void failed(const char* file, int line, const std::string& what);

template <typename A, typename B>
void equal(const A& got, const B& expected, const char* text, const char* file, int line) {
  if (got == static_cast<A>(expected)) return;
  std::ostringstream what;
  what << text << ": got " << got << ", expected " << expected;
  failed(file, line, what.str());
}

// Runs the body in a process of its own and returns how that ended: its exit code, or minus the signal.
int inChild(const std::function<int()>& body);

// tests/kernels.so of this flavour, next to the test program.
std::string kernelsPath();
aclrtFuncHandle kernel(const char* name);

// Device memory that holds `count` copies of `value`, and its contents.
void* deviceBytes(size_t count, int value = 0);
std::string contents(const void* device, size_t count);

}  // namespace check

#define CASE(name)                                                     \
  static void name();                                                  \
  static const bool name##Added = (check::addCase(#name, name), true); \
  static void name()

#define CHECK(condition) \
  if (!(condition)) check::failed(__FILE__, __LINE__, #condition)
#define CHECK_EQ(got, expected) check::equal(got, expected, #got, __FILE__, __LINE__)
#define CHECK_OK(call) check::equal(call, 0, #call, __FILE__, __LINE__)
