#pragma once

namespace sscc {

// Yields to the other hardware thread of a core, in a loop that polls a word.
inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");  // as long as a pause on x86; `yield` is a no-operation on most cores
#endif
}

}  // namespace sscc
