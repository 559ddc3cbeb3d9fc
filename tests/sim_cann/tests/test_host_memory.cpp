// SPDX-License-Identifier: Apache-2.0
// Page-locked and registered host memory, in all the versions of the calls.
// RUN: SIM_CANN_VERSION=8.5.0 SIM_DEVICES=2
// RUN: SIM_CANN_VERSION=9.1.0 SIM_DEVICES=2
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "check.h"

static const size_t kPage = 4096;
static uint64_t address(const void* p) { return reinterpret_cast<uint64_t>(p); }
static void* at(void* p, int64_t offset) { return static_cast<char*>(p) + offset; }
static bool newer() { return strcmp(getenv("SIM_CANN_VERSION"), "9.1.0") == 0; }

static void* mapped(size_t size) {
  void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(p != MAP_FAILED);
  return p;
}

static void* withVaFlag(size_t size, aclError expected = 0) {
  aclrtMallocAttribute attribute;
  attribute.attr = ACL_RT_MEM_ATTR_VA_FLAG;
  attribute.value.vaFlag = 1;
  aclrtMallocConfig config{&attribute, 1};
  void* p = nullptr;
  CHECK_EQ(aclrtMallocHostWithCfg(&p, size, &config), expected);
  return p;
}

CASE(first_version) {
  void* host = mapped(4 * kPage);
  void *device, *other;
  CHECK_OK(aclrtHostRegister(host, 3 * kPage + 5, ACL_HOST_REGISTER_MAPPED, &device));
  CHECK(device != host);
  CHECK_EQ(simTranslate(address(device) + 7, 8, 1), at(host, 7));
  CHECK(simTranslate(address(device), 3 * kPage + 5, 1));
  CHECK(!simTranslate(address(device), 3 * kPage + 6, 0));  // exact, though pages are mapped
  CHECK(!simTranslate(address(host), 1, 0));                // not the device's address of it
  CHECK_EQ(aclrtHostRegister(host, kPage, ACL_HOST_REGISTER_MAPPED, &other), ACL_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  CHECK_EQ(aclrtHostRegister(at(host, 2 * kPage), 2 * kPage, ACL_HOST_REGISTER_MAPPED, &other),
           ACL_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  CHECK_EQ(aclrtHostRegister(host, kPage, ACL_HOST_REGISTER_READONLY, &other), ACL_ERROR_RT_FEATURE_NOT_SUPPORT);
  CHECK_EQ(aclrtHostRegister(at(host, 8), 8, ACL_HOST_REGISTER_MAPPED, &other), ACL_ERROR_RT_PARAM_INVALID);
  CHECK_EQ(aclrtHostRegister(nullptr, 8, ACL_HOST_REGISTER_MAPPED, &other), ACL_ERROR_RT_PARAM_INVALID);
  CHECK_EQ(simLiveRegistrations(), 1u);
  CHECK_EQ(aclrtHostUnregister(at(host, kPage)), ACL_ERROR_HOST_MEMORY_NOT_REGISTERED);
  CHECK_OK(aclrtHostUnregister(host));
  CHECK_EQ(aclrtHostUnregister(host), ACL_ERROR_HOST_MEMORY_NOT_REGISTERED);
  CHECK(!simTranslate(address(device), 1, 0));
  CHECK_EQ(simLiveRegistrations(), 0u);
  munmap(host, 4 * kPage);
  CHECK_EQ(aclrtHostRegister(host, kPage, ACL_HOST_REGISTER_MAPPED, &other), ACL_ERROR_RT_PARAM_INVALID);
}

CASE(second_version) {
  void* host = mapped(4 * kPage);
  void* device = nullptr;
  for (uint32_t flag : {0u, 1u, 0x20u, 0x10000001u})
    CHECK_EQ(aclrtHostRegisterV2(host, kPage, flag), ACL_ERROR_RT_PARAM_INVALID);
  CHECK_EQ(aclrtHostGetDevicePointer(host, &device, 0), ACL_ERROR_RT_PARAM_INVALID);
  CHECK_OK(aclrtHostRegisterV2(host, 4 * kPage, ACL_HOST_REG_MAPPED | ACL_HOST_REG_PINNED));
  CHECK_EQ(aclrtHostRegisterV2(host, kPage, ACL_HOST_REG_MAPPED), ACL_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  CHECK_EQ(aclrtHostGetDevicePointer(host, &device, 1), ACL_ERROR_RT_PARAM_INVALID);
  CHECK_OK(aclrtHostGetDevicePointer(at(host, 100), &device, 0));
  CHECK_EQ(simTranslate(address(device), 4, 1), at(host, 100));
  CHECK_EQ(aclrtHostGetDevicePointer(at(host, 4 * kPage), &device, 0), ACL_ERROR_RT_PARAM_INVALID);
  CHECK_OK(aclrtHostUnregister(host));
  CHECK_OK(aclrtHostRegisterV2(host, kPage, ACL_HOST_REG_PINNED));  // page-locked only
  CHECK_EQ(aclrtHostGetDevicePointer(host, &device, 0), ACL_ERROR_RT_PARAM_INVALID);
  CHECK_OK(aclrtHostUnregister(host));
  CHECK_EQ(aclrtHostRegisterV2(host, kPage, ACL_HOST_REG_READONLY), newer() ? 0 : ACL_ERROR_RT_PARAM_INVALID);
  if (newer()) {
    CHECK_OK(aclrtHostGetDevicePointer(host, &device, 0));
    CHECK(simTranslate(address(device), 4, 0));
    CHECK(!simTranslate(address(device), 4, 1));
    CHECK_OK(aclrtHostUnregister(host));
  }
  munmap(host, 4 * kPage);
}

CASE(malloc_host) {
  void *p, *device;
  CHECK_EQ(aclrtMallocHost(&p, 0), ACL_ERROR_RT_PARAM_INVALID);
  CHECK_OK(aclrtMallocHost(&p, 100));
  CHECK_EQ(simLiveHostBytes(), 100u);
  CHECK(!simTranslate(address(p), 1, 0));  // page-locked, not addressable by the device
  aclrtPtrAttributes attributes;
  CHECK_OK(aclrtPointerGetAttributes(p, &attributes));
  CHECK_EQ(attributes.location.type, ACL_MEM_LOCATION_TYPE_HOST);
  CHECK_EQ(aclrtHostRegisterV2(p, 100, ACL_HOST_REG_MAPPED | ACL_HOST_REG_PINNED), ACL_ERROR_RT_PARAM_INVALID);
  CHECK_OK(aclrtHostRegister(p, 100, ACL_HOST_REGISTER_MAPPED, &device));
  CHECK(device != p);
  CHECK_OK(aclrtPointerGetAttributes(device, &attributes));
  CHECK_EQ(attributes.location.type, ACL_MEM_LOCATION_TYPE_DEVICE);
  CHECK_EQ(aclrtFreeHost(p), ACL_ERROR_RT_PARAM_INVALID);  // still registered
  CHECK_OK(aclrtHostUnregister(p));
  CHECK_OK(aclrtFreeHost(p));
  CHECK_EQ(aclrtFreeHost(p), ACL_ERROR_RT_PARAM_INVALID);
  int onStack;
  CHECK_OK(aclrtPointerGetAttributes(&onStack, &attributes));
  CHECK_EQ(attributes.location.type, ACL_MEM_LOCATION_TYPE_UNREGISTERED);
}

CASE(va_flag_makes_both_addresses_one) {
  void* p = withVaFlag(2 * kPage);
  void* device;
  CHECK_OK(aclrtHostRegisterV2(p, 2 * kPage, ACL_HOST_REG_MAPPED));
  CHECK_OK(aclrtHostGetDevicePointer(at(p, 8), &device, 0));
  CHECK_EQ(device, at(p, 8));
  CHECK_EQ(simTranslate(address(p), 2 * kPage, 1), p);
  // As a host address it can be copied, as a device address it is for kernels only.
  void* q = check::deviceBytes(16, 3);
  CHECK_OK(aclrtMemcpy(p, 16, q, 16, ACL_MEMCPY_DEVICE_TO_HOST));
  CHECK_EQ(aclrtMemcpy(p, 16, q, 16, ACL_MEMCPY_DEVICE_TO_DEVICE), ACL_ERROR_RT_PARAM_INVALID);
  CHECK_OK(aclrtFree(q));
  CHECK_OK(aclrtHostUnregister(p));
  CHECK(!simTranslate(address(p), 1, 0));
  CHECK_OK(aclrtFreeHostWithDevSync(p));
  CHECK_EQ(simSet("SIM_VA_FLAG", "0"), 0);
  withVaFlag(10, ACL_ERROR_RT_FEATURE_NOT_SUPPORT);
  CHECK_EQ(simSet("SIM_VA_FLAG", "1"), 0);
}

CASE(mapped_addresses_are_for_kernels_only) {
  void* host = mapped(kPage);
  void* device;
  CHECK_OK(aclrtHostRegister(host, kPage, ACL_HOST_REGISTER_MAPPED, &device));
  memset(host, 6, kPage);
  char out[8];
  CHECK_EQ(aclrtMemcpy(out, 8, device, 8, ACL_MEMCPY_DEVICE_TO_HOST), ACL_ERROR_RT_PARAM_INVALID);
  CHECK_EQ(aclrtMemset(device, 8, 0, 8), ACL_ERROR_RT_PARAM_INVALID);
  CHECK_EQ(simSet("SIM_MAPPED_COPIES", "allow"), 0);
  CHECK_OK(aclrtMemcpy(out, 8, device, 8, ACL_MEMCPY_DEVICE_TO_HOST));
  CHECK_EQ(out[7], 6);
  CHECK_EQ(simSet("SIM_MAPPED_COPIES", "refuse"), 0);
  void* near = check::deviceBytes(8);
  struct {
    void *src, *dst;
    uint64_t bytes;
  } args{device, near, 8};
  CHECK_OK(aclrtLaunchKernelWithHostArgs(check::kernel("copy"), 1, nullptr, nullptr, &args, sizeof args, nullptr, 0));
  CHECK_OK(aclrtSynchronizeDevice());
  CHECK_EQ(check::contents(near, 8), std::string(8, 6));
  // It is mapped for this device, not for the other one.
  CHECK_OK(aclrtSetDevice(1));
  CHECK_OK(aclrtLaunchKernelWithHostArgs(check::kernel("copy"), 1, nullptr, nullptr, &args, sizeof args, nullptr, 0));
  CHECK_EQ(aclrtSynchronizeDevice(), ACL_ERROR_RT_VECTOR_CORE_EXCEPTION);
  CHECK_OK(aclrtSetDevice(0));
  CHECK_OK(aclrtFree(near));
  CHECK_OK(aclrtHostUnregister(host));
  munmap(host, kPage);
}

CASE(chunks) {
  void* host = mapped(4 * kPage);
  void *first, *second;
  for (const char* mode : {"apart", "adjacent"}) {
    const bool adjacent = mode[1] == 'd';
    CHECK_EQ(simSet("SIM_MAPPED_ADDRESSES", mode), 0);
    CHECK_OK(aclrtHostRegister(host, 2 * kPage, ACL_HOST_REGISTER_MAPPED, &first));
    CHECK_OK(aclrtHostRegister(at(host, 2 * kPage), 2 * kPage, ACL_HOST_REGISTER_MAPPED, &second));
    CHECK_EQ(second == at(first, 2 * kPage), adjacent);
    CHECK_EQ(simTranslate(address(first), 4 * kPage, 1) != nullptr, adjacent);
    CHECK_OK(aclrtHostUnregister(at(host, 2 * kPage)));
    CHECK(!simTranslate(address(first), 4 * kPage, 1));
    CHECK_OK(aclrtHostUnregister(host));
  }
  CHECK_EQ(simSet("SIM_MAPPED_ADDRESSES", "apart"), 0);
  munmap(host, 4 * kPage);
}

CASE(limits_of_platforms) {
  void* host = mapped(2 << 20);
  void* device;
  CHECK_EQ(simSet("SIM_REGISTER_LIMIT_MB", "1"), 0);
  CHECK_EQ(aclrtHostRegister(host, 2 << 20, ACL_HOST_REGISTER_MAPPED, &device), ACL_ERROR_RT_PARAM_INVALID);
  CHECK_OK(aclrtHostRegister(host, 1 << 20, ACL_HOST_REGISTER_MAPPED, &device));
  CHECK_OK(aclrtHostUnregister(host));
  CHECK_EQ(simSet("SIM_REGISTER_LIMIT_MB", "0"), 0);
  CHECK_EQ(simSet("SIM_HOST_REGISTER", "malloc_host"), 0);
  CHECK_EQ(aclrtHostRegister(host, 1 << 20, ACL_HOST_REGISTER_MAPPED, &device), ACL_ERROR_RT_PARAM_INVALID);
  CHECK_EQ(simSet("SIM_HOST_REGISTER", "none"), 0);
  CHECK_EQ(aclrtHostRegister(host, 1 << 20, ACL_HOST_REGISTER_MAPPED, &device), ACL_ERROR_RT_FEATURE_NOT_SUPPORT);
  CHECK_EQ(simSet("SIM_HOST_REGISTER", "any"), 0);
  munmap(host, 2 << 20);
}
