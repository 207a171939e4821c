#pragma once

#include <nanobind/nanobind.h>

namespace sscc {

// Adds the classes Core and Team, and converts the core's errors to those of sscc.runtime.support.native_errors.
void add_core(nanobind::module_& m);

}  // namespace sscc
