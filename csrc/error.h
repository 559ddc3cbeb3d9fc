// SPDX-License-Identifier: Apache-2.0
//
// The errors that the torch-free core throws. The torch layer turns each into the Python exception of the
// same name; the C interface turns each into a return code. Messages follow "<what>: expected <rule>, got
// <value>".
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace torch_offload {

// Base class: a caller that only wants the text catches this one.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A bad argument value (Python: ValueError).
struct ValueError : Error {
  using Error::Error;
};

// An index outside its range (Python: IndexError).
struct IndexError : Error {
  using Error::Error;
};

// The pool or the host has no memory left for the request (Python: torch.OutOfMemoryError).
struct OutOfMemoryError : Error {
  using Error::Error;
};

// The object is in a state that does not allow the call: closed, forked, not initialized (Python:
// RuntimeError).
struct StateError : Error {
  using Error::Error;
};

// Joins its arguments into one string, for messages.
template <typename... Args>
std::string join(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

}  // namespace torch_offload
