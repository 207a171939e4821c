// How fast this process reads memory: the figure that bounds a decode step, which reads every weight once.
#pragma once

#include <cstddef>

namespace sscc {

// GB/s (1e9 bytes per second), the best of `repeats` passes in which `threads` threads read a buffer of `bytes` bytes
// once, each its own slice, which it also wrote first (so that the pages are near it).
//
// A buffer well above the last-level cache measures memory, a small one measures the cache. Throws
// std::invalid_argument unless threads, repeats >= 1 and every thread has at least one 64-byte line,
// std::bad_alloc, std::system_error (no more threads), std::runtime_error if a slice does not read as written.
double read_bandwidth(int threads, std::size_t bytes, int repeats);

}  // namespace sscc
