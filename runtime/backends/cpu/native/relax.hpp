#pragma once

namespace sscc {

// A moment for the other thread of a CPU, in a loop that looks at a word again and again.
inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");  // as long as a pause on x86; `yield` is a no-operation on most cores
#endif
}

}  // namespace sscc
