// SPDX-License-Identifier: Apache-2.0
//
// The eager path from Python to the dispatcher. Two reasons not to take torch.ops there: it spends a microsecond on
// finding the overload and converting arguments by the schema, and a daemon thread inside it when the interpreter ends
// aborts the process (see gil_release.h).
#include "eager_calls.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/PythonDispatcherTLS.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/python_numbers.h>

#include <array>
#include <optional>

#include "gil_release.h"

namespace torch_offload {
namespace {

using OptionalTensor = std::optional<at::Tensor>;
using Tensors = c10::SmallVector<at::Tensor, 4>;
using SparseCopy = void(at::TensorList, at::TensorList, const OptionalTensor&, const OptionalTensor&,
                        const OptionalTensor&);
using SparseCopyPtrs = void(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, at::Tensor&);
using PlanResidency = void(const at::Tensor&, const at::Tensor&, at::Tensor&, at::Tensor&, at::Tensor&, at::Tensor&,
                           at::Tensor&, at::Tensor&, at::Tensor&, at::Tensor&, at::Tensor&, const OptionalTensor&,
                           const OptionalTensor&, int64_t);

// Tracing, fake tensors, profilers of calls and the like.
bool mode_active() {
  return c10::impl::TorchDispatchModeTLS::any_modes_set() || c10::impl::PythonDispatcherTLS::get_state() != nullptr ||
         at::impl::PythonTorchFunctionTLS::stack_len() > 0;
}

bool read_tensor(PyObject* object, at::Tensor& tensor) {
  if (!THPVariable_CheckExact(object)) return false;
  tensor = THPVariable_Unpack(object);
  return true;
}

bool read_optional(PyObject* object, OptionalTensor& tensor) {
  return object == Py_None || read_tensor(object, tensor.emplace());
}

// A tensor, or a list or tuple of tensors.
bool read_tensors(PyObject* object, Tensors& tensors) {
  if (read_tensor(object, tensors.emplace_back())) return true;
  tensors.clear();
  if (!PyList_CheckExact(object) && !PyTuple_CheckExact(object)) return false;
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(object);
  tensors.reserve(static_cast<size_t>(size));
  for (Py_ssize_t i = 0; i < size; ++i) {
    if (!read_tensor(PySequence_Fast_GET_ITEM(object, i), tensors.emplace_back())) return false;
  }
  return true;
}

template <typename Signature>
auto find_op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

PyObject* sparse_copy(PyObject* /*module*/, PyObject* const* args, Py_ssize_t nargs) {
  HANDLE_TH_ERRORS
  static const auto op = find_op<SparseCopy>("offload::sparse_copy");
  Tensors dst;
  Tensors src;
  OptionalTensor dst_index;
  OptionalTensor src_index;
  OptionalTensor count;
  if (nargs != 5 || mode_active() || !read_tensors(args[0], dst) || !read_tensors(args[1], src) ||
      !read_optional(args[2], dst_index) || !read_optional(args[3], src_index) || !read_optional(args[4], count)) {
    Py_RETURN_FALSE;
  }
  {
    const GilRelease unlocked;
    op.call(dst, src, dst_index, src_index, count);
  }
  Py_RETURN_TRUE;
  END_HANDLE_TH_ERRORS
}

PyObject* sparse_copy_ptrs(PyObject* /*module*/, PyObject* const* args, Py_ssize_t nargs) {
  HANDLE_TH_ERRORS
  static const auto op = find_op<SparseCopyPtrs>("offload::sparse_copy_ptrs");
  at::Tensor src_ptrs;
  at::Tensor dst_ptrs;
  at::Tensor lengths;
  at::Tensor count;
  at::Tensor status;
  if (nargs != 5 || mode_active() || !read_tensor(args[0], src_ptrs) || !read_tensor(args[1], dst_ptrs) ||
      !read_tensor(args[2], lengths) || !read_tensor(args[3], count) || !read_tensor(args[4], status)) {
    Py_RETURN_FALSE;
  }
  {
    const GilRelease unlocked;
    op.call(src_ptrs, dst_ptrs, lengths, count, status);
  }
  Py_RETURN_TRUE;
  END_HANDLE_TH_ERRORS
}

PyObject* plan_residency(PyObject* /*module*/, PyObject* const* args, Py_ssize_t nargs) {
  HANDLE_TH_ERRORS
  static const auto op = find_op<PlanResidency>("offload::plan_residency");
  constexpr Py_ssize_t kTensors = 11;
  std::array<at::Tensor, kTensors> t;
  OptionalTensor stable_prefix;
  OptionalTensor block_table;
  if (nargs != kTensors + 3 || mode_active() || !read_optional(args[kTensors], stable_prefix) ||
      !read_optional(args[kTensors + 1], block_table) || !PyLong_CheckExact(args[kTensors + 2])) {
    Py_RETURN_FALSE;
  }
  for (size_t i = 0; i < t.size(); ++i) {
    if (!read_tensor(args[i], t[i])) Py_RETURN_FALSE;
  }
  const int64_t block_size = THPUtils_unpackLong(args[kTensors + 2]);
  {
    const GilRelease unlocked;
    op.call(t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], t[9], t[10], stable_prefix, block_table, block_size);
  }
  Py_RETURN_TRUE;
  END_HANDLE_TH_ERRORS
}

template <auto kFunction>
PyCFunction as_method() {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(kFunction));  // METH_FASTCALL says what it is
}

PyMethodDef methods[] = {
    {"sparse_copy", as_method<&sparse_copy>(), METH_FASTCALL, nullptr},
    {"sparse_copy_ptrs", as_method<&sparse_copy_ptrs>(), METH_FASTCALL, nullptr},
    {"plan_residency", as_method<&plan_residency>(), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void add_eager_calls(pybind11::module_& m) {
  if (PyModule_AddFunctions(m.ptr(), methods) != 0) throw pybind11::error_already_set();
}

}  // namespace torch_offload
