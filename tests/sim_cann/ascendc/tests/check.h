// SPDX-License-Identifier: Apache-2.0
// The least that a test program needs: named tests, checks that say what they saw, a closing line.
#pragma once
#include <cstdio>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

namespace test {

struct Test {
  const char* name;
  void (*body)();
};
std::vector<Test>& tests();
int registerTest(const char* name, void (*body)());

// Notes a failed check of the running test.
void failed(const char* file, int line, const std::string& text);

// Runs the tests whose name contains an argument, or all of them.
int runAll(int argc, char** argv);

template <typename A, typename B>
void equal(const char* file, int line, const char* expression, const A& seen, const B& expected) {
  if (seen == expected) return;
  std::ostringstream text;
  text << expression << ": expected " << expected << ", got " << seen;
  failed(file, line, text.str());
}

}  // namespace test

#define TEST(name)                                                      \
  static void name();                                                   \
  static const int registered_##name = test::registerTest(#name, name); \
  static void name()

#define CHECK_EQ(seen, expected) test::equal(__FILE__, __LINE__, #seen, seen, expected)
#define CHECK(condition) \
  if (!(condition)) test::failed(__FILE__, __LINE__, #condition)
#define CHECK_CONTAINS(text, part)                       \
  if (std::string(text).find(part) == std::string::npos) \
  test::failed(__FILE__, __LINE__, std::string("expected \"") + part + "\" in \"" + (text) + "\"")
