// SPDX-License-Identifier: Apache-2.0
// Streams and events: order, delays that make a missing wait visible, failures, host functions, threads.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "check.h"

using Clock = std::chrono::steady_clock;

static aclrtStream newStream() {
  aclrtStream stream = nullptr;
  CHECK_OK(aclrtCreateStreamWithConfig(&stream, 0, 3));
  return stream;
}
static void* pinned(size_t size) {
  void* p = nullptr;
  CHECK_OK(aclrtMallocHost(&p, size));
  return p;
}

struct Delay {
  explicit Delay(const char* us) { CHECK_EQ(simSet("SIM_DELAY_US", us), 0); }
  ~Delay() { simSet("SIM_DELAY_US", "0"); }
};

CASE(tasks_run_in_order) {
  aclrtStream stream = newStream();
  std::vector<int> order;
  struct Item {
    std::vector<int>* order;
    int value;
  };
  std::vector<Item> items;
  for (int i = 0; i < 500; i++) items.push_back({&order, i});
  for (auto& item : items)
    CHECK_OK(aclrtLaunchHostFunc(
        stream, [](void* p) { static_cast<Item*>(p)->order->push_back(static_cast<Item*>(p)->value); }, &item));
  CHECK_OK(aclrtSynchronizeStream(stream));
  CHECK_EQ(order.size(), 500u);
  for (int i = 0; i < 500; i++) CHECK_EQ(order[i], i);
  CHECK_OK(aclrtDestroyStream(stream));
  CHECK_EQ(aclrtSynchronizeStream(stream), ACL_ERROR_RT_PARAM_INVALID);
}

CASE(a_missing_synchronise_is_seen) {
  aclrtStream stream = newStream();
  void* device = check::deviceBytes(16, 1);
  auto* host = static_cast<char*>(pinned(16));
  host[0] = 9;
  {
    Delay delay("300000");
    CHECK_OK(aclrtMemcpyAsync(host, 16, device, 16, ACL_MEMCPY_DEVICE_TO_HOST, stream));
    aclrtStreamStatus status;
    CHECK_OK(aclrtStreamQuery(stream, &status));
    CHECK_EQ(status, ACL_STREAM_STATUS_NOT_READY);
    CHECK_EQ(aclrtSynchronizeStreamWithTimeout(stream, 1), ACL_ERROR_RT_STREAM_SYNC_TIMEOUT);
    CHECK_OK(aclrtSynchronizeStreamWithTimeout(stream, 60000));
    CHECK_OK(aclrtStreamQuery(stream, &status));
    CHECK_EQ(status, ACL_STREAM_STATUS_COMPLETE);
  }
  CHECK_EQ(host[0], 1);
  CHECK_OK(aclrtDestroyStream(stream));
  CHECK_OK(aclrtFree(device));
  CHECK_OK(aclrtFreeHost(host));
}

