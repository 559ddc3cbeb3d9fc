// SPDX-License-Identifier: Apache-2.0
// Inline streams: a task has run when the call that issues it returns.
// RUN: SIM_STREAM_MODE=inline
#include "check.h"

CASE(tasks_run_at_once) {
  aclrtStream stream, other;
  CHECK_OK(aclrtCreateStream(&stream));
  CHECK_OK(aclrtCreateStream(&other));
  void* a = check::deviceBytes(100, 3);
  void* b = check::deviceBytes(100, 0);
  char host[100];
  CHECK_OK(aclrtMemcpyAsync(host, 100, a, 100, ACL_MEMCPY_DEVICE_TO_HOST, stream));
  CHECK_EQ(host[99], 3);
  struct {
    void *src, *dst;
    uint64_t bytes;
  } args{a, b, 100};
  CHECK_OK(aclrtLaunchKernelWithHostArgs(check::kernel("copy"), 3, stream, nullptr, &args, sizeof args, nullptr, 0));
  CHECK_EQ(check::contents(b, 100), std::string(100, 3));
  aclrtEvent event;
  CHECK_OK(aclrtCreateEvent(&event));
  CHECK_OK(aclrtRecordEvent(event, stream));
  CHECK_OK(aclrtStreamWaitEvent(other, event));
  CHECK_OK(aclrtSynchronizeEvent(event));
  args.bytes = 101;
  CHECK_OK(aclrtLaunchKernelWithHostArgs(check::kernel("copy"), 3, stream, nullptr, &args, sizeof args, nullptr, 0));
  CHECK_EQ(aclrtSynchronizeStream(stream), ACL_ERROR_RT_VECTOR_CORE_EXCEPTION);
  CHECK_OK(aclrtSynchronizeStream(other));
  CHECK_OK(aclrtDestroyEvent(event));
  CHECK_OK(aclrtDestroyStream(stream));
  CHECK_OK(aclrtDestroyStream(other));
  CHECK_OK(aclrtFree(a));
  CHECK_OK(aclrtFree(b));
}

CASE(a_task_may_issue_another) {
  static aclrtStream stream;
  static int calls = 0;
  CHECK_OK(aclrtCreateStream(&stream));
  CHECK_OK(aclrtLaunchHostFunc(
      stream, [](void*) { CHECK_OK(aclrtLaunchHostFunc(stream, [](void*) { calls++; }, nullptr)); }, nullptr));
  CHECK_EQ(calls, 1);
  CHECK_OK(aclrtDestroyStream(stream));
}
