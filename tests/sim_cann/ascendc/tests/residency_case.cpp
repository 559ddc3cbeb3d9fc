// SPDX-License-Identifier: Apache-2.0
#include "residency_case.h"

#include <algorithm>
#include <cstring>
#include <list>
#include <random>
#include <set>
#include <sstream>
#include <string>

#include "check.h"
#include "op_host/plan_residency_tiling.h"
#include "op_kernel/residency_state.h"
#include "run_launch.h"
#include "stand_in.h"

using stand_in::DeviceMemory;

extern "C" {
void plan_residency_sim(void* args, uint32_t args_bytes, uint32_t block_dim);
void plan_residency_list_sim(void* args, uint32_t args_bytes, uint32_t block_dim);
}

namespace test {
namespace {

// One request, slowly: a list of slots, least recently used first.
struct Request {
  explicit Request(uint32_t count) : slots(count), held(count, RESIDENCY_EMPTY) { reset(-1); }

  void reset(int64_t to) {
    owner = to;
    std::fill(held.begin(), held.end(), RESIDENCY_EMPTY);
    order.clear();
    for (uint32_t slot = 0; slot < slots; slot++) order.push_back(slot);
  }

  uint32_t slots;
  int64_t owner = -1;
  std::vector<int64_t> held;
  std::list<uint32_t> order;
};

struct Planned {
  std::vector<int32_t> slots;
  std::vector<std::pair<int64_t, int64_t>> loads;  // token, slot
  uint64_t hits = 0;
};

Planned plan(Request& request, const ResidencyAsk& ask) {
  Planned planned;
  planned.slots.assign(ask.tokens.size(), -1);
  if (ask.request < 0 || ask.tokens.empty()) return planned;
  if (request.owner != ask.request) request.reset(ask.request);
  for (int64_t& token : request.held)
    if (token >= ask.stable) token = RESIDENCY_EMPTY;
  auto slot_of = [&](int64_t token) {
    return std::find(request.held.begin(), request.held.end(), token) - request.held.begin();
  };
  std::list<uint32_t> unused, loaded, used;
  const std::set<int64_t> wanted(ask.tokens.begin(), ask.tokens.end());
  for (uint32_t slot : request.order) {
    const bool hit = request.held[slot] >= 0 && wanted.count(request.held[slot]);
    (hit ? used : unused).push_back(slot);
  }
  planned.hits = used.size();
  for (size_t i = 0; i < ask.tokens.size(); i++) {
    const int64_t token = ask.tokens[i];
    if (token < 0) continue;
    if (slot_of(token) == request.slots) {
      const uint32_t slot = unused.front();
      unused.pop_front();
      loaded.push_back(slot);
      request.held[slot] = token;
      planned.loads.push_back({token, slot});
    }
    planned.slots[i] = static_cast<int32_t>(slot_of(token));
  }
  request.order = unused;
  request.order.splice(request.order.end(), loaded);
  request.order.splice(request.order.end(), used);
  return planned;
}

template <typename T>
void put(DeviceMemory& memory, uint64_t index, T value) {
  memcpy(memory.host() + index * sizeof(T), &value, sizeof(T));
}

void putWide(DeviceMemory& memory, uint64_t index, int64_t value, uint32_t width) {
  memcpy(memory.host() + index * width, &value, width);
}

template <typename T>
T get(const DeviceMemory& memory, uint64_t index) {
  T value;
  memcpy(&value, memory.host() + index * sizeof(T), sizeof(T));
  return value;
}

constexpr int64_t kUntouched = 0x7878787878787878;

class Run {
 public:
  explicit Run(const ResidencyCase& c)
      : c_(c),
        n_(c.requests),
        k_(c.top_k),
        s_(c.slots),
        blocks_(c.block_size ? (static_cast<uint64_t>(c.tokens) + c.block_size - 1) / c.block_size : 0),
        random_(c.seed),
        requests_(n_ + 1, Request(s_)),
        owners_((n_ + 1) * 8),
        tokens_((n_ + 1) * s_ * 4),
        lru_((n_ + 1) * s_ * 2, 6),
        slots_(n_ * k_ * 4, 4),
        src_(n_ * k_ * 8 + 64),
        dst_(n_ * k_ * 8 + 64),
        count_(c.count_width),
        totals_(16),
        scratch_(plan_residency_tiling::ScratchBytes(n_, k_)),
        status_(64 * SPARSE_COPY_STATUS_PITCH),
        topk_(std::max<uint64_t>(1, n_ * k_ * c.topk_stride) * c.topk_width),
        ids_(n_ * c.id_width),
        stable_(n_ * c.id_width),
        table_(std::max<uint64_t>(1, n_ * blocks_) * c.table_width) {
    for (uint64_t r = 0; r <= n_; r++) {
      put<int64_t>(owners_, r, -1);
      for (uint64_t i = 0; i < s_; i++) {
        put<int32_t>(tokens_, r * s_ + i, RESIDENCY_EMPTY);
        put<int16_t>(lru_, r * s_ + i, static_cast<int16_t>(i));
      }
    }
    memset(totals_.host(), 0, 16);
    memset(status_.host(), 0, status_.bytes());
  }

