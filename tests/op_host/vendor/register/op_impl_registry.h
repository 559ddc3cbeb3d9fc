// SPDX-License-Identifier: Apache-2.0
// Stands for CANN's header of this name: contexts that a test fills, and functions that it calls by operator.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "graph_types.h"

namespace gert {

struct Shape {
  std::vector<int64_t> dims;
  bool operator==(const Shape& other) const { return dims == other.dims; }
};

// Inputs by their place in the operator's definition; a list has several.
class InferShapeContext {
 public:
  const Shape* GetInputShape(size_t place) const { return GetDynamicInputShape(place, 0); }
  const Shape* GetDynamicInputShape(size_t place, size_t number) const {
    return place < inputs.size() && number < inputs[place].size() ? &inputs[place][number] : nullptr;
  }
  Shape* GetOutputShape(size_t number) { return number < outputs.size() ? &outputs[number] : nullptr; }

  std::vector<std::vector<Shape>> inputs;
  std::vector<Shape> outputs;
};

class InferDataTypeContext {
 public:
  ge::DataType GetInputDataType(size_t place) const { return GetDynamicInputDataType(place, 0); }
  ge::DataType GetDynamicInputDataType(size_t place, size_t number) const {
    return place < inputs.size() && number < inputs[place].size() ? inputs[place][number] : ge::DT_UNDEFINED;
  }
  ge::graphStatus SetOutputDataType(size_t number, ge::DataType type) {
    if (number >= outputs.size()) return ge::GRAPH_FAILED;
    outputs[number] = type;
    return ge::GRAPH_SUCCESS;
  }

  std::vector<std::vector<ge::DataType>> inputs;
  std::vector<ge::DataType> outputs;
};

class OpImplRegister {
 public:
  OpImplRegister& InferShape(ge::graphStatus (*function)(InferShapeContext*)) { return shape = function, *this; }
  OpImplRegister& InferDataType(ge::graphStatus (*function)(InferDataTypeContext*)) { return type = function, *this; }

  ge::graphStatus (*shape)(InferShapeContext*) = nullptr;
  ge::graphStatus (*type)(InferDataTypeContext*) = nullptr;
};

inline std::map<std::string, OpImplRegister>& implementations() {
  static std::map<std::string, OpImplRegister> operators;
  return operators;
}

}  // namespace gert

#define IMPL_OP_INFERSHAPE(type) static gert::OpImplRegister& implementation_of_##type = gert::implementations()[#type]
