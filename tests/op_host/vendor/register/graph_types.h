// SPDX-License-Identifier: Apache-2.0
// Types that the stand-ins of the vendor's two headers share.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ge {

using graphStatus = uint32_t;
constexpr graphStatus GRAPH_SUCCESS = 0;
constexpr graphStatus GRAPH_FAILED = 0xFFFFFFFF;

enum DataType {
  DT_FLOAT = 0,
  DT_FLOAT16 = 1,
  DT_INT8 = 2,
  DT_INT32 = 3,
  DT_UINT8 = 4,
  DT_INT16 = 6,
  DT_UINT16 = 7,
  DT_UINT32 = 8,
  DT_INT64 = 9,
  DT_UINT64 = 10,
  DT_DOUBLE = 11,
  DT_BOOL = 12,
  DT_COMPLEX64 = 16,
  DT_BF16 = 27,
  DT_UNDEFINED = 28,
};

enum Format { FORMAT_ND = 2 };

}  // namespace ge
