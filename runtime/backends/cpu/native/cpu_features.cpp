// CPU features that this process may use: cpuid and xgetbv on x86, the kernel's auxiliary vector on 64-bit Arm.
#include "machine.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace sscc {

std::string architecture() {
#if defined(__x86_64__)
    return "x86_64";
#elif defined(__aarch64__)
    return "aarch64";
#else
    return "unknown";
#endif
}

#if defined(__x86_64__)

namespace {

struct Registers {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// All zero if the leaf does not exist.
Registers cpuid(unsigned leaf, unsigned subleaf) {
    Registers r;
    if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) {
        return Registers{};
    }
    return r;
}

// The register states that the operating system saves (XCR0); 0 if it does not tell.
std::uint64_t saved_states(const Registers& leaf1) {
    constexpr unsigned osxsave = 1u << 27;
    if ((leaf1.ecx & osxsave) == 0) {
        return 0;
    }
    unsigned low = 0, high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (static_cast<std::uint64_t>(high) << 32) | low;
}

// Returns true if this process may use tile registers. Linux grants them only on request
// (Documentation/arch/x86/xstate.rst), and refuses if a signal stack is too small for them.
bool tiles_permitted() {
#if defined(__linux__) && defined(SYS_arch_prctl)
    constexpr int request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
    return false;
#endif
}

}  // namespace

std::vector<std::string> cpu_features() {
    constexpr std::uint64_t sse = 0, avx = 0x6, avx512 = 0xe6, amx = 0x60000;  // XCR0 bits that must all be set
    const Registers leaf1 = cpuid(1, 0), leaf7 = cpuid(7, 0);
    const Registers leaf7_1 = leaf7.eax >= 1 ? cpuid(7, 1) : Registers{};
    const std::uint64_t saved = saved_states(leaf1);
    static const bool permitted = (saved & amx) == amx && tiles_permitted();

    // Bits: Intel SDM volume 2A, CPUID; AMD64 APM volume 3, appendix E.
    const struct {
        const char* name;
        unsigned bits;
        int bit;
        std::uint64_t needs;
    } table[] = {
        {"sse4_1", leaf1.ecx, 19, sse},
        {"sse4_2", leaf1.ecx, 20, sse},
        {"avx", leaf1.ecx, 28, avx},
        {"f16c", leaf1.ecx, 29, avx},
        {"fma", leaf1.ecx, 12, avx},
        {"avx2", leaf7.ebx, 5, avx},
        {"bmi2", leaf7.ebx, 8, sse},
        {"avx_vnni", leaf7_1.eax, 4, avx},
        {"avx512f", leaf7.ebx, 16, avx512},
        {"avx512dq", leaf7.ebx, 17, avx512},
        {"avx512bw", leaf7.ebx, 30, avx512},
        {"avx512vl", leaf7.ebx, 31, avx512},
        {"avx512_vnni", leaf7.ecx, 11, avx512},
        {"avx512_bf16", leaf7_1.eax, 5, avx512},
        {"avx512_fp16", leaf7.edx, 23, avx512},
        {"amx_tile", leaf7.edx, 24, amx},
        {"amx_bf16", leaf7.edx, 22, amx},
        {"amx_int8", leaf7.edx, 25, amx},
    };
    std::vector<std::string> names;
    for (const auto& row : table) {
        if (row.needs == amx && !permitted) {
            continue;
        }
        if (((row.bits >> row.bit) & 1u) != 0 && (saved & row.needs) == row.needs) {
            names.emplace_back(row.name);
        }
    }
    return names;
}

#elif defined(__aarch64__) && defined(__linux__)

std::vector<std::string> cpu_features() {
    // Bits: Linux, Documentation/arch/arm64/elf_hwcaps.rst (spelt out: old headers lack the newer names).
    const struct {
        const char* name;
        unsigned long word;
        int bit;
    } table[] = {
        {"asimd", AT_HWCAP, 1},    {"asimdhp", AT_HWCAP, 10}, {"asimddp", AT_HWCAP, 20}, {"asimdfhm", AT_HWCAP, 23},
        {"sve", AT_HWCAP, 22},     {"sve2", AT_HWCAP2, 1},    {"svebf16", AT_HWCAP2, 12}, {"i8mm", AT_HWCAP2, 13},
        {"bf16", AT_HWCAP2, 14},   {"sme", AT_HWCAP2, 23},
    };
    std::vector<std::string> names;
    for (const auto& row : table) {
        if (((getauxval(row.word) >> row.bit) & 1ul) != 0) {
            names.emplace_back(row.name);
        }
    }
    return names;
}

#else

std::vector<std::string> cpu_features() { return {}; }

#endif

}  // namespace sscc
