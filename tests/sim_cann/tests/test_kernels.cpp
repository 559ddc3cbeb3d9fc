// SPDX-License-Identifier: Apache-2.0
// Loading, arguments and launches through the public calls; kernel faults.
#include <cstddef>
#include <cstring>
#include <fstream>
#include <sstream>
#include <vector>

#include "check.h"

namespace {

struct CopyArgs {
  const void* src;
  void* dst;
  uint64_t bytes;
};

struct Fixture {
  aclrtStream stream;
  void *a, *b;
  CopyArgs args;
  Fixture() {
    CHECK_OK(aclrtCreateStream(&stream));
    a = check::deviceBytes(1000, 1);
    b = check::deviceBytes(1000, 0);
    args = {a, b, 1000};
  }
  ~Fixture() {
    CHECK_OK(aclrtDestroyStream(stream));
    CHECK_OK(aclrtFree(a));
    CHECK_OK(aclrtFree(b));
  }
  bool copied() {
    CHECK_OK(aclrtSynchronizeStream(stream));
    bool all = check::contents(b, 1000) == std::string(1000, 1);
    CHECK_OK(aclrtMemset(b, 1000, 0, 1000));
    return all;
  }
  aclError launch(uint32_t blocks = 3, const char* name = "copy") {
    return aclrtLaunchKernelWithHostArgs(check::kernel(name), blocks, stream, nullptr, &args, sizeof args, nullptr, 0);
  }
};

}  // namespace

CASE(loading) {
  aclrtBinHandle binary, again;
  aclrtFuncHandle function, same;
  CHECK_EQ(aclrtBinaryLoadFromFile("/nonexistent.so", nullptr, &binary), ACL_ERROR_RT_FILE_OPEN);
  CHECK_EQ(aclrtBinaryLoadFromFile("/proc/self/cmdline", nullptr, &binary), ACL_ERROR_RT_PARAM_INVALID);
  CHECK_OK(aclrtBinaryLoadFromFile(check::kernelsPath().c_str(), nullptr, &binary));
  CHECK_EQ(aclrtBinaryGetFunction(binary, "nothing", &function), ACL_ERROR_RT_KERNEL_LOOKUP);
  CHECK(strstr(aclGetRecentErrMsg(), "nothing"));
  CHECK_OK(aclrtBinaryGetFunction(binary, "copy", &function));
  CHECK_OK(aclrtBinaryGetFunction(binary, "copy", &same));
  CHECK_EQ(function, same);
  char name[16];
  CHECK_OK(aclrtGetFunctionName(function, sizeof name, name));
  CHECK_EQ(std::string(name), "copy");
  CHECK_EQ(aclrtGetFunctionName(function, 4, name), ACL_ERROR_RT_PARAM_INVALID);

  std::ifstream file(check::kernelsPath(), std::ios::binary);
  std::stringstream data;
  data << file.rdbuf();
  for (int i = 0; i < 2; i++) {
    CHECK_OK(aclrtBinaryLoadFromData(data.str().data(), data.str().size(), nullptr, &again));
    CHECK(again != binary);
    CHECK_OK(aclrtBinaryGetFunction(again, "copy", &same));
    CHECK(function != same);
    CHECK_OK(aclrtBinaryUnLoad(again));
  }
  CHECK_EQ(aclrtBinaryLoadFromData("not an ELF file", 15, nullptr, &again), ACL_ERROR_RT_PARAM_INVALID);
  CHECK_OK(aclrtBinaryUnLoad(binary));
  CHECK_EQ(aclrtBinaryUnLoad(binary), ACL_ERROR_RT_INVALID_HANDLE);
  CHECK_EQ(aclrtBinaryGetFunction(binary, "copy", &same), ACL_ERROR_RT_INVALID_HANDLE);
  CHECK_EQ(aclrtLaunchKernelWithHostArgs(function, 1, nullptr, nullptr, nullptr, 0, nullptr, 0),
           ACL_ERROR_RT_INVALID_HANDLE);
}

CASE(host_arguments_are_copied_at_the_launch) {
  Fixture f;
  simCountersReset();
  CHECK_EQ(simSet("SIM_DELAY_US", "10000"), 0);
  CHECK_OK(f.launch());
  f.args = {};
  CHECK(f.copied());
  CHECK_EQ(simSet("SIM_DELAY_US", "0"), 0);
  CHECK_EQ(simCounterGet("kernel.copy.launches"), 1u);
  CHECK_EQ(simCounterGet("kernel.copy.runs"), 1u);
  CHECK_EQ(simCounterGet("copy.bytes"), 1000u);
  CHECK_EQ(simCounterGet("copy.largest_part"), 334u);
  CHECK_EQ(simCounterGet("aclrtLaunchKernelWithHostArgs"), 1u);
  f.args = {f.a, f.b, 1000};
  CHECK_EQ(f.launch(0), ACL_ERROR_RT_PARAM_INVALID);
  CHECK_EQ(f.launch(65536), ACL_ERROR_RT_PARAM_INVALID);
}

