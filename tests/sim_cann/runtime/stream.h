// SPDX-License-Identifier: Apache-2.0
// Streams: a thread and a queue each; with SIM_STREAM_MODE=inline a task runs in the thread that issues it.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "api.h"

namespace sim {

class Graph;
struct TaskGroup;

struct Task {
  std::string name;
  std::function<aclError()> run;
  // Event records and waits: not delayed by SIM_DELAY_US, and run even after the stream has stopped on a
  // failure, so that nobody waits for ever.
  bool synchronisation = false;
};

class Stream {
 public:
  Stream(int id, int device, uint32_t flags);
  ~Stream();

  void push(Task task);
  // Waits for what was pushed before the call. Returns the error of the first task that failed, once, or for
  // ever if the stream stops on failure.
  aclError drain(int timeoutMs);
  bool idle();
  aclError stopped();  // the error, if no more tasks are accepted
  void join();         // runs what is queued and ends the thread

  const int id;
  const int device;
  const uint32_t flags;
  std::atomic<uint64_t> failureMode{ACL_CONTINUE_ON_FAILURE};
  std::atomic<uint32_t> overflowSwitch{0};
  std::atomic<bool> subscribed{false};  // aclrtSubscribeReport

  // Guarded by captureMutex().
  std::shared_ptr<Graph> capture;
  std::shared_ptr<TaskGroup> openGroup;
  std::shared_ptr<TaskGroup> updating;
  size_t updatePosition = 0;

 private:
  void loop();
  void runOne(Task& task);

  std::mutex mutex_;
  std::condition_variable work_, done_;
  std::deque<Task> queue_;
  uint64_t pushed_ = 0, finished_ = 0;
  bool ending_ = false;
  aclError error_ = ACL_SUCCESS;
  std::string errorText_;
  std::recursive_mutex inline_;  // a callback of an inline task may issue tasks
  std::thread thread_;
};

using StreamPtr = std::shared_ptr<Stream>;

// Null handle: the default stream of the current device. Null: there is no such stream.
StreamPtr findStream(aclrtStream handle);

// Everything that runs on a stream goes through here: it is queued, captured, or put into a task group.
aclError submit(const StreamPtr& stream, Task task);

}  // namespace sim

#define SIM_REQUIRE_STREAM(stream, handle)                                          \
  sim::StreamPtr stream = sim::findStream(handle);                                  \
  if (!stream)                                                                      \
  return sim::fail(handle ? ACL_ERROR_RT_PARAM_INVALID : ACL_ERROR_RT_CONTEXT_NULL, \
                   "%s: %p is not a stream, or this thread has no device", __func__, (void*)handle)
