// SPDX-License-Identifier: Apache-2.0
//
// plan_residency on the CPU: requests to torch's threads, then one list of all misses.
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <vector>

#include "cpu/resident_set.h"
#include "error.h"
#include "ops.h"
#include "sparse_copy_args.h"

namespace torch_offload {
namespace {

// Row `row` of a table of int32 or int64.
IndexView row_of(const at::Tensor& table, int64_t row) {
  const auto* data = static_cast<const std::byte*>(table.const_data_ptr());
  return {data + row * table.stride(0) * static_cast<int64_t>(table.itemsize()), table.stride(1),
          table.itemsize() == sizeof(int64_t)};
}

// Element `i` of a one-dimensional table.
int64_t value_of(const at::Tensor& table, int64_t i) {
  return IndexView{table.const_data_ptr(), table.stride(0), table.itemsize() == sizeof(int64_t)}[i];
}

class Planner {
 public:
  explicit Planner(const ResidencyTensors& tensors)
      : t_(tensors),
        requests_(tensors.topk.size(0)),
        k_(tensors.topk.size(1)),
        slots_(tensors.slot_tokens.size(1)),
        owners_(tensors.owners.mutable_data_ptr<int64_t>()),
        slot_tokens_(tensors.slot_tokens.mutable_data_ptr<int32_t>()),
        lru_(tensors.lru.mutable_data_ptr<int16_t>()),
        buckets_(tensors.buckets.mutable_data_ptr<int16_t>()),
        plans_(scratch(requests_)) {}

  // All requests are looked at before the state of one is changed.
  void run() {
    for_each_request([this](int64_t r) { look_up(row(r), step(r), r, plans_[r]); });
    int32_t* const slots = t_.slots.mutable_data_ptr<int32_t>();
    for_each_request([&](int64_t r) {
      commit(row(r), step(r), r, plans_[r]);
      std::copy(plans_[r].slots.begin(), plans_[r].slots.end(), slots + r * k_);
    });
    write_misses();
  }

 private:
  // Kept from call to call by the calling thread: no memory is asked for in a steady state.
  static std::vector<ResidencyPlan>& scratch(int64_t requests) {
    thread_local std::vector<ResidencyPlan> plans;
    if (static_cast<int64_t>(plans.size()) < requests) plans.resize(requests);
    return plans;
  }

  template <typename Work>
  void for_each_request(const Work& work) {
    at::parallel_for(0, requests_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) work(r);
    });
  }

  ResidentRow row(int64_t r) const {
    return {owners_ + r, slot_tokens_ + r * slots_, lru_ + r * slots_, buckets_ + r * residency_buckets(slots_),
            slots_};
  }

  ResidencyStep step(int64_t r) const {
    ResidencyStep step{value_of(t_.request_ids, r), row_of(t_.topk, r), k_, INT64_MAX, {}, 0, t_.block_size};
    if (t_.stable_prefix) step.stable_prefix = value_of(*t_.stable_prefix, r);
    if (t_.block_table) {
      step.block_table = row_of(*t_.block_table, r);
      step.blocks = t_.block_table->size(1);
      step.has_blocks = true;
    }
    return step;
  }

  void write_misses() const {
    auto* src = t_.src_index.mutable_data_ptr<int64_t>();
    auto* dst = t_.dst_index.mutable_data_ptr<int64_t>();
    int64_t misses = 0;
    int64_t hits = 0;
    for (int64_t r = 0; r < requests_; ++r) {
      const ResidencyPlan& plan = plans_[r];
      src = std::copy(plan.src_rows.begin(), plan.src_rows.end(), src);
      for (const int16_t slot : plan.dst_slots) *dst++ = r * slots_ + slot;
      misses += static_cast<int64_t>(plan.src_rows.size());
      hits += plan.hits;
    }
    void* const count = t_.count.mutable_data_ptr();
    if (t_.count.scalar_type() == at::kLong) {
      *static_cast<int64_t*>(count) = misses;
    } else {
      *static_cast<int32_t*>(count) = static_cast<int32_t>(misses);
    }
    auto* totals = t_.totals.mutable_data_ptr<int64_t>();
    totals[0] += hits;
    totals[1] += misses;
  }

  const ResidencyTensors& t_;
  const int64_t requests_;
  const int64_t k_;
  const int64_t slots_;
  int64_t* const owners_;
  int32_t* const slot_tokens_;
  int16_t* const lru_;
  int16_t* const buckets_;
  std::vector<ResidencyPlan>& plans_;
};

}  // namespace

void plan_residency_cpu(const ResidencyTensors& tensors) {
  check_plan_residency(tensors, Placement(c10::DeviceType::CPU), BucketsOf::CPU);
  check_count_holds_entries(tensors);
  try {
    Planner(tensors).run();
  } catch (const ValueError& error) {
    TORCH_CHECK_VALUE(false, error.what());
  }
}

}  // namespace torch_offload
