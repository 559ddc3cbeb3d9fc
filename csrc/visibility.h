// SPDX-License-Identifier: Apache-2.0
//
// The core library is compiled with hidden symbols; what its users may link to is marked here.
#pragma once

// C++ symbols of liboffload.so that the torch layer uses.
#define OFFLOAD_CORE_API __attribute__((visibility("default")))
