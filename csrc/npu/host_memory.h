// SPDX-License-Identifier: Apache-2.0
//
// Host memory that a device can address: registering it, and where the device finds it.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

namespace torch_offload::npu {

// [address, address + bytes) of the host, which the device finds in one piece.
struct MappedRange {
  uintptr_t address;
  uint64_t bytes;
  uintptr_t device_address;
};

// Registers [address, address + bytes), which begins and ends at multiples of the page size and outlives the
// registration, for kernels of the current device, which must be `device`. A runtime that does not take so much at once
// gets it in chunks, a power of two of at least `smallest_chunk` bytes each; the result tells what the device finds in
// one piece, in ascending order. RuntimeError if the runtime refuses; nothing stays registered then.
std::vector<MappedRange> register_host_memory(c10::DeviceIndex device, uintptr_t address, uint64_t bytes,
                                              uint64_t smallest_chunk);

// Undoes it. Nothing that a stream still has to do may use the memory. ValueError if no registration begins there;
// RuntimeError for what the runtime refuses, after all chunks have been tried.
void unregister_host_memory(uintptr_t address);

// The registrations that there are.
struct Registered {
  c10::DeviceIndex device;
  uintptr_t address;
};
std::vector<Registered> registered_host_memory();

// Where kernels of the current device, which must be `device`, find [address, address + bytes) of the host, whoever
// has registered it; 0 if they do not reach all of it. With a CANN that cannot tell (before 8.5) only memory of
// register_host_memory is found. Any thread; neither allocates nor synchronises.
uintptr_t find_device_address(c10::DeviceIndex device, uintptr_t address, uint64_t bytes);

}  // namespace torch_offload::npu
