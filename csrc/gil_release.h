// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cxxabi.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

namespace torch_offload {

// Gives the GIL away for its lifetime, like pybind11::gil_scoped_release, but survives the end of the interpreter: when
// a daemon thread wants the GIL back then, Python (before 3.14) unwinds its stack, which aborts the process at the
// first destructor. Here the thread sleeps until the process has ended, as in later Pythons.
class GilRelease {
 public:
  GilRelease() : state_(PyEval_SaveThread()) {}
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

  ~GilRelease() {
    try {
      PyEval_RestoreThread(state_);
    } catch (const abi::__forced_unwind&) {
      while (true) pause();
    }
  }

 private:
  PyThreadState* const state_;
};

}  // namespace torch_offload
