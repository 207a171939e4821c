// The build compiles this file once for each SSCC_WIDTH, the number of values of a vector, with flags for the required
// instructions. Two rules keep the results and the program the same on every machine:
// - Every width gives the same bits: there is no contraction (-ffp-contract=off), and no C library function whose
//   rounding is implementation-defined.
// - No inline function or template from outside of this file is called here. The linker keeps one instance of each for
//   the whole program, and that instance might use instructions that the machine does not have. Intrinsics are not
//   such functions. They are used where compilers emit several instructions in place of one.
#include "sampler_passes.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define SSCC_JOIN(a, b) a##b
#define SSCC_JOINED(a, b) SSCC_JOIN(a, b)
#define SSCC_NAMESPACE SSCC_JOINED(width, SSCC_WIDTH)

namespace sscc::sampling::SSCC_NAMESPACE {

namespace {

constexpr std::size_t kWidth = SSCC_WIDTH, kVectors = kBlock / kWidth;
constexpr float kInfinity = __builtin_inff();

using Floats = float __attribute__((vector_size(4 * kWidth)));
using Ints = std::int32_t __attribute__((vector_size(4 * kWidth)));
using Words = std::uint32_t __attribute__((vector_size(4 * kWidth)));
using Eight = float __attribute__((vector_size(32)));
using Four = float __attribute__((vector_size(16)));

// Sums, of one block or several, are accumulated in 16 lanes: value i with i + 16 and so on. kLanes is the number of
// vectors of these lanes.
constexpr std::size_t kLanes = 16 / kWidth;

// Returns the values of a block. Values of an incomplete block are copied to `tail`, padded with minus infinity.
template <bool bf16>
inline const char* block_of(const void* data, std::size_t count, std::size_t block, char (&tail)[kBlock * 4]) {
    constexpr std::size_t size = bf16 ? 2 : 4;
    const auto from = static_cast<const char*>(data) + block * kBlock * size;
    if (const auto found = count - block * kBlock; found < kBlock) {
        constexpr std::uint32_t least = bf16 ? 0xff80 : 0xff800000;  // minus infinity
        for (std::size_t i = 0; i < kBlock; ++i) {
            __builtin_memcpy(tail + i * size, &least, size);
        }
        __builtin_memcpy(tail, from, found * size);
        return tail;
    }
    return from;
}

// Vector i of a block.
template <bool bf16>
inline Floats load(const char* from, std::size_t i) {
    if constexpr (!bf16) {
        Floats x;
        __builtin_memcpy(&x, from + i * sizeof x, sizeof x);
        return x;
    }
#if SSCC_WIDTH == 16
    const auto words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from) + i));
    return reinterpret_cast<Floats>(reinterpret_cast<Words>(words) << 16);
#elif SSCC_WIDTH == 8
    const auto words = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + i));
    return reinterpret_cast<Floats>(reinterpret_cast<Words>(words) << 16);
#elif defined(__x86_64__)
    const auto halves = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + i * 8));
    return reinterpret_cast<Floats>(_mm_unpacklo_epi16(_mm_setzero_si128(), halves));
#else
    std::uint16_t __attribute__((vector_size(8))) halves;
    __builtin_memcpy(&halves, from + i * sizeof halves, sizeof halves);
    return reinterpret_cast<Floats>(__builtin_convertvector(halves, Words) << 16);
#endif
}

// Vectors 2 * i and 2 * i + 1 of a block, with their values in any order.
template <bool bf16>
inline void load_pair(const char* from, std::size_t i, Floats& a, Floats& b) {
    if constexpr (bf16) {
        Words both;
        __builtin_memcpy(&both, from + i * sizeof both, sizeof both);
        a = reinterpret_cast<Floats>(both << 16);
        b = reinterpret_cast<Floats>(both & 0xffff0000);
    } else {
        a = load<bf16>(from, 2 * i);
        b = load<bf16>(from, 2 * i + 1);
    }
}

inline void store(float* to, Floats x) { __builtin_memcpy(to, &x, sizeof x); }

inline Floats all(float x) { return x - Floats{}; }

inline Floats chosen(Ints mask, Floats x) { return reinterpret_cast<Floats>(reinterpret_cast<Ints>(x) & mask); }

// Adds the addends of the values that are at or above a threshold.
inline void add_reached(Floats& sum, Floats x, Floats threshold, Floats addend) {
#if SSCC_WIDTH == 16
    sum = _mm512_mask_add_ps(sum, _mm512_cmp_ps_mask(x, threshold, _CMP_GE_OQ), sum, addend);
#else
    sum += chosen(x >= threshold, addend);
#endif
}

struct Larger {
    template <class T>
    T operator()(T a, T b) const { return a > b ? a : b; }
#if SSCC_WIDTH == 16
    Floats operator()(Floats a, Floats b) const { return _mm512_max_ps(a, b); }
#endif
};

