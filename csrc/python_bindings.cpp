// SPDX-License-Identifier: Apache-2.0
//
// The module torch_offload._C: importing it registers the operators.
#include <torch/extension.h>

#include "byte_rows.h"
#include "cpu/resident_set.h"
#include "eager_calls.h"
#include "pool_bindings.h"

namespace torch_offload {

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "Compiled part of torch_offload; importing it registers the operators.";
  m.def("rows_overlap", [](int64_t begin_a, int64_t stride_a, int64_t rows_a, int64_t row_bytes_a, int64_t begin_b,
                           int64_t stride_b, int64_t rows_b, int64_t row_bytes_b) {
    return rows_overlap({begin_a, stride_a, rows_a, row_bytes_a}, {begin_b, stride_b, rows_b, row_bytes_b});
  });
  m.def("residency_buckets", &residency_buckets);
  m.attr("MAX_RESIDENT_SLOTS") = kMaxResidentSlots;
  add_eager_calls(m);
  bind_pool(m);
}

}  // namespace torch_offload
