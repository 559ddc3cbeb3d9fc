// SPDX-License-Identifier: Apache-2.0
// The index form over cores, DMA orders, numbers of entries and sizes of rows.
#include <random>

#include "check.h"
#include "index_case.h"

using namespace test;

namespace {

constexpr uint32_t kCores[] = {1, 2, 24, 40, 48, 64};

// Every order, and ten seeds of the random one.
template <typename Body>
void forEachOrder(Body body) {
  for (int order : {kAscendcSimLatest, kAscendcSimEarliest, kAscendcSimLoadsEarly, kAscendcSimStoresEarly})
    body(order, uint64_t{1});
  for (uint64_t seed = 1; seed <= 10; seed++) body(int{kAscendcSimRandom}, seed);
}

IndexCase scattered(uint64_t entries, uint64_t row_bytes, uint64_t seed = 3) {
  IndexCase c;
  c.components = {{row_bytes, entries + 5, entries + 3}};
  c.src_index = shuffledRows(entries + 5, entries, seed);
  c.dst_index = shuffledRows(entries + 3, entries, seed + 1);
  return c;
}

}  // namespace

TEST(entries_by_cores_by_orders) {
  for (uint64_t entries : {0, 1, 47, 48, 49, 97})
    for (uint64_t row_bytes : {1, 33, 656}) {
      IndexCase c = scattered(entries, row_bytes);
      for (uint32_t cores : kCores)
        forEachOrder([&](int order, uint64_t seed) {
          c.cores = cores;
          c.order = order;
          c.seed = seed;
          runIndexCase(c);
        });
    }
}

TEST(four_thousand_rows_in_all_orders) {
  IndexCase c = scattered(4096, 132);
  for (uint32_t cores : {24u, 48u})
    forEachOrder([&](int order, uint64_t seed) {
      c.cores = cores;
      c.order = order;
      c.seed = seed;
      runIndexCase(c);
    });
}

TEST(seventy_thousand_rows) {
  IndexCase c = scattered(70000, 24);
  for (uint32_t cores : {1u, 40u, 64u})
    for (int order : {kAscendcSimLatest, kAscendcSimEarliest, kAscendcSimRandom}) {
      c.cores = cores;
      c.order = order;
      runIndexCase(c);
    }
}

TEST(row_sizes) {
  const uint64_t sizes[] = {1,     2,     3,     15,     31,     32,      33,      63,     64,    65,
                            127,   128,   132,   511,    512,    513,     584,     656,    1152,  4095,
                            4096,  4097,  8191,  8192,   8193,   16384,   20480,   26624,  27136, 32768,
                            65535, 65536, 90113, 180225, 196608, 1048575, 1048576, 1048577};
  for (uint64_t size : sizes)
    for (int order : {kAscendcSimLatest, kAscendcSimLoadsEarly, kAscendcSimRandom}) {
      IndexCase c = scattered(size > 100000 ? 3 : 29, size);
      c.order = order;
      for (uint32_t cores : {1u, 48u}) {
        c.cores = cores;
        runIndexCase(c);
      }
    }
}

TEST(unaligned_bases_and_strided_rows) {
  for (uint64_t size : {1, 3, 17, 65, 656, 5000})
    for (uint64_t shift : {0, 1, 3, 31, 511})
      for (uint64_t gap : {0, 1, 7, 512}) {
        IndexCase c = scattered(50, size);
        c.components[0].src_shift = shift;
        c.components[0].dst_shift = shift ^ 5;
        c.components[0].src_gap = gap;
        c.components[0].dst_gap = gap * 3;
        c.order = kAscendcSimRandom;
        runIndexCase(c);
      }
}

TEST(components) {
  for (size_t components : {2, 3, 16, 183, 256}) {
    IndexCase c = scattered(components > 16 ? 11 : 97, 1);
    const auto rows = c.components[0];
    c.components.clear();
    const uint64_t sizes[] = {1024, 128, 132, 1, 0, 4096, 77, 40000};
    for (size_t k = 0; k < components; k++) {
      ComponentCase component = rows;
      component.row_bytes = sizes[k % (components > 100 ? 7 : 8)];
      component.dst_shift = k * 3;
      component.src_rows += k % 2;
      c.components.push_back(component);
    }
    for (uint32_t cores : {1u, 40u, 48u})
      for (int order : {kAscendcSimLatest, kAscendcSimLoadsEarly, kAscendcSimRandom}) {
        c.cores = cores;
        c.order = order;
        runIndexCase(c);
      }
  }
}

TEST(tables) {
  for (uint32_t src_width : {4, 8})
    for (uint32_t dst_width : {4, 8})
      for (uint64_t src_stride : {1, 2, 3, 4, 5, 8, 100})
        for (uint64_t dst_stride : {1, 2, 9}) {
          IndexCase c = scattered(1500, 8);
          c.src_width = src_width;
          c.dst_width = dst_width;
          c.src_stride = src_stride;
          c.dst_stride = dst_stride;
          c.cores = 2;
          c.order = kAscendcSimRandom;
          runIndexCase(c);
        }
}

TEST(absent_tables) {
  for (uint64_t entries : {1, 48, 1000}) {
    IndexCase c = scattered(entries, 100);
    c.src_index.reset();
    runIndexCase(c);
    c = scattered(entries, 100);
    c.dst_index.reset();
    runIndexCase(c);
    c.src_index.reset();
    c.entries = entries;
    runIndexCase(c);
    c.count = static_cast<int64_t>(entries / 2);
    runIndexCase(c);
  }
}

