// SPDX-License-Identifier: Apache-2.0
// Ranges, permutations, gathers and scatters, joins.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>

#include "descriptors.h"

using namespace sim;

namespace {

at::Generator seeded(int64_t seed, int64_t offset) {
  return at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(seed) * 0x9E3779B97F4A7C15ULL + offset);
}

std::vector<at::Tensor> views(const std::vector<aclTensor>& descriptors) {
  std::vector<at::Tensor> tensors;
  for (const aclTensor& descriptor : descriptors) tensors.push_back(view(descriptor));
  return tensors;
}

// An index that is left out comes as an empty tensor.
c10::List<std::optional<at::Tensor>> indices(const std::vector<aclTensor>& descriptors, bool emptySelf) {
  c10::List<std::optional<at::Tensor>> list;
  for (const aclTensor& descriptor : descriptors) {
    at::Tensor index = view(descriptor);
    bool leftOut = index.numel() == 0 && !emptySelf;
    list.push_back(leftOut ? std::nullopt : std::optional<at::Tensor>(index));
  }
  return list;
}

}  // namespace

SIM_OP(aclnnArange, Scalar begin, Scalar end, Scalar step, Tensor out) {
  SIM_RUN([begin = begin->value, end = end->value, step = step->value, out = *out] {
    auto to = view(out);
    to.copy_(at::arange(begin, end, step, to.options()));
  });
}
SIM_OP(aclnnRandperm, int64_t n, int64_t seed, int64_t offset, Tensor out) {
  SIM_RUN([=, out = *out] { view(out).copy_(at::randperm(n, seeded(seed, offset))); });
}
SIM_OP(aclnnInplaceRandom, Tensor out, int64_t from, int64_t to, int64_t seed, int64_t offset) {
  SIM_RUN([=, out = *out] { view(out).random_(from, to, seeded(seed, offset)); });
}
SIM_OP(aclnnInplaceUniform, Tensor out, double from, double to, uint64_t seed, uint64_t offset) {
  SIM_RUN([=, out = *out] { view(out).uniform_(from, to, seeded(seed, offset)); });
}
SIM_OP(aclnnInplaceNormal, Tensor out, float mean, float deviation, int64_t seed, int64_t offset) {
  SIM_RUN([=, out = *out] { view(out).normal_(mean, deviation, seeded(seed, offset)); });
}

SIM_OP(aclnnIndexSelect, Tensor from, int64_t dim, Tensor index, Tensor out) {
  SIM_RUN([=, from = *from, index = *index, out = *out] {
    view(out).copy_(at::index_select(view(from), dim, view(index)));
  });
}
SIM_OP(aclnnInplaceIndexCopy, Tensor to, int64_t dim, Tensor index, Tensor from) {
  SIM_RUN([=, to = *to, index = *index, from = *from] { view(to).index_copy_(dim, view(index), view(from)); });
}
SIM_OP(aclnnIndexCopy, Tensor self, int64_t dim, Tensor index, Tensor from, Tensor out) {
  SIM_RUN([=, self = *self, index = *index, from = *from, out = *out] {
    view(out).copy_(at::index_copy(view(self), dim, view(index), view(from)));
  });
}
SIM_OP(aclnnGather, Tensor from, int64_t dim, Tensor index, Tensor out) {
  SIM_RUN([=, from = *from, index = *index, out = *out] { view(out).copy_(at::gather(view(from), dim, view(index))); });
}
SIM_OP(aclnnIndex, Tensor from, Tensors index, Tensor out) {
  SIM_RUN([from = *from, index = index->values, out = *out] {
    auto to = view(out);
    to.copy_(at::index(view(from), indices(index, to.numel() == 0)).reshape(to.sizes()));
  });
}
SIM_OP(aclnnIndexPutImpl, Tensor to, Tensors index, Tensor from, bool accumulate, bool) {
  SIM_RUN([=, to = *to, index = index->values, from = *from] {
    view(to).index_put_(indices(index, false), view(from), accumulate);
  });
}
SIM_OP(aclnnScatter, Tensor self, int64_t dim, Tensor index, Tensor from, int64_t reduce, Tensor out) {
  SIM_RUN([=, self = *self, index = *index, from = *from, out = *out] {
    TORCH_CHECK(!reduce, "a scatter with a reduction is not simulated");
    view(out).copy_(at::scatter(view(self), dim, view(index), view(from)));
  });
}
SIM_OP(aclnnScatterValue, Tensor self, int64_t dim, Tensor index, Scalar value, int64_t reduce, Tensor out) {
  SIM_RUN([=, self = *self, index = *index, value = value->value, out = *out] {
    TORCH_CHECK(!reduce, "a scatter with a reduction is not simulated");
    view(out).copy_(at::scatter(view(self), dim, view(index), value));
  });
}
SIM_OP(aclnnEmbedding, Tensor weight, Tensor index, Tensor out) {
  SIM_RUN(
      [weight = *weight, index = *index, out = *out] { view(out).copy_(at::embedding(view(weight), view(index))); });
}
SIM_OP(aclnnInplaceMaskedFillScalar, Tensor to, Tensor mask, Scalar value) {
  SIM_RUN([to = *to, mask = *mask, value = value->value] { view(to).masked_fill_(view(mask), value); });
}
SIM_OP(aclnnSWhere, Tensor condition, Tensor a, Tensor b, Tensor out) {
  SIM_RUN([condition = *condition, a = *a, b = *b, out = *out] {
    view(out).copy_(at::where(view(condition), view(a), view(b)));
  });
}
SIM_OP(aclnnCat, Tensors list, int64_t dim, Tensor out) {
  SIM_RUN([=, list = list->values, out = *out] { view(out).copy_(at::cat(views(list), dim)); });
}
SIM_OP(aclnnStack, Tensors list, int64_t dim, Tensor out) {
  SIM_RUN([=, list = list->values, out = *out] { view(out).copy_(at::stack(views(list), dim)); });
}
SIM_OP(aclnnFlip, Tensor from, Ints dims, Tensor out) {
  SIM_RUN([from = *from, dims = dims->values, out = *out] { view(out).copy_(at::flip(view(from), dims)); });
}
SIM_OP(aclnnRepeat, Tensor from, Ints repeats, Tensor out) {
  SIM_RUN([from = *from, repeats = repeats->values, out = *out] { view(out).copy_(view(from).repeat(repeats)); });
}
