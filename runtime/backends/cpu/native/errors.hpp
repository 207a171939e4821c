#pragma once

#include <stdexcept>

namespace sscc {

// A plan, scalar or address that does not fit; sscc.ir.errors.InputError in Python.
class InputError : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

// A call that is wrong at this time; sscc.ir.errors.UsageError in Python.
class UsageError : public std::logic_error {
  public:
    using std::logic_error::logic_error;
};

}  // namespace sscc
