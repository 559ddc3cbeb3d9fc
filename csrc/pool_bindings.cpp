// SPDX-License-Identifier: Apache-2.0
//
// Python's view of the host pool. Calls that may wait release the GIL.
#include "pool_bindings.h"

#include <torch/extension.h>

#include <chrono>

#include "c_api/offload.h"
#include "error.h"
#include "gil_release.h"
#include "host_pool/current_pool.h"
#include "host_pool/default_pool.h"
#include "host_pool/host_pool.h"
#include "pool_tensors.h"

namespace torch_offload {
namespace {

namespace py = pybind11;

using PoolPtr = std::shared_ptr<HostPool>;

constexpr auto kPatience = std::chrono::seconds(10);  // with a stream that does not get on

// `progress(done, total)` runs with the GIL, in the thread that creates the pool; what it raises reaches the caller.
Progress to_progress(const py::object& progress) {
  if (progress.is_none()) return nullptr;
  return [&progress](uint64_t done, uint64_t total) {
    py::gil_scoped_acquire gil;
    progress(done, total);
    return PyErr_CheckSignals() == 0 ? true : throw py::error_already_set();
  };
}

HugePages to_huge_pages(const std::string& name) {
  if (name == "auto") return HugePages::kAuto;
  if (name == "require") return HugePages::kRequire;
  if (name == "never") return HugePages::kNever;
  throw ValueError(join("HostPool: expected huge_pages to be 'auto', 'require' or 'never', got '", name, "'"));
}

PoolOptions make_options(uint64_t capacity, uint64_t alignment, const std::string& huge_pages, int numa_node,
                         int prefault_threads, int32_t device, bool shared, bool lock, const std::string& name) {
  PoolOptions options;
  options.capacity = capacity;
  options.alignment = alignment;
  options.huge_pages = to_huge_pages(huge_pages);
  options.numa_node = numa_node;
  options.prefault_threads = prefault_threads;
  options.device = device;
  options.shared = shared;
  options.lock = lock;
  options.name = name;
  return options;
}

py::dict stats_dict(const PoolPtr& pool) {
  const PoolStats stats = [&] {
    const GilRelease unlocked;  // may read /proc
    return pool->stats();
  }();
  py::dict out;
  out["capacity"] = stats.capacity;
  out["used"] = stats.used;
  out["free"] = stats.free;
  out["requested"] = stats.requested;
  out["largest_free"] = stats.largest_free;
  out["peak"] = stats.peak;
  out["live_blocks"] = stats.live_blocks;
  out["free_blocks"] = stats.free_blocks;
  out["allocations"] = stats.allocations;
  out["frees"] = stats.frees;
  out["double_frees"] = stats.double_frees;
  out["foreign_frees"] = stats.foreign_frees;
  out["page_size"] = stats.page_size;
  out["numa_node"] = stats.numa_node == kNoNumaNode ? py::object(py::none()) : py::int_(stats.numa_node);
  out["locked"] = stats.locked;
  out["device_registered"] = stats.device_registered;
  out["shared"] = stats.shared;
  out["attached"] = stats.attached;
  out["closed"] = stats.closed;
  return out;
}

py::list block_list(const PoolPtr& pool) {
  py::list out;
  for (const BlockInfo& block : pool->blocks()) {
    out.append(py::make_tuple(block.offset, block.size, block.requested, block.free));
  }
  return out;
}

// A name given in C may be anything.
py::object decoded(const std::string& name) {
  return py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(name.data(), static_cast<Py_ssize_t>(name.size()), "replace"));
}

py::dict handle_dict(const PoolPtr& pool) {
  const PoolHandle handle = pool->share();
  py::dict out;
  out["pid"] = handle.pid;
  out["fd"] = handle.fd;
  out["inode"] = handle.inode;
  out["capacity"] = handle.capacity;
  out["length"] = handle.length;
  out["page_size"] = handle.page_size;
  out["name"] = decoded(handle.name);
  return out;
}

PoolPtr attach(int64_t pid, int fd, uint64_t inode, uint64_t capacity, uint64_t length, uint64_t page_size,
               const std::string& name, int32_t device) {
  return HostPool::attach({pid, fd, inode, capacity, length, page_size, name}, device);
}

// Blocks that a stream still uses may be what is missing: then it takes time, which is not the GIL's.
at::Tensor empty(const PoolPtr& pool, const std::vector<int64_t>& sizes, at::ScalarType dtype) {
  try {
    return empty_in_pool(pool, sizes, dtype);
  } catch (const OutOfMemoryError&) {
    const GilRelease unlocked;
    uint64_t bytes = c10::elementSize(dtype);
    for (const int64_t size : sizes) bytes *= static_cast<uint64_t>(size);
    if (!pool->wait_for_streams(bytes, 0, kPatience)) throw;
  }
  return empty_in_pool(pool, sizes, dtype);
}

void translate_errors(std::exception_ptr error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const ValueError& e) {
    PyErr_SetString(PyExc_ValueError, e.what());
  } catch (const IndexError& e) {
    PyErr_SetString(PyExc_IndexError, e.what());
  } catch (const OutOfMemoryError& e) {
    PyErr_SetString(py::module_::import("torch").attr("OutOfMemoryError").ptr(), e.what());
  } catch (const Error& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  }
}

}  // namespace

