// SPDX-License-Identifier: Apache-2.0
//
// HostPool and several processes: fork, share and attach, an owner that is killed.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "check.h"
#include "error.h"
#include "host_pool/default_pool.h"
#include "host_pool/host_pool.h"

namespace {

using namespace torch_offload;

constexpr uint64_t kMiB = uint64_t{1} << 20;

PoolOptions options_of(uint64_t capacity, bool shared = false) {
  PoolOptions options;
  options.capacity = capacity;
  options.huge_pages = HugePages::kNever;
  options.shared = shared;
  options.name = "offload_test";
  return options;
}

// The exit status of a child that runs `body`: 0 if it returned normally.
template <typename Body>
int in_child(Body&& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    try {
      body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "child: %s\n", error.what());
      _exit(1);
    }
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

TEST(a_forked_child_reads_but_does_not_allocate) {
  auto pool = HostPool::create(options_of(kMiB));
  PoolBlock block = pool->allocate(100);
  void* const raw = pool->allocate_raw(100);
  std::memset(block.data(), 5, 100);
  EXPECT_EQ(in_child([&] {
              EXPECT_EQ(static_cast<char*>(block.data())[99], 5);
              EXPECT(pool->forked());
              EXPECT_THROWS(StateError, "got a forked child", pool->allocate(1));
              EXPECT_THROWS(StateError, "got a forked child", pool->stats());
              EXPECT_THROWS(StateError, "got a forked child", pool->blocks());
              EXPECT(pool->free_raw(raw) == FreeResult::kForked);
              std::memset(block.data(), 6, 100);
              block.reset();
              pool->close();
              pool.reset();
              const auto own = HostPool::create(options_of(kMiB));  // a pool of its own works
              EXPECT(!own->forked());
              EXPECT_EQ(own->allocate(10).size(), 10u);
              EXPECT_EQ(in_child([&] { EXPECT_THROWS(StateError, "forked", own->allocate(1)); }), 0);
            }),
            0);
  EXPECT_EQ(static_cast<char*>(block.data())[99], 5);
  EXPECT_EQ(pool->stats().live_blocks, 2u);
  EXPECT(!pool->closed());
  EXPECT(pool->free_raw(raw) == FreeResult::kFreed);
}

TEST(fork_while_other_threads_hold_the_locks) {
  const auto pool = init_default_pool(options_of(kMiB));
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!stop) {
        const PoolBlock block = default_pool()->allocate(100);
        find_pool(block.data());
      }
    });
  }
  PoolBlock block = pool->allocate(64);
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(in_child([&] {
                EXPECT_THROWS(StateError, "got a forked child", pool->allocate(1));
                EXPECT_THROWS(StateError, "parent of this forked process", default_pool());
                EXPECT(!default_pool_is_initialized());
                EXPECT(find_pool(block.data()) == nullptr);
                uninit_default_pool();
                block.reset();
                const auto own = init_default_pool(options_of(kMiB));
                EXPECT_EQ(own->allocate(10).size(), 10u);
                uninit_default_pool();
              }),
              0);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  block.reset();
  EXPECT_EQ(pool->stats().used, 0u);
  uninit_default_pool();
}

TEST(an_exiting_child_runs_its_destructors) {
  const auto pool = HostPool::create(options_of(kMiB));
  const PoolBlock block = pool->allocate(64);
  const pid_t child = fork();
  if (child == 0) {
    static PoolBlock dies_at_exit;
    dies_at_exit = pool->view(0, 64);
    std::exit(7);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT(WIFEXITED(status));
  EXPECT_EQ(pool->stats().live_blocks, 1u);
}

std::vector<std::string> to_arguments(const PoolHandle& handle) {
  return {std::to_string(handle.pid),      std::to_string(handle.fd),     std::to_string(handle.inode),
          std::to_string(handle.capacity), std::to_string(handle.length), std::to_string(handle.page_size)};
}

PoolHandle from_arguments(char** arguments) {
  PoolHandle handle;
  handle.pid = std::atoll(arguments[0]);
  handle.fd = std::atoi(arguments[1]);
  handle.inode = std::strtoull(arguments[2], nullptr, 10);
  handle.capacity = std::strtoull(arguments[3], nullptr, 10);
  handle.length = std::strtoull(arguments[4], nullptr, 10);
  handle.page_size = std::strtoull(arguments[5], nullptr, 10);
  return handle;
}

// What the program does when it is started with "--attach HANDLE".
int attached_process(char** arguments) {
  try {
    const PoolHandle handle = from_arguments(arguments);
    const auto pool = HostPool::attach(handle);
    EXPECT_EQ(pool->capacity(), handle.capacity);
    EXPECT_THROWS(StateError, "only the process that owns", pool->allocate(1));
    EXPECT_THROWS(StateError, "expected the process that owns", pool->share());
    EXPECT(pool->stats().attached);
    EXPECT(pool->free_raw(pool->base()) == FreeResult::kForeign);
    const PoolBlock view = pool->view(4096, 64);
    auto* const bytes = static_cast<unsigned char*>(view.data());
    EXPECT_EQ(bytes[0], 11);
    bytes[1] = 22;
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "attached process: %s\n", error.what());
    return 1;
  }
}

