// SPDX-License-Identifier: Apache-2.0
//
// What a pool asks of the accelerator that shall address its memory. The core knows no accelerator: a backend library
// hands its implementation in when it is loaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "visibility.h"

namespace torch_offload {

// [offset, offset + bytes) of a pool's memory, which the device finds in one piece at `address`.
struct DevicePiece {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t address = 0;
};

// Work that was given to a stream may use a block.
struct StreamUse {
  int32_t device = 0;
  void* stream = nullptr;

  bool operator==(const StreamUse&) const = default;
};

class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;

  // Lets the device address [base, base + bytes). The pieces come in the order of their offsets and cover all of it;
  // they begin at multiples of `unit`, a power of two. Texts for the user go to `warnings`.
  // @throws Error; nothing is left behind
  virtual std::vector<DevicePiece> map(int32_t device, std::byte* base, uint64_t bytes, uint64_t unit,
                                       std::vector<std::string>* warnings) = 0;

  // Undoes it; false if the device keeps some of it: then the memory must stay. The work of streams that uses the
  // memory has ended.
  virtual bool unmap(int32_t device, std::byte* base) noexcept = 0;

  // The streams that this thread gives work to, as far as nobody records what they use (torch's asynchronous copies).
  // Empty when the device is gone.
  virtual std::vector<StreamUse> current_streams(int32_t device) noexcept = 0;

  // A predicate that is true once the work that these streams have been given when it is first called has ended, or the
  // device is gone. It does not throw for a fault of the device: what cannot be told is not ended.
  virtual std::function<bool()> fence(const std::vector<StreamUse>& uses) = 0;
};

// The backend is never destroyed. The one that comes last serves the pools that are made from then on.
OFFLOAD_CORE_API void set_device_backend(DeviceBackend* backend);

// Null if none has been loaded.
DeviceBackend* device_backend();

}  // namespace torch_offload
