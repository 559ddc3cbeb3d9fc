// SPDX-License-Identifier: Apache-2.0
//
// For the tests of the mapping: a table of system calls whose files and calls a test replaces.
#pragma once

#include <sys/mman.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "host_pool/mapping.h"

namespace torch_offload {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// Files that read_text answers with instead of the system's; "" stands for a file that cannot be read.
inline std::map<std::string, std::string> files;
inline bool no_files = false;

inline bool fake_read_text(const char* path, std::string* text) {
  if (no_files) return false;
  const auto found = files.find(path);
  if (found == files.end()) return system_calls().read_text(path, text);
  *text = found->second;
  return !text->empty();
}

inline SystemCalls faked() {
  files.clear();
  no_files = false;
  SystemCalls calls = system_calls();
  calls.read_text = fake_read_text;
  return calls;
}

inline std::unique_ptr<Mapping> create(const MappingOptions& options, const SystemCalls& calls,
                                       std::vector<std::string>* warnings, const Progress& progress = nullptr) {
  warnings->clear();
  return Mapping::create(options, progress, warnings, calls);
}

inline MappingOptions plain(uint64_t length) {
  MappingOptions options;
  options.length = length;
  options.huge_pages = HugePages::kNever;
  return options;
}

inline uint64_t resident_bytes(const Mapping& mapping) {
  std::vector<unsigned char> pages(mapping.length() / small_page_size());
  EXPECT_EQ(mincore(mapping.base(), mapping.length(), pages.data()), 0);
  uint64_t bytes = 0;
  for (unsigned char page : pages) bytes += (page & 1) * small_page_size();
  return bytes;
}

}  // namespace torch_offload