struct Sum {
    template <class T>
    T operator()(T a, T b) const { return a + b; }
};

// Sums 16 lanes: lane i with i + 8, then with i + 4 and so on.
template <class Join>
inline float fold(const Floats (&lanes)[kLanes], Join join) {
#if SSCC_WIDTH == 4
    const Four x = join(join(lanes[0], lanes[2]), join(lanes[1], lanes[3]));
#else
#if SSCC_WIDTH == 8
    const Eight eight = join(lanes[0], lanes[1]);
#else
    const auto& of = lanes[0];
    const Eight eight = join(Eight{of[0], of[1], of[2], of[3], of[4], of[5], of[6], of[7]},
                             Eight{of[8], of[9], of[10], of[11], of[12], of[13], of[14], of[15]});
#endif
    const Four x = join(Four{eight[0], eight[1], eight[2], eight[3]}, Four{eight[4], eight[5], eight[6], eight[7]});
#endif
    return join(join(x[0], x[2]), join(x[1], x[3]));
}

constexpr std::size_t kTogether = 4;  // number of vectors processed together, to hide the latency of each

// Returns 2**x, with a relative error of 2e-7 and exactly 1 at 0, for x <= 0; or 0 for x below -124 and for NaN.
inline void to_powers_of_two(Floats (&x)[kTogether]) {
    constexpr float magic = 12582912.0f;  // 1.5 * 2**23: adding it rounds to an integer, in the lowest bits
    Floats shifted[kTogether], fraction[kTogether], p[kTogether];
    for (std::size_t v = 0; v < kTogether; ++v) {
        shifted[v] = x[v] + magic;
        fraction[v] = x[v] - (shifted[v] - magic);  // -1/2 .. 1/2
        p[v] = all(0.0013264727f);
    }
    constexpr float coefficients[] = {0.009671513f, 0.055507336f, 0.24022242f, 0.693147f, 1.0f};
    for (const auto coefficient : coefficients) {
        for (std::size_t v = 0; v < kTogether; ++v) {
            p[v] = p[v] * fraction[v] + coefficient;
        }
    }
    for (std::size_t v = 0; v < kTogether; ++v) {
        const auto bits = reinterpret_cast<Words>(p[v]) + (reinterpret_cast<Words>(shifted[v]) << 23);
        x[v] = chosen(x[v] >= -124.0f, reinterpret_cast<Floats>(bits));
    }
}

// Bit i is for value i.
inline std::uint64_t bits(Ints mask) {
#if SSCC_WIDTH == 16
    return _mm512_movepi32_mask(reinterpret_cast<__m512i>(mask));
#elif SSCC_WIDTH == 8
    return static_cast<unsigned>(_mm256_movemask_ps(reinterpret_cast<__m256>(mask)));
#elif defined(__SSE__)
    return static_cast<unsigned>(_mm_movemask_ps(reinterpret_cast<__m128>(mask)));
#else
    const Ints places = mask & Ints{1, 2, 4, 8};
    return static_cast<unsigned>((places[0] | places[1]) | (places[2] | places[3]));
#endif
}

template <bool bf16>
float peak(const void* data, std::size_t count, float* maxima) {
    auto most = -kInfinity;
    Ints nan{};
    char tail[kBlock * 4];
    for (std::size_t block = 0; block * kBlock < count; ++block) {
        const auto from = block_of<bf16>(data, count, block, tail);
        Floats lanes[kLanes];
        for (std::size_t i = 0; i < kVectors / 2; ++i) {
            Floats a, b;
            load_pair<bf16>(from, i, a, b);
            nan |= (a != a) | (b != b);
            const auto x = Larger()(a, b);
            lanes[i % kLanes] = i < kLanes ? x : Larger()(x, lanes[i % kLanes]);
        }
        maxima[block] = fold(lanes, Larger());
        most = maxima[block] > most ? maxima[block] : most;
    }
    return bits(nan) != 0 ? __builtin_nanf("") : most;
}

template <bool bf16>
void copy(const void* data, std::size_t count, float* to) {
    char tail[kBlock * 4];
    for (std::size_t block = 0; block * kBlock < count; ++block) {
        const auto from = block_of<bf16>(data, count, block, tail);
        for (std::size_t i = 0; i < kVectors; ++i) {
            store(to + block * kBlock + i * kWidth, load<bf16>(from, i));
        }
    }
}