  ResidencyResult run() {
    for (uint32_t step = 0; step < c_.steps && wrong_.empty(); step++) runStep();
    if (!wrong_.empty()) {
      std::ostringstream text;
      text << c_.requests << " requests, top-k " << c_.top_k << ", slots " << c_.slots << ", order " << c_.order
           << ", seed " << c_.seed << ", cores " << c_.cores << ": " << wrong_;
      failed(__FILE__, __LINE__, text.str());
    }
    return result_;
  }

 private:
  int64_t draw(int64_t below) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(below)); }

  ResidencyAsk ask(uint64_t r) {
    ResidencyAsk ask;
    ask.request = c_.nobody && draw(5) == 0 ? -1 - draw(3) : 7 + static_cast<int64_t>(r);
    if (c_.owners_change && draw(4) == 0) ask.request += c_.id_width == 8 ? int64_t{1} << 40 : 1000;
    if (c_.stable) ask.stable = draw(2 * c_.tokens);
    const int64_t middle = draw(c_.tokens);
    std::set<int64_t> distinct;
    for (uint64_t i = 0; i < k_; i++) {
      int64_t token = (middle + draw(2 * s_ + 1)) % c_.tokens;
      if (draw(10) == 0 || (distinct.size() == s_ && !distinct.count(token))) token = -1 - draw(4);
      if (token >= 0) distinct.insert(token);
      ask.tokens.push_back(token);
    }
    return ask;
  }

  // Returns the kind of mistake that was made of it, or 0.
  uint32_t spoil(uint64_t r, ResidencyAsk& ask) {
    if (k_ == 0 || draw(1000) >= static_cast<int64_t>(c_.bad * 1000) || ask.request < 0) return 0;
    switch (draw(4)) {
      case 0:
        ask.tokens[static_cast<size_t>(draw(static_cast<int64_t>(k_)))] =
            blocks_ ? static_cast<int64_t>(blocks_) * c_.block_size : INT32_MAX;
        return RESIDENCY_REFUSED_TOKEN;
      case 1:
        if (k_ <= s_ || static_cast<int64_t>(s_) >= c_.tokens) return 0;
        for (uint64_t i = 0; i <= s_; i++) ask.tokens[i] = static_cast<int64_t>(i);
        return RESIDENCY_REFUSED_SLOTS;
      case 2: {
        Request copy = requests_[r];
        if (!blocks_ || plan(copy, ask).loads.empty()) return 0;
        const int64_t bad = c_.table_width == 8 && draw(2) ? INT64_MAX / c_.block_size : -1;
        for (uint64_t b = 0; b < blocks_; b++) putWide(table_, r * blocks_ + b, bad, c_.table_width);
        return RESIDENCY_REFUSED_BLOCK;
      }
      default:
        if (requests_[r].owner != ask.request) return 0;
        put<int16_t>(lru_, r * s_ + static_cast<uint64_t>(draw(s_)), static_cast<int16_t>(draw(2) ? -1 : s_));
        return RESIDENCY_REFUSED_STATE;
    }
  }

