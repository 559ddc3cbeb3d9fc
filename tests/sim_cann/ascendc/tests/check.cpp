// SPDX-License-Identifier: Apache-2.0
#include "check.h"

#include <chrono>
#include <cstdlib>
#include <cstring>

namespace test {
namespace {

int failures = 0;  // of the running test
constexpr int kShown = 3;

}  // namespace

std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

int registerTest(const char* name, void (*body)()) {
  tests().push_back({name, body});
  return 0;
}

void failed(const char* file, int line, const std::string& text) {
  if (failures++ < kShown)
    printf("    %s:%d: %s\n", strrchr(file, '/') ? strrchr(file, '/') + 1 : file, line, text.c_str());
}

int runAll(int argc, char** argv) {
  int passed = 0, bad = 0;
  for (const Test& test : tests()) {
    bool chosen = argc < 2;
    for (int i = 1; i < argc; i++) chosen |= strstr(test.name, argv[i]) != nullptr;
    if (!chosen) continue;
    failures = 0;
    auto begin = std::chrono::steady_clock::now();
    test.body();
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    printf("%-6s %s (%.2f s)\n", failures ? "FAILED" : "ok", test.name, seconds);
    if (failures > kShown) printf("    and %d more\n", failures - kShown);
    fflush(stdout);
    (failures ? bad : passed)++;
    if (failures && getenv("TEST_STOP")) break;  // the mutation tests need no more
  }
  printf("%d passed, %d failed\n", passed, bad);
  return bad != 0;
}

}  // namespace test

int main(int argc, char** argv) { return test::runAll(argc, argv); }