CASE(placeholders) {
  Fixture f;
  struct {
    void* table;
    uint64_t count;
    void* result;
    uint64_t words[100];
  } args{nullptr, 100, f.b, {}};
  for (uint64_t i = 0; i < 100; i++) args.words[i] = i;
  aclrtPlaceHolderInfo holder{0, offsetof(decltype(args), words)};
  auto launch = [&](uint32_t blocks) {
    return aclrtLaunchKernelWithHostArgs(check::kernel("sum_table"), blocks, f.stream, nullptr, &args, sizeof args,
                                         &holder, 1);
  };
  CHECK_OK(launch(2));
  memset(args.words, 0, sizeof args.words);  // the data is copied as well
  CHECK_OK(aclrtSynchronizeStream(f.stream));
  uint64_t result;
  memcpy(&result, check::contents(f.b, 8).data(), 8);
  CHECK_EQ(result, 4950u + 2);
  holder.addrOffset = sizeof args;
  CHECK_EQ(launch(1), ACL_ERROR_RT_PARAM_INVALID);
  holder = {0, sizeof args};
  CHECK_EQ(launch(1), ACL_ERROR_RT_PARAM_INVALID);

  // In a graph the data lives as long as that.
  for (uint64_t i = 0; i < 100; i++) args.words[i] = 1;
  holder = {0, offsetof(decltype(args), words)};
  aclmdlRI graph;
  CHECK_OK(aclmdlRICaptureBegin(f.stream, ACL_MODEL_RI_CAPTURE_MODE_GLOBAL));
  CHECK_OK(launch(1));
  CHECK_OK(aclmdlRICaptureEnd(f.stream, &graph));
  for (int i = 0; i < 3; i++) CHECK_OK(aclmdlRIExecuteAsync(graph, f.stream));
  CHECK_OK(aclmdlRIDestroy(graph));
  CHECK_OK(aclrtSynchronizeStream(f.stream));
  memcpy(&result, check::contents(f.b, 8).data(), 8);
  CHECK_EQ(result, 101u);
}

CASE(argument_blocks_have_a_limit) {
  Fixture f;
  std::vector<char> args(43584);
  memcpy(args.data(), &f.args, sizeof f.args);
  auto launch = [&] {
    return aclrtLaunchKernelWithHostArgs(check::kernel("copy"), 1, f.stream, nullptr, args.data(), args.size(), nullptr,
                                         0);
  };
  CHECK_OK(launch());
  CHECK(f.copied());
  args.resize(args.size() + 8);
  CHECK_EQ(launch(), ACL_ERROR_RT_PARAM_INVALID);
}

CASE(argument_handles) {
  Fixture f;
  aclrtArgsHandle args;
  aclrtParamHandle parameter, table;
  auto function = check::kernel("sum_table");
  uint64_t count = 10, *words;
  CHECK_OK(aclrtKernelArgsInit(function, &args));
  CHECK_OK(aclrtKernelArgsAppendPlaceHolder(args, &table));
  CHECK_OK(aclrtKernelArgsAppend(args, &count, sizeof count, &parameter));
  CHECK_OK(aclrtKernelArgsGetPlaceHolderBuffer(args, table, 80, reinterpret_cast<void**>(&words)));
  void* result = f.a;
  CHECK_OK(aclrtKernelArgsAppend(args, &result, sizeof result, &parameter));
  CHECK_EQ(aclrtLaunchKernelWithConfig(function, 1, f.stream, nullptr, args, nullptr), ACL_ERROR_RT_PARAM_INVALID);
  CHECK_OK(aclrtKernelArgsFinalize(args));
  CHECK_EQ(aclrtKernelArgsAppend(args, &count, sizeof count, &parameter), ACL_ERROR_RT_PARAM_INVALID);
  for (uint64_t value : {3, 4}) {
    for (int i = 0; i < 10; i++) words[i] = value;
    result = f.b;
    CHECK_OK(aclrtKernelArgsParaUpdate(args, parameter, &result, sizeof result));
    CHECK_OK(aclrtLaunchKernelWithConfig(function, 1, f.stream, nullptr, args, nullptr));
    CHECK_OK(aclrtSynchronizeStream(f.stream));
    memcpy(&count, check::contents(f.b, 8).data(), 8);
    CHECK_EQ(count, 10 * value + 1);
  }
  CHECK_EQ(aclrtLaunchKernelWithConfig(check::kernel("copy"), 1, f.stream, nullptr, args, nullptr),
           ACL_ERROR_RT_PARAM_INVALID);
  CHECK_EQ(aclrtLaunchKernelWithConfig(function, 1, f.stream, nullptr, &f, nullptr), ACL_ERROR_RT_INVALID_HANDLE);
}

