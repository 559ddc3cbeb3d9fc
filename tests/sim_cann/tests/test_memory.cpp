// SPDX-License-Identifier: Apache-2.0
// Device memory: exact sizes, use after free, what the host may not do, copies, virtual memory.
// RUN: SIM_DEVICES=2 SIM_BUDGET_MB=64
// RUN: SIM_DEVICES=2 SIM_BUDGET_MB=64 SIM_STREAM_MODE=inline
#include <signal.h>

#include <cstring>

#include "check.h"

static uint64_t address(const void* p) { return reinterpret_cast<uint64_t>(p); }
static void* at(void* p, int64_t offset) { return static_cast<char*>(p) + offset; }

CASE(sizes_are_exact) {
  for (size_t size : {1, 31, 100, 4096, 5000, 3 << 20}) {
    void* p = check::deviceBytes(size, 7);
    CHECK(simTranslate(address(p), size, 1));
    CHECK(!simTranslate(address(p), size + 1, 0));
    CHECK(simTranslate(address(p) + size - 1, 1, 0));
    CHECK(!simTranslate(address(p) + size, 1, 0));
    CHECK(!simTranslate(address(p) - 1, 1, 0));
    CHECK(!simTranslate(address(p) - 1, 2, 0));
    CHECK(!simTranslate(address(p), UINT64_MAX, 0));
    CHECK_EQ(simLiveDeviceBytes(0), size);
    CHECK_OK(aclrtFree(p));
    CHECK_EQ(simLiveDeviceBytes(0), 0u);
  }
}

CASE(freed_memory_is_refused_and_addresses_are_not_used_again) {
  void* p = check::deviceBytes(100, 1);
  char byte;
  CHECK_OK(aclrtMemcpy(&byte, 1, p, 1, ACL_MEMCPY_DEVICE_TO_HOST));
  CHECK_EQ(byte, 1);
  CHECK_OK(aclrtFree(p));
  CHECK(!simTranslate(address(p), 1, 0));
  CHECK(!simIsDeviceAddress(p));
  CHECK_EQ(aclrtMemcpy(&byte, 1, p, 1, ACL_MEMCPY_DEVICE_TO_HOST), ACL_ERROR_RT_PARAM_INVALID);
  CHECK(strstr(aclGetRecentErrMsg(), "freed"));
  CHECK_EQ(aclrtFree(p), ACL_ERROR_RT_PARAM_INVALID);
  void* q = check::deviceBytes(100, 1);
  CHECK(q != p);
  CHECK_EQ(aclrtFree(at(q, 1)), ACL_ERROR_RT_PARAM_INVALID);
  CHECK_OK(aclrtFree(q));
}