TEST(one_source_row_for_all) {
  IndexCase c = scattered(300, 200);
  c.src_stride = 0;
  c.src_index = std::vector<int64_t>(300, 7);
  runIndexCase(c);
}

TEST(negative_and_out_of_range_rows) {
  const int64_t bad[] = {-1, -2, -1000, INT64_MIN, 1000, 1001, int64_t{1} << 31, int64_t{1} << 32, INT64_MAX};
  for (uint32_t width : {4, 8})
    for (uint64_t seed = 0; seed < 6; seed++) {
      IndexCase c = scattered(500, 40);
      c.components.push_back({8, 504, 502});
      std::mt19937_64 random(seed);
      for (auto* table : {&*c.src_index, &*c.dst_index})
        for (auto& value : *table)
          if (random() % (seed + 1) == 0) {
            value = bad[random() % 9];
            if (width == 4) value = static_cast<int32_t>(value);
          }
      c.src_width = c.dst_width = width;
      c.order = kAscendcSimRandom;
      c.duplicates = width == 4;  // truncated values fall on each other
      for (uint32_t cores : {1u, 48u}) {
        c.cores = cores;
        runIndexCase(c);
      }
    }
}

// Skipped entries in such numbers and places that the kernel shares out by weight.
TEST(many_skipped_rows) {
  for (int pattern = 0; pattern < 6; pattern++)
    for (uint64_t entries : {64, 97, 500, 2048, 5000})
      for (uint32_t width : {4, 8})
        for (uint64_t row_bytes : {40, 2000}) {
          if (entries * row_bytes > 1000000) continue;
          IndexCase c = scattered(entries, row_bytes);
          c.src_width = c.dst_width = width;
          std::mt19937_64 random(entries);
          for (uint64_t i = 0; i < entries; i++) {
            const bool skip = pattern == 0   ? i > entries / 3
                              : pattern == 1 ? i < entries / 2
                              : pattern == 2 ? random() % 20 != 0
                              : pattern == 3 ? i != entries / 2
                                             : true;
            if (skip)
              (random() % 2 && pattern != 5 ? *c.src_index : *c.dst_index)[i] = -1 - static_cast<int64_t>(random() % 9);
          }
          if (pattern == 1) c.count = static_cast<int64_t>(entries - entries / 4);
          if (pattern == 5) c.src_index.reset();
          for (uint32_t cores : {1u, 24u, 48u})
            for (int order : {kAscendcSimLatest, kAscendcSimEarliest, kAscendcSimRandom}) {
              c.cores = cores;
              c.order = order;
              runIndexCase(c);
            }
        }
}

TEST(counts_and_garbage_behind_them) {
  for (uint64_t entries : {1, 97, 4096})
    for (uint32_t width : {4, 8})
      for (int64_t count : {int64_t{0}, int64_t{1}, int64_t(entries) - 1, int64_t(entries), int64_t(entries) + 1,
                            int64_t{-1}, int64_t{INT32_MAX}, int64_t{INT32_MIN}, INT64_MAX, INT64_MIN}) {
        if (width == 4 && count != static_cast<int32_t>(count)) continue;
        IndexCase c = scattered(entries, 64);
        c.count = count;
        c.count_width = width;
        for (uint64_t i = count < 0 ? 0 : static_cast<uint64_t>(count); i < entries; i++)
          (*c.src_index)[i] = (*c.dst_index)[i] = static_cast<int64_t>(0x0123456789ABCDEF * (i + 1));
        runIndexCase(c);
      }
}

TEST(duplicate_destinations_leave_the_neighbours_alone) {
  IndexCase c = scattered(64, 1000);
  for (auto& row : *c.dst_index) row = 5;
  c.duplicates = true;
  runIndexCase(c);
}

TEST(runs_of_neighbouring_rows) {
  for (uint64_t row_bytes : {1, 20, 64, 1152})
    for (int pattern = 0; pattern < 5; pattern++) {
      IndexCase c = scattered(3000, row_bytes);
      for (uint64_t i = 0; i < 3000; i++) {
        const int64_t at = static_cast<int64_t>(i);
        (*c.src_index)[i] = pattern < 2 ? at : pattern == 2 ? at / 10 * 10 : pattern == 3 ? 2999 - at : at * 7 % 3000;
        (*c.dst_index)[i] = pattern == 1 ? 2999 - at : at;
      }
      for (int order : {kAscendcSimLatest, kAscendcSimRandom}) {
        c.order = order;
        c.cores = 24;
        runIndexCase(c);
      }
    }
}

TEST(larger_unified_buffer) {
  for (uint64_t size : {132, 1152, 70000, 300000}) {
    IndexCase c = scattered(size > 2000 ? 10 : 1500, size);
    c.ub_bytes = 253952;
    c.cores = 64;
    runIndexCase(c);
    c.order = kAscendcSimLoadsEarly;
    runIndexCase(c);
  }
}

TEST(one_thread_per_core) {
  IndexCase c = scattered(4096, 132);
  c.threads = 0;
  c.order = kAscendcSimRandom;
  for (uint32_t cores : kCores) {
    c.cores = cores;
    runIndexCase(c);
  }
}
