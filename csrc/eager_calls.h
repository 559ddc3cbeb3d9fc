// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace torch_offload {

// Adds to the module `m`, for each operator below, a function with its arguments that makes the eager call and returns
// True, or returns False and has done nothing: where an argument is no plain tensor or a mode wants to see the call.
// Then torch.ops is to be used.
void add_eager_calls(pybind11::module_& m);

}  // namespace torch_offload
