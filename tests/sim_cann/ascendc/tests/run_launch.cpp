// SPDX-License-Identifier: Apache-2.0
#include "run_launch.h"

#include <cstring>

#include "stand_in.h"

namespace test {

std::string runLaunch(KernelEntry kernel, const sparse_copy_tiling::Launch& launch,
                      const AscendcSimSettings& settings) {
  std::vector<uint64_t> block = launch.arguments;
  auto* arguments = reinterpret_cast<uint8_t*>(block.data());
  stand_in::DeviceMemory tiling(launch.ArgumentBytes() - launch.placeholderDataOffset);
  if (launch.HasPlaceholder()) {
    memcpy(tiling.host(), arguments + launch.placeholderDataOffset, tiling.bytes());
    const uint64_t address = tiling.address();
    memcpy(arguments + launch.placeholderAddressOffset, &address, sizeof address);
  }
  ascendcSimSetSettings(&settings);
  stand_in::takeFault();
  kernel(arguments, static_cast<uint32_t>(launch.ArgumentBytes()), launch.blockDim);
  return stand_in::takeFault();
}

}  // namespace test
