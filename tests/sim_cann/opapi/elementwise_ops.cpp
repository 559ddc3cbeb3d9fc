// SPDX-License-Identifier: Apache-2.0
// Fills, casts, copies, arithmetic, comparisons.
#include <ATen/Functions.h>

#include "descriptors.h"

using namespace sim;

// ---- copies and fills
SIM_OP(aclnnInplaceCopy, Tensor to, Tensor from) {
  SIM_RUN([to = *to, from = *from] { view(to).copy_(view(from)); });
}
SIM_OP(aclnnCast, Tensor from, aclDataType, Tensor to) {
  SIM_RUN([from = *from, to = *to] { view(to).copy_(view(from)); });
}
SIM_OP(aclnnInplaceZero, Tensor to) {
  SIM_RUN([to = *to] { view(to).zero_(); });
}
SIM_OP(aclnnInplaceOne, Tensor to) {
  SIM_RUN([to = *to] { view(to).fill_(1); });
}
SIM_OP(aclnnInplaceFillScalar, Tensor to, Scalar value) {
  SIM_RUN([to = *to, value = value->value] { view(to).fill_(value); });
}
SIM_OP(aclnnInplaceFillTensor, Tensor to, Tensor value) {
  SIM_RUN([to = *to, value = *value] { view(to).fill_(view(value)); });
}

// ---- out = f(a)
#define SIM_UNARY(name, function)                                              \
  SIM_OP(aclnn##name, Tensor a, Tensor out) {                                  \
    SIM_RUN([a = *a, out = *out] { view(out).copy_(at::function(view(a))); }); \
  }
SIM_UNARY(Abs, abs)
SIM_UNARY(BitwiseNot, bitwise_not)
SIM_UNARY(Ceil, ceil)
SIM_UNARY(Cos, cos)
SIM_UNARY(Exp, exp)
SIM_UNARY(Floor, floor)
SIM_UNARY(IsFinite, isfinite)
SIM_UNARY(LogicalNot, logical_not)
SIM_UNARY(Neg, neg)
SIM_UNARY(Reciprocal, reciprocal)
SIM_UNARY(Relu, relu)
SIM_UNARY(Rsqrt, rsqrt)
SIM_UNARY(Sigmoid, sigmoid)
SIM_UNARY(Silu, silu)
SIM_UNARY(Sin, sin)
SIM_UNARY(Sqrt, sqrt)
SIM_UNARY(Tanh, tanh)

// ---- out = f(a, b) and a = f(a, b), b a tensor or a number
#define SIM_BINARY(name, function)                                                              \
  SIM_OP(aclnn##name, Tensor a, Tensor b, Tensor out) {                                         \
    SIM_RUN([a = *a, b = *b, out = *out] { view(out).copy_(at::function(view(a), view(b))); }); \
  }                                                                                             \
  SIM_OP(aclnnInplace##name, Tensor a, Tensor b) {                                              \
    SIM_RUN([a = *a, b = *b] { view(a).copy_(at::function(view(a), view(b))); });               \
  }
#define SIM_BINARY_SCALAR(name, function)                                                       \
  SIM_OP(aclnn##name, Tensor a, Scalar b, Tensor out) {                                         \
    SIM_RUN([a = *a, b = b->value, out = *out] { view(out).copy_(at::function(view(a), b)); }); \
  }                                                                                             \
  SIM_OP(aclnnInplace##name, Tensor a, Scalar b) {                                              \
    SIM_RUN([a = *a, b = b->value] { view(a).copy_(at::function(view(a), b)); });               \
  }
#define SIM_COMPARE(name, function)  \
  SIM_BINARY(name##Tensor, function) \
  SIM_BINARY_SCALAR(name##Scalar, function)

SIM_BINARY(Mul, mul)
SIM_BINARY_SCALAR(Muls, mul)
SIM_BINARY(Div, div)
SIM_BINARY_SCALAR(Divs, div)
SIM_BINARY(FloorDivide, floor_divide)
SIM_BINARY_SCALAR(FloorDivides, floor_divide)
SIM_BINARY(RemainderTensorTensor, remainder)
SIM_BINARY_SCALAR(RemainderTensorScalar, remainder)
SIM_BINARY_SCALAR(PowTensorScalar, pow)
SIM_BINARY(PowTensorTensor, pow)
SIM_BINARY(Maximum, maximum)
SIM_BINARY(Minimum, minimum)
SIM_BINARY_SCALAR(ClampMin, clamp_min)
SIM_BINARY_SCALAR(ClampMax, clamp_max)
SIM_BINARY(LogicalAnd, logical_and)
SIM_BINARY(LogicalOr, logical_or)
SIM_BINARY(BitwiseAndTensor, bitwise_and)
SIM_BINARY_SCALAR(BitwiseAndScalar, bitwise_and)
SIM_BINARY(BitwiseOrTensor, bitwise_or)
SIM_BINARY_SCALAR(BitwiseOrScalar, bitwise_or)
SIM_BINARY(BitwiseXorTensor, bitwise_xor)
SIM_BINARY_SCALAR(BitwiseXorScalar, bitwise_xor)
SIM_COMPARE(Eq, eq)
SIM_COMPARE(Ne, ne)
SIM_COMPARE(Gt, gt)
SIM_COMPARE(Ge, ge)
SIM_COMPARE(Lt, lt)
SIM_COMPARE(Le, le)

// ---- a + alpha * b, in four forms
#define SIM_ALPHA(name, function)                                                                              \
  SIM_OP(aclnn##name, Tensor a, Tensor b, Scalar alpha, Tensor out) {                                          \
    SIM_RUN([a = *a, b = *b, alpha = alpha->value, out = *out] {                                               \
      view(out).copy_(at::function(view(a), view(b), alpha));                                                  \
    });                                                                                                        \
  }                                                                                                            \
  SIM_OP(aclnn##name##s, Tensor a, Scalar b, Scalar alpha, Tensor out) {                                       \
    SIM_RUN([a = *a, b = b->value, alpha = alpha->value, out = *out] {                                         \
      view(out).copy_(at::function(view(a), b, alpha));                                                        \
    });                                                                                                        \
  }                                                                                                            \
  SIM_OP(aclnnInplace##name, Tensor a, Tensor b, Scalar alpha) {                                               \
    SIM_RUN([a = *a, b = *b, alpha = alpha->value] { view(a).copy_(at::function(view(a), view(b), alpha)); }); \
  }                                                                                                            \
  SIM_OP(aclnnInplace##name##s, Tensor a, Scalar b, Scalar alpha) {                                            \
    SIM_RUN([a = *a, b = b->value, alpha = alpha->value] { view(a).copy_(at::function(view(a), b, alpha)); }); \
  }
SIM_ALPHA(Add, add)
SIM_ALPHA(Sub, sub)

SIM_OP(aclnnPowScalarTensor, Scalar a, Tensor b, Tensor out) {
  SIM_RUN([a = a->value, b = *b, out = *out] { view(out).copy_(at::pow(a, view(b))); });
}
SIM_OP(aclnnClamp, Tensor a, Scalar low, Scalar high, Tensor out) {
  std::optional<c10::Scalar> least, most;
  if (low) least = low->value;
  if (high) most = high->value;
  SIM_RUN([a = *a, least, most, out = *out] { view(out).copy_(at::clamp(view(a), least, most)); });
}
SIM_OP(aclnnIsClose, Tensor a, Tensor b, double rtol, double atol, bool equalNan, Tensor out) {
  SIM_RUN([=, a = *a, b = *b, out = *out] { view(out).copy_(at::isclose(view(a), view(b), rtol, atol, equalNan)); });
}
