// SPDX-License-Identifier: Apache-2.0
// Devices, contexts, versions, what a forked child may do.
// RUN: SIM_DEVICES=2 SIM_CANN_VERSION=8.3.RC1 SIM_VECTOR_CORES=40
#include <cstring>
#include <thread>

#include "check.h"

CASE(each_thread_has_its_own_device) {
  uint32_t count;
  int device;
  CHECK_OK(aclrtGetDeviceCount(&count));
  CHECK_EQ(count, 2u);
  CHECK_OK(aclrtSetDevice(1));
  std::thread([] {
    int none;
    void* p;
    CHECK_EQ(aclrtGetDevice(&none), ACL_ERROR_RT_CONTEXT_NULL);
    CHECK_EQ(aclrtMalloc(&p, 8, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_RT_CONTEXT_NULL);
    CHECK_EQ(aclrtSynchronizeDevice(), ACL_ERROR_RT_CONTEXT_NULL);
    CHECK_EQ(aclrtSynchronizeStream(nullptr), ACL_ERROR_RT_CONTEXT_NULL);
    CHECK_OK(aclrtSetDevice(0));
  }).join();
  CHECK_OK(aclrtGetDevice(&device));
  CHECK_EQ(device, 1);
  CHECK_EQ(aclrtSetDevice(2), ACL_ERROR_RT_INVALID_DEVICEID);
  CHECK_EQ(aclrtSetDevice(-1), ACL_ERROR_RT_INVALID_DEVICEID);
  CHECK_OK(aclrtResetDevice(1));
  CHECK_EQ(aclrtGetDevice(&device), ACL_ERROR_RT_CONTEXT_NULL);
}

CASE(contexts) {
  aclrtContext first, second;
  CHECK_OK(aclrtSetDevice(0));
  CHECK_OK(aclrtGetCurrentContext(&first));
  CHECK_OK(aclrtSetDevice(1));
  CHECK_OK(aclrtGetCurrentContext(&second));
  CHECK(first && second && first != second);
  CHECK_OK(aclrtSetCurrentContext(first));
  int device;
  CHECK_OK(aclrtGetDevice(&device));
  CHECK_EQ(device, 0);
  CHECK_EQ(aclrtSetCurrentContext(&device), ACL_ERROR_RT_CONTEXT_NULL);
}

CASE(initialisation) {
  CHECK_OK(aclInit(nullptr));
  CHECK_EQ(aclInit(nullptr), ACL_ERROR_REPEAT_INITIALIZE);
  CHECK_OK(aclFinalize());
  CHECK_EQ(aclFinalize(), ACL_ERROR_UNINITIALIZE);
}

CASE(what_it_says_about_itself) {
  aclCANNPackageVersion version;
  CHECK_OK(aclsysGetCANNVersion(ACL_PKG_NAME_CANN, &version));
  CHECK_EQ(std::string(version.version), "8.3.RC1");
  CHECK_EQ(std::string(aclrtGetSocName()), "Ascend910B2");
  int64_t value;
  CHECK_OK(aclrtGetDeviceInfo(0, ACL_DEV_ATTR_VECTOR_CORE_NUM, &value));
  CHECK_EQ(value, 40);
  CHECK_OK(aclrtGetDeviceInfo(0, ACL_DEV_ATTR_CUBE_CORE_NUM, &value));
  CHECK_EQ(value, 20);
  CHECK_OK(aclrtGetDeviceInfo(0, ACL_DEV_ATTR_UBUF_PER_VECTOR_CORE, &value));
  CHECK_EQ(value, 192 << 10);
}

CASE(core_limits) {
  aclrtStream stream;
  CHECK_OK(aclrtCreateStream(&stream));
  auto ofStream = [&] {
    uint32_t value = 0;
    CHECK_OK(aclrtGetStreamResLimit(stream, ACL_RT_DEV_RES_VECTOR_CORE, &value));
    return value;
  };
  CHECK_EQ(ofStream(), 40u);
  CHECK_OK(aclrtSetDeviceResLimit(0, ACL_RT_DEV_RES_VECTOR_CORE, 30));
  CHECK_EQ(ofStream(), 30u);
  CHECK_OK(aclrtSetStreamResLimit(stream, ACL_RT_DEV_RES_VECTOR_CORE, 8));
  CHECK_EQ(aclrtSetStreamResLimit(stream, ACL_RT_DEV_RES_VECTOR_CORE, 41), ACL_ERROR_RT_PARAM_INVALID);
  CHECK_EQ(ofStream(), 8u);
  uint32_t value;
  CHECK_OK(aclrtGetResInCurrentThread(ACL_RT_DEV_RES_VECTOR_CORE, &value));
  CHECK_EQ(value, 30u);
  CHECK_OK(aclrtUseStreamResInCurrentThread(stream));
  CHECK_OK(aclrtGetResInCurrentThread(ACL_RT_DEV_RES_VECTOR_CORE, &value));
  CHECK_EQ(value, 8u);
  CHECK_OK(aclrtUnuseStreamResInCurrentThread(stream));
  CHECK_OK(aclrtResetStreamResLimit(stream));
  CHECK_OK(aclrtResetDeviceResLimit(0));
  CHECK_EQ(ofStream(), 40u);
  CHECK_OK(aclrtDestroyStream(stream));
}

CASE(default_streams_belong_to_devices) {
  CHECK_OK(aclrtSetDevice(0));
  void* p = check::deviceBytes(8, 0);
  CHECK_OK(aclrtMemsetAsync(static_cast<char*>(p) + 8, 8, 1, 8, nullptr));
  CHECK_OK(aclrtSetDevice(1));
  CHECK_OK(aclrtSynchronizeDevice());
  CHECK_OK(aclrtSetDevice(0));
  CHECK_EQ(aclrtSynchronizeDevice(), ACL_ERROR_RT_PARAM_INVALID);
  CHECK_OK(aclrtFree(p));
}

#ifndef __SANITIZE_THREAD__
CASE(a_forked_child_gets_an_error_and_does_not_hang) {
  aclrtStream stream;
  CHECK_OK(aclrtCreateStream(&stream));
  void* p = check::deviceBytes(8, 0);
  CHECK_EQ(check::inChild([&] {
             if (aclrtMemsetAsync(p, 8, 1, 8, stream) != ACL_ERROR_RT_DEV_SETUP_ERROR) return 1;
             if (aclrtSynchronizeStream(stream) != ACL_ERROR_RT_DEV_SETUP_ERROR) return 2;
             if (aclrtSynchronizeDevice() != ACL_ERROR_RT_DEV_SETUP_ERROR) return 3;
             return aclrtDestroyStream(stream) == 0 ? 0 : 4;
           }),
           0);
  CHECK_OK(aclrtMemsetAsync(p, 8, 1, 8, stream));
  CHECK_OK(aclrtSynchronizeStream(stream));
  CHECK_OK(aclrtDestroyStream(stream));
  CHECK_OK(aclrtFree(p));
}
#endif
