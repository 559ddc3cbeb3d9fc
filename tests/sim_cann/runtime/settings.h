// SPDX-License-Identifier: Apache-2.0
// Everything about the simulated machine that can be set. The table in settings.cpp is the only home of
// names, defaults and meanings.
#pragma once
#include <cstdint>
#include <string>

namespace sim {

enum class Setting {
  kDevices,
  kSoc,
  kCannVersion,
  kDriverVersion,
  kStreamMode,
  kDelayUs,
  kProtect,
  kPoison,
  kMappedCopies,
  kMappedAddresses,
  kVaFlag,
  kHostRegister,
  kRegisterLimitMb,
  kMemoryMb,
  kBudgetMb,
  kVectorCores,
  kFail,
  kTrace,
};

int64_t number(Setting setting);
bool is(Setting setting, const char* value);
std::string text(Setting setting);

}  // namespace sim
