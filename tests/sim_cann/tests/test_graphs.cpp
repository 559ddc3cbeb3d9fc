// SPDX-License-Identifier: Apache-2.0
// Capture and replay, what a capture refuses, task groups.
#include <cstring>
#include <thread>

#include "check.h"

static const aclmdlRICaptureMode kGlobal = ACL_MODEL_RI_CAPTURE_MODE_GLOBAL;

namespace {

struct Fixture {
  aclrtStream stream, other;
  aclrtEvent event, event2;
  char *a, *b;
  aclmdlRI graph = nullptr;

  Fixture() {
    CHECK_OK(aclrtCreateStream(&stream));
    CHECK_OK(aclrtCreateStream(&other));
    CHECK_OK(aclrtCreateEvent(&event));
    CHECK_OK(aclrtCreateEvent(&event2));
    a = static_cast<char*>(check::deviceBytes(100, 1));
    b = static_cast<char*>(check::deviceBytes(100, 0));
  }
  ~Fixture() {
    if (graph) CHECK_OK(aclmdlRIDestroy(graph));
    CHECK_OK(aclrtSynchronizeDevice());
    CHECK_OK(aclrtDestroyEvent(event));
    CHECK_OK(aclrtDestroyEvent(event2));
    CHECK_OK(aclrtDestroyStream(stream));
    CHECK_OK(aclrtDestroyStream(other));
    CHECK_OK(aclrtFree(a));
    CHECK_OK(aclrtFree(b));
  }

  aclError copy(aclrtStream on, size_t bytes = 100) {
    struct {
      void *src, *dst;
      uint64_t bytes;
    } args{a, b, bytes};
    return aclrtLaunchKernelWithHostArgs(check::kernel("copy"), 4, on, nullptr, &args, sizeof args, nullptr, 0);
  }
  aclError begin(aclmdlRICaptureMode mode = kGlobal) { return aclmdlRICaptureBegin(stream, mode); }
  aclError end() { return aclmdlRICaptureEnd(stream, &graph); }
  void fill(int value) { CHECK_OK(aclrtMemset(a, 100, value, 100)); }
  int result() { return check::contents(b, 100)[99]; }
};

}  // namespace

CASE(captured_not_run_and_replayed_with_what_is_there_then) {
  Fixture f;
  simCountersReset();
  CHECK_OK(f.begin());
  CHECK_OK(f.copy(f.stream));
  aclmdlRICaptureStatus status;
  CHECK_OK(aclmdlRICaptureGetInfo(f.stream, &status, nullptr));
  CHECK_EQ(status, ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE);
  aclmdlRI unfinished;
  CHECK_OK(aclmdlRICaptureGetInfo(f.stream, &status, &unfinished));
  uint32_t early = 0, id = 0;
  CHECK_OK(aclmdlRIGetId(unfinished, &early));
  CHECK_EQ(aclmdlRIExecuteAsync(unfinished, f.other), ACL_ERROR_RT_MODEL_CAPTURED);
  CHECK_EQ(aclmdlRIDestroy(unfinished), ACL_ERROR_RT_MODEL_CAPTURED);
  CHECK_OK(f.end());
  CHECK_OK(aclmdlRICaptureGetInfo(f.stream, &status, nullptr));
  CHECK_EQ(status, ACL_MODEL_RI_CAPTURE_STATUS_NONE);
  CHECK_EQ(f.result(), 0);
  for (int value : {3, 5, 7}) {
    f.fill(value);
    CHECK_OK(aclmdlRIExecuteAsync(f.graph, value == 7 ? f.other : f.stream));
    CHECK_OK(aclrtSynchronizeDevice());
    CHECK_EQ(f.result(), value);
  }
  CHECK_EQ(simCounterGet("kernel.copy.launches"), 1u);
  CHECK_EQ(simCounterGet("kernel.copy.runs"), 3u);
  CHECK_OK(aclmdlRIGetId(f.graph, &id));
  CHECK_EQ(id, early);
  CHECK_EQ(aclmdlRIExecuteAsync(&f, f.stream), ACL_ERROR_RT_PARAM_INVALID);
}

CASE(an_execution_outlives_the_graph) {
  Fixture f;
  CHECK_OK(f.begin());
  CHECK_OK(f.copy(f.stream));
  CHECK_OK(f.end());
  CHECK_EQ(simSet("SIM_DELAY_US", "20000"), 0);
  f.fill(4);
  CHECK_OK(aclmdlRIExecuteAsync(f.graph, f.stream));
  CHECK_OK(aclmdlRIDestroy(f.graph));
  CHECK_EQ(aclmdlRIDestroy(f.graph), ACL_ERROR_RT_PARAM_INVALID);
  f.graph = nullptr;
  CHECK_OK(aclrtSynchronizeStream(f.stream));
  CHECK_EQ(simSet("SIM_DELAY_US", "0"), 0);
  CHECK_EQ(f.result(), 4);
}

