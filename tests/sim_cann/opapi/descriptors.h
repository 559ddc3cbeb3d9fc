// SPDX-License-Identifier: Apache-2.0
// What the handles of the operator interface are here (torch_npu never looks inside), and how an operator is
// written: one that is missing makes torch_npu fail with its name.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <functional>
#include <string>
#include <vector>

#include "acl/acl.h"
#include "sim_cann.h"

#define SIM_EXPORT extern "C" __attribute__((visibility("default")))

struct aclTensor {
  std::vector<int64_t> sizes, strides;
  int64_t offset;
  aclDataType type;
  void* data;
};
struct aclScalar {
  c10::Scalar value;
};
struct aclIntArray {
  std::vector<int64_t> values;
};
struct aclFloatArray {
  std::vector<float> values;
};
struct aclBoolArray {
  std::vector<bool> values;
};
struct aclTensorList {
  std::vector<aclTensor> values;
};
struct aclScalarList {
  std::vector<c10::Scalar> values;
};
struct aclOpExecutor {
  std::string name;
  std::function<void()> run;
};

namespace sim {

using Tensor = const aclTensor*;
using Scalar = const aclScalar*;
using Ints = const aclIntArray*;
using Tensors = const aclTensorList*;

c10::ScalarType torchType(aclDataType type);

// A CPU tensor over the bytes that the descriptor names; throws if they are not live device memory.
at::Tensor view(const aclTensor& descriptor);

// The two phases: prepare() is what aclnnXGetWorkspaceSize does with its closure, launch() what aclnnX does.
int prepare(const char* function, uint64_t* workspaceSize, aclOpExecutor** executor, std::function<void()> run);
int launch(const char* function, aclOpExecutor* executor, aclrtStream stream);

}  // namespace sim

// SIM_OP(aclnnX, parameters...) { SIM_RUN(closure); }
// The closure copies the descriptors: torch_npu destroys them right after the call, and a captured graph runs
// the closure again and again.
#define SIM_OP(name, ...)                                                             \
  SIM_EXPORT int name(void*, uint64_t, aclOpExecutor* executor, aclrtStream stream) { \
    return sim::launch(#name, executor, stream);                                      \
  }                                                                                   \
  SIM_EXPORT int name##GetWorkspaceSize(__VA_ARGS__, uint64_t* workspaceSize, aclOpExecutor** executor)
#define SIM_RUN(...) return sim::prepare(__func__, workspaceSize, executor, __VA_ARGS__)
