// SPDX-License-Identifier: Apache-2.0
//
// A small test harness: TEST(name) { EXPECT(...); } and CHECK_MAIN() at the end of the file. `prog SUBSTRING` runs
// only the tests whose name holds SUBSTRING.
#pragma once

#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace check {

struct Test {
  const char* name;
  void (*body)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

// What a failed expectation throws: it ends the test.
struct Failure : std::exception {
  explicit Failure(std::string text) : text(std::move(text)) {}
  const char* what() const noexcept override { return text.c_str(); }
  std::string text;
};

inline int add(const char* name, void (*body)()) {
  tests().push_back({name, body});
  return 0;
}

[[noreturn]] inline void fail(const char* file, int line, const std::string& text) {
  std::ostringstream out;
  out << file << ":" << line << ": " << text;
  throw Failure(out.str());
}

template <typename A, typename B>
void expect_eq(const char* file, int line, const char* what, const A& got, const B& expected) {
  if (got == expected) return;
  std::ostringstream out;
  out << what << ": got " << +got << ", expected " << +expected;
  fail(file, line, out.str());
}

template <typename Exception, typename Body>
void expect_throws(const char* file, int line, const char* what, const std::string& part, Body&& body) {
  try {
    body();
  } catch (const Failure&) {
    throw;
  } catch (const Exception& error) {
    if (std::strstr(error.what(), part.c_str()) != nullptr) return;
    fail(file, line, std::string(what) + ": message lacks \"" + part + "\": " + error.what());
  } catch (const std::exception& error) {
    fail(file, line, std::string(what) + ": another exception: " + error.what());
  }
  fail(file, line, std::string(what) + ": threw nothing");
}

inline int run(int argc, char** argv) {
  int passed = 0;
  int failed = 0;
  for (const Test& test : tests()) {
    if (argc > 1 && std::strstr(test.name, argv[1]) == nullptr) continue;
    try {
      test.body();
      ++passed;
    } catch (const std::exception& error) {
      ++failed;
      std::cout << "FAILED " << test.name << ": " << error.what() << std::endl;
    }
  }
  std::cout << passed << " passed, " << failed << " failed" << std::endl;
  return failed == 0 && passed > 0 ? 0 : 1;
}

}  // namespace check

#define TEST(name)                                                      \
  static void test_##name();                                            \
  static const int registered_##name = check::add(#name, &test_##name); \
  static void test_##name()
#define EXPECT(condition)                                                      \
  do {                                                                         \
    if (!(condition)) check::fail(__FILE__, __LINE__, "expected " #condition); \
  } while (0)
#define EXPECT_EQ(got, expected) check::expect_eq(__FILE__, __LINE__, #got, got, expected)
#define EXPECT_THROWS(Exception, part, ...) \
  check::expect_throws<Exception>(__FILE__, __LINE__, #__VA_ARGS__, part, [&] { __VA_ARGS__; })
#define CHECK_MAIN() \
  int main(int argc, char** argv) { return check::run(argc, argv); }
