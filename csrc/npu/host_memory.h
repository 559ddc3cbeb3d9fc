// SPDX-License-Identifier: Apache-2.0
//
// Host memory that a device can address: registering it, and where the device finds it.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace torch_offload::npu {

// Registers [address, address + bytes), which begins and ends at multiples of the page size and outlives the
// registration, for kernels of the current device, which must be `device`. RuntimeError if the runtime refuses.
void register_host_memory(c10::DeviceIndex device, uintptr_t address, uint64_t bytes);

// Undoes it. Nothing that a stream still has to do may use the memory. ValueError if no registration begins there.
void unregister_host_memory(uintptr_t address);

// Where kernels of the current device, which must be `device`, find [address, address + bytes) of the host, whoever
// has registered it; 0 if they do not reach all of it. With a CANN that cannot tell (before 8.5) only memory of
// register_host_memory is found. Any thread; neither allocates nor synchronises.
uintptr_t find_device_address(c10::DeviceIndex device, uintptr_t address, uint64_t bytes);

}  // namespace torch_offload::npu
