// SPDX-License-Identifier: Apache-2.0
#include "stream.h"

#include <chrono>

#include "device.h"
#include "graph.h"
#include "settings.h"
#include "task.h"

namespace sim {

Stream::Stream(int streamId, int streamDevice, uint32_t streamFlags)
    : id(streamId), device(streamDevice), flags(streamFlags) {
  if (!is(Setting::kStreamMode, "inline")) thread_ = std::thread([this] { loop(); });
}

Stream::~Stream() {
  if (!thread_.joinable()) return;
  if (thread_.get_id() == std::this_thread::get_id())
    thread_.detach();  // its last task held the last reference
  else
    join();
}

void Stream::runOne(Task& task) {
  if (!task.synchronisation) {
    if (stopped()) return;
    if (int64_t us = number(Setting::kDelayUs)) std::this_thread::sleep_for(std::chrono::microseconds(us));
  }
  std::string message;
  aclError code;
  {
    RunningTask running(task.name, device);
    code = task.run();
    if (code)
      message = takeLastError();
    else
      code = running.fault(&message);
  }
  if (!code) return;
  std::lock_guard guard(mutex_);
  if (error_) return;
  error_ = code;
  errorText_ = message;
}

void Stream::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [this] { return ending_ || !queue_.empty(); });
    if (queue_.empty()) return;
    {
      Task task = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      runOne(task);
    }  // what the task holds is released before the task counts as finished
    lock.lock();
    finished_++;
    done_.notify_all();
  }
}

void Stream::push(Task task) {
  if (!thread_.joinable()) {
    std::lock_guard guard(inline_);
    runOne(task);
    return;
  }
  {
    std::lock_guard guard(mutex_);
    queue_.push_back(std::move(task));
    pushed_++;
  }
  work_.notify_one();
}

aclError Stream::drain(int timeoutMs) {
  if (inForkedChild()) return fail(ACL_ERROR_RT_DEV_SETUP_ERROR, "the device cannot be used in a forked child");
  std::unique_lock lock(mutex_);
  const uint64_t target = pushed_;
  auto reached = [&] { return finished_ >= target; };
  if (timeoutMs < 0)
    done_.wait(lock, reached);
  else if (!done_.wait_for(lock, std::chrono::milliseconds(timeoutMs), reached))
    return fail(ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, "stream %d: not done after %d ms", id, timeoutMs);
  if (!error_) return ACL_SUCCESS;
  aclError code = error_;
  std::string message = errorText_;
  if (failureMode != ACL_STOP_ON_FAILURE) error_ = ACL_SUCCESS;
  lock.unlock();
  return fail(code, "stream %d: %s", id, message.c_str());
}

bool Stream::idle() {
  std::lock_guard guard(mutex_);
  return finished_ == pushed_;
}

aclError Stream::stopped() {
  if (failureMode != ACL_STOP_ON_FAILURE) return ACL_SUCCESS;
  std::lock_guard guard(mutex_);
  return error_;
}

void Stream::join() {
  {
    std::lock_guard guard(mutex_);
    ending_ = true;
  }
  work_.notify_all();
  if (thread_.joinable()) thread_.join();
}

aclError submit(const StreamPtr& stream, Task task) {
  {
    std::lock_guard guard(captureMutex());
    if (stream->updating) return replaceInGroup(*stream, std::move(task));
    if (stream->capture) {
      stream->capture->append(*stream, std::move(task));
      return ACL_SUCCESS;
    }
  }
  if (inForkedChild()) return fail(ACL_ERROR_RT_DEV_SETUP_ERROR, "the device cannot be used in a forked child");
  if (aclError code = stream->stopped())
    return fail(code, "stream %d stopped on a failure; %s is not accepted", stream->id, task.name.c_str());
  stream->push(std::move(task));
  return ACL_SUCCESS;
}

}  // namespace sim
using namespace sim;

SIM_EXPORT int simEnqueue(void* handle, const char* name, int (*fn)(void*), void* arg, void (*drop)(void*)) {
  std::shared_ptr<void> held(arg, drop);
  SIM_REQUIRE_STREAM(stream, handle);
  return submit(stream, {name, [=] { return fn(held.get()); }});
}
