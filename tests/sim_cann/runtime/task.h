// SPDX-License-Identifier: Apache-2.0
// The task that a stream is running, and how a fault finds it.
#pragma once
#include <mutex>
#include <string>

#include "api.h"

namespace sim {

class RunningTask {
 public:
  RunningTask(const std::string& name, int device);  // becomes the current one of this thread
  ~RunningTask();
  RunningTask(const RunningTask&) = delete;
  RunningTask& operator=(const RunningTask&) = delete;

  static RunningTask* current();
  static void adopt(RunningTask* task);

  // The first fault counts.
  void fail(aclError code, const std::string& message);
  aclError fault(std::string* message = nullptr);

  const std::string name;
  const int device;

 private:
  std::mutex mutex_;
  aclError code_ = ACL_SUCCESS;
  std::string message_;
  RunningTask* outer_;  // with inline streams a task may issue another one
};

// device.cpp: may kernels of `device` touch the memory of `other`?
bool peersEnabled(int device, int other);

}  // namespace sim
