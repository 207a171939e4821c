// Python bindings of the native runtime: sscc.runtime.support._native (types and documentation in
// runtime/support/_native.pyi).
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bandwidth.hpp"
#include "machine.hpp"
#include "python_core.hpp"
#include "python_panels.hpp"
#include "python_sampler.hpp"
#include "python_slots.hpp"

namespace nb = nanobind;

NB_MODULE(_native, m) {
    m.def("architecture", &sscc::architecture);
    m.def("cpu_features", &sscc::cpu_features);
    m.def("affinity_threads", &sscc::affinity_threads);
    m.def("cpu_quota", &sscc::cpu_quota);
    m.def("usable_threads", &sscc::usable_threads);
    m.def("cache_sizes", &sscc::cache_sizes);
    m.def("page_size", &sscc::page_size);
    m.def("total_memory", &sscc::total_memory);
    m.def("memory_limit", &sscc::memory_limit);
    m.def("read_bandwidth", &sscc::read_bandwidth, nb::arg("threads"), nb::arg("nbytes"), nb::arg("repeats") = 3,
          nb::call_guard<nb::gil_scoped_release>());
    sscc::add_core(m);
    sscc::add_panels(m);
    sscc::add_sampler(m);
    sscc::add_slots(m);
    m.attr("compiler") = SSCC_COMPILER;
}
