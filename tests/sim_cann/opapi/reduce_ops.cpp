// SPDX-License-Identifier: Apache-2.0
// Reductions, sorts, products of matrices.
#include <ATen/Functions.h>

#include "descriptors.h"

using namespace sim;

SIM_OP(aclnnEqual, Tensor a, Tensor b, Tensor out) {
  SIM_RUN([a = *a, b = *b, out = *out] { view(out).fill_(at::equal(view(a), view(b))); });
}
SIM_OP(aclnnReduceSum, Tensor a, Ints dims, bool keep, aclDataType type, Tensor out) {
  SIM_RUN(
      [=, a = *a, dims = dims->values, out = *out] { view(out).copy_(at::sum(view(a), dims, keep, torchType(type))); });
}
SIM_OP(aclnnMean, Tensor a, Ints dims, bool keep, aclDataType type, Tensor out) {
  SIM_RUN([=, a = *a, dims = dims->values, out = *out] {
    view(out).copy_(at::mean(view(a), dims, keep, torchType(type)));
  });
}
SIM_OP(aclnnMax, Tensor a, Tensor out) {
  SIM_RUN([a = *a, out = *out] { view(out).copy_(at::max(view(a))); });
}
SIM_OP(aclnnMin, Tensor a, Tensor out) {
  SIM_RUN([a = *a, out = *out] { view(out).copy_(at::min(view(a))); });
}
SIM_OP(aclnnAmax, Tensor a, Ints dims, bool keep, Tensor out) {
  SIM_RUN([=, a = *a, dims = dims->values, out = *out] { view(out).copy_(at::amax(view(a), dims, keep)); });
}
SIM_OP(aclnnAmin, Tensor a, Ints dims, bool keep, Tensor out) {
  SIM_RUN([=, a = *a, dims = dims->values, out = *out] { view(out).copy_(at::amin(view(a), dims, keep)); });
}
SIM_OP(aclnnMaxDim, Tensor a, int64_t dim, bool keep, Tensor values, Tensor positions) {
  SIM_RUN([=, a = *a, values = *values, positions = *positions] {
    auto [best, order] = at::max(view(a), dim, keep);
    view(values).copy_(best);
    view(positions).copy_(order);
  });
}
SIM_OP(aclnnMinDim, Tensor a, int64_t dim, bool keep, Tensor values, Tensor positions) {
  SIM_RUN([=, a = *a, values = *values, positions = *positions] {
    auto [best, order] = at::min(view(a), dim, keep);
    view(values).copy_(best);
    view(positions).copy_(order);
  });
}
SIM_OP(aclnnSoftmax, Tensor a, int64_t dim, Tensor out) {
  SIM_RUN([=, a = *a, out = *out] { view(out).copy_(at::softmax(view(a), dim)); });
}
SIM_OP(aclnnArgMax, Tensor a, int64_t dim, bool keep, Tensor out) {
  SIM_RUN([=, a = *a, out = *out] { view(out).copy_(at::argmax(view(a), dim, keep)); });
}
SIM_OP(aclnnArgMin, Tensor a, int64_t dim, bool keep, Tensor out) {
  SIM_RUN([=, a = *a, out = *out] { view(out).copy_(at::argmin(view(a), dim, keep)); });
}
SIM_OP(aclnnAll, Tensor a, Ints dims, bool, Tensor out) {
  SIM_RUN([a = *a, dims = dims->values, out = *out] {
    view(out).copy_(at::all(view(a), c10::OptionalIntArrayRef(dims), true).reshape(out.sizes));
  });
}
SIM_OP(aclnnAny, Tensor a, Ints dims, bool, Tensor out) {
  SIM_RUN([a = *a, dims = dims->values, out = *out] {
    view(out).copy_(at::any(view(a), c10::OptionalIntArrayRef(dims), true).reshape(out.sizes));
  });
}
SIM_OP(aclnnCumsum, Tensor a, int64_t dim, aclDataType type, Tensor out) {
  SIM_RUN([=, a = *a, out = *out] { view(out).copy_(at::cumsum(view(a), dim, torchType(type))); });
}
SIM_OP(aclnnSort, Tensor a, bool stable, int64_t dim, bool descending, Tensor values, Tensor positions) {
  SIM_RUN([=, a = *a, values = *values, positions = *positions] {
    auto [sorted, order] = at::sort(view(a), stable, dim, descending);
    view(values).copy_(sorted);
    view(positions).copy_(order);
  });
}
SIM_OP(aclnnTopk, Tensor a, int64_t k, int64_t dim, bool largest, bool sorted, Tensor values, Tensor positions) {
  SIM_RUN([=, a = *a, values = *values, positions = *positions] {
    auto [best, order] = at::topk(view(a), k, dim, largest, sorted);
    view(values).copy_(best);
    view(positions).copy_(order);
  });
}
SIM_OP(aclnnMatmul, Tensor a, Tensor b, Tensor out, int8_t) {
  SIM_RUN([a = *a, b = *b, out = *out] { view(out).copy_(at::matmul(view(a), view(b))); });
}
SIM_OP(aclnnMm, Tensor a, Tensor b, Tensor out, int8_t) {
  SIM_RUN([a = *a, b = *b, out = *out] { view(out).copy_(at::mm(view(a), view(b))); });
}
SIM_OP(aclnnBatchMatMul, Tensor a, Tensor b, Tensor out, int8_t) {
  SIM_RUN([a = *a, b = *b, out = *out] { view(out).copy_(at::bmm(view(a), view(b))); });
}
SIM_OP(aclnnAddmm, Tensor self, Tensor a, Tensor b, Scalar beta, Scalar alpha, Tensor out, int8_t) {
  SIM_RUN([self = *self, a = *a, b = *b, beta = beta->value, alpha = alpha->value, out = *out] {
    view(out).copy_(at::addmm(view(self), view(a), view(b), beta, alpha));
  });
}

// ---- the size of the result depends on the data: torch_npu synchronises and asks with aclGetViewShape
SIM_OP(aclnnMaskedSelect, Tensor a, Tensor mask, aclTensor* out) {
  SIM_RUN([a = *a, mask = *mask, out] {
    auto selected = at::masked_select(view(a), view(mask));
    view(*out).flatten().narrow(0, 0, selected.numel()).copy_(selected);
    out->sizes = {selected.numel()};
  });
}
SIM_OP(aclnnNonzero, Tensor a, aclTensor* out) {
  SIM_RUN([a = *a, out] {
    auto found = at::nonzero(view(a));
    view(*out).flatten().narrow(0, 0, found.numel()).copy_(found.flatten());
    out->sizes = found.sizes().vec();
  });
}
// One row per dimension, where the other has one per element.
SIM_OP(aclnnNonzeroV2, Tensor a, aclTensor* out) {
  SIM_RUN([a = *a, out] {
    auto found = at::nonzero(view(a)).t().contiguous();
    view(*out).flatten().narrow(0, 0, found.numel()).copy_(found.flatten());
    out->sizes = found.sizes().vec();
  });
}
SIM_EXPORT int aclGetViewShape(const aclTensor* tensor, int64_t** dims, uint64_t* count) {
  *count = tensor->sizes.size();
  *dims = new int64_t[*count];  // the caller frees them
  std::copy(tensor->sizes.begin(), tensor->sizes.end(), *dims);
  return ACL_SUCCESS;
}