TEST(another_program_attaches) {
  const auto pool = HostPool::create(options_of(kMiB, true));
  EXPECT(pool->stats().shared);
  std::byte* const bytes = pool->base() + 4096;
  bytes[0] = std::byte{11};
  const std::vector<std::string> text = to_arguments(pool->share());
  const pid_t child = fork();
  if (child == 0) {
    std::vector<const char*> arguments = {"/proc/self/exe", "--attach"};
    for (const std::string& argument : text) arguments.push_back(argument.c_str());
    arguments.push_back(nullptr);
    execv("/proc/self/exe", const_cast<char* const*>(arguments.data()));
    _exit(127);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT(bytes[1] == std::byte{22});
}

TEST(a_private_pool_is_not_shared) {
  const auto pool = HostPool::create(options_of(kMiB));
  EXPECT_THROWS(StateError, "share expected a pool made with shared=True", pool->share());
}

TEST(a_handle_that_has_gone_stale) {
  auto pool = HostPool::create(options_of(kMiB, true));
  PoolHandle handle = pool->share();
  EXPECT_EQ(HostPool::attach(handle)->capacity(), kMiB);  // the same process may
  PoolHandle other = handle;
  other.inode += 1;
  EXPECT_THROWS(StateError, "got another file", HostPool::attach(other));
  other = handle;
  other.length *= 2;
  EXPECT_THROWS(StateError, "got another file", HostPool::attach(other));
  pool->close();
  EXPECT_THROWS(StateError, "got a closed one", pool->share());
  pool.reset();
  EXPECT_THROWS(StateError, "attach expected", HostPool::attach(handle));
  handle.pid = 0x3ffffff;
  EXPECT_THROWS(StateError, "to be alive", HostPool::attach(handle));
}

TEST(the_file_cannot_be_shrunk) {
  const auto pool = HostPool::create(options_of(kMiB, true));
  const PoolHandle handle = pool->share();
  EXPECT_EQ(ftruncate(handle.fd, 0), -1);
  pool->base()[kMiB - 1] = std::byte{1};
}

TEST(the_owner_is_killed) {
  int pipes[2];
  EXPECT_EQ(pipe(pipes), 0);
  const pid_t owner = fork();
  if (owner == 0) {
    const auto pool = HostPool::create(options_of(kMiB, true));
    PoolBlock block = pool->allocate(kMiB);
    std::memset(block.data(), 33, kMiB);
    const PoolHandle handle = pool->share();
    const uint64_t numbers[] = {static_cast<uint64_t>(handle.fd), handle.inode, handle.length, handle.page_size};
    if (write(pipes[1], numbers, sizeof(numbers)) != sizeof(numbers)) _exit(1);
    while (true) pause();
  }
  uint64_t numbers[4] = {};
  EXPECT_EQ(read(pipes[0], numbers, sizeof(numbers)), static_cast<ssize_t>(sizeof(numbers)));
  PoolHandle handle;
  handle.pid = owner;
  handle.fd = static_cast<int32_t>(numbers[0]);
  handle.inode = numbers[1];
  handle.capacity = kMiB;
  handle.length = numbers[2];
  handle.page_size = numbers[3];
  const auto pool = HostPool::attach(handle);
  kill(owner, SIGKILL);
  int status = -1;
  waitpid(owner, &status, 0);
  for (uint64_t i = 0; i < kMiB; ++i) EXPECT(pool->base()[i] == std::byte{33});
  EXPECT_THROWS(StateError, "to be alive", HostPool::attach(handle));
  close(pipes[0]);
  close(pipes[1]);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 8 && std::strcmp(argv[1], "--attach") == 0) return attached_process(argv + 2);
  return check::run(argc, argv);
}
