// SPDX-License-Identifier: Apache-2.0
// Injected faults, settings, counters, calls that are not simulated.
// RUN: SIM_FAIL=aclrtMalloc:2:207001,kernel.copy:3+:507015
#include <cstring>
#include <thread>
#include <vector>

#include "check.h"

// First, because the rules of SIM_FAIL count from the start of the process.
CASE(faults_from_the_environment) {
  void *p, *q;
  CHECK_OK(aclrtMalloc(&p, 10, ACL_MEM_MALLOC_HUGE_FIRST));
  CHECK_EQ(aclrtMalloc(&q, 10, ACL_MEM_MALLOC_HUGE_FIRST), 207001);
  CHECK(strstr(aclGetRecentErrMsg(), "aclrtMalloc: injected fault"));
  CHECK_OK(aclrtMalloc(&q, 10, ACL_MEM_MALLOC_HUGE_FIRST));
  aclrtStream stream;
  CHECK_OK(aclrtCreateStream(&stream));
  struct {
    void *src, *dst;
    uint64_t bytes;
  } args{p, q, 10};
  for (aclError expected : {0, 0, 507015, 507015}) {
    CHECK_OK(aclrtLaunchKernelWithHostArgs(check::kernel("copy"), 1, stream, nullptr, &args, sizeof args, nullptr, 0));
    CHECK_EQ(aclrtSynchronizeStream(stream), expected);
  }
  CHECK_OK(aclrtDestroyStream(stream));
  CHECK_OK(aclrtFree(p));
  CHECK_OK(aclrtFree(q));
}

CASE(faults_from_code) {
  uint32_t count;
  simFailCall("aclrtGetDeviceCount", 2, 507899, 0);
  CHECK_OK(aclrtGetDeviceCount(&count));
  CHECK_EQ(aclrtGetDeviceCount(&count), 507899);
  CHECK_OK(aclrtGetDeviceCount(&count));
  simFailCall("aclrtGetDeviceCount", 1, 107000, 1);
  CHECK_EQ(aclrtGetDeviceCount(&count), 107000);
  CHECK_EQ(aclrtGetDeviceCount(&count), 107000);
  simFailClear();
  CHECK_OK(aclrtGetDeviceCount(&count));
}

CASE(settings) {
  CHECK_EQ(simSet("SIM_NONE", "1"), 1);
  CHECK_EQ(simSet("SIM_DEVICES", "2"), 2);
  CHECK_EQ(simSet("SIM_DELAY_US", "-1"), 3);
  CHECK_EQ(simSet("SIM_DELAY_US", "5x"), 3);
  CHECK_EQ(simSet("SIM_MAPPED_COPIES", "maybe"), 3);
  std::string text(simSettingsText(nullptr, 0), 0);
  simSettingsText(text.data(), text.size());
  CHECK(text.find("SIM_DELAY_US\t0\t0\t") != text.npos);
}

CASE(counters) {
  simCountersReset();
  CHECK_EQ(simCounterGet("test.n"), 0u);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; t++)
    threads.emplace_back([t] {
      for (int i = 0; i < 1000; i++) {
        simCounterAdd("test.n", 2);
        simCounterMax("test.largest", t * 1000 + i);
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK_EQ(simCounterGet("test.n"), 8000u);
  CHECK_EQ(simCounterGet("test.largest"), 3999u);
  std::string text(simCountersText(nullptr, 0), 0);
  simCountersText(text.data(), text.size());
  CHECK(text.find("test.largest 3999\ntest.n 8000\n") != text.npos);
  char few[6];
  CHECK_EQ(simCountersText(few, sizeof few), text.size());
  CHECK_EQ(strlen(few), 5u);
  int device;
  CHECK_OK(aclrtGetDevice(&device));
  CHECK_EQ(simCounterGet("aclrtGetDevice"), 1u);
  simCountersReset();
  CHECK_EQ(simCounterGet("aclrtGetDevice"), 0u);
}

CASE(what_is_not_simulated_says_its_name) {
  aclrtMemUsageInfo info;
  size_t n;
  CHECK_EQ(aclrtGetMemUsageInfo(0, &info, 1, &n), ACL_ERROR_RT_FEATURE_NOT_SUPPORT);
  CHECK_EQ(std::string(aclGetRecentErrMsg()), "[sim] aclrtGetMemUsageInfo is not simulated");
  CHECK_EQ(std::string(aclGetRecentErrMsg()), "");
}

CASE(operators_of_sister_libraries) {
  aclrtStream stream;
  CHECK_OK(aclrtCreateStream(&stream));
  struct Op {
    int code, runs, drops;
  } op{0, 0, 0};
  auto run = [](void* p) { return static_cast<Op*>(p)->runs++, static_cast<Op*>(p)->code; };
  auto drop = [](void* p) { static_cast<Op*>(p)->drops++; };
  CHECK_EQ(simEnqueue(stream, "op", run, &op, drop), 0);
  CHECK_OK(aclrtSynchronizeStream(stream));
  CHECK_EQ(op.runs, 1);
  CHECK_EQ(op.drops, 1);
  op.code = 507018;
  CHECK_EQ(simEnqueue(stream, "op", run, &op, drop), 0);
  CHECK_EQ(aclrtSynchronizeStream(stream), 507018);
  CHECK_EQ(simEnqueue(&op, "op", run, &op, drop), ACL_ERROR_RT_PARAM_INVALID);  // no stream
  CHECK_EQ(op.drops, 3);
  auto fault = [](void*) { return simTaskFailed(507034, "took too long"), 0; };
  CHECK_EQ(simEnqueue(stream, "op", fault, &op, drop), 0);
  CHECK_EQ(aclrtSynchronizeStream(stream), 507034);
  CHECK(strstr(aclGetRecentErrMsg(), "took too long"));
  CHECK_OK(aclrtDestroyStream(stream));
}
