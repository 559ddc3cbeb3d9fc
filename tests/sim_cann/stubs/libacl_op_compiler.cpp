// SPDX-License-Identifier: Apache-2.0
// libacl_op_compiler.so: system parameters and compile options. Nothing is compiled, but torch_npu asks for a
// parameter at the first allocation.
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "acl/acl.h"
#include "acl/acl_op_compiler.h"
#include "sim_cann.h"

#define SIM_EXPORT extern "C" __attribute__((visibility("default")))
#define SIM_CALL() \
  if (int code = simCountCall(__func__)) return code

namespace {

struct Options {
  std::mutex mutex;
  std::map<int, int64_t> parameters;
  std::map<int, std::string> compile;
};
Options& options() {
  static auto* instance = new Options;
  return *instance;
}

aclError getParameter(aclSysParamOpt option, int64_t* value) {
  std::lock_guard guard(options().mutex);
  *value = options().parameters[option];
  return ACL_SUCCESS;
}
aclError setParameter(aclSysParamOpt option, int64_t value) {
  std::lock_guard guard(options().mutex);
  options().parameters[option] = value;
  return ACL_SUCCESS;
}

}  // namespace

SIM_EXPORT aclError aclrtGetSysParamOpt(aclSysParamOpt option, int64_t* value) {
  SIM_CALL();
  return getParameter(option, value);
}
SIM_EXPORT aclError aclrtSetSysParamOpt(aclSysParamOpt option, int64_t value) {
  SIM_CALL();
  return setParameter(option, value);
}
SIM_EXPORT aclError aclrtCtxGetSysParamOpt(aclSysParamOpt option, int64_t* value) {
  SIM_CALL();
  return getParameter(option, value);
}
SIM_EXPORT aclError aclrtCtxSetSysParamOpt(aclSysParamOpt option, int64_t value) {
  SIM_CALL();
  return setParameter(option, value);
}

SIM_EXPORT aclError aclSetCompileopt(aclCompileOpt option, const char* value) {
  SIM_CALL();
  std::lock_guard guard(options().mutex);
  options().compile[option] = value ? value : "";
  return ACL_SUCCESS;
}
SIM_EXPORT size_t aclGetCompileoptSize(aclCompileOpt option) {
  simCountCall(__func__);
  std::lock_guard guard(options().mutex);
  return options().compile[option].size() + 1;
}
SIM_EXPORT aclError aclGetCompileopt(aclCompileOpt option, char* value, size_t size) {
  SIM_CALL();
  std::lock_guard guard(options().mutex);
  const std::string& text = options().compile[option];
  if (text.size() >= size) return simFail(ACL_ERROR_INVALID_PARAM, "aclGetCompileopt: too little room");
  memcpy(value, text.c_str(), text.size() + 1);
  return ACL_SUCCESS;
}
