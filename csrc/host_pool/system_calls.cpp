// SPDX-License-Identifier: Apache-2.0
#include "host_pool/system_calls.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "error.h"

namespace torch_offload {

namespace {

// By number: libnuma would be a dependency for one call.
long call_mbind(void* address, unsigned long length, int mode, const unsigned long* nodes, unsigned long max_node,
                unsigned flags) {
  return syscall(SYS_mbind, address, length, mode, nodes, max_node, flags);
}

// By number: the sanitizers replace the function by one that does nothing.
int call_mlock(const void* address, size_t length) { return static_cast<int>(syscall(SYS_mlock, address, length)); }

int call_mincore(void* address, size_t length, unsigned char* resident) { return mincore(address, length, resident); }

int call_memfd_create(const char* name, unsigned flags) {
  return static_cast<int>(syscall(SYS_memfd_create, name, flags));
}

bool call_read_text(const char* path, std::string* text) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  text->clear();
  char buffer[16384];
  ssize_t got = 0;
  do {
    got = read(fd, buffer, sizeof(buffer));
    if (got > 0) text->append(buffer, static_cast<size_t>(got));
  } while (got > 0 || (got < 0 && errno == EINTR));
  close(fd);
  return got == 0;
}

}  // namespace

const SystemCalls& system_calls() {
  static const SystemCalls calls = {mmap,       madvise,       call_mlock, call_mincore, call_memfd_create,
                                    call_mbind, call_read_text};
  return calls;
}

std::string describe_errno(const char* call, int error) {
  return join(call, ": ", std::generic_category().message(error), " (errno ", error, ")");
}

}  // namespace torch_offload
