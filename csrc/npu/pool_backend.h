// SPDX-License-Identifier: Apache-2.0
//
// The host pool on NPUs: their view of its memory, and when their streams are done with it.
#pragma once

namespace torch_offload::npu {

// Makes pools with a device possible, and lets torch_npu's record of asynchronous copies reach the pools. Once, before
// other threads use torch_npu's pinned memory.
void serve_pools();

// For tests: whether blocks wait for the streams that may use them.
void watch_streams(bool on);

// At the end of the process, while the runtime is still up: waits for the devices, then unregisters what is left.
void let_go_of_pools();

}  // namespace torch_offload::npu
