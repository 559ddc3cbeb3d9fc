// SPDX-License-Identifier: Apache-2.0
#include "c_api/offload.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>

#include "c_api/sparse_copy.h"
#include "error.h"
#include "host_pool/current_pool.h"
#include "host_pool/default_pool.h"

namespace torch_offload {

namespace {

constexpr uint64_t kDeviceBlockAlignment = 512;  // what device allocators give, and their users rely on

// torch holds the lock of its allocator meanwhile.
constexpr auto kPatience = std::chrono::seconds(1);

thread_local std::string last_error;

// A pointer that no block starts at.
struct PointerError : Error {
  using Error::Error;
};

void remember(const char* text) noexcept {
  try {
    last_error = text;
  } catch (...) {  // no memory for the message: the code still stands
  }
}

// Runs `body`; turns what it throws into a code and the thread's message.
template <typename Body>
int32_t guarded(Body&& body) noexcept {
  int32_t code = OFFLOAD_ERROR_INTERNAL;
  try {
    body();
    return OFFLOAD_OK;
  } catch (const ValueError& error) {
    remember(error.what());
    code = OFFLOAD_ERROR_VALUE;
  } catch (const IndexError& error) {
    remember(error.what());
    code = OFFLOAD_ERROR_INDEX;
  } catch (const OutOfMemoryError& error) {
    remember(error.what());
    code = OFFLOAD_ERROR_MEMORY;
  } catch (const StateError& error) {
    remember(error.what());
    code = OFFLOAD_ERROR_STATE;
  } catch (const PointerError& error) {
    remember(error.what());
    code = OFFLOAD_ERROR_POINTER;
  } catch (const std::bad_alloc&) {
    remember("out of memory");
    code = OFFLOAD_ERROR_MEMORY;
  } catch (const std::exception& error) {
    remember(error.what());
  } catch (...) {
    remember("an unknown exception");
  }
  return code;
}

// Reads a versioned structure: `known` holds the defaults, and the fields that the caller's version has replace them.
template <typename Struct>
void read_struct(const char* what, const Struct* given, Struct* known) {
  if (given == nullptr) throw ValueError(join(what, ": expected a structure, got NULL"));
  const uint64_t size = given->struct_size;
  // One version exists so far, so that a shorter one is a mistake. A longer one may only hold zeros behind it.
  if (size < sizeof(Struct) || size > 4096) {
    throw ValueError(join(what, ".struct_size: expected at least ", sizeof(Struct), ", got ", size));
  }
  const char* const bytes = reinterpret_cast<const char*>(given);
  if (std::any_of(bytes + sizeof(Struct), bytes + size, [](char byte) { return byte != 0; })) {
    throw ValueError(join(what, ": expected zeros in the fields behind the first ", sizeof(Struct),
                          " bytes, which this library does not know"));
  }
  std::memcpy(known, given, sizeof(Struct));
}

PoolOptions options_of(const offload_config_t& config) {
  PoolOptions options;
  options.capacity = config.capacity;
  if (config.alignment != 0) options.alignment = config.alignment;
  options.device = config.device;
  switch (config.huge_pages) {
    case OFFLOAD_HUGE_PAGES_AUTO:
      options.huge_pages = HugePages::kAuto;
      break;
    case OFFLOAD_HUGE_PAGES_REQUIRE:
      options.huge_pages = HugePages::kRequire;
      break;
    case OFFLOAD_HUGE_PAGES_NEVER:
      options.huge_pages = HugePages::kNever;
      break;
    default:
      throw ValueError(join("huge_pages: expected 0, 1 or 2, got ", config.huge_pages));
  }
  options.numa_node = config.numa_node;
  options.prefault_threads = config.prefault_threads;
  constexpr uint32_t known = OFFLOAD_FLAG_LOCK | OFFLOAD_FLAG_SHARED;
  if ((config.flags & ~known) != 0) {
    throw ValueError(join("flags: expected a combination of OFFLOAD_FLAG_*, got ", config.flags));
  }
  if (config.reserved != 0) throw ValueError(join("reserved: expected 0, got ", config.reserved));
  options.lock = (config.flags & OFFLOAD_FLAG_LOCK) != 0;
  options.shared = (config.flags & OFFLOAD_FLAG_SHARED) != 0;
  if (config.name != nullptr) options.name = config.name;
  return options;
}

void check_device(const HostPool& pool, int device) {
  if (pool.options().device != device) {
    throw ValueError(join("device: expected the pool's device ", pool.options().device, ", got ", device));
  }
}

// Blocks that a stream still uses may be what is missing.
void* allocate_patiently(HostPool& pool, uint64_t bytes) {
  try {
    return pool.allocate_raw(bytes, kDeviceBlockAlignment);
  } catch (const OutOfMemoryError&) {
    if (!pool.wait_for_streams(bytes, kDeviceBlockAlignment, kPatience)) throw;
    return pool.allocate_raw(bytes, kDeviceBlockAlignment);
  }
}

std::shared_ptr<HostPool> pool_of(const void* block) {
  std::shared_ptr<HostPool> pool = find_pool(block);
  return pool != nullptr ? pool : default_pool();  // which counts the foreign pointer
}

void free_in(HostPool& pool, void* block) {
  switch (pool.free_raw(block)) {
    case FreeResult::kFreed:
      return;
    case FreeResult::kDoubleFree:
      throw PointerError(join("free: expected a live block, got ", block, ", free memory"));
    case FreeResult::kInterior:
      throw PointerError(join("free: expected the start of a block, got ", block, ", inside of one"));
    case FreeResult::kForeign:
      throw PointerError(join("free: expected a block of offload_malloc, got ", block));
    case FreeResult::kForked:
      throw StateError("free: expected the process that made the pool, got a forked child");
  }
}

void fill_stats(const PoolStats& from, offload_stats_t* to) {
  to->capacity = from.capacity;
  to->used = from.used;
  to->free = from.free;
  to->largest_free = from.largest_free;
  to->peak = from.peak;
  to->requested = from.requested;
  to->live_blocks = from.live_blocks;
  to->allocations = from.allocations;
  to->frees = from.frees;
  to->double_frees = from.double_frees;
  to->foreign_frees = from.foreign_frees;
  to->page_size = from.page_size;
  to->numa_node = from.numa_node;
  to->locked = from.locked;
  to->device_registered = from.device_registered;
  to->reserved = 0;
}

}  // namespace

}  // namespace torch_offload