CASE(streams_are_ordered_by_events_only) {
  aclrtStream producer = newStream(), consumer = newStream();
  void* a = check::deviceBytes(1, 1);
  void* b = check::deviceBytes(1, 0);
  aclrtEvent event;
  CHECK_OK(aclrtCreateEventWithFlag(&event, ACL_EVENT_SYNC));
  auto run = [&](bool wait) {
    CHECK_OK(aclrtMemset(a, 1, 1, 1));
    {
      // The producer's task is delayed, the consumer's is not: simSet takes effect when a task starts.
      Delay delay("400000");
      CHECK_OK(aclrtMemsetAsync(a, 1, 2, 1, producer));
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    CHECK_OK(aclrtRecordEvent(event, producer));
    if (wait) CHECK_OK(aclrtStreamWaitEvent(consumer, event));
    CHECK_OK(aclrtMemcpyAsync(b, 1, a, 1, ACL_MEMCPY_DEVICE_TO_DEVICE, consumer));
    CHECK_OK(aclrtSynchronizeDevice());
    return check::contents(b, 1)[0];
  };
  CHECK_EQ(run(true), 2);
  CHECK_EQ(run(false), 1);
  CHECK_OK(aclrtDestroyEvent(event));
  CHECK_OK(aclrtDestroyStream(producer));
  CHECK_OK(aclrtDestroyStream(consumer));
  CHECK_OK(aclrtFree(a));
  CHECK_OK(aclrtFree(b));
}

CASE(events_have_generations) {
  aclrtStream stream = newStream(), other = newStream();
  aclrtEvent event;
  CHECK_OK(aclrtCreateEventExWithFlag(&event, ACL_EVENT_SYNC | ACL_EVENT_TIME_LINE));
  aclrtEventRecordedStatus recorded;
  aclrtEventWaitStatus waited;
  CHECK_OK(aclrtQueryEventStatus(event, &recorded));
  CHECK_EQ(recorded, ACL_EVENT_RECORDED_STATUS_COMPLETE);  // nothing to wait for
  CHECK_OK(aclrtSynchronizeEvent(event));
  CHECK_OK(aclrtStreamWaitEvent(other, event));
  {
    Delay delay("300000");
    CHECK_OK(aclrtLaunchHostFunc(stream, [](void*) {}, nullptr));
    CHECK_OK(aclrtRecordEvent(event, stream));
    CHECK_OK(aclrtStreamWaitEvent(other, event));
    CHECK_OK(aclrtQueryEventStatus(event, &recorded));
    CHECK_EQ(recorded, ACL_EVENT_RECORDED_STATUS_NOT_READY);
    CHECK_OK(aclrtQueryEventWaitStatus(event, &waited));
    CHECK_EQ(waited, ACL_EVENT_WAIT_STATUS_NOT_READY);
    CHECK_OK(aclrtDestroyEvent(event));  // while it is queued
    CHECK_OK(aclrtSynchronizeDevice());
  }
  CHECK_EQ(aclrtSynchronizeEvent(event), ACL_ERROR_RT_PARAM_INVALID);
  CHECK_EQ(aclrtCreateEventExWithFlag(&event, ACL_EVENT_IPC), ACL_ERROR_RT_FEATURE_NOT_SUPPORT);
  CHECK_OK(aclrtDestroyStream(stream));
  CHECK_OK(aclrtDestroyStream(other));
}

CASE(elapsed_time) {
  aclrtStream stream = newStream();
  aclrtEvent begin, end, untimed;
  CHECK_OK(aclrtCreateEvent(&begin));
  CHECK_OK(aclrtCreateEvent(&end));
  CHECK_OK(aclrtCreateEventWithFlag(&untimed, ACL_EVENT_SYNC));
  float ms = 0;
  CHECK_EQ(aclrtEventElapsedTime(&ms, begin, end), ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID);
  CHECK_OK(aclrtRecordEvent(begin, stream));
  {
    Delay delay("20000");
    CHECK_OK(aclrtLaunchHostFunc(stream, [](void*) {}, nullptr));
    CHECK_OK(aclrtSynchronizeStream(stream));
  }
  CHECK_OK(aclrtRecordEvent(end, stream));
  CHECK_OK(aclrtRecordEvent(untimed, stream));
  CHECK_OK(aclrtSynchronizeStream(stream));
  CHECK_OK(aclrtEventElapsedTime(&ms, begin, end));
  CHECK(ms >= 20 && ms < 20000);
  CHECK_EQ(aclrtEventElapsedTime(&ms, end, begin), ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL);
  CHECK_EQ(aclrtEventElapsedTime(&ms, begin, untimed), ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID);
  for (aclrtEvent event : {begin, end, untimed}) CHECK_OK(aclrtDestroyEvent(event));
  CHECK_OK(aclrtDestroyStream(stream));
}

CASE(a_failure_is_reported_by_the_next_synchronise) {
  aclrtStream stream = newStream();
  void* p = check::deviceBytes(16, 1);
  char* beyond = static_cast<char*>(p) + 10;
  CHECK_OK(aclrtMemsetAsync(beyond, 16, 0, 16, stream));  // nothing is seen when it is issued
  CHECK_OK(aclrtMemsetAsync(p, 16, 2, 16, stream));
  CHECK_EQ(aclrtSynchronizeStream(stream), ACL_ERROR_RT_PARAM_INVALID);
  CHECK(std::string(aclGetRecentErrMsg()).find("10 bytes beyond") != std::string::npos);
  CHECK_OK(aclrtSynchronizeStream(stream));  // once
  CHECK_EQ(check::contents(p, 1)[0], 2);     // later tasks ran

  CHECK_OK(aclrtSetStreamFailureMode(stream, ACL_STOP_ON_FAILURE));
  aclrtEvent event;
  CHECK_OK(aclrtCreateEvent(&event));
  {
    Delay delay("1000");
    CHECK_OK(aclrtMemsetAsync(beyond, 16, 0, 16, stream));
    CHECK_OK(aclrtMemsetAsync(p, 16, 3, 16, stream));
    CHECK_OK(aclrtRecordEvent(event, stream));
  }
  CHECK_OK(aclrtSynchronizeEvent(event));  // nobody waits for ever
  CHECK_EQ(aclrtSynchronizeStream(stream), ACL_ERROR_RT_PARAM_INVALID);
  CHECK_EQ(aclrtSynchronizeStream(stream), ACL_ERROR_RT_PARAM_INVALID);
  CHECK_EQ(aclrtMemsetAsync(p, 16, 3, 16, stream), ACL_ERROR_RT_PARAM_INVALID);
  CHECK_EQ(check::contents(p, 1)[0], 2);  // later tasks did not run
  CHECK_OK(aclrtDestroyEvent(event));
  CHECK_OK(aclrtDestroyStream(stream));
  CHECK_OK(aclrtFree(p));
}

CASE(callbacks_need_a_subscribed_thread) {
  aclrtStream stream = newStream();
  std::atomic<int> calls{0};
  auto call = [](void* p) { ++*static_cast<std::atomic<int>*>(p); };
  CHECK_EQ(aclrtLaunchCallback(call, &calls, ACL_CALLBACK_BLOCK, stream), ACL_ERROR_RT_STREAM_NO_CB_REG);
  CHECK_OK(aclrtSubscribeReport(1, stream));
  CHECK_OK(aclrtLaunchCallback(call, &calls, ACL_CALLBACK_BLOCK, stream));
  CHECK_OK(aclrtSynchronizeStream(stream));
  CHECK_EQ(calls.load(), 1);
  CHECK_OK(aclrtUnSubscribeReport(1, stream));
  CHECK_OK(aclrtDestroyStream(stream));
}

CASE(device_words) {
  aclrtStream waiter = newStream(), writer = newStream();
  void* word = check::deviceBytes(8, 0);
  void* p = check::deviceBytes(1, 0);
  CHECK_OK(aclrtValueWait(word, 5, ACL_STREAM_WAIT_VALUE_EQ, waiter));
  CHECK_OK(aclrtMemsetAsync(p, 1, 1, 1, waiter));
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  aclrtStreamStatus status;
  CHECK_OK(aclrtStreamQuery(waiter, &status));
  CHECK_EQ(status, ACL_STREAM_STATUS_NOT_READY);
  CHECK_OK(aclrtValueWrite(word, 5, 0, writer));
  CHECK_OK(aclrtSynchronizeDevice());
  CHECK_EQ(check::contents(p, 1)[0], 1);
  CHECK_OK(aclrtDestroyStream(waiter));
  CHECK_OK(aclrtDestroyStream(writer));
  CHECK_OK(aclrtFree(word));
  CHECK_OK(aclrtFree(p));
}

CASE(many_threads) {
  std::vector<std::thread> threads;
  aclrtStream shared = newStream();
  for (int t = 0; t < 8; t++)
    threads.emplace_back([t, shared] {
      int device;
      CHECK_EQ(aclrtGetDevice(&device), ACL_ERROR_RT_CONTEXT_NULL);
      CHECK_OK(aclrtSetDevice(0));
      aclrtStream own = newStream();
      aclrtEvent event;
      CHECK_OK(aclrtCreateEvent(&event));
      for (int i = 0; i < 20; i++) {
        void* a = check::deviceBytes(100, t);
        void* b = check::deviceBytes(100, 99);
        CHECK_OK(aclrtMemcpyAsync(b, 100, a, 100, ACL_MEMCPY_DEVICE_TO_DEVICE, own));
        CHECK_OK(aclrtRecordEvent(event, own));
        CHECK_OK(aclrtStreamWaitEvent(shared, event));
        CHECK_OK(aclrtMemsetAsync(a, 100, 0, 100, shared));
        CHECK_OK(aclrtSynchronizeStream(own));
        CHECK_EQ(check::contents(b, 100), std::string(100, static_cast<char>(t)));
        CHECK_OK(aclrtSynchronizeStream(shared));
        CHECK_OK(aclrtFree(a));
        CHECK_OK(aclrtFree(b));
      }
      CHECK_OK(aclrtDestroyEvent(event));
      CHECK_OK(aclrtDestroyStream(own));
    });
  for (auto& thread : threads) thread.join();
  CHECK_OK(aclrtDestroyStream(shared));
  CHECK_EQ(simLiveDeviceBytes(0), 0u);
}
