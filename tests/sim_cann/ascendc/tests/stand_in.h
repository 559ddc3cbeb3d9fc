// SPDX-License-Identifier: Apache-2.0
// Stands in for the simulated runtime: device memory at addresses that are no host pointers, and kernel
// faults.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace stand_in {

// Memory of the device for as long as the object lives, with guard bytes around it that must keep their
// value.
class DeviceMemory {
 public:
  // The device address is a multiple of 512 plus `shift`. `lazy`: pages take memory only when touched, no
  // guards.
  explicit DeviceMemory(uint64_t bytes, uint64_t shift = 0, bool lazy = false);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  uint64_t address() const { return address_; }
  uint64_t bytes() const { return bytes_; }
  uint8_t* host() const { return host_; }
  bool guardsIntact() const;

 private:
  static constexpr uint64_t kGuard = 256;
  uint64_t bytes_, address_;
  uint8_t* mapping_;
  uint64_t mapped_;
  uint8_t* host_;
  bool lazy_;
};

// The first fault since the last call, or "".
std::string takeFault();

}  // namespace stand_in
