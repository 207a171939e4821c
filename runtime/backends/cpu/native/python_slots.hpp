#pragma once

#include <nanobind/nanobind.h>

namespace sscc {

// Adds the class TokenTable; add_core turns its errors into those of sscc.runtime.support.native_errors.
void add_slots(nanobind::module_& m);

}  // namespace sscc
