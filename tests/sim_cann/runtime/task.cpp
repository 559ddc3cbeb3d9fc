// SPDX-License-Identifier: Apache-2.0
#include "task.h"

#include <set>

namespace sim {
namespace {

thread_local RunningTask* currentTask = nullptr;

struct Running {
  std::mutex mutex;
  std::set<RunningTask*> tasks;
};
Running& running() {
  static auto* instance = new Running;
  return *instance;
}

// The current task of this thread, or every one that runs.
void failTasks(aclError code, const char* message) {
  fprintf(stderr, "[sim] device fault %d: %s\n", code, message);
  if (currentTask) return currentTask->fail(code, message);
  std::lock_guard guard(running().mutex);
  for (RunningTask* task : running().tasks) task->fail(code, message);
}

}  // namespace

RunningTask::RunningTask(const std::string& taskName, int taskDevice)
    : name(taskName), device(taskDevice), outer_(currentTask) {
  currentTask = this;
  std::lock_guard guard(running().mutex);
  running().tasks.insert(this);
}

RunningTask::~RunningTask() {
  currentTask = outer_;
  std::lock_guard guard(running().mutex);
  running().tasks.erase(this);
}

RunningTask* RunningTask::current() { return currentTask; }
void RunningTask::adopt(RunningTask* task) { currentTask = task; }

void RunningTask::fail(aclError code, const std::string& message) {
  std::lock_guard guard(mutex_);
  if (code_) return;
  code_ = code;
  message_ = name + ": " + message;
}

aclError RunningTask::fault(std::string* message) {
  std::lock_guard guard(mutex_);
  if (message) *message = message_;
  return code_;
}

}  // namespace sim
using namespace sim;

SIM_EXPORT void* simCurrentTask(void) { return RunningTask::current(); }
SIM_EXPORT void simAdoptTask(void* task) { RunningTask::adopt(static_cast<RunningTask*>(task)); }

SIM_EXPORT void simKernelFault(const char* message) { failTasks(ACL_ERROR_RT_VECTOR_CORE_EXCEPTION, message); }
SIM_EXPORT void simTaskFailed(int code, const char* message) { failTasks(code, message); }
