// SPDX-License-Identifier: Apache-2.0
//
// The library is compiled with -fvisibility=hidden. What another shared object uses is marked here.
#pragma once

// C++ classes and functions of the core that the torch layer links to.
#define OFFLOAD_CORE_API __attribute__((visibility("default")))
