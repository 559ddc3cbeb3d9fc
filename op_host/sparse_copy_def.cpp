// SPDX-License-Identifier: Apache-2.0
// What CANN's graph engine is told of the operators: inputs, outputs, attributes, chips. What a call writes is an input
// and an output of the same name.
#include <vector>

#include "register/op_def_registry.h"

namespace ops {
namespace {

const std::vector<ge::DataType> ROW_TYPES = {
    ge::DT_FLOAT16, ge::DT_BF16,  ge::DT_FLOAT,  ge::DT_DOUBLE, ge::DT_INT8,   ge::DT_UINT8,     ge::DT_INT16,
    ge::DT_UINT16,  ge::DT_INT32, ge::DT_UINT32, ge::DT_INT64,  ge::DT_UINT64, ge::DT_BOOL,      ge::DT_COMPLEX64,
};
const std::vector<ge::DataType> INDEX_TYPES = {ge::DT_INT32, ge::DT_INT64};
const std::vector<ge::DataType> ADDRESS_TYPES = {ge::DT_INT64, ge::DT_UINT64};

// The types of each input in every combination: position i of all lists is one combination that is supported.
std::vector<std::vector<ge::DataType>> Combinations(const std::vector<std::vector<ge::DataType>>& choices)
{
    std::vector<std::vector<ge::DataType>> lists(choices.size());
    size_t total = 1;
    for (const auto& choice : choices) {
        total *= choice.size();
    }
    for (size_t i = 0; i < total; ++i) {
        size_t rest = i;
        for (size_t input = 0; input < choices.size(); ++input) {
            lists[input].push_back(choices[input][rest % choices[input].size()]);
            rest /= choices[input].size();
        }
    }
    return lists;
}

void Describe(OpParamDef& parameter, Option kind, const std::vector<ge::DataType>& types)
{
    const std::vector<ge::Format> formats(types.size(), ge::FORMAT_ND);
    parameter.ParamType(kind).DataType(types).Format(formats).UnknownShapeFormat(formats);
}

void AddChips(OpDef& op)
{
    for (const char* chip : {"ascend910b", "ascend910_93", "ascend950"}) {
        op.AICore().AddConfig(chip);
    }
}

}  // namespace

class OffloadSparseCopy : public OpDef {
public:
    explicit OffloadSparseCopy(const char* name) : OpDef(name)
    {
        const auto types = Combinations({ROW_TYPES, INDEX_TYPES, INDEX_TYPES, INDEX_TYPES});
        Describe(Input("dst"), DYNAMIC, types[0]);
        Describe(Input("src"), DYNAMIC, types[0]);
        Describe(Input("dst_index"), OPTIONAL, types[1]);
        Describe(Input("src_index"), OPTIONAL, types[2]);
        Describe(Input("count"), OPTIONAL, types[3]);
        Describe(Output("dst"), DYNAMIC, types[0]);
        // Limits of a call that is cut into several operators; -1: there is none.
        for (const char* attribute : {"dst_rows", "src_rows", "cores"}) {
            Attr(attribute).AttrType(OPTIONAL).Int(-1);
        }
        AddChips(*this);
    }
};

OP_ADD(OffloadSparseCopy);

class OffloadSparseCopyPtrs : public OpDef {
public:
    explicit OffloadSparseCopyPtrs(const char* name) : OpDef(name)
    {
        const auto types = Combinations({ADDRESS_TYPES, ADDRESS_TYPES, INDEX_TYPES, INDEX_TYPES});
        const std::vector<ge::DataType> status(types[0].size(), ge::DT_INT64);
        Describe(Input("src_ptrs"), REQUIRED, types[0]);
        Describe(Input("dst_ptrs"), REQUIRED, types[1]);
        Describe(Input("lengths"), REQUIRED, types[2]);
        Describe(Input("count"), REQUIRED, types[3]);
        Describe(Input("status"), REQUIRED, status);
        Describe(Output("status"), REQUIRED, status);
        Attr("cores").AttrType(OPTIONAL).Int(-1);
        AddChips(*this);
    }
};

OP_ADD(OffloadSparseCopyPtrs);

}  // namespace ops
