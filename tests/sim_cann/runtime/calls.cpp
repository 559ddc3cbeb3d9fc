// SPDX-License-Identifier: Apache-2.0
// What happens at the beginning of every call (count, trace, injected fault) and at the end of a failing one.
#include <pthread.h>
#include <unistd.h>

#include <cstdarg>
#include <cstring>
#include <mutex>
#include <vector>

#include "api.h"
#include "settings.h"

namespace sim {
namespace {

// A thread_local object with a destructor would be gone when torch_npu calls from atexit handlers.
constexpr size_t kTextBytes = 1024;
thread_local char lastError[kTextBytes];

struct FaultRule {
  std::string function;
  uint64_t nth;
  aclError code;
  bool andLater;
  uint64_t seen = 0;
};

struct FaultRules {
  std::mutex mutex;
  std::vector<FaultRule> rules;
  std::atomic<bool> any{false};  // the mutex is not taken on every call

  FaultRules() {
    std::string list = text(Setting::kFail);
    for (size_t begin = 0; begin < list.size();) {
      size_t end = std::min(list.find(',', begin), list.size());
      parse(list.substr(begin, end - begin));
      begin = end + 1;
    }
  }

  void parse(const std::string& rule) {
    char function[128], later = 0;
    unsigned long long nth = 0;
    int code = 0, used = 0;
    bool plain = sscanf(rule.c_str(), "%127[^:]:%llu:%d%n", function, &nth, &code, &used) == 3;
    bool open = !plain && sscanf(rule.c_str(), "%127[^:]:%llu%c:%d%n", function, &nth, &later, &code, &used) == 4 &&
                later == '+';
    if ((!plain && !open) || static_cast<size_t>(used) != rule.size() || !nth || !code) {
      fprintf(stderr, "[sim] SIM_FAIL: expected FUNCTION:N:CODE, got \"%s\"\n", rule.c_str());
      exit(2);
    }
    add({function, nth, code, open});
  }

  void add(FaultRule rule) {
    std::lock_guard guard(mutex);
    rules.push_back(std::move(rule));
    any = true;
  }
};

FaultRules& faultRules() {
  static auto* instance = new FaultRules;
  return *instance;
}

}  // namespace

aclError injectedFault(const char* function) {
  FaultRules& all = faultRules();
  if (!all.any) return ACL_SUCCESS;
  std::lock_guard guard(all.mutex);
  aclError result = ACL_SUCCESS;
  for (FaultRule& rule : all.rules) {
    if (rule.function != function) continue;
    rule.seen++;
    if (rule.seen == rule.nth || (rule.andLater && rule.seen > rule.nth)) result = rule.code;
  }
  return result;
}

aclError CallSite::enter(const char* format, ...) {
  calls_.fetch_add(1, std::memory_order_relaxed);
  if (number(Setting::kTrace)) {
    char line[400] = "";
    if (format) {
      va_list arguments;
      va_start(arguments, format);
      vsnprintf(line, sizeof line, format, arguments);
      va_end(arguments);
    }
    fprintf(stderr, "[sim %d/%lx] %s(%s)\n", getpid(), pthread_self() >> 12 & 0xfffff, function_, line);
  }
  aclError code = injectedFault(function_);
  return code ? fail(code, "%s: injected fault", function_) : ACL_SUCCESS;
}

aclError fail(aclError code, const char* format, ...) {
  char line[kTextBytes - 8];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  snprintf(lastError, sizeof lastError, "[sim] %s", line);
  if (number(Setting::kTrace)) fprintf(stderr, "[sim] -> %d %s\n", code, line);
  return code;
}

aclError notSimulated(const char* function) {
  fprintf(stderr, "[sim] %s is not simulated\n", function);
  return fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "%s is not simulated", function);
}

std::string takeLastError() {
  std::string taken = lastError;
  lastError[0] = 0;
  return taken;
}

}  // namespace sim
using namespace sim;

SIM_EXPORT void simFailCall(const char* function, uint64_t nth, int code, int andLater) {
  faultRules().add({function, nth, code, andLater != 0});
}

SIM_EXPORT void simFailClear(void) {
  std::lock_guard guard(faultRules().mutex);
  faultRules().rules.clear();
  faultRules().any = false;
}

SIM_EXPORT int simFail(int code, const char* message) { return fail(code, "%s", message); }

SIM_EXPORT int simCountCall(const char* function) {
  counter(function)++;
  if (number(Setting::kTrace)) fprintf(stderr, "[sim %d] %s\n", getpid(), function);
  aclError code = injectedFault(function);
  return code ? fail(code, "%s: injected fault", function) : ACL_SUCCESS;
}

// torch_npu appends this text to the RuntimeError that it raises.
SIM_EXPORT const char* aclGetRecentErrMsg() {
  SIM_COUNT();
  static thread_local char kept[kTextBytes];
  memcpy(kept, lastError, sizeof kept);
  lastError[0] = 0;
  return kept;
}

// Errors are kept by stream and reported by synchronize; nothing is kept per thread or context.
SIM_EXPORT aclError aclrtGetLastError(aclrtLastErrLevel) { SIM_NO_EFFECT(); }
SIM_EXPORT aclError aclrtPeekAtLastError(aclrtLastErrLevel) { SIM_NO_EFFECT(); }

SIM_EXPORT void aclAppLog(aclLogLevel level, const char* function, const char*, uint32_t, const char* format, ...) {
  static const char* least = getenv("ASCEND_GLOBAL_LOG_LEVEL");
  static const char* print = getenv("ASCEND_SLOG_PRINT_TO_STDOUT");
  if (!print || atoi(print) == 0 || static_cast<int>(level) < (least ? atoi(least) : 3)) return;
  char line[1000];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  fprintf(stderr, "[app %d] %s: %s\n", level, function, line);
}
