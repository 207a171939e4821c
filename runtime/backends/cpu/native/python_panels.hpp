// Python bindings of panels.hpp.
#pragma once

#include <nanobind/nanobind.h>

namespace sscc {

void add_panels(nanobind::module_& m);

}  // namespace sscc
