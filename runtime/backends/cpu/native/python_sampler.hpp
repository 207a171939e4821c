#pragma once

#include <nanobind/nanobind.h>

namespace sscc {

// Adds the class BatchSampler; add_core converts its errors to those of sscc.runtime.support.native_errors.
void add_sampler(nanobind::module_& m);

}  // namespace sscc
