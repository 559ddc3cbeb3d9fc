// SPDX-License-Identifier: Apache-2.0
// The kernels as a device binary of the simulated runtime, through the public launch calls: what csrc/npu
// does, in small. `make on-runtime` runs it; it needs libascendcl.so of the simulated runtime and the ACL
// headers.
#include <acl/acl.h>

#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "op_host/sparse_copy_tiling.h"

namespace {

using namespace sparse_copy_tiling;

struct Device {
  aclrtStream stream = nullptr;
  aclrtBinHandle binary = nullptr;
  Device() {
    CHECK_EQ(aclInit(nullptr), ACL_SUCCESS);
    CHECK_EQ(aclrtSetDevice(0), ACL_SUCCESS);
    CHECK_EQ(aclrtCreateStream(&stream), ACL_SUCCESS);
    CHECK_EQ(aclrtBinaryLoadFromFile(KERNEL_BINARY, nullptr, &binary), ACL_SUCCESS);
  }
};

Device& device() {
  static Device device;
  return device;
}

uint64_t upload(const void* data, size_t bytes) {
  device();
  void* memory = nullptr;
  CHECK_EQ(aclrtMalloc(&memory, bytes, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
  if (data) CHECK_EQ(aclrtMemcpy(memory, bytes, data, bytes, ACL_MEMCPY_HOST_TO_DEVICE), ACL_SUCCESS);
  return reinterpret_cast<uint64_t>(memory);
}

std::vector<uint8_t> download(uint64_t address, size_t bytes) {
  std::vector<uint8_t> data(bytes);
  CHECK_EQ(aclrtMemcpy(data.data(), bytes, reinterpret_cast<void*>(address), bytes, ACL_MEMCPY_DEVICE_TO_HOST),
           ACL_SUCCESS);
  return data;
}

aclError run(const char* kernel, uint32_t cores, void* arguments, size_t bytes, aclrtPlaceHolderInfo* holders,
             size_t count) {
  aclrtFuncHandle function = nullptr;
  CHECK_EQ(aclrtBinaryGetFunction(device().binary, kernel, &function), ACL_SUCCESS);
  CHECK_EQ(aclrtLaunchKernelWithHostArgs(function, cores, device().stream, nullptr, arguments, bytes, holders, count),
           ACL_SUCCESS);
  return aclrtSynchronizeStream(device().stream);
}

aclError run(const char* kernel, Launch& launch) {
  aclrtPlaceHolderInfo holder{launch.placeholderAddressOffset, launch.placeholderDataOffset};
  return run(kernel, launch.blockDim, launch.arguments.data(), launch.ArgumentBytes(), &holder, 1);
}

constexpr uint64_t kRows = 500, kBytes = 656;

std::vector<uint8_t> rows() {
  std::vector<uint8_t> data(kRows * kBytes);
  for (size_t i = 0; i < data.size(); i++) data[i] = static_cast<uint8_t>(i * 2654435761u >> 13);
  return data;
}

}  // namespace

TEST(index_form_through_the_public_calls) {
  const auto data = rows();
  std::vector<int64_t> index(kRows);
  for (uint64_t i = 0; i < kRows; i++) index[i] = static_cast<int64_t>(i * 7 % kRows);
  const int32_t count = 400;
  const uint64_t src = upload(data.data(), data.size()),
                 dst = upload(std::vector<uint8_t>(data.size()).data(), data.size());
  Request request;
  request.entryCount = kRows;
  request.srcIndex = {upload(index.data(), kRows * 8), 8, 8};
  request.countAddress = upload(&count, 4);
  request.countBytes = 4;
  request.statusAddress =
      upload(std::vector<uint8_t>(48 * SPARSE_COPY_STATUS_PITCH).data(), 48 * SPARSE_COPY_STATUS_PITCH);
  request.components = {{src, dst, kBytes, kBytes, kRows, kRows, kBytes}};
  Launch launch;
  CHECK(Tile(request, {48, 196608}, launch) == Result::LAUNCH);
  CHECK_EQ(run("sparse_copy", launch), ACL_SUCCESS);
  const auto seen = download(dst, data.size());
  for (uint64_t i = 0; i < kRows; i++)
    for (uint64_t b = 0; b < kBytes; b += 5)
      CHECK_EQ(int{seen[i * kBytes + b]}, i < 400 ? data[static_cast<uint64_t>(index[i]) * kBytes + b] : 0);
  uint64_t copied = 0;
  const auto records = download(request.statusAddress, 48 * SPARSE_COPY_STATUS_PITCH);
  for (uint32_t core = 0; core < 48; core++) {
    SparseCopyStatusRecord record;
    memcpy(&record, records.data() + core * SPARSE_COPY_STATUS_PITCH, sizeof record);
    copied += record.copied;
  }
  CHECK_EQ(copied, 400u);
}

TEST(pointer_form_through_the_public_calls) {
  const auto data = rows();
  const uint64_t src = upload(data.data(), data.size()),
                 dst = upload(std::vector<uint8_t>(data.size()).data(), data.size());
  std::vector<uint64_t> src_pointers(kRows), dst_pointers(kRows);
  std::vector<int32_t> lengths(kRows);
  for (uint64_t i = 0; i < kRows; i++) {
    src_pointers[i] = src + (kRows - 1 - i) * kBytes;
    dst_pointers[i] = dst + i * kBytes;
    lengths[i] = i % 10 ? static_cast<int32_t>(kBytes) : 0;
  }
  src_pointers[77] = 0;
  PointerRequest request;
  request.entryCount = kRows;
  request.srcPointers = {upload(src_pointers.data(), kRows * 8), 8, 8};
  request.dstPointers = {upload(dst_pointers.data(), kRows * 8), 8, 8};
  request.lengths = {upload(lengths.data(), kRows * 4), 4, 4};
  request.recordsAddress = upload(nullptr, 48 * SPARSE_COPY_STATUS_PITCH);
  Launch launch;
  CHECK(TilePointers(request, {48, 196608}, launch) == Result::LAUNCH);
  CHECK_EQ(run("sparse_copy_ptrs", launch), ACL_SUCCESS);
  const uint64_t status = upload(nullptr, 32);
  SparseCopyPtrsStatusArguments arguments{request.recordsAddress, launch.blockDim, status, 8};
  CHECK_EQ(run("sparse_copy_ptrs_status", 1, &arguments, sizeof arguments, nullptr, 0), ACL_SUCCESS);
  int64_t seen[4];
  memcpy(seen, download(status, 32).data(), 32);
  CHECK_EQ(seen[0], 449);
  CHECK_EQ(seen[1], 50);
  CHECK_EQ(seen[2], 1);
  CHECK_EQ(seen[3], 77);
  const auto copied = download(dst, data.size());
  CHECK_EQ(memcmp(&copied[kBytes], &data[(kRows - 2) * kBytes], kBytes), 0);
}

// The last one: the stream is of no use afterwards.
TEST(a_stray_address_is_a_fault_of_the_stream) {
  Request request;
  request.entryCount = 5;
  request.components = {{upload(nullptr, 100), upload(nullptr, 500), 100, 100, 5, 5, 100}};
  Launch launch;
  CHECK(Tile(request, {48, 196608}, launch) == Result::LAUNCH);
  CHECK_EQ(run("sparse_copy", launch), 507035);
  CHECK_CONTAINS(aclGetRecentErrMsg(), "sparse_copy: core 0: read of");
}
