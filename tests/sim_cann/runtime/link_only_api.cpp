// SPDX-License-Identifier: Apache-2.0
// What torch_npu links to and does not need here: descriptors and attributes of the old operator interface
// (they hold state; running such an operator fails with its name), dumps, profiling hooks, rt* launches.
#include <chrono>
#include <functional>
#include <vector>

#include "api.h"

struct aclTensorDesc {
  aclDataType type;
  aclFormat format;
  std::vector<int64_t> dims;
  std::string name;
};
struct aclDataBuffer {
  void* data;
  size_t size;
};
struct aclopAttr {};

using namespace sim;

SIM_EXPORT aclDataBuffer* aclCreateDataBuffer(void* data, size_t size) {
  SIM_COUNT();
  return new aclDataBuffer{data, size};
}
SIM_EXPORT aclError aclDestroyDataBuffer(const aclDataBuffer* buffer) {
  SIM_CALL();
  delete buffer;
  return ACL_SUCCESS;
}

SIM_EXPORT aclTensorDesc* aclCreateTensorDesc(aclDataType type, int count, const int64_t* dims, aclFormat format) {
  SIM_COUNT();
  return new aclTensorDesc{type, format, std::vector<int64_t>(dims, dims + count), ""};
}
SIM_EXPORT void aclDestroyTensorDesc(const aclTensorDesc* desc) {
  SIM_COUNT();
  delete desc;
}
SIM_EXPORT aclError aclGetTensorDescDimV2(const aclTensorDesc* desc, size_t index, int64_t* value) {
  SIM_CALL();
  if (index >= desc->dims.size()) return ACL_ERROR_INVALID_PARAM;
  *value = desc->dims[index];
  return ACL_SUCCESS;
}
SIM_EXPORT aclFormat aclGetTensorDescFormat(const aclTensorDesc* desc) {
  SIM_COUNT();
  return desc->format;
}
SIM_EXPORT size_t aclGetTensorDescNumDims(const aclTensorDesc* desc) {
  SIM_COUNT();
  return desc->dims.size();
}
SIM_EXPORT aclDataType aclGetTensorDescType(const aclTensorDesc* desc) {
  SIM_COUNT();
  return desc->type;
}
SIM_EXPORT void aclSetTensorDescName(aclTensorDesc* desc, const char* name) {
  SIM_COUNT();
  desc->name = name;
}
SIM_EXPORT aclError aclSetTensorFormat(aclTensorDesc* desc, aclFormat format) {
  SIM_CALL();
  desc->format = format;
  return ACL_SUCCESS;
}
SIM_EXPORT aclError aclSetTensorShape(aclTensorDesc* desc, int count, const int64_t* dims) {
  SIM_CALL();
  desc->dims.assign(dims, dims + count);
  return ACL_SUCCESS;
}
SIM_EXPORT aclError aclSetTensorPlaceMent(aclTensorDesc*, aclMemType) { SIM_NO_EFFECT(); }

// ---- operators by name: torch_npu falls back to them for what libopapi.so lacks
SIM_EXPORT aclopAttr* aclopCreateAttr() {
  SIM_COUNT();
  return new aclopAttr;
}
SIM_EXPORT void aclopDestroyAttr(const aclopAttr* attr) {
  SIM_COUNT();
  delete attr;
}
SIM_EXPORT aclError aclopSetAttrBool(aclopAttr*, const char*, uint8_t) { SIM_NO_EFFECT(); }
SIM_EXPORT aclError aclopSetAttrDataType(aclopAttr*, const char*, aclDataType) { SIM_NO_EFFECT(); }
SIM_EXPORT aclError aclopSetAttrFloat(aclopAttr*, const char*, float) { SIM_NO_EFFECT(); }
SIM_EXPORT aclError aclopSetAttrInt(aclopAttr*, const char*, int64_t) { SIM_NO_EFFECT(); }
SIM_EXPORT aclError aclopSetAttrListBool(aclopAttr*, const char*, int, const uint8_t*) { SIM_NO_EFFECT(); }
SIM_EXPORT aclError aclopSetAttrListFloat(aclopAttr*, const char*, int, const float*) { SIM_NO_EFFECT(); }
SIM_EXPORT aclError aclopSetAttrListInt(aclopAttr*, const char*, int, const int64_t*) { SIM_NO_EFFECT(); }
SIM_EXPORT aclError aclopSetAttrListListInt(aclopAttr*, const char*, int, const int*, const int64_t* const[]) {
  SIM_NO_EFFECT();
}
SIM_EXPORT aclError aclopSetAttrString(aclopAttr*, const char*, const char*) { SIM_NO_EFFECT(); }

SIM_EXPORT aclError aclopCompileAndExecute(const char* op, int, const aclTensorDesc* const[],
                                           const aclDataBuffer* const[], int, const aclTensorDesc* const[],
                                           aclDataBuffer* const[], const aclopAttr*, aclopEngineType, aclopCompileType,
                                           const char*, aclrtStream) {
  SIM_CALL("%s", op);
  fprintf(stderr, "[sim] the operator %s is not simulated\n", op);
  return fail(ACL_ERROR_OP_NOT_FOUND, "the operator %s is not simulated", op);
}

SIM_EXPORT aclError aclopCompileAndExecuteV2(const char* op, int, aclTensorDesc*[], aclDataBuffer*[], int,
                                             aclTensorDesc*[], aclDataBuffer*[], aclopAttr*, aclopEngineType,
                                             aclopCompileType, const char*, aclrtStream) {
  SIM_CALL("%s", op);
  fprintf(stderr, "[sim] the operator %s is not simulated\n", op);
  return fail(ACL_ERROR_OP_NOT_FOUND, "the operator %s is not simulated", op);
}

// ---- dumps
SIM_EXPORT aclError aclmdlInitDump() { SIM_NOT_SIMULATED(); }
SIM_EXPORT aclError aclmdlSetDump(const char*) { SIM_NOT_SIMULATED(); }
SIM_EXPORT aclError aclmdlFinalizeDump() { SIM_NOT_SIMULATED(); }

// ---- launches of an older interface
SIM_EXPORT int rtDevBinaryRegister(const void*, void**) { SIM_NOT_SIMULATED(); }
SIM_EXPORT int rtFunctionRegister(void*, const void*, const char*, const void*, uint32_t) { SIM_NOT_SIMULATED(); }
SIM_EXPORT int rtGetC2cCtrlAddr(uint64_t*, uint32_t*) { SIM_NOT_SIMULATED(); }
SIM_EXPORT int rtKernelLaunch(const void*, uint32_t, void*, uint32_t, void*, void*) { SIM_NOT_SIMULATED(); }

// ---- profiling hooks: nobody listens
SIM_EXPORT uint64_t MsprofSysCycleTime() {
  SIM_COUNT();
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}
SIM_EXPORT uint64_t MsprofGetHashId(const char* text, size_t size) {
  SIM_COUNT();
  return std::hash<std::string>()(std::string(text, size));
}
SIM_EXPORT int32_t MsprofRegisterCallback(uint32_t, void*) { SIM_NO_EFFECT(); }
SIM_EXPORT int32_t MsprofReportApi(uint32_t, const void*) { SIM_NO_EFFECT(); }
SIM_EXPORT int32_t MsprofReportCompactInfo(uint32_t, const void*, uint32_t) { SIM_NO_EFFECT(); }
SIM_EXPORT int32_t MsprofReportAdditionalInfo(uint32_t, const void*, uint32_t) { SIM_NO_EFFECT(); }
