#pragma once

#include <nanobind/nanobind.h>

namespace sscc {

// Adds the class Core, and turns the core's errors into those of sscc.ir.errors.
void add_core(nanobind::module_& m);

}  // namespace sscc