CASE(arguments_in_device_memory) {
  Fixture f;
  void* args = check::deviceBytes(sizeof f.args);
  CHECK_OK(aclrtMemcpy(args, sizeof f.args, &f.args, sizeof f.args, ACL_MEMCPY_HOST_TO_DEVICE));
  CHECK_OK(aclrtLaunchKernel(check::kernel("copy"), 2, args, sizeof f.args, f.stream));
  CHECK(f.copied());
  CHECK_OK(aclrtLaunchKernelV2(check::kernel("copy"), 2, args, sizeof f.args, nullptr, f.stream));
  CHECK(f.copied());
  CHECK_OK(aclrtLaunchKernel(check::kernel("copy"), 2, &f.args, sizeof f.args,
                             f.stream));  // of the host: a mistake
  CHECK_EQ(aclrtSynchronizeStream(f.stream), ACL_ERROR_RT_PARAM_INVALID);
  CHECK_OK(aclrtFree(args));
}

CASE(launch_attributes) {
  Fixture f;
  aclrtLaunchKernelAttr attribute = {};
  attribute.id = ACL_RT_LAUNCH_KERNEL_ATTR_ENGINE_TYPE;
  attribute.value.engineType = ACL_RT_ENGINE_TYPE_AIV;
  aclrtLaunchKernelCfg cfg{&attribute, 1};
  auto launch = [&] {
    return aclrtLaunchKernelWithHostArgs(check::kernel("copy"), 1, f.stream, &cfg, &f.args, sizeof f.args, nullptr, 0);
  };
  CHECK_OK(launch());
  CHECK(f.copied());
  attribute.id = static_cast<aclrtLaunchKernelAttrId>(99);
  CHECK_EQ(launch(), ACL_ERROR_RT_PARAM_INVALID);
}

CASE(faults_reach_the_stream_of_the_kernel) {
  Fixture f;
  aclrtStream other;
  CHECK_OK(aclrtCreateStream(&other));
  void* spare = check::deviceBytes(8);
  f.args.bytes = 1001;  // one byte too many, found by the last core
  CHECK_OK(f.launch(4));
  CHECK_OK(aclrtMemsetAsync(f.b, 8, 1, 8, f.stream));
  CHECK_OK(aclrtMemsetAsync(spare, 8, 1, 8, other));
  CHECK_OK(aclrtSynchronizeStream(other));
  CHECK_EQ(aclrtSynchronizeStream(f.stream), ACL_ERROR_RT_VECTOR_CORE_EXCEPTION);
  std::string text = aclGetRecentErrMsg();
  CHECK(text.find("kernel copy") != text.npos && text.find("1 bytes beyond its end") != text.npos);
  CHECK_OK(f.launch(1, "stray_fault"));
  CHECK_EQ(aclrtSynchronizeStream(f.stream), ACL_ERROR_RT_VECTOR_CORE_EXCEPTION);
  CHECK_OK(aclrtDestroyStream(other));
  CHECK_OK(aclrtFree(spare));
}

CASE(a_queued_launch_keeps_the_binary) {
  Fixture f;
  aclrtBinHandle binary;
  aclrtFuncHandle function;
  CHECK_OK(aclrtBinaryLoadFromFile(check::kernelsPath().c_str(), nullptr, &binary));
  CHECK_OK(aclrtBinaryGetFunction(binary, "copy", &function));
  CHECK_EQ(simSet("SIM_DELAY_US", "20000"), 0);
  CHECK_OK(aclrtLaunchKernelWithHostArgs(function, 1, f.stream, nullptr, &f.args, sizeof f.args, nullptr, 0));
  CHECK_OK(aclrtBinaryUnLoad(binary));
  CHECK(f.copied());
  CHECK_EQ(simSet("SIM_DELAY_US", "0"), 0);
}