template <bool bf16, bool kept>
double weigh_as(const void* data, std::size_t count, float most, float scale, float* weights, float* sums) {
    double total = 0;
    char tail[kBlock * 4];
    for (std::size_t block = 0; block * kBlock < count; ++block) {
        const auto from = block_of<bf16>(data, count, block, tail);
        Floats lanes[kLanes]{};
        for (std::size_t i = 0; i < kVectors; i += kTogether) {
            Floats x[kTogether];
            for (std::size_t v = 0; v < kTogether; ++v) {
                x[v] = (load<bf16>(from, i + v) - most) * scale;
            }
            to_powers_of_two(x);
            for (std::size_t v = 0; v < kTogether; ++v) {
                lanes[v % kLanes] += x[v];
            }
            for (std::size_t v = 0; kept && v < kTogether; ++v) {
                store(weights + block * kBlock + (i + v) * kWidth, x[v]);
            }
        }
        sums[block] = fold(lanes, Sum());
        total += static_cast<double>(sums[block]);
    }
    return total;
}

template <bool bf16>
double weigh(const void* data, std::size_t count, float most, float scale, float* weights, float* sums) {
    return (weights != nullptr ? weigh_as<bf16, true> : weigh_as<bf16, false>)(data, count, most, scale, weights, sums);
}

template <bool bf16, bool counted>
void reach_as(const void* data, std::size_t count, const float* bounds, std::size_t stride, const float* thresholds,
              double* sums) {
    constexpr std::size_t stretch = 8;  // so few blocks that sums fit f32
    char tail[kBlock * 4];
    for (std::size_t at = 0; at < kThresholds; ++at) {
        sums[at] = 0;
    }
    for (std::size_t block = 0; block * kBlock < count;) {
        Floats lanes[kThresholds][kLanes]{};
        for (std::size_t added = 0; added < stretch && block * kBlock < count; block += stride) {
            if (bounds[block] < thresholds[0]) {
                continue;
            }
            ++added;
            const auto from = block_of<bf16>(data, count, block, tail);
            for (std::size_t at = 0; at < kThresholds; ++at) {
                for (std::size_t i = 0; i < kVectors; ++i) {
                    const auto x = load<bf16>(from, i);
                    add_reached(lanes[at][i % kLanes], x, all(thresholds[at]), counted ? all(1) : x);
                }
            }
        }
        for (std::size_t at = 0; at < kThresholds; ++at) {
            sums[at] += static_cast<double>(fold(lanes[at], Sum()));
        }
    }
}

template <bool bf16>
void reach(const void* data, std::size_t count, const float* bounds, std::size_t stride, bool counted,
           const float* thresholds, double* sums) {
    (counted ? reach_as<bf16, true> : reach_as<bf16, false>)(data, count, bounds, stride, thresholds, sums);
}

template <bool bf16>
std::size_t between(const void* data, std::size_t count, const float* bounds, float low, float high,
                    std::int32_t* indices) {
    char tail[kBlock * 4];
    std::size_t found = 0;
    for (std::size_t block = 0; block * kBlock < count; ++block) {
        if (bounds[block] < low) {
            continue;
        }
        const auto from = block_of<bf16>(data, count, block, tail);
        std::uint64_t here = 0;
        for (std::size_t i = 0; i < kVectors; ++i) {
            const auto x = load<bf16>(from, i);
            here |= bits((x >= low) & (x < high)) << (i * kWidth);
        }
        if (const auto values = count - block * kBlock; values < kBlock) {
            here &= (std::uint64_t{1} << values) - 1;
        }
        for (; here != 0; here &= here - 1) {
            indices[found++] = static_cast<std::int32_t>(block * kBlock) + __builtin_ctzll(here);
        }
    }
    return found;
}

double restrict(const float* weights, std::size_t count, float least, float* sums) {
    double total = 0;
    for (std::size_t block = 0; block * kBlock < count; ++block) {
        Floats lanes[kLanes]{};
        if (sums[block] >= least) {
            for (std::size_t i = 0; i < kVectors; ++i) {
                Floats weight;
                __builtin_memcpy(&weight, weights + block * kBlock + i * kWidth, sizeof weight);
                add_reached(lanes[i % kLanes], weight, all(least), weight);
            }
        }
        sums[block] = fold(lanes, Sum());
        total += static_cast<double>(sums[block]);
    }
    return total;
}

// One function for rows of both types.
template <auto of_bf16, auto of_f32>
struct Either;
template <class Result, class... Arguments, Result (*of_bf16)(const void*, Arguments...),
          Result (*of_f32)(const void*, Arguments...)>
struct Either<of_bf16, of_f32> {
    static Result call(const void* data, bool bf16, Arguments... arguments) {
        return (bf16 ? of_bf16 : of_f32)(data, arguments...);
    }
};

}  // namespace

const Passes passes{Either<peak<true>, peak<false>>::call, Either<copy<true>, copy<false>>::call,
                    Either<weigh<true>, weigh<false>>::call, Either<reach<true>, reach<false>>::call,
                    Either<between<true>, between<false>>::call, restrict};

}  // namespace sscc::sampling::SSCC_NAMESPACE

#undef SSCC_JOIN
#undef SSCC_JOINED
#undef SSCC_NAMESPACE
