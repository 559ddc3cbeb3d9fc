// SPDX-License-Identifier: Apache-2.0
//
// The rules of plan_residency as one would write them down first, with the containers of the standard library and one
// thread: what benchmarks/bench_residency.py compares with.
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace {

struct Request {
  explicit Request(int slots) : token(slots, -1) {
    for (int slot = 0; slot < slots; ++slot) order.push_back(slot);
  }
  std::vector<int> order;  // slots, least recently used first
  std::vector<int> token;
  std::unordered_map<int, int> slot_of;
};

using Planner = std::vector<Request>;

}  // namespace

extern "C" {

void* new_planner(int requests, int slots) { return new Planner(requests, Request(slots)); }
void delete_planner(void* planner) { delete static_cast<Planner*>(planner); }

// Returns the number of misses.
int64_t plan(void* planner, const int32_t* topk, int k, int32_t* slots_out, int64_t* src, int64_t* dst) {
  int64_t misses = 0;
  int64_t first_slot = 0;
  for (Request& request : *static_cast<Planner*>(planner)) {
    const size_t slots = request.order.size();
    std::vector<bool> used(slots);
    for (int i = 0; i < k; ++i) {
      const auto found = request.slot_of.find(topk[i]);
      slots_out[i] = found == request.slot_of.end() ? -1 : found->second;
      if (slots_out[i] >= 0) used[slots_out[i]] = true;
    }
    std::vector<int> unused, loaded, read_again;
    for (const int slot : request.order) (used[slot] ? read_again : unused).push_back(slot);
    for (int i = 0; i < k; ++i) {
      if (topk[i] < 0 || slots_out[i] >= 0) continue;
      const auto found = request.slot_of.find(topk[i]);  // listed before in this step
      if (found != request.slot_of.end()) {
        slots_out[i] = found->second;
        continue;
      }
      const int slot = unused[loaded.size()];
      loaded.push_back(slot);
      request.slot_of.erase(request.token[slot]);
      request.token[slot] = topk[i];
      request.slot_of[topk[i]] = slot;
      slots_out[i] = slot;
      src[misses] = topk[i];
      dst[misses++] = first_slot + slot;
    }
    request.order.assign(unused.begin() + static_cast<int64_t>(loaded.size()), unused.end());
    request.order.insert(request.order.end(), loaded.begin(), loaded.end());
    request.order.insert(request.order.end(), read_again.begin(), read_again.end());
    topk += k;
    slots_out += k;
    first_slot += static_cast<int64_t>(slots);
  }
  return misses;
}

}  // extern "C"
