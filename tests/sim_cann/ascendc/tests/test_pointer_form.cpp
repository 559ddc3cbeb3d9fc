// SPDX-License-Identifier: Apache-2.0
// The pointer form over cores, DMA orders, numbers of entries and mixtures of lengths.
#include <random>

#include "check.h"
#include "pointer_case.h"

using namespace test;

namespace {

constexpr uint32_t kCores[] = {1, 2, 24, 40, 48, 64};

PointerCase mixed(uint64_t entries, uint64_t most, uint64_t seed) {
  PointerCase c;
  std::mt19937_64 random(seed);
  for (uint64_t i = 0; i < entries; i++)
    c.lengths.push_back(static_cast<int64_t>(random() % 5 ? random() % (most + 1) : random() % 40));
  c.seed = seed;
  return c;
}

template <typename Body>
void forEachOrder(Body body) {
  for (int order : {kAscendcSimLatest, kAscendcSimEarliest, kAscendcSimLoadsEarly, kAscendcSimStoresEarly})
    body(order, uint64_t{1});
  for (uint64_t seed = 1; seed <= 10; seed++) body(int{kAscendcSimRandom}, seed);
}

}  // namespace

TEST(pointers_by_cores_by_orders) {
  for (uint64_t entries : {0, 1, 47, 48, 49, 97}) {
    PointerCase c = mixed(entries, 700, 5);
    for (uint32_t cores : kCores)
      forEachOrder([&](int order, uint64_t seed) {
        c.cores = cores;
        c.order = order;
        c.seed = seed;
        c.length_width = seed % 2 ? 8 : 4;
        runPointerCase(c);
      });
  }
}

TEST(pointers_many_entries) {
  for (uint64_t entries : {4096, 70000})
    for (uint32_t width : {4, 8})
      for (int order : {kAscendcSimLatest, kAscendcSimRandom}) {
        PointerCase c = mixed(entries, 64, entries);
        c.length_width = width;
        c.order = order;
        runPointerCase(c);
      }
}

TEST(pointers_keys_and_values_of_two_lengths) {
  for (int64_t key : {1, 656, 1024, 45088, 65536, 90112, 90113, 180224, 196608, 1048576})
    for (int64_t value : {1, 31, 128}) {
      PointerCase c;
      for (int i = 0; i < (key > 50000 ? 5 : 49); i++) c.lengths.insert(c.lengths.end(), {key, value});
      for (uint32_t cores : {1u, 8u, 48u}) {
        c.cores = cores;
        runPointerCase(c);
        c.order = kAscendcSimLoadsEarly;
        runPointerCase(c);
      }
    }
}

TEST(pointers_one_entry_with_most_of_the_bytes) {
  for (uint64_t entries : {1, 2, 50, 1000})
    for (uint64_t place : {uint64_t{0}, entries / 2, entries - 1})
      for (uint32_t width : {4, 8}) {
        PointerCase c = mixed(entries, 100, 3);
        c.lengths[place] = 3 << 20;
        c.length_width = width;
        const PointerResult result = runPointerCase(c);
        CHECK(result.heaviest * result.cores <= result.payload * 105 / 100);
      }
}

TEST(pointers_cost_of_4096_of_1152_bytes) {
  PointerCase c;
  c.lengths.assign(4096, 1152);
  c.order = kAscendcSimLoadsEarly;
  for (uint32_t width : {4, 8}) {
    c.length_width = width;
    const PointerResult result = runPointerCase(c);
    CHECK(result.heaviest * result.cores <= result.payload * 105 / 100);
    CHECK_EQ(result.sum.scalar_global_loads, 0u);
    CHECK_EQ(result.sum.all_barriers, 0u);
    printf("    %u-byte lengths: loads %llu stores %llu, bytes/payload %.4f, heaviest/mean %.3f\n", width,
           (unsigned long long)result.sum.load_instructions, (unsigned long long)result.sum.store_instructions,
           static_cast<double>(result.sum.load_bytes) / result.payload,
           static_cast<double>(result.heaviest * result.cores) / result.payload);
  }
}

TEST(pointers_refused_and_skipped_entries) {
  for (uint32_t width : {4, 8})
    for (uint64_t seed = 1; seed < 5; seed++) {
      PointerCase c = mixed(777, 300, seed);
      std::mt19937_64 random(seed);
      c.null_src.resize(777);
      c.null_dst.resize(777);
      for (size_t i = 0; i < 777; i++) {
        if (random() % 9 == 0) c.lengths[i] = -1 - static_cast<int64_t>(random() % 1000);
        if (random() % 9 == 0) c.lengths[i] = 0;
        c.null_src[i] = random() % 11 == 0;
        c.null_dst[i] = random() % 13 == 0;
      }
      c.length_width = width;
      c.order = kAscendcSimRandom;
      for (uint32_t cores : {1u, 48u}) {
        c.cores = cores;
        runPointerCase(c);
      }
    }
}

TEST(pointers_nothing_to_copy) {
  PointerCase c;
  c.lengths.assign(100, 0);
  runPointerCase(c);
  c.lengths.assign(100, -7);
  runPointerCase(c);
}

TEST(pointers_counts) {
  for (uint32_t width : {4, 8})
    for (int64_t count :
         {int64_t{0}, int64_t{1}, int64_t{99}, int64_t{100}, int64_t{101}, int64_t{-5}, int64_t{INT32_MAX}}) {
      PointerCase c = mixed(100, 500, 8);
      c.count = count;
      c.count_width = width;
      runPointerCase(c);
    }
}

TEST(pointers_strided_tables) {
  for (uint64_t stride : {2, 3, 5, 20}) {
    PointerCase c = mixed(1200, 100, stride);
    c.stride = stride;
    c.length_width = stride % 2 ? 4 : 8;
    c.order = kAscendcSimRandom;
    runPointerCase(c);
  }
}

TEST(pointers_larger_unified_buffer) {
  PointerCase c = mixed(200, 9000, 4);
  c.ub_bytes = 253952;
  c.cores = 64;
  runPointerCase(c);
}