using namespace torch_offload;  // NOLINT: this file implements C functions, which have no namespace

int32_t offload_init(const offload_config_t* config) {
  return guarded([&] {
    offload_config_t known = OFFLOAD_CONFIG_INIT;
    read_struct("config", config, &known);
    init_default_pool(options_of(known));
  });
}

int32_t offload_uninit(void) {
  return guarded([] { uninit_default_pool(); });
}

int32_t offload_malloc(uint64_t size, uint64_t alignment, void** block) {
  return guarded([&] {
    if (block == nullptr) throw ValueError("block: expected an address, got NULL");
    *block = nullptr;
    *block = default_pool()->allocate_raw(size, alignment);
  });
}

int32_t offload_free(void* block) {
  return guarded([&] {
    if (block != nullptr) free_in(*pool_of(block), block);
  });
}

const char* offload_last_error(void) { return last_error.c_str(); }

const char* offload_warnings(void) {
  thread_local std::string text;
  const int32_t code = guarded([] {
    text.clear();
    for (const std::string& warning : default_pool()->warnings()) text += (text.empty() ? "" : "\n") + warning;
  });
  return code == OFFLOAD_OK ? text.c_str() : "";
}

int32_t offload_sparse_copy(const offload_copy_t* copy) {
  return guarded([&] {
    offload_copy_t known = OFFLOAD_COPY_INIT;
    read_struct("copy", copy, &known);
    const CopyGuard guard(default_pool());
    if (!guard) throw StateError("sparse_copy: expected an open pool, got a closed one");
    sparse_copy(known);
  });
}

int32_t offload_stats(offload_stats_t* stats) {
  return guarded([&] {
    if (stats == nullptr) throw ValueError("stats: expected a structure, got NULL");
    if (stats->struct_size < sizeof(offload_stats_t)) {
      throw ValueError(
          join("stats.struct_size: expected at least ", sizeof(offload_stats_t), ", got ", stats->struct_size));
    }
    fill_stats(default_pool()->stats(), stats);
  });
}

void* offload_alloc_fn(ssize_t size, int device, void* /*stream*/) {
  void* block = nullptr;
  guarded([&] {
    const std::shared_ptr<HostPool> pool = current_pool();
    check_device(*pool, device);
    if (size < 0) throw ValueError(join("size: expected at least 0, got ", size));
    const auto bytes = static_cast<uint64_t>(size);
    void* const host = allocate_patiently(*pool, bytes);
    block = pool->device() == kNoDevice || bytes == 0
                ? host
                : reinterpret_cast<void*>(static_cast<uintptr_t>(pool->device_address(host, bytes)));
  });
  return block;
}

void offload_free_fn(void* ptr, ssize_t /*size*/, int device, void* stream) {
  guarded([&] {
    if (ptr == nullptr) return;
    std::shared_ptr<HostPool> pool = find_pool_of_device(device, reinterpret_cast<uintptr_t>(ptr));
    void* const host = pool != nullptr ? pool->host_address(reinterpret_cast<uintptr_t>(ptr)) : ptr;
    if (pool == nullptr) pool = pool_of(ptr);
    check_device(*pool, device);
    if (pool->device() != kNoDevice && stream != nullptr) pool->record_use(host, {device, stream});
    free_in(*pool, host);
  });
}