CASE(events_pull_in_a_second_stream) {
  Fixture f;
  CHECK_OK(f.begin());
  CHECK_OK(aclrtRecordEvent(f.event, f.stream));
  CHECK_OK(aclrtStreamWaitEvent(f.other, f.event));
  CHECK_OK(f.copy(f.other));
  aclrtEventRecordedStatus status;
  CHECK_EQ(aclrtQueryEventStatus(f.event, &status), ACL_ERROR_RT_EVENT_CAPTURED);
  CHECK_EQ(aclrtSynchronizeEvent(f.event), ACL_ERROR_RT_EVENT_CAPTURED);
  CHECK_OK(aclrtRecordEvent(f.event2, f.other));
  CHECK_OK(aclrtStreamWaitEvent(f.stream, f.event2));
  CHECK_EQ(aclmdlRICaptureEnd(f.other, &f.graph), ACL_ERROR_RT_STREAM_CAPTURE_UNMATCHED);
  CHECK_OK(f.end());
  CHECK_OK(aclrtQueryEventStatus(f.event, &status));
  f.fill(8);
  CHECK_OK(aclmdlRIExecuteAsync(f.graph, f.stream));
  CHECK_OK(aclrtSynchronizeDevice());
  CHECK_EQ(f.result(), 8);
}

CASE(a_second_stream_must_be_joined) {
  Fixture f;
  CHECK_OK(f.begin());
  CHECK_OK(aclrtRecordEvent(f.event, f.stream));
  CHECK_OK(aclrtStreamWaitEvent(f.other, f.event));
  CHECK_OK(aclrtRecordEvent(f.event2, f.other));
  CHECK_OK(f.copy(f.other));  // after the record
  CHECK_OK(aclrtStreamWaitEvent(f.stream, f.event2));
  CHECK_EQ(f.end(), ACL_ERROR_RT_STREAM_UNJOINED);
  CHECK_OK(f.copy(f.other));  // both streams are usable
  CHECK_OK(aclrtSynchronizeDevice());
  CHECK_EQ(f.result(), 1);
}

CASE(waiting_for_a_capture_makes_it_invalid) {
  for (int what = 0; what < 3; what++) {
    Fixture f;
    CHECK_OK(f.begin());
    CHECK_OK(f.copy(f.stream));
    aclrtStreamStatus status;
    aclError code = what == 0   ? aclrtSynchronizeStream(f.stream)
                    : what == 1 ? aclrtStreamQuery(f.stream, &status)
                                : aclrtSynchronizeDevice();
    CHECK_EQ(code, ACL_ERROR_RT_STREAM_CAPTURED);
    aclmdlRICaptureStatus capture;
    CHECK_OK(aclmdlRICaptureGetInfo(f.stream, &capture, nullptr));
    CHECK_EQ(capture, ACL_MODEL_RI_CAPTURE_STATUS_INVALIDATED);
    CHECK_EQ(f.end(), ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED);
    CHECK(!f.graph);
    CHECK_OK(f.copy(f.stream));
    CHECK_OK(aclrtSynchronizeStream(f.stream));
  }
}