CASE(descriptions_name_the_allocation) {
  void* p = check::deviceBytes(100);
  char text[300];
  simDescribeAddress(address(p) + 90, 20, text, sizeof text);
  CHECK(strstr(text, "10 bytes beyond its end"));
  simDescribeAddress(address(p) + 120, 1, text, sizeof text);
  CHECK(strstr(text, "no memory"));
  simDescribeAddress(address(text), 1, text, sizeof text);
  CHECK(strstr(text, "not a device address"));
  CHECK_OK(aclrtFree(p));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
CASE(the_host_cannot_dereference_device_memory) {
  void* p = check::deviceBytes(100);
  CHECK_EQ(check::inChild([&] { return *static_cast<volatile char*>(p); }), -SIGSEGV);
  CHECK_EQ(check::inChild([&] { return *static_cast<volatile char*>(p) = 1, 0; }), -SIGSEGV);
  CHECK_OK(aclrtFree(p));
}
#endif

CASE(new_memory_is_not_zero) {
  void* p;
  CHECK_OK(aclrtMalloc(&p, 10, ACL_MEM_MALLOC_HUGE_FIRST));
  CHECK_EQ(check::contents(p, 10), std::string(10, '\xA5'));
  CHECK_OK(aclrtFree(p));
}

CASE(budget) {
  void *p, *q;
  CHECK_OK(aclrtMalloc(&p, 40 << 20, ACL_MEM_MALLOC_HUGE_FIRST));
  CHECK_EQ(aclrtMalloc(&q, 25 << 20, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_RT_MEMORY_ALLOCATION);
  CHECK_EQ(aclrtMalloc(&q, SIZE_MAX, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_RT_MEMORY_ALLOCATION);
  CHECK_EQ(aclrtMalloc(&q, 0, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_RT_PARAM_INVALID);
  CHECK_OK(aclrtSetDevice(1));
  CHECK_OK(aclrtMalloc(&q, 25 << 20, ACL_MEM_MALLOC_HUGE_FIRST));
  CHECK_EQ(simLiveDeviceBytes(1), 25u << 20);
  CHECK_OK(aclrtFree(p));
  CHECK_OK(aclrtFree(q));
  CHECK_EQ(simSet("SIM_BUDGET_MB", "1"), 0);
  CHECK_EQ(aclrtMalloc(&q, 2 << 20, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_RT_MEMORY_ALLOCATION);
  CHECK_EQ(simSet("SIM_BUDGET_MB", "64"), 0);
}

CASE(copies_check_sizes_kinds_and_bounds) {
  void* p = check::deviceBytes(100, 3);
  void* q = check::deviceBytes(100, 4);
  char host[200] = {};
  const int bad = ACL_ERROR_RT_PARAM_INVALID;
  CHECK_EQ(aclrtMemcpy(host, 99, p, 100, ACL_MEMCPY_DEVICE_TO_HOST), bad);
  CHECK_EQ(aclrtMemcpy(host, 200, p, 101, ACL_MEMCPY_DEVICE_TO_HOST), bad);
  CHECK_EQ(aclrtMemcpy(host, 200, at(p, 1), 100, ACL_MEMCPY_DEVICE_TO_HOST), bad);
  CHECK_EQ(aclrtMemcpy(p, 100, host, 100, ACL_MEMCPY_DEVICE_TO_HOST), bad);
  CHECK_EQ(aclrtMemcpy(host, 100, host + 100, 100, ACL_MEMCPY_HOST_TO_DEVICE), bad);
  CHECK_EQ(aclrtMemcpy(p, 100, host, 100, ACL_MEMCPY_DEVICE_TO_DEVICE), bad);
  CHECK_OK(aclrtMemcpy(p, 100, q, 50, ACL_MEMCPY_DEVICE_TO_DEVICE));
  CHECK_OK(aclrtMemcpy(host, 100, p, 100, ACL_MEMCPY_DEFAULT));
  CHECK_EQ(host[49], 4);
  CHECK_EQ(host[50], 3);
  CHECK_OK(aclrtMemcpy(p, 0, host, 0, ACL_MEMCPY_HOST_TO_DEVICE));
  CHECK_EQ(aclrtMemset(p, 100, 0, 101), bad);
  CHECK_EQ(aclrtMemset(p, 200, 0, 101), bad);
  CHECK_OK(aclrtFree(p));
  CHECK_OK(aclrtFree(q));
}

CASE(virtual_memory) {
  const size_t page = 2 << 20;
  void* base;
  CHECK_OK(aclrtReserveMemAddress(&base, 4 * page, 0, nullptr, 0));
  aclrtPhysicalMemProp properties = {};
  properties.location = {0, ACL_MEM_LOCATION_TYPE_DEVICE};
  aclrtDrvMemHandle first, second;
  CHECK_EQ(aclrtMallocPhysical(&first, 100, &properties, 0), ACL_ERROR_RT_PARAM_INVALID);
  CHECK_OK(aclrtMallocPhysical(&first, page, &properties, 0));
  CHECK_OK(aclrtMallocPhysical(&second, page, &properties, 0));
  CHECK_EQ(simLiveDeviceBytes(0), 2 * page);
  CHECK(!simTranslate(address(base), 1, 0));
  CHECK_OK(aclrtMapMem(base, page, 0, first, 0));
  CHECK_EQ(aclrtMapMem(base, page, 0, second, 0), ACL_ERROR_RT_PARAM_INVALID);
  CHECK_OK(aclrtMapMem(at(base, page), page, 0, second, 0));
  CHECK(simTranslate(address(base), 2 * page, 1));  // one range across the seam
  CHECK(!simTranslate(address(base), 2 * page + 1, 1));
  CHECK_OK(aclrtMemset(base, 2 * page, 9, 2 * page));
  CHECK_EQ(aclrtReleaseMemAddress(base), ACL_ERROR_RT_PARAM_INVALID);
  CHECK_OK(aclrtUnmapMem(base));
  CHECK(!simTranslate(address(base), 1, 0));
  CHECK_EQ(aclrtUnmapMem(base), ACL_ERROR_RT_PARAM_INVALID);
  CHECK_OK(aclrtMapMem(at(base, 2 * page), page, 0, first, 0));
  CHECK_EQ(check::contents(at(base, 2 * page), 1), std::string(1, 9));  // the same physical memory
  CHECK_OK(aclrtUnmapMem(at(base, page)));
  CHECK_OK(aclrtUnmapMem(at(base, 2 * page)));
  CHECK_OK(aclrtFreePhysical(first));
  CHECK_OK(aclrtFreePhysical(second));
  CHECK_EQ(aclrtFreePhysical(second), ACL_ERROR_RT_PARAM_INVALID);
  CHECK_OK(aclrtReleaseMemAddress(base));
  CHECK_EQ(simLiveDeviceBytes(0), 0u);
}

CASE(a_kernel_reaches_another_device_only_as_a_peer) {
  CHECK_OK(aclrtSetDevice(1));
  void* far = check::deviceBytes(64, 5);
  CHECK_OK(aclrtSetDevice(0));
  void* near = check::deviceBytes(64, 0);
  aclrtStream stream;
  CHECK_OK(aclrtCreateStream(&stream));
  struct {
    const void* src;
    void* dst;
    uint64_t bytes;
  } args{far, near, 64};
  auto launch = [&] {
    return aclrtLaunchKernelWithHostArgs(check::kernel("copy"), 2, stream, nullptr, &args, sizeof args, nullptr, 0);
  };
  CHECK_OK(launch());
  CHECK_EQ(aclrtSynchronizeStream(stream), ACL_ERROR_RT_VECTOR_CORE_EXCEPTION);
  CHECK_OK(aclrtMemcpy(near, 64, far, 64, ACL_MEMCPY_DEVICE_TO_DEVICE));  // the runtime may
  CHECK_OK(aclrtMemset(near, 64, 0, 64));
  CHECK_OK(aclrtDeviceEnablePeerAccess(1, 0));
  CHECK_OK(launch());
  CHECK_OK(aclrtSynchronizeStream(stream));
  CHECK_EQ(check::contents(near, 64), std::string(64, 5));
  CHECK_OK(aclrtDestroyStream(stream));
  CHECK_OK(aclrtFree(near));
  CHECK_OK(aclrtFree(far));
}
