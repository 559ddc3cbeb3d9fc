// SPDX-License-Identifier: Apache-2.0
//
// The system calls that a container, a limit or an old kernel may deny. They go through a table of function pointers,
// so that a test can deny them.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

#include "visibility.h"

namespace torch_offload {

struct SystemCalls {
  void* (*mmap)(void* address, size_t length, int protection, int flags, int fd, off_t offset);
  int (*madvise)(void* address, size_t length, int advice);
  int (*mlock)(const void* address, size_t length);
  int (*mincore)(void* address, size_t length, unsigned char* resident);
  int (*memfd_create)(const char* name, unsigned flags);
  long (*mbind)(void* address, unsigned long length, int mode, const unsigned long* nodes, unsigned long max_node,
                unsigned flags);
  // Reads a whole file of /proc or /sys; false when it cannot be read.
  bool (*read_text)(const char* path, std::string* text);
};

// The calls of the operating system. Static, never changes.
OFFLOAD_CORE_API const SystemCalls& system_calls();

// "mbind: Operation not permitted (errno 1)"
std::string describe_errno(const char* call, int error);

}  // namespace torch_offload