void bind_pool(py::module_& m) {
  py::register_local_exception_translator(&translate_errors);
  using Unlocked = py::call_guard<GilRelease>;

  const auto with_options = [](const auto& make) {
    return [make](uint64_t capacity, uint64_t alignment, const std::string& huge_pages, int numa_node,
                  int prefault_threads, int32_t device, bool shared, bool lock, const std::string& name,
                  const py::object& progress) {
      const PoolOptions options =
          make_options(capacity, alignment, huge_pages, numa_node, prefault_threads, device, shared, lock, name);
      const Progress report = to_progress(progress);
      const GilRelease unlocked;
      return make(options, report);
    };
  };

  py::class_<HostPool, PoolPtr>(m, "HostPool")
      .def_static("create", with_options([](const PoolOptions& options, const Progress& progress) {
                    return HostPool::create(options, progress);
                  }))
      .def_static("attach", &attach, Unlocked())
      .def("empty", &empty)
      .def("view", &view_of_pool)
      .def("close", &HostPool::close, Unlocked())
      .def("closed", &HostPool::closed)
      .def("stats", &stats_dict)
      .def("blocks", &block_list)
      .def("share", &handle_dict)
      .def("capacity", &HostPool::capacity)
      .def("name", [](const HostPool& pool) { return decoded(pool.options().name); })
      .def("warnings", &HostPool::warnings)
      .def("device", &HostPool::device)
      .def("device_address",
           [](const HostPool& pool, uintptr_t address, uint64_t bytes) {
             return pool.device_address(reinterpret_cast<const void*>(address), bytes);
           })
      .def("host_address", [](const HostPool& pool,
                              uint64_t address) { return reinterpret_cast<uintptr_t>(pool.host_address(address)); })
      .def("contains", [](const HostPool& pool,
                          uintptr_t address) { return pool.contains(reinterpret_cast<const void*>(address)); })
      .def("offset_of", [](const HostPool& pool, uintptr_t address) {
        return pool.offset_of(reinterpret_cast<const void*>(address));
      });

  m.def("init_default_pool", with_options([](const PoolOptions& options, const Progress& progress) {
          return init_default_pool(options, progress);
        }));
  m.def("uninit_default_pool", &uninit_default_pool, Unlocked());
  m.def("default_pool_is_initialized", &default_pool_is_initialized);
  m.def("default_pool", &default_pool);
  m.def("push_current_pool", &push_current_pool);
  m.def("pop_current_pool", &pop_current_pool);
  m.def("last_error", &offload_last_error);
}

}  // namespace torch_offload