CASE(what_a_capture_refuses) {
  Fixture f;
  char host[100] = {};
  CHECK_EQ(aclmdlRICaptureBegin(nullptr, kGlobal), ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT);
  CHECK_EQ(f.end(), ACL_ERROR_RT_STREAM_NOT_CAPTURED);
  CHECK_OK(aclrtRecordEvent(f.event, f.other));
  CHECK_OK(f.begin());
  CHECK_EQ(f.begin(), ACL_ERROR_RT_STREAM_CAPTURED);
  CHECK_EQ(aclrtStreamWaitEvent(f.stream, f.event), ACL_ERROR_RT_CAPTURE_DEPENDENCY);
  CHECK_EQ(aclrtMemcpy(host, 100, f.a, 100, ACL_MEMCPY_DEVICE_TO_HOST), ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT);
  CHECK_EQ(aclrtMemset(f.a, 100, 0, 100), ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT);
  CHECK_EQ(aclrtDestroyStream(f.stream), ACL_ERROR_RT_STREAM_CAPTURED);
  std::thread([&] {  // a global capture: in other threads as well
    CHECK_OK(aclrtSetDevice(0));
    CHECK_EQ(aclrtMemset(f.a, 100, 0, 100), ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT);
    aclmdlRI graph;
    CHECK_EQ(aclmdlRICaptureEnd(f.stream, &graph), ACL_ERROR_RT_STREAM_CAPTURE_WRONG_THREAD);
    aclmdlRICaptureMode mode = ACL_MODEL_RI_CAPTURE_MODE_RELAXED;
    CHECK_OK(aclmdlRICaptureThreadExchangeMode(&mode));
    CHECK_EQ(mode, kGlobal);
    CHECK_OK(aclrtMemset(f.a, 100, 2, 100));
  })
      .join();
  void* p;
  CHECK_OK(aclrtMalloc(&p, 10, ACL_MEM_MALLOC_HUGE_FIRST));  // allocations are not checked
  CHECK_OK(aclrtFree(p));
  CHECK_OK(aclrtMemcpyAsync(host, 100, f.a, 100, ACL_MEMCPY_DEVICE_TO_HOST, f.stream));
  CHECK_OK(f.end());
  CHECK_EQ(host[0], 0);
  CHECK_OK(aclmdlRIExecuteAsync(f.graph, f.stream));
  CHECK_OK(aclrtSynchronizeStream(f.stream));
  CHECK_EQ(host[0], 2);
}

CASE(a_thread_local_capture_leaves_other_threads_alone) {
  Fixture f;
  CHECK_OK(f.begin(ACL_MODEL_RI_CAPTURE_MODE_THREAD_LOCAL));
  CHECK_EQ(aclrtMemset(f.a, 100, 0, 100), ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT);
  std::thread([&] { CHECK_OK(aclrtMemset(f.a, 100, 0, 100)); }).join();
  CHECK_OK(f.end());
  CHECK_OK(f.begin(ACL_MODEL_RI_CAPTURE_MODE_RELAXED));
  CHECK_OK(aclmdlRIDestroy(f.graph));
  CHECK_OK(f.end());
}

CASE(a_task_group_takes_new_arguments) {
  Fixture f;
  aclrtTaskGrp group;
  CHECK_EQ(aclmdlRICaptureTaskGrpBegin(f.stream), ACL_ERROR_RT_STREAM_NOT_CAPTURED);
  CHECK_OK(f.begin());
  CHECK_OK(aclrtMemsetAsync(f.b, 100, 0, 100, f.stream));
  CHECK_OK(aclmdlRICaptureTaskGrpBegin(f.stream));
  CHECK_OK(f.copy(f.stream, 100));
  CHECK_OK(aclmdlRICaptureTaskGrpEnd(f.stream, &group));
  CHECK_OK(f.end());
  CHECK_OK(aclmdlRICaptureTaskUpdateBegin(f.other, group));
  CHECK_OK(f.copy(f.other, 50));
  CHECK_EQ(f.copy(f.other, 50), ACL_ERROR_STREAM_TASK_GROUP_STATUS);  // more than the group has
  CHECK_OK(aclmdlRICaptureTaskUpdateEnd(f.other));
  CHECK_OK(aclmdlRIExecuteAsync(f.graph, f.stream));
  CHECK_OK(aclrtSynchronizeDevice());
  CHECK_EQ(check::contents(f.b, 100), std::string(50, 1) + std::string(50, 0));
  CHECK_OK(aclmdlRICaptureTaskUpdateBegin(f.other, group));
  CHECK_EQ(aclmdlRICaptureTaskUpdateEnd(f.other), ACL_ERROR_STREAM_TASK_GROUP_STATUS);
}

CASE(a_fault_in_a_graph_ends_its_execution) {
  Fixture f;
  CHECK_OK(f.begin());
  CHECK_OK(f.copy(f.stream, 101));
  CHECK_OK(f.copy(f.stream));
  CHECK_OK(f.end());
  CHECK_OK(aclmdlRIExecuteAsync(f.graph, f.stream));
  CHECK_EQ(aclrtSynchronizeStream(f.stream), ACL_ERROR_RT_VECTOR_CORE_EXCEPTION);
}

CASE(dumps) {
  Fixture f;
  CHECK_OK(f.begin());
  CHECK_OK(f.copy(f.stream));
  CHECK_OK(f.end());
  CHECK_EQ(aclmdlRIDebugJsonPrint(f.graph, "/nonexistent/graph.json", 0), ACL_ERROR_RT_FILE_WRITE);
  CHECK_OK(aclmdlRIDebugPrint(f.graph));
}
