// SPDX-License-Identifier: Apache-2.0
// What the graph engine is told of our operators: definitions, shapes and types. Names and order are those that the
// converters for torchair use (tests/npu/test_npu_graph_engine.py).
#include <algorithm>
#include <set>
#include <tuple>

#include "register/op_def_registry.h"
#include "register/op_impl_registry.h"
#include "sim_cann/ascendc/tests/check.h"

namespace {

const ops::OpDef& definition(const char* type) { return ops::added().at(type); }

std::string listed(const std::deque<ops::OpParamDef>& parameters) {
  const char* kinds[] = {"ignore", "optional", "required", "dynamic", "virtual"};
  std::string text;
  for (const auto& p : parameters) text += (text.empty() ? "" : ", ") + std::string(kinds[p.kind_]) + " " + p.name_;
  return text;
}

// Position i of all lists is one combination: all as long, none twice.
void checkCombinations(const ops::OpDef& op, size_t expected) {
  std::set<std::vector<ge::DataType>> seen;
  for (size_t i = 0; i < expected; ++i) {
    std::vector<ge::DataType> types;
    for (const auto& input : op.inputs_) types.push_back(input.types_.at(i));
    CHECK(seen.insert(types).second);
  }
  for (const auto* parameters : {&op.inputs_, &op.outputs_}) {
    for (const auto& p : *parameters) {
      CHECK_EQ(p.types_.size(), expected);
      CHECK_EQ(p.formats_.size(), expected);
      CHECK_EQ(p.unknown_.size(), expected);
      CHECK(std::all_of(p.formats_.begin(), p.formats_.end(), [](ge::Format f) { return f == ge::FORMAT_ND; }));
    }
  }
}

const std::vector<std::string> kChips = {"ascend910b", "ascend910_93", "ascend950"};

gert::OpImplRegister implementation(const char* type) { return gert::implementations().at(type); }

}  // namespace

TEST(definition_of_sparse_copy) {
  const ops::OpDef& op = definition("OffloadSparseCopy");
  CHECK_EQ(op.type_, "OffloadSparseCopy");
  CHECK_EQ(listed(op.inputs_), "dynamic dst, dynamic src, optional dst_index, optional src_index, optional count");
  CHECK_EQ(listed(op.outputs_), "dynamic dst");
  checkCombinations(op, 14 * 2 * 2 * 2);
  CHECK(op.inputs_[0].types_ == op.inputs_[1].types_);
  CHECK(op.inputs_[0].types_ == op.outputs_[0].types_);
  CHECK(op.aicore_.socs_ == kChips);
  CHECK_EQ(op.attrs_.size(), 3u);
  const char* names[] = {"dst_rows", "src_rows", "cores"};
  for (size_t i = 0; i < op.attrs_.size(); ++i) {
    CHECK_EQ(op.attrs_[i].name_, names[i]);
    CHECK_EQ(op.attrs_[i].kind_, ops::OPTIONAL);
    CHECK_EQ(op.attrs_[i].value_, -1);
  }
}

TEST(definition_of_sparse_copy_ptrs) {
  const ops::OpDef& op = definition("OffloadSparseCopyPtrs");
  CHECK_EQ(listed(op.inputs_),
           "required src_ptrs, required dst_ptrs, required lengths, required count, required status");
  CHECK_EQ(listed(op.outputs_), "required status");
  checkCombinations(op, 2 * 2 * 2 * 2);
  CHECK(op.inputs_[4].types_ == op.outputs_[0].types_);
  CHECK(op.aicore_.socs_ == kChips);
  CHECK_EQ(op.attrs_.size(), 1u);
  CHECK_EQ(op.attrs_[0].name_, "cores");
}

TEST(outputs_have_the_shapes_of_the_destinations) {
  for (size_t components : {1, 2, 4}) {
    gert::InferShapeContext context;
    for (size_t c = 0; c < components; ++c) {
      context.inputs.resize(2);
      context.inputs[0].push_back({{20, static_cast<int64_t>(c), -1}});
      context.inputs[1].push_back({{50, 9}});
    }
    context.outputs.resize(components);
    CHECK_EQ(implementation("OffloadSparseCopy").shape(&context), ge::GRAPH_SUCCESS);
    CHECK(context.outputs == context.inputs[0]);
  }
}

TEST(a_missing_output_is_an_error) {
  gert::InferShapeContext shapes;
  shapes.inputs = {{{{20, 4}}, {{20, 8}}}};
  shapes.outputs.resize(1);
  CHECK_EQ(implementation("OffloadSparseCopy").shape(&shapes), ge::GRAPH_FAILED);
  gert::InferDataTypeContext types;
  types.inputs = {{ge::DT_BF16, ge::DT_BF16}};
  types.outputs.resize(1);
  CHECK_EQ(implementation("OffloadSparseCopy").type(&types), ge::GRAPH_FAILED);
  gert::InferShapeContext none;
  none.inputs.resize(4);
  none.outputs.resize(1);
  CHECK_EQ(implementation("OffloadSparseCopyPtrs").shape(&none), ge::GRAPH_FAILED);
}

TEST(outputs_have_the_types_of_the_destinations) {
  gert::InferDataTypeContext context;
  context.inputs = {{ge::DT_BF16, ge::DT_INT8}, {ge::DT_FLOAT, ge::DT_FLOAT}};
  context.outputs = {ge::DT_UNDEFINED, ge::DT_UNDEFINED};
  CHECK_EQ(implementation("OffloadSparseCopy").type(&context), ge::GRAPH_SUCCESS);
  CHECK(context.outputs == context.inputs[0]);
}

TEST(pointers_give_their_status) {
  gert::InferShapeContext shapes;
  shapes.inputs = {{{{8}}}, {{{8}}}, {{{8}}}, {{{1}}}, {{{4}}}};
  shapes.outputs.resize(1);
  CHECK_EQ(implementation("OffloadSparseCopyPtrs").shape(&shapes), ge::GRAPH_SUCCESS);
  CHECK(shapes.outputs[0] == gert::Shape{{4}});
  gert::InferDataTypeContext types;
  types.inputs = {{ge::DT_UINT64}, {ge::DT_UINT64}, {ge::DT_INT32}, {ge::DT_INT32}, {ge::DT_INT64}};
  types.outputs = {ge::DT_UNDEFINED};
  CHECK_EQ(implementation("OffloadSparseCopyPtrs").type(&types), ge::GRAPH_SUCCESS);
  CHECK_EQ(types.outputs[0], ge::DT_INT64);
}
