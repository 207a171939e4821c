// Measured read bandwidth of this process. It bounds a decode step, which reads every weight once.
#pragma once

#include <cstddef>

namespace sscc {

// Returns GB/s (1e9 bytes per second), the best of `repeats` passes in which `threads` threads read a buffer of `bytes`
// bytes once. Each thread reads a slice that it wrote first itself, so that the pages are on its NUMA node.
//
// A buffer well above the last-level cache measures memory; a small buffer measures the cache. Throws
// std::invalid_argument unless threads, repeats >= 1 and every thread has at least one 64-byte line; std::bad_alloc;
// std::system_error (no more threads); std::runtime_error if a slice does not read back as written.
double read_bandwidth(int threads, std::size_t bytes, int repeats);

}  // namespace sscc
