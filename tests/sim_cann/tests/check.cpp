// SPDX-License-Identifier: Apache-2.0
#include "check.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <vector>

namespace check {
namespace {

struct Case {
  const char* name;
  void (*body)();
};
std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}
bool currentFailed = false;

}  // namespace

void addCase(const char* name, void (*body)()) { cases().push_back({name, body}); }

void failed(const char* file, int line, const std::string& what) {
  currentFailed = true;
  printf("FAIL %s:%d: %s\n", file, line, what.c_str());
}

int inChild(const std::function<int()>& body) {
  fflush(stdout);
  pid_t child = fork();
  if (!child) {
    int silent = dup(2);
    (void)silent;
    _exit(body());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

std::string kernelsPath() {
  char path[4096] = "";
  ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
  std::string self(path, n > 0 ? n : 0);
  return self.substr(0, self.rfind('/')) + "/kernels.so";
}

aclrtFuncHandle kernel(const char* name) {
  static aclrtBinHandle binary = [] {
    aclrtBinHandle handle = nullptr;
    CHECK_OK(aclrtBinaryLoadFromFile(kernelsPath().c_str(), nullptr, &handle));
    return handle;
  }();
  aclrtFuncHandle function = nullptr;
  CHECK_OK(aclrtBinaryGetFunction(binary, name, &function));
  return function;
}

void* deviceBytes(size_t count, int value) {
  void* p = nullptr;
  CHECK_OK(aclrtMalloc(&p, count, ACL_MEM_MALLOC_HUGE_FIRST));
  CHECK_OK(aclrtMemset(p, count, value, count));
  return p;
}

std::string contents(const void* device, size_t count) {
  std::string bytes(count, 0);
  CHECK_OK(aclrtMemcpy(bytes.data(), count, device, count, ACL_MEMCPY_DEVICE_TO_HOST));
  return bytes;
}

}  // namespace check

int main(int argc, char** argv) {
  int passed = 0, failures = 0;
  for (auto& test : check::cases()) {
    if (argc > 1 && !strstr(test.name, argv[1])) continue;
    check::currentFailed = false;
    aclrtSetDevice(0);
    test.body();
    simFailClear();
    (check::currentFailed ? failures : passed)++;
    if (check::currentFailed) printf("FAIL %s\n", test.name);
  }
  printf("%d passed, %d failed\n", passed, failures);
  return failures ? 1 : 0;
}
