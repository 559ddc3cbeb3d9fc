// SPDX-License-Identifier: Apache-2.0
#include "c_api/sparse_copy.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <thread>
#include <vector>

#include "byte_rows.h"
#include "cpu/copy_rows.h"
#include "error.h"
#include "sparse_copy_params.h"

namespace torch_offload {

namespace {

constexpr int kMaxThreads = 256;

void check_at_least_zero(const char* what, int64_t value) {
  if (value < 0) throw ValueError(join("sparse_copy: expected ", what, " to be at least 0, got ", value));
}

// The rows of one side as addresses; refuses what has none.
ByteRows rows_of(const char* side, const void* data, int64_t rows, int64_t stride, int64_t row_bytes) {
  check_at_least_zero(side, rows);
  check_at_least_zero("a stride", stride);
  check_at_least_zero("row_bytes", row_bytes);
  const ByteRows result = {static_cast<int64_t>(reinterpret_cast<intptr_t>(data)), stride, rows, row_bytes};
  if (result.empty()) return result;
  if (data == nullptr) throw ValueError(join("sparse_copy: expected memory for ", side, ", got NULL"));
  int64_t end = 0;
  if (__builtin_mul_overflow(rows - 1, stride, &end) || __builtin_add_overflow(end, row_bytes, &end) ||
      __builtin_add_overflow(end, result.begin, &end)) {
    throw ValueError(join("sparse_copy: expected ", side, " to fit into the address space, got ", rows, " rows at ",
                          stride, " bytes"));
  }
  return result;
}

struct CheckedCopy {
  std::vector<Component> components;
  SparseCopyParams params;
  bool dst_components_overlap = false;  // then they are copied one after another: the last component wins
};

void check_index(const char* name, const int64_t* index, int64_t n, const std::vector<ByteRows>& written) {
  if (index == nullptr) return;
  const ByteRows table = rows_of(name, index, n, sizeof(int64_t), sizeof(int64_t));
  for (size_t d = 0; d < written.size(); ++d) {
    if (rows_overlap(written[d], table)) {
      throw ValueError(
          join("sparse_copy: expected dst and ", name, " not to overlap, got dst ", d, " with bytes in common"));
    }
  }
}

void check(const offload_copy_t& copy, CheckedCopy* checked) {
  if (copy.component_size != sizeof(offload_component_t)) {
    throw ValueError(
        join("sparse_copy: expected component_size ", sizeof(offload_component_t), ", got ", copy.component_size));
  }
  check_at_least_zero("num_components", copy.num_components);
  check_at_least_zero("n", copy.n);
  if (copy.num_components == 0 || copy.components == nullptr) {
    throw ValueError("sparse_copy: expected at least one component, got none");
  }
  if (copy.threads < 0 || copy.threads > kMaxThreads) {
    throw ValueError(join("sparse_copy: expected threads from 0 to ", kMaxThreads, ", got ", copy.threads));
  }
  SparseCopyParams& params = checked->params;
  params.dst_rows = params.src_rows = INT64_MAX;
  std::vector<ByteRows> written, read;
  for (int64_t i = 0; i < copy.num_components; ++i) {
    const offload_component_t& c = copy.components[i];
    written.push_back(rows_of("dst", c.dst, c.dst_rows, c.dst_stride, c.row_bytes));
    read.push_back(rows_of("src", c.src, c.src_rows, c.src_stride, c.row_bytes));
    if (c.dst_rows > 1 && c.dst_stride < c.row_bytes) {
      throw ValueError(
          join("sparse_copy: expected a dst_stride of at least row_bytes ", c.row_bytes, ", got ", c.dst_stride));
    }
    params.dst_rows = std::min(params.dst_rows, c.dst_rows);
    params.src_rows = std::min(params.src_rows, c.src_rows);
    checked->components.push_back({static_cast<std::byte*>(c.dst), static_cast<const std::byte*>(c.src), c.dst_stride,
                                   c.src_stride, c.row_bytes});
  }
  for (size_t d = 0; d < written.size(); ++d) {
    for (size_t s = 0; s < read.size(); ++s) {
      if (rows_overlap(written[d], read[s])) {
        throw ValueError(join("sparse_copy: expected dst and src not to overlap, got dst ", d, " and src ", s,
                              " with bytes in common"));
      }
    }
  }
  check_index("dst_index", copy.dst_index, copy.n, written);
  check_index("src_index", copy.src_index, copy.n, written);
  for (size_t a = 0; a < written.size(); ++a) {
    for (size_t b = a + 1; b < written.size(); ++b)
      checked->dst_components_overlap |= rows_overlap(written[a], written[b]);
  }
  params.components = checked->components.data();
  params.num_components = copy.num_components;
  params.dst_index = {copy.dst_index, 1, true};
  params.src_index = {copy.src_index, 1, true};
  params.n = copy.n;
}

void run(const SparseCopyParams& params, const IndexScan& scan, int32_t max_threads) {
  const CopyPlan plan = plan_copy(params, scan, std::max(max_threads, 1));
  std::vector<std::thread> others;
  others.reserve(static_cast<size_t>(plan.parts));
  int part = 1;
  try {
    for (; part < plan.parts; ++part) {
      others.emplace_back([&params, &plan, part] { copy_part(params, plan, part); });
    }
  } catch (const std::exception&) {  // no more threads to be had: this one does the rest
  }
  copy_part(params, plan, 0);
  for (; part < plan.parts; ++part) copy_part(params, plan, part);
  for (std::thread& other : others) other.join();
}

}  // namespace

void sparse_copy(const offload_copy_t& copy) {
  CheckedCopy checked;
  check(copy, &checked);
  const IndexScan scan = scan_indices(checked.params);
  if (!checked.dst_components_overlap) return run(checked.params, scan, copy.threads);
  for (const Component& component : checked.components) {
    SparseCopyParams one = checked.params;
    one.components = &component;
    one.num_components = 1;
    run(one, scan, copy.threads);
  }
}

}  // namespace torch_offload
