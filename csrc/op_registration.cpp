// SPDX-License-Identifier: Apache-2.0
//
// The operators of the namespace `offload`: every schema, and which kernel serves which dispatch key.
#include "op_implementation.h"
#include "ops.h"

namespace torch_offload {
namespace {

std::string fixed_arity_schema(size_t arity) {
  std::string dst;
  std::string src;
  for (size_t i = 0; i < arity; ++i) {
    const auto number = std::to_string(i);
    dst += "Tensor(" + std::string(1, static_cast<char>('a' + i)) + "!) dst" + number + ", ";
    src += "Tensor src" + number + ", ";
  }
  return "_sparse_copy_" + std::to_string(arity) + "(" + dst + src +
         "Tensor? dst_index=None, Tensor? src_index=None, Tensor? count=None, SymInt? dst_rows=None, "
         "SymInt? src_rows=None, int? cores=None, Tensor[]? other_dst=None, Tensor[]? other_src=None) -> ()";
}

// Calls `register_one(name)` for every operator.
template <typename RegisterOne>
void for_each_op(const RegisterOne& register_one) {
  register_one("sparse_copy");
  register_one("sparse_copy_ptrs");
  register_one("_sparse_copy_cores");
  register_one("_sparse_copy_ptrs_cores");
  register_one("plan_residency");
  for (size_t arity = 1; arity <= kMaxFixedArity; ++arity) {
    register_one(("_sparse_copy_" + std::to_string(arity)).c_str());
  }
}

void implement_cpu(torch::Library& m) { implement<&sparse_copy_cpu, &sparse_copy_ptrs_cpu, &plan_residency_cpu>(m); }
void implement_meta(torch::Library& m) {
  implement<&sparse_copy_meta, &sparse_copy_ptrs_meta, &plan_residency_meta>(m);
}

TORCH_LIBRARY(offload, m) {
  const std::vector<at::Tag> tags{at::Tag::pt2_compliant_tag, at::Tag::needs_exact_strides};
  m.def(
      "sparse_copy(Tensor(a!)[] dst, Tensor[] src, Tensor? dst_index=None, Tensor? src_index=None, "
      "Tensor? count=None) -> ()",
      tags);
  m.def(
      "sparse_copy_ptrs(Tensor src_ptrs, Tensor dst_ptrs, Tensor lengths, Tensor count, Tensor(a!) status) "
      "-> ()",
      tags);
  // The same on so many cores of a device at most: the wrappers' `cores`, which is a constant of a graph.
  m.def(
      "_sparse_copy_cores(Tensor(a!)[] dst, Tensor[] src, Tensor? dst_index, Tensor? src_index, Tensor? count, "
      "int cores) -> ()",
      tags);
  m.def(
      "_sparse_copy_ptrs_cores(Tensor src_ptrs, Tensor dst_ptrs, Tensor lengths, Tensor count, Tensor(a!) status, "
      "int cores) -> ()",
      tags);
  m.def(
      "plan_residency(Tensor topk, Tensor request_ids, Tensor(a!) owners, Tensor(b!) slot_tokens, Tensor(c!) lru, "
      "Tensor(d!) buckets, Tensor(e!) slots, Tensor(f!) src_index, Tensor(g!) dst_index, Tensor(h!) count, "
      "Tensor(i!) totals, Tensor? stable_prefix=None, Tensor? block_table=None, int block_size=1) -> ()",
      tags);
  for (size_t arity = 1; arity <= kMaxFixedArity; ++arity) m.def(fixed_arity_schema(arity).c_str(), tags);
}

TORCH_LIBRARY_IMPL(offload, CPU, m) { implement_cpu(m); }
TORCH_LIBRARY_IMPL(offload, Meta, m) { implement_meta(m); }

// Kinds of tensors that the argument contract refuses reach it through these keys.
TORCH_LIBRARY_IMPL(offload, SparseCPU, m) { implement_cpu(m); }
TORCH_LIBRARY_IMPL(offload, SparseCsrCPU, m) { implement_cpu(m); }
TORCH_LIBRARY_IMPL(offload, QuantizedCPU, m) { implement_cpu(m); }
TORCH_LIBRARY_IMPL(offload, NestedTensorCPU, m) { implement_cpu(m); }
TORCH_LIBRARY_IMPL(offload, MkldnnCPU, m) { implement_cpu(m); }
TORCH_LIBRARY_IMPL(offload, SparseMeta, m) { implement_meta(m); }
TORCH_LIBRARY_IMPL(offload, SparseCsrMeta, m) { implement_meta(m); }
TORCH_LIBRARY_IMPL(offload, QuantizedMeta, m) { implement_meta(m); }
TORCH_LIBRARY_IMPL(offload, NestedTensorMeta, m) { implement_meta(m); }

// Lazy conjugation and negation must reach the check too: torch's fallback would write into a resolved copy.
TORCH_LIBRARY_IMPL(offload, Conjugate, m) {
  for_each_op([&](const char* name) { m.impl(name, torch::CppFunction::makeFallthrough()); });
}
TORCH_LIBRARY_IMPL(offload, Negative, m) {
  for_each_op([&](const char* name) { m.impl(name, torch::CppFunction::makeFallthrough()); });
}
TORCH_LIBRARY_IMPL(offload, ZeroTensor, m) {
  for_each_op([&](const char* name) { m.impl(name, torch::CppFunction::makeFallthrough()); });
}

TORCH_LIBRARY_IMPL(offload, Autograd, m) {
  for_each_op([&](const char* name) { m.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse_grad>()); });
}
TORCH_LIBRARY_IMPL(offload, ADInplaceOrView, m) {
  for_each_op([&](const char* name) { m.impl(name, torch::CppFunction::makeFromBoxedFunction<&bump_versions>()); });
}

}  // namespace
}  // namespace torch_offload