  int64_t hostRow(uint64_t r, int64_t token) const {
    if (!blocks_) return token;
    int64_t block = 0;
    memcpy(&block, table_.host() + (r * blocks_ + static_cast<uint64_t>(token) / c_.block_size) * c_.table_width,
           c_.table_width);
    return block * c_.block_size + token % c_.block_size;
  }

  void runStep() {
    std::vector<std::pair<int64_t, int64_t>> loads;
    std::vector<int32_t> slots;
    uint64_t hits = 0, refused = 0;
    memset(topk_.host(), 0x11, topk_.bytes());
    for (uint64_t i = 0; i < src_.bytes() / 8; i++) put(src_, i, kUntouched), put(dst_, i, kUntouched);
    for (uint64_t r = 0; r < n_; r++) {
      for (uint64_t b = 0; b < blocks_; b++)
        putWide(table_, r * blocks_ + b, draw(c_.table_width == 8 ? int64_t{1} << 45 : 1 << 30), c_.table_width);
      ResidencyAsk asked = ask(r);
      const uint32_t mistake = spoil(r, asked);
      putWide(ids_, r, asked.request, c_.id_width);
      putWide(stable_, r, std::min<int64_t>(asked.stable, INT32_MAX), c_.id_width);
      for (uint64_t i = 0; i < k_; i++) putWide(topk_, (r * k_ + i) * c_.topk_stride, asked.tokens[i], c_.topk_width);
      if (mistake) {
        refused++;
        slots.insert(slots.end(), k_, -1);
        broken_.insert(mistake == RESIDENCY_REFUSED_STATE ? r : n_);
        continue;
      }
      const Planned planned = plan(requests_[r], asked);
      slots.insert(slots.end(), planned.slots.begin(), planned.slots.end());
      for (auto [token, slot] : planned.loads)
        loads.push_back({hostRow(r, token), static_cast<int64_t>(r * s_) + slot});
      hits += planned.hits;
    }
    result_.hits += hits;
    result_.misses += loads.size();
    result_.refused += refused;
    launch();
    compare(slots, loads);
    for (uint64_t r : broken_)  // mended for the next step
      if (r < n_) putOrder(r);
    broken_.clear();
  }

  void putOrder(uint64_t r) {
    uint64_t i = 0;
    for (uint32_t slot : requests_[r].order) put<int16_t>(lru_, r * s_ + i++, static_cast<int16_t>(slot));
  }

  void launch() {
    plan_residency_tiling::Request request;
    request.requests = n_;
    request.topK = k_;
    request.slotCount = s_;
    request.owners = owners_.address();
    request.slotTokens = tokens_.address();
    request.lru = lru_.address();
    request.slots = slots_.address();
    request.srcIndex = src_.address();
    request.dstIndex = dst_.address();
    request.count = count_.address();
    request.countBytes = c_.count_width;
    request.totals = totals_.address();
    request.scratch = scratch_.address();
    request.statusAddress = status_.address();
    request.topk = {topk_.address(), c_.topk_stride * c_.topk_width, c_.topk_width};
    request.topkRowStride = k_ * c_.topk_stride * c_.topk_width;
    request.requestIds = {ids_.address(), c_.id_width, c_.id_width};
    if (c_.stable) request.stablePrefix = {stable_.address(), c_.id_width, c_.id_width};
    if (c_.block_size) {
      request.blockTable = {table_.address(), c_.table_width, c_.table_width};
      request.blockRowStride = blocks_ * c_.table_width;
      request.blocks = blocks_;
      request.blockSize = c_.block_size;
    }
    plan_residency_tiling::Launches launches;
    if (!plan_residency_tiling::Tile(request, {c_.cores, c_.ub_bytes}, launches)) {
      wrong_ = "does not fit";
      return;
    }
    const AscendcSimSettings settings{c_.order, 0, c_.seed, c_.ub_bytes, 0, 0};
    if (launches.plan.blockDim) {
      wrong_ = runLaunch(plan_residency_sim, launches.plan, settings);
      result_.plan = sum();
      result_.plan_cores = ascendcSimCores();
    }
    if (wrong_.empty()) wrong_ = runLaunch(plan_residency_list_sim, launches.list, settings);
    result_.list = sum();
  }

