// The build compiles this file once for each SSCC_WIDTH, the values of a vector, with flags for the instructions that
// such vectors need. Two rules keep the results and the program the same on every machine:
// - Without contraction (-ffp-contract=off) and without functions of the C library whose rounding is its own, every
//   width gives the same bits.
// - No inline function or template from outside of this file is called here. The linker keeps one instance of each for
//   the whole program, and that one could be made of instructions which the machine does not have.
#include "sampler_passes.hpp"

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
using Halves = std::uint16_t __attribute__((vector_size(2 * kWidth)));
using Four = float __attribute__((vector_size(16)));

struct Block {
    Floats x[kVectors];
};

// The values of one block; minus infinity behind the row's last one.
template <bool bf16>
inline Block load(const void* data, std::size_t count, std::size_t block) {
    constexpr std::size_t size = bf16 ? 2 : 4;
    const auto found = count - block * kBlock < kBlock ? count - block * kBlock : kBlock;
    auto from = static_cast<const char*>(data) + block * kBlock * size;
    char tail[kBlock * 4];
    if (found < kBlock) {
        for (std::size_t i = 0; i < kBlock; ++i) {
            constexpr std::uint32_t least = bf16 ? 0xff80 : 0xff800000;  // minus infinity
            __builtin_memcpy(tail + i * size, &least, size);
        }
        __builtin_memcpy(tail, from, found * size);
        from = tail;
    }
    Block block_of;
    if constexpr (bf16) {
        for (std::size_t i = 0; i < kVectors; ++i) {
            Halves halves;
            __builtin_memcpy(&halves, from + i * sizeof halves, sizeof halves);
            block_of.x[i] = reinterpret_cast<Floats>(__builtin_convertvector(halves, Words) << 16);
        }
    } else {
        __builtin_memcpy(&block_of, from, sizeof block_of);
    }
    return block_of;
}

inline Floats chosen(Ints mask, Floats x) { return reinterpret_cast<Floats>(reinterpret_cast<Ints>(x) & mask); }

struct Larger {
    template <class T>
    T operator()(T a, T b) const { return a > b ? a : b; }
};

struct Sum {
    template <class T>
    T operator()(T a, T b) const { return a + b; }
};

// Joins a block's values in the order of 16 lanes: value i with i + 16 and so on, then lane i with i + 8, with i + 4 ..
template <class Join>
inline float fold(const Block& of, Join join) {
    constexpr std::size_t vectors = 16 / kWidth;
    Floats lanes[vectors];
    for (std::size_t i = 0; i < kVectors; ++i) {
        lanes[i % vectors] = i < vectors ? of.x[i] : join(lanes[i % vectors], of.x[i]);
    }
    Four x[4];
    __builtin_memcpy(&x, &lanes, sizeof x);
    const Four four = join(join(x[0], x[2]), join(x[1], x[3]));
    return join(join(four[0], four[2]), join(four[1], four[3]));
}

// 2**x, with a relative error of 2e-7 and exactly 1 at 0, for x <= 0; or 0 for x below -124 and for NaN.
inline Floats power_of_two(Floats x) {
    constexpr float magic = 12582912.0f;  // 1.5 * 2**23: adding it rounds to an integer, in the lowest bits
    const Floats shifted = x + magic, fraction = x - (shifted - magic);  // -1/2 .. 1/2
    Floats p = 0.0013264727f * fraction + 0.009671513f;
    p = p * fraction + 0.055507336f;
    p = p * fraction + 0.24022242f;
    p = p * fraction + 0.693147f;
    p = p * fraction + 1.0f;
    const auto bits = reinterpret_cast<Words>(p) + (reinterpret_cast<Words>(shifted) << 23);
    return chosen(x >= -124.0f, reinterpret_cast<Floats>(bits));
}

template <bool bf16>
float peak(const void* data, std::size_t count, float* maxima) {
    auto most = -kInfinity;
    Ints nan{};
    for (std::size_t block = 0; block * kBlock < count; ++block) {
        const auto values = load<bf16>(data, count, block);
        for (const auto& x : values.x) {
            nan |= x != x;
        }
        maxima[block] = fold(values, Larger());
        most = maxima[block] > most ? maxima[block] : most;
    }
    std::int32_t any = 0;
    for (std::size_t i = 0; i < kWidth; ++i) {
        any |= nan[i];
    }
    return any != 0 ? __builtin_nanf("") : most;
}

template <bool bf16>
void copy(const void* data, std::size_t count, float* to) {
    for (std::size_t block = 0; block * kBlock < count; ++block) {
        const auto values = load<bf16>(data, count, block);
        __builtin_memcpy(to + block * kBlock, &values, sizeof values);
    }
}

template <bool bf16>
double weigh(const void* data, std::size_t count, float most, float scale, float* weights, float* sums) {
    double total = 0;
    for (std::size_t block = 0; block * kBlock < count; ++block) {
        auto values = load<bf16>(data, count, block);
        for (auto& x : values.x) {
            x = power_of_two((x - most) * scale);
        }
        __builtin_memcpy(weights + block * kBlock, &values, sizeof values);
        sums[block] = fold(values, Sum());
        total += static_cast<double>(sums[block]);
    }
    return total;
}

template <bool bf16>
void bin(const void* data, std::size_t count, float most, float scale, std::uint16_t* bins) {
    const Floats last = kBins - 1.0f - Floats{};
    for (std::size_t block = 0; block * kBlock < count; ++block) {
        const auto values = load<bf16>(data, count, block);
        for (std::size_t i = 0; i < kVectors; ++i) {
            const Floats at = (most - values.x[i]) * scale * 32;
            const auto whole = __builtin_convertvector(at < last ? at : last, Ints);  // NaN becomes the last bin
            const auto halves = __builtin_convertvector(whole, Halves);
            __builtin_memcpy(bins + block * kBlock + i * kWidth, &halves, sizeof halves);
        }
    }
}

template <bool bf16>
double restrict(const void* data, std::size_t count, float lowest, float above, std::size_t last, float least,
                float* weights, float* sums) {
    double total = 0;
    for (std::size_t block = 0; block * kBlock < count; ++block) {
        const auto values = load<bf16>(data, count, block);
        const auto at = weights + block * kBlock;
        Block kept;
        __builtin_memcpy(&kept, at, sizeof kept);
        const auto reached = block * kBlock <= last ? lowest : above;
        for (std::size_t i = 0; i < kVectors; ++i) {
            kept.x[i] = chosen((values.x[i] >= reached) & (kept.x[i] >= least), kept.x[i]);
        }
        __builtin_memcpy(at, &kept, sizeof kept);
        if (block == last / kBlock) {
            float here[kBlock];
            __builtin_memcpy(here, &values, sizeof here);
            for (auto i = last % kBlock + 1; i < kBlock; ++i) {
                at[i] = here[i] == lowest ? 0 : at[i];
            }
            __builtin_memcpy(&kept, at, sizeof kept);
        }
        sums[block] = fold(kept, Sum());
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
                    Either<weigh<true>, weigh<false>>::call, Either<bin<true>, bin<false>>::call,
                    Either<restrict<true>, restrict<false>>::call};

}  // namespace sscc::sampling::SSCC_NAMESPACE

#undef SSCC_JOIN
#undef SSCC_JOINED
#undef SSCC_NAMESPACE
