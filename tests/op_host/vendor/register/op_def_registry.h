// SPDX-License-Identifier: Apache-2.0
// Stands for CANN's header of this name: the calls that op_host/ uses, which note what they are told.
#pragma once
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "graph_types.h"

namespace ops {

enum Option { IGNORE = 0, OPTIONAL = 1, REQUIRED = 2, DYNAMIC = 3, VIRTUAL = 4 };

class OpParamDef {
 public:
  explicit OpParamDef(const char* name) : name_(name) {}
  OpParamDef& ParamType(Option kind) { return kind_ = kind, *this; }
  OpParamDef& DataType(std::vector<ge::DataType> types) { return types_ = types, *this; }
  OpParamDef& Format(std::vector<ge::Format> formats) { return formats_ = formats, *this; }
  OpParamDef& UnknownShapeFormat(std::vector<ge::Format> formats) { return unknown_ = formats, *this; }

  std::string name_;
  Option kind_ = IGNORE;
  std::vector<ge::DataType> types_;
  std::vector<ge::Format> formats_;
  std::vector<ge::Format> unknown_;
};

class OpAttrDef {
 public:
  explicit OpAttrDef(const char* name) : name_(name) {}
  OpAttrDef& AttrType(Option kind) { return kind_ = kind, *this; }
  OpAttrDef& Int(int64_t value) { return value_ = value, *this; }

  std::string name_;
  Option kind_ = IGNORE;
  int64_t value_ = 0;
};

class OpAICoreDef {
 public:
  OpAICoreDef& AddConfig(const char* soc) { return socs_.push_back(soc), *this; }

  std::vector<std::string> socs_;
};

class OpDef {
 public:
  explicit OpDef(const char* type) : type_(type) {}
  OpParamDef& Input(const char* name) { return inputs_.emplace_back(name); }
  OpParamDef& Output(const char* name) { return outputs_.emplace_back(name); }
  OpAttrDef& Attr(const char* name) { return attrs_.emplace_back(name); }
  OpAICoreDef& AICore() { return aicore_; }

  std::string type_;
  std::deque<OpParamDef> inputs_, outputs_;
  std::deque<OpAttrDef> attrs_;
  OpAICoreDef aicore_;
};

// Every operator that was added, by type.
inline std::map<std::string, OpDef>& added() {
  static std::map<std::string, OpDef> operators;
  return operators;
}
inline int add(const char* type, const OpDef& op) { return added().emplace(type, op).second ? 1 : 0; }

}  // namespace ops

#define OP_ADD(type) static const int added_##type = ::ops::add(#type, type(#type))
