// SPDX-License-Identifier: Apache-2.0
#include "host_pool/process_generation.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <new>

namespace torch_offload {

namespace {

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

std::atomic<uint64_t> last_generation{1};
std::atomic<uint64_t> fallback{1};

// The kernel hands the child this page filled with zeros, however it was forked. Kernels before 4.14 cannot; there a
// fork handler of libc does it.
std::atomic<uint64_t>* make_cell() {
  void* const page = mmap(nullptr, static_cast<size_t>(sysconf(_SC_PAGESIZE)), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page != MAP_FAILED && madvise(page, static_cast<size_t>(sysconf(_SC_PAGESIZE)), MADV_WIPEONFORK) == 0) {
    return new (page) std::atomic<uint64_t>(1);
  }
  pthread_atfork(nullptr, nullptr, [] { fallback.store(0); });
  return &fallback;
}

std::atomic<uint64_t>* cell() {
  static std::atomic<uint64_t>* const value = make_cell();
  return value;
}

// Made while the library loads: a fork in the middle of the first call would leave the static half made.
[[maybe_unused]] const auto* const made_at_load = cell();

}  // namespace

uint64_t process_generation() noexcept {
  uint64_t generation = cell()->load(std::memory_order_acquire);
  if (generation != 0) return generation;
  const uint64_t next = last_generation.fetch_add(1) + 1;
  return cell()->compare_exchange_strong(generation, next) ? next : generation;
}

}  // namespace torch_offload
