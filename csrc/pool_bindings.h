// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace torch_offload {

// Adds the host pool to the module torch_offload._C.
void bind_pool(pybind11::module_& m);

}  // namespace torch_offload
