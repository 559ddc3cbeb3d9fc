// SPDX-License-Identifier: Apache-2.0
#include "address_space.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "settings.h"

namespace sim {
namespace {

char* reserve(uint64_t hint) {
  void* p = mmap(reinterpret_cast<void*>(hint), AddressSpace::kBytes, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    perror("[sim] reserving device addresses");
    abort();
  }
  return static_cast<char*>(p);
}

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
struct sigaction previousAction;
uintptr_t deviceBegin;

// Says what happened before the process dies of it, as it would have without this handler.
void reportDereference(int signal, siginfo_t* info, void*) {
  auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (address - deviceBegin < AddressSpace::kBytes) {
    char line[] = "[sim] the host dereferenced the device address 0x0000000000000000\n";
    for (size_t i = 0; i < 16; i++) line[sizeof line - 3 - i] = "0123456789abcdef"[address >> 4 * i & 15];
    if (write(2, line, sizeof line - 1) < 0) _exit(128 + signal);
  }
  sigaction(signal, &previousAction, nullptr);  // the access is repeated and meets the handler before ours
}

void installReport(const char* device) {
  deviceBegin = reinterpret_cast<uintptr_t>(device);
  struct sigaction action = {};
  action.sa_sigaction = reportDereference;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, &previousAction);
}
#else
void installReport(const char*) {}  // the sanitizers have their own
#endif

#ifdef __SANITIZE_THREAD__
constexpr uint64_t kDeviceHint = 0;
#else
constexpr uint64_t kDeviceHint = 0x120000000000;  // where device addresses lie on real machines
#endif

}  // namespace

AddressSpace& AddressSpace::get() {
  static auto* instance = new AddressSpace;
  return *instance;
}

AddressSpace::AddressSpace() {
  device_ = reserve(kDeviceHint);
  view_ = device_;
  if (number(Setting::kProtect)) {
    view_ = reserve(0);
    installReport(device_);
  }
  next_ = device_ + kHugePage;
}

char* AddressSpace::take(uint64_t size, uint64_t alignment) {
  std::lock_guard guard(mutex_);
  auto* p = reinterpret_cast<char*>(roundUp(reinterpret_cast<uint64_t>(next_), alignment));
  uint64_t left = p < device_ + kBytes ? device_ + kBytes - p : 0;
  if (size >= left || roundUp(size, kPage) + kPage >= left) return nullptr;
  next_ = p + roundUp(size, kPage) + kPage;
  return p;
}

bool AddressSpace::map(char* p, uint64_t size, int fd, uint64_t offset) {
  int flags = MAP_FIXED | MAP_NORESERVE | (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);
  return mmap(view(p), roundUp(size, kPage), PROT_READ | PROT_WRITE, flags, fd, static_cast<off_t>(offset)) !=
         MAP_FAILED;
}

void AddressSpace::unmap(char* p, uint64_t size) {
  mmap(view(p), roundUp(size, kPage), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
}

}  // namespace sim
