// SPDX-License-Identifier: Apache-2.0
//
// The part of HostPool that crosses processes. The memory is a memfd: it has no name that could stay behind, and the
// kernel frees it with the last process that holds it, however that process ends.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "error.h"
#include "host_pool/host_pool.h"

namespace torch_offload {

PoolHandle HostPool::share() const {
  check_not_forked("share");
  if (!mapping_->shared()) {
    throw StateError("HostPool: share expected a pool made with shared=True, got one with private memory");
  }
  if (attached_) throw StateError("HostPool: share expected the process that owns the pool, got an attached one");
  if (closed()) throw StateError("HostPool: share expected an open pool, got a closed one");
  struct stat file = {};
  if (fstat(mapping_->fd(), &file) != 0) throw StateError(describe_errno("HostPool: fstat", errno));
  PoolHandle handle;
  handle.pid = getpid();
  handle.fd = mapping_->fd();
  handle.inode = file.st_ino;
  handle.capacity = capacity_;
  handle.length = mapping_->length();
  handle.page_size = mapping_->page_size();
  handle.name = options_.name;
  return handle;
}

std::shared_ptr<HostPool> HostPool::attach(const PoolHandle& handle, int32_t device) {
  const std::string path = join("/proc/", handle.pid, "/fd/", handle.fd);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) {
    throw StateError(join("HostPool: attach expected the owner of pool \"", handle.name, "\" (process ", handle.pid,
                          ") to be alive and of the same user, got ",
                          describe_errno(("open of " + path).c_str(), errno)));
  }
  return attach_fd(fd, handle, device);
}

std::shared_ptr<HostPool> HostPool::attach_fd(int fd, const PoolHandle& handle, int32_t device) {
  struct stat file = {};
  if (fstat(fd, &file) != 0 || file.st_ino != handle.inode || !S_ISREG(file.st_mode) ||
      static_cast<uint64_t>(file.st_size) != handle.length || handle.capacity > handle.length || handle.capacity == 0) {
    ::close(fd);
    throw StateError(join("HostPool: attach expected the memory of pool \"", handle.name, "\" of process ", handle.pid,
                          ", got another file: the owner has ended or closed it"));
  }
  PoolOptions options;
  options.capacity = handle.capacity;
  options.shared = true;
  options.name = handle.name;
  options.device = device;
  std::unique_ptr<Mapping> mapping = Mapping::attach(fd, handle.length, handle.page_size);
  return make(options, std::move(mapping), handle.capacity, true, {});
}

}  // namespace torch_offload
