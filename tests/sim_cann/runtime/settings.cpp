// SPDX-License-Identifier: Apache-2.0
#include "settings.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>

#include "api.h"

namespace sim {
namespace {

enum class Kind { kNumber, kText };
struct Row {
  Setting setting;
  const char* name;
  const char* standard;
  Kind kind;
  bool changeable;      // while the process runs
  const char* allowed;  // words separated by '|', or null
  const char* meaning;
};

constexpr Row kTable[] = {
    {Setting::kDevices, "SIM_DEVICES", "1", Kind::kNumber, false, nullptr, "number of devices"},
    {Setting::kSoc, "SIM_SOC", "Ascend910B2", Kind::kText, false, nullptr,
     "name of the chip; one that torch_npu knows: Ascend910B2, Ascend910_9392, Ascend950PR_9599, "
     "Ascend310P3"},
    {Setting::kCannVersion, "SIM_CANN_VERSION", "8.5.0", Kind::kText, false, nullptr,
     "the version that the runtime says it has"},
    {Setting::kDriverVersion, "SIM_DRIVER_VERSION", "26.0.0", Kind::kText, false, nullptr, "the same for the driver"},
    {Setting::kStreamMode, "SIM_STREAM_MODE", "thread", Kind::kText, false, "thread|inline",
     "inline: a task runs at once, in the thread that issues it"},
    {Setting::kDelayUs, "SIM_DELAY_US", "0", Kind::kNumber, true, nullptr,
     "sleep before each task: makes a missing synchronisation visible"},
    {Setting::kProtect, "SIM_PROTECT", "1", Kind::kNumber, false, nullptr,
     "0: the host can read and write at device addresses"},
    {Setting::kPoison, "SIM_POISON", "1", Kind::kNumber, true, nullptr,
     "0: new device memory holds zeros; 1: the byte 0xA5 (in allocations of up to 32 MiB)"},
    {Setting::kMappedCopies, "SIM_MAPPED_COPIES", "refuse", Kind::kText, true, "refuse|allow",
     "refuse: runtime copies and fills on the device address of host memory give 107000, as documented"},
    {Setting::kMappedAddresses, "SIM_MAPPED_ADDRESSES", "apart", Kind::kText, true, "apart|adjacent",
     "adjacent: registering host memory that follows a registered range continues its device addresses"},
    {Setting::kVaFlag, "SIM_VA_FLAG", "1", Kind::kNumber, true, nullptr,
     "0: aclrtMallocHostWithCfg refuses the VA flag, as an older driver does"},
    {Setting::kHostRegister, "SIM_HOST_REGISTER", "any", Kind::kText, true, "any|malloc_host|none",
     "malloc_host: only memory of aclrtMallocHost can be registered (OS kernels up to 5.10); none: 207000"},
    {Setting::kRegisterLimitMb, "SIM_REGISTER_LIMIT_MB", "0", Kind::kNumber, true, nullptr,
     "the most that one registration may span, in MiB; 0: no limit"},
    {Setting::kMemoryMb, "SIM_MEMORY_MB", "65536", Kind::kNumber, false, nullptr,
     "device memory that is reported, in MiB"},
    {Setting::kBudgetMb, "SIM_BUDGET_MB", "8192", Kind::kNumber, true, nullptr,
     "device memory that can be allocated, per device, in MiB"},
    {Setting::kVectorCores, "SIM_VECTOR_CORES", "48", Kind::kNumber, false, nullptr,
     "AI vector cores of a device; it has half as many cube cores"},
    {Setting::kFail, "SIM_FAIL", "", Kind::kText, false, nullptr,
     "FUNCTION:N:CODE[,...] the Nth call returns CODE; N+ those after it as well; kernel:N:CODE a kernel's "
     "run"},
    {Setting::kTrace, "SIM_TRACE", "0", Kind::kNumber, true, nullptr, "1: every call goes to stderr"},
};
constexpr size_t kRows = sizeof kTable / sizeof kTable[0];

constexpr bool inOrder() {
  for (size_t i = 0; i < kRows; i++)
    if (static_cast<size_t>(kTable[i].setting) != i) return false;
  return true;
}
static_assert(inOrder(), "the table follows the order of the enum");

bool validNumber(const char* value) {
  char* end = nullptr;
  errno = 0;
  long long parsed = strtoll(value, &end, 10);
  return end != value && !*end && !errno && parsed >= 0;
}

bool validWord(const Row& row, std::string_view value) {
  std::string_view rest = row.allowed;
  while (true) {
    size_t bar = rest.find('|');
    if (rest.substr(0, bar) == value) return true;
    if (bar == rest.npos) return false;
    rest.remove_prefix(bar + 1);
  }
}

bool valid(const Row& row, const char* value) {
  if (row.kind == Kind::kNumber) return validNumber(value);
  return !row.allowed || validWord(row, value);
}

class Settings {
 public:
  Settings() {
    for (size_t i = 0; i < kRows; i++) {
      const char* value = getenv(kTable[i].name);
      if (!value || !*value) value = kTable[i].standard;
      if (!valid(kTable[i], value)) {
        fprintf(stderr, "[sim] %s: bad value \"%s\"\n", kTable[i].name, value);
        exit(2);
      }
      store(i, value);
    }
  }

  void store(size_t i, const char* value) {
    std::lock_guard guard(mutex_);
    texts_[i] = value;
    numbers_[i] = kTable[i].kind == Kind::kNumber ? strtoll(value, nullptr, 10) : 0;
  }
  std::string text(size_t i) {
    std::lock_guard guard(mutex_);
    return texts_[i];
  }
  int64_t number(size_t i) const { return numbers_[i].load(std::memory_order_relaxed); }

 private:
  std::mutex mutex_;
  std::string texts_[kRows];
  std::atomic<int64_t> numbers_[kRows] = {};
};

Settings& settings() {
  static auto* instance = new Settings;  // never destroyed: the runtime is called until late in a process's exit
  return *instance;
}

}  // namespace

int64_t number(Setting setting) { return settings().number(static_cast<size_t>(setting)); }
std::string text(Setting setting) { return settings().text(static_cast<size_t>(setting)); }
bool is(Setting setting, const char* value) { return text(setting) == value; }

}  // namespace sim
using namespace sim;

SIM_EXPORT int simSet(const char* name, const char* value) {
  for (size_t i = 0; i < kRows; i++) {
    if (strcmp(kTable[i].name, name) != 0) continue;
    if (!kTable[i].changeable) return 2;
    if (!valid(kTable[i], value)) return 3;
    settings().store(i, value);
    return 0;
  }
  return 1;
}

SIM_EXPORT uint64_t simSettingsText(char* out, uint64_t size) {
  std::string all;
  for (size_t i = 0; i < kRows; i++) {
    all += std::string(kTable[i].name) + "\t" + settings().text(i) + "\t" + kTable[i].standard + "\t" +
           kTable[i].meaning + "\n";
  }
  return copyText(all, out, size);
}