  static AscendcSimCounters sum() {
    AscendcSimCounters sum{};
    for (uint32_t core = 0; core < ascendcSimCores(); core++) {
      AscendcSimCounters counters;
      ascendcSimCountersOfCore(core, &counters);
      for (size_t i = 0; i < sizeof counters / 8; i++)
        reinterpret_cast<uint64_t*>(&sum)[i] += reinterpret_cast<uint64_t*>(&counters)[i];
    }
    return sum;
  }

  template <typename A, typename B>
  void expect(const char* what, uint64_t at, A expected, B seen) {
    if (!wrong_.empty() || expected == static_cast<A>(seen)) return;
    std::ostringstream text;
    text << what << "[" << at << "]: expected " << expected << ", got " << seen;
    wrong_ = text.str();
  }

  void compare(const std::vector<int32_t>& slots, const std::vector<std::pair<int64_t, int64_t>>& loads) {
    for (size_t i = 0; i < slots.size(); i++) expect("slots", i, slots[i], get<int32_t>(slots_, i));
    for (uint64_t i = 0; i < src_.bytes() / 8; i++) {
      expect("src_index", i, i < loads.size() ? loads[i].first : kUntouched, get<int64_t>(src_, i));
      expect("dst_index", i, i < loads.size() ? loads[i].second : kUntouched, get<int64_t>(dst_, i));
    }
    expect("count", 0, static_cast<int64_t>(loads.size()),
           c_.count_width == 8 ? get<int64_t>(count_, 0) : get<int32_t>(count_, 0));
    expect("totals", 0, static_cast<int64_t>(result_.hits), get<int64_t>(totals_, 0));
    expect("totals", 1, static_cast<int64_t>(result_.misses), get<int64_t>(totals_, 1));
    for (uint64_t r = 0; r <= n_; r++) {
      expect("owners", r, requests_[r].owner, get<int64_t>(owners_, r));
      uint64_t i = 0;
      for (uint32_t slot : requests_[r].order) {
        if (!broken_.count(r)) expect("lru", r * s_ + i, static_cast<int16_t>(slot), get<int16_t>(lru_, r * s_ + i));
        expect("slot_tokens", r * s_ + i, requests_[r].held[i], get<int32_t>(tokens_, r * s_ + i));
        i++;
      }
    }
    uint64_t refused = 0;
    for (uint64_t core = 0; core < 64; core++) {
      SparseCopyStatusRecord record;
      memcpy(&record, status_.host() + core * SPARSE_COPY_STATUS_PITCH, sizeof record);
      refused += record.refusedRequests;
      expect("status", core, uint64_t{0}, record.copied + record.skipped + record.outOfRange + record.clampedCounts);
      expect("refusal", core, record.refusedRequests != 0, record.refusal != 0);
    }
    expect("refused", 0, result_.refused, refused);
    for (const DeviceMemory* memory : {&owners_, &tokens_, &lru_, &slots_, &src_, &dst_, &count_, &totals_, &scratch_})
      if (wrong_.empty() && !memory->guardsIntact()) wrong_ = "written outside";
  }

  const ResidencyCase c_;
  const uint64_t n_, k_, s_, blocks_;
  std::mt19937_64 random_;
  std::vector<Request> requests_;
  DeviceMemory owners_, tokens_, lru_, slots_, src_, dst_, count_, totals_, scratch_, status_;
  DeviceMemory topk_, ids_, stable_, table_;
  std::set<uint64_t> broken_;  // requests whose order was made wrong for this step
  ResidencyResult result_;
  std::string wrong_;
};

}  // namespace

ResidencyResult runResidencyCase(const ResidencyCase& c) { return Run(c).run(); }

}  // namespace test
