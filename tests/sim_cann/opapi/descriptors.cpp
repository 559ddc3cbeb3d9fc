// SPDX-License-Identifier: Apache-2.0
#include "descriptors.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

namespace sim {

c10::ScalarType torchType(aclDataType type) {
  switch (type) {
    case ACL_FLOAT:
      return at::kFloat;
    case ACL_FLOAT16:
      return at::kHalf;
    case ACL_BF16:
      return at::kBFloat16;
    case ACL_DOUBLE:
      return at::kDouble;
    case ACL_INT8:
      return at::kChar;
    case ACL_INT16:
      return at::kShort;
    case ACL_INT32:
      return at::kInt;
    case ACL_INT64:
      return at::kLong;
    case ACL_UINT8:
      return at::kByte;
    case ACL_UINT16:
      return at::kUInt16;
    case ACL_UINT32:
      return at::kUInt32;
    case ACL_UINT64:
      return at::kUInt64;
    case ACL_BOOL:
      return at::kBool;
    case ACL_COMPLEX64:
      return at::kComplexFloat;
    case ACL_COMPLEX128:
      return at::kComplexDouble;
    case ACL_FLOAT8_E5M2:
      return at::kFloat8_e5m2;
    case ACL_FLOAT8_E4M3FN:
      return at::kFloat8_e4m3fn;
    default:
      TORCH_CHECK(false, "aclDataType ", static_cast<int>(type), " is not simulated");
  }
}

at::Tensor view(const aclTensor& tensor) {
  const auto type = torchType(tensor.type);
  const auto options = at::TensorOptions().dtype(type);
  int64_t last = 0, count = 1;
  for (size_t i = 0; i < tensor.sizes.size(); i++) {
    count *= tensor.sizes[i];
    last += (tensor.sizes[i] - 1) * tensor.strides[i];
  }
  if (!count) return at::empty(tensor.sizes, options);
  const uint64_t item = c10::elementSize(type);
  const uint64_t address = reinterpret_cast<uint64_t>(tensor.data) + tensor.offset * item;
  const uint64_t bytes = (last + 1) * item;
  void* bytesView = simTranslate(address, bytes, 0);
  if (!bytesView) {
    char text[300];
    simDescribeAddress(address, bytes, text, sizeof text);
    TORCH_CHECK(false, "an operand is not in device memory: ", text);
  }
  return at::from_blob(bytesView, tensor.sizes, tensor.strides, options);
}

int prepare(const char* function, uint64_t* workspaceSize, aclOpExecutor** executor, std::function<void()> run) {
  if (int code = simCountCall(function)) return code;
  std::string name = function;
  name.resize(name.size() - std::string("GetWorkspaceSize").size());
  *workspaceSize = 0;
  *executor = new aclOpExecutor{name, std::move(run)};
  return ACL_SUCCESS;
}

int launch(const char* function, aclOpExecutor* executor, aclrtStream stream) {
  auto drop = [](void* p) { delete static_cast<aclOpExecutor*>(p); };
  if (int code = simCountCall(function)) {
    drop(executor);
    return code;
  }
  auto run = [](void* p) -> int {
    auto& op = *static_cast<aclOpExecutor*>(p);
    at::AutoDispatchBelowADInplaceOrView guard;
    try {
      op.run();
    } catch (const std::exception& e) {
      std::string text = op.name + ": " + e.what();
      simTaskFailed(ACL_ERROR_RT_AICORE_EXCEPTION, text.substr(0, text.find('\n')).c_str());
    }
    return ACL_SUCCESS;
  };
  return simEnqueue(stream, executor->name.c_str(), run, executor, drop);
}

}  // namespace sim

SIM_EXPORT aclTensor* aclCreateTensor(const int64_t* dims, uint64_t count, aclDataType type, const int64_t* strides,
                                      int64_t offset, aclFormat, const int64_t*, uint64_t, void* data) {
  return new aclTensor{{dims, dims + count}, {strides, strides + count}, offset, type, data};
}

SIM_EXPORT aclScalar* aclCreateScalar(void* value, aclDataType type) {
  auto make = [](auto v) { return new aclScalar{c10::Scalar(v)}; };
  switch (type) {
    case ACL_FLOAT:
      return make(*static_cast<float*>(value));
    case ACL_DOUBLE:
      return make(*static_cast<double*>(value));
    case ACL_FLOAT16:
      return make(static_cast<float>(*static_cast<at::Half*>(value)));
    case ACL_BF16:
      return make(static_cast<float>(*static_cast<at::BFloat16*>(value)));
    case ACL_INT8:
      return make(*static_cast<int8_t*>(value));
    case ACL_INT16:
      return make(*static_cast<int16_t*>(value));
    case ACL_INT32:
      return make(*static_cast<int32_t*>(value));
    case ACL_INT64:
      return make(*static_cast<int64_t*>(value));
    case ACL_UINT8:
      return make(*static_cast<uint8_t*>(value));
    case ACL_BOOL:
      return make(*static_cast<bool*>(value));
    case ACL_COMPLEX64:
      return make(*static_cast<c10::complex<float>*>(value));
    case ACL_COMPLEX128:
      return make(*static_cast<c10::complex<double>*>(value));
    default:
      return nullptr;
  }
}

SIM_EXPORT aclIntArray* aclCreateIntArray(const int64_t* values, uint64_t count) {
  return new aclIntArray{{values, values + count}};
}
SIM_EXPORT aclFloatArray* aclCreateFloatArray(const float* values, uint64_t count) {
  return new aclFloatArray{{values, values + count}};
}
SIM_EXPORT aclBoolArray* aclCreateBoolArray(const bool* values, uint64_t count) {
  return new aclBoolArray{std::vector<bool>(values, values + count)};  // in braces it would be two bools
}

// A list owns its elements: they are not destroyed one by one.
SIM_EXPORT aclTensorList* aclCreateTensorList(const aclTensor* const* values, uint64_t count) {
  auto* list = new aclTensorList;
  for (uint64_t i = 0; i < count; i++) {
    list->values.push_back(values[i] ? *values[i] : aclTensor{{0}, {1}, 0, ACL_INT64, nullptr});
    delete values[i];
  }
  return list;
}
SIM_EXPORT aclScalarList* aclCreateScalarList(const aclScalar* const* values, uint64_t count) {
  auto* list = new aclScalarList;
  for (uint64_t i = 0; i < count; i++) {
    list->values.push_back(values[i]->value);
    delete values[i];
  }
  return list;
}

#define SIM_DESTROY(type)                                  \
  SIM_EXPORT int aclDestroy##type(const acl##type* item) { \
    delete item;                                           \
    return ACL_SUCCESS;                                    \
  }
SIM_DESTROY(Tensor)
SIM_DESTROY(Scalar)
SIM_DESTROY(IntArray)
SIM_DESTROY(FloatArray)
SIM_DESTROY(BoolArray)
SIM_DESTROY(TensorList)
SIM_DESTROY(ScalarList)
SIM_EXPORT int aclDestroyAclOpExecutor(aclOpExecutor* executor) {
  delete executor;
  return ACL_SUCCESS;
}
