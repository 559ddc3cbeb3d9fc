// SPDX-License-Identifier: Apache-2.0
// Shapes and types of the operators' outputs: those of what they write.
#include "register/op_impl_registry.h"

namespace {

constexpr size_t DST = 0;     // first input of OffloadSparseCopy, a list
constexpr size_t STATUS = 4;  // input of OffloadSparseCopyPtrs

ge::graphStatus InferShape(gert::InferShapeContext* context)
{
    for (size_t c = 0; const gert::Shape* dst = context->GetDynamicInputShape(DST, c); ++c) {
        gert::Shape* output = context->GetOutputShape(c);
        if (output == nullptr) {
            return ge::GRAPH_FAILED;  // fewer outputs than inputs: not a graph of ours
        }
        *output = *dst;
    }
    return ge::GRAPH_SUCCESS;
}

ge::graphStatus InferDataType(gert::InferDataTypeContext* context)
{
    for (size_t c = 0;; ++c) {
        const ge::DataType type = context->GetDynamicInputDataType(DST, c);
        if (type == ge::DT_UNDEFINED) {
            return ge::GRAPH_SUCCESS;
        }
        if (context->SetOutputDataType(c, type) != ge::GRAPH_SUCCESS) {
            return ge::GRAPH_FAILED;
        }
    }
}

ge::graphStatus InferShapePtrs(gert::InferShapeContext* context)
{
    const gert::Shape* status = context->GetInputShape(STATUS);
    gert::Shape* output = context->GetOutputShape(0);
    if (status == nullptr || output == nullptr) {
        return ge::GRAPH_FAILED;
    }
    *output = *status;
    return ge::GRAPH_SUCCESS;
}

ge::graphStatus InferDataTypePtrs(gert::InferDataTypeContext* context)
{
    return context->SetOutputDataType(0, context->GetInputDataType(STATUS));
}

}  // namespace

IMPL_OP_INFERSHAPE(OffloadSparseCopy).InferShape(InferShape).InferDataType(InferDataType);
IMPL_OP_INFERSHAPE(OffloadSparseCopyPtrs).InferShape(InferShapePtrs).InferDataType(InferDataTypePtrs);
