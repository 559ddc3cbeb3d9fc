// SPDX-License-Identifier: Apache-2.0
#include "residency_args.h"

#include <initializer_list>

#include "cpu/resident_set.h"
#include "overlap.h"

namespace torch_offload {
namespace {

constexpr std::string_view kOp = "plan_residency";

// The block size is multiplied with block numbers: far below where that could overflow for any memory there is.
constexpr int64_t kMaxBlockSize = INT32_MAX;

class Checker {
 public:
  explicit Checker(const Placement& placement) : placement_(placement), overlap_(placement) {}

  void read(std::string_view name, const at::Tensor& tensor, int64_t dim) {
    check(name, tensor, dim, {at::kInt, at::kLong});
    overlap_.add_read({kOp, name}, tensor);
  }

  void written(std::string_view name, const at::Tensor& tensor, int64_t dim, at::ScalarType dtype) {
    check(name, tensor, dim, {dtype});
    TORCH_CHECK_VALUE(tensor.is_contiguous() || tensor.sym_numel() == 0, ArgName{kOp, name},
                      " to be contiguous, got strides ", tensor.sym_strides());
    overlap_.add_written({kOp, name}, tensor);
  }

  void written_count(const at::Tensor& count) {
    check_count({kOp, "count"}, count, placement_);
    overlap_.add_written({kOp, "count"}, count);
  }

  void size(std::string_view name, const at::Tensor& tensor, int64_t dim, const c10::SymInt& expected,
            const char* what) {
    OFFLOAD_SYM_CHECK(ValueError, tensor.sym_size(dim).sym_eq(expected), ArgName{kOp, name}, " to have ", what, " (",
                      expected, ") in dimension ", dim, ", got ", tensor.sym_size(dim));
  }

  void least(std::string_view name, const at::Tensor& tensor, const c10::SymInt& expected, const char* what) {
    OFFLOAD_SYM_CHECK(ValueError, tensor.sym_size(0).sym_ge(expected), ArgName{kOp, name}, " to have at least ", what,
                      " (", expected, ") in dimension 0, got ", tensor.sym_size(0));
  }

  void no_overlap() {
    TORCH_CHECK_VALUE(!overlap_.run(), kOp, ": expected written tensors not to share memory, got two that do");
  }

 private:
  void check(std::string_view name, const at::Tensor& tensor, int64_t dim,
             std::initializer_list<at::ScalarType> dtypes) {
    const ArgName arg{kOp, name};
    check_plain(arg, tensor, placement_);
    const at::ScalarType dtype = tensor.scalar_type();
    TORCH_CHECK_TYPE(std::find(dtypes.begin(), dtypes.end(), dtype) != dtypes.end(), arg, " to have dtype ",
                     *dtypes.begin(), dtypes.size() == 1 ? "" : " or Long", ", got ", dtype);
    TORCH_CHECK_VALUE(tensor.dim() == dim, arg, " to have ", dim, " dimensions, got ", tensor.dim());
  }

  const Placement& placement_;
  OverlapCheck overlap_;
};

}  // namespace

void check_plan_residency(const ResidencyTensors& t, const Placement& placement, BucketsOf buckets) {
  Checker check(placement);
  // Written ones first: the address of a copy-on-write tensor may change.
  check.written("owners", t.owners, 1, at::kLong);
  check.written("slot_tokens", t.slot_tokens, 2, at::kInt);
  check.written("lru", t.lru, 2, at::kShort);
  check.written("buckets", t.buckets, 2, at::kShort);
  check.written("slots", t.slots, 2, at::kInt);
  check.written("src_index", t.src_index, 1, at::kLong);
  check.written("dst_index", t.dst_index, 1, at::kLong);
  check.written_count(t.count);
  check.written("totals", t.totals, 1, at::kLong);
  check.read("topk", t.topk, 2);
  check.read("request_ids", t.request_ids, 1);
  if (t.stable_prefix) check.read("stable_prefix", *t.stable_prefix, 1);
  if (t.block_table) check.read("block_table", *t.block_table, 2);

  const c10::SymInt requests = t.topk.sym_size(0);
  const c10::SymInt tokens = t.topk.sym_size(1);
  check.size("request_ids", t.request_ids, 0, requests, "as many as topk");
  check.least("owners", t.owners, requests, "as many as topk");
  check.size("slot_tokens", t.slot_tokens, 0, t.owners.sym_size(0), "as many as owners");
  check.size("lru", t.lru, 0, t.owners.sym_size(0), "as many as owners");
  check.size("lru", t.lru, 1, t.slot_tokens.sym_size(1), "as many as slot_tokens");
  check.size("buckets", t.buckets, 0, t.owners.sym_size(0), "as many as owners");
  // The slots of a cache never change: no symbol.
  const int64_t slots = t.slot_tokens.sym_size(1).guard_int(__FILE__, __LINE__);
  TORCH_CHECK_VALUE(slots >= 1 && slots <= kMaxResidentSlots, ArgName{kOp, "slot_tokens"}, " to have 1 to ",
                    kMaxResidentSlots, " slots in dimension 1, got ", slots);
  const bool has_buckets = buckets == BucketsOf::CPU ||
                           (buckets == BucketsOf::EITHER && t.buckets.sym_size(1).guard_int(__FILE__, __LINE__));
  check.size("buckets", t.buckets, 1, has_buckets ? residency_buckets(slots) : 0,
             "what new_residency_state makes of the slots");
  check.size("slots", t.slots, 0, requests, "as many as topk");
  check.size("slots", t.slots, 1, tokens, "as many as topk");
  check.least("src_index", t.src_index, requests * tokens, "one entry for each element of topk");
  check.least("dst_index", t.dst_index, requests * tokens, "one entry for each element of topk");
  check.size("totals", t.totals, 0, 2, "hits and misses");
  if (t.stable_prefix) check.size("stable_prefix", *t.stable_prefix, 0, requests, "as many as topk");
  if (t.block_table) check.size("block_table", *t.block_table, 0, requests, "as many as topk");
  TORCH_CHECK_VALUE(t.block_size >= 1 && t.block_size <= kMaxBlockSize, kOp, ": expected block_size to be in [1, ",
                    kMaxBlockSize, "], got ", t.block_size);
  check.no_overlap();
}

void check_count_holds_entries(const ResidencyTensors& t) {
  const int64_t elements = t.topk.numel();
  TORCH_CHECK_VALUE(t.count.scalar_type() == at::kLong || elements <= INT32_MAX, ArgName{kOp, "count"},
                    " to be int64 for ", elements, " elements of topk, got int32");
}

}  // namespace torch_offload
