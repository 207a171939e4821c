// Scalar operations of a plan's control, as runtime/support/scalars.py defines them; a result that exceeds 64 bits is
// an error.
#pragma once

#include <algorithm>
#include <cstdint>

#include "errors.hpp"
#include "plan.hpp"

namespace sscc {

namespace scalar {

// Errors are in functions of their own, to keep the arithmetic small.
[[noreturn, gnu::cold, gnu::noinline]] inline void overflow() { fail("SCALAR_OVERFLOW"); }
[[noreturn, gnu::cold, gnu::noinline]] inline void division_by_zero() { fail("DIVISION_BY_ZERO"); }
[[noreturn, gnu::cold, gnu::noinline]] inline void no_such_entry(std::int64_t index, std::int64_t entries) {
    fail("LOOKUP_OUT_OF_RANGE", {{"index", index}, {"entries", entries}});
}

inline std::int64_t add(std::int64_t a, std::int64_t b) {
    std::int64_t result;
    return __builtin_add_overflow(a, b, &result) ? overflow(), 0 : result;
}

inline std::int64_t subtract(std::int64_t a, std::int64_t b) {
    std::int64_t result;
    return __builtin_sub_overflow(a, b, &result) ? overflow(), 0 : result;
}

inline std::int64_t multiply(std::int64_t a, std::int64_t b) {
    std::int64_t result;
    return __builtin_mul_overflow(a, b, &result) ? overflow(), 0 : result;
}

// Quotient rounded towards zero; the remainder has the dividend's sign.
struct Division {
    Division(std::int64_t a, std::int64_t b) {
        if (b == 0) {
            division_by_zero();
        }
        if (b == -1) {  // the machine's instruction traps if a is the smallest number
            quotient = subtract(0, a);
            remainder = 0;
        } else {
            quotient = a / b;
            remainder = a % b;
        }
        same_sign = (a < 0) == (b < 0);
    }
    std::int64_t quotient, remainder;
    bool same_sign;
};

inline std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
    const Division d(a, b);
    return d.quotient - (d.remainder != 0 && !d.same_sign ? 1 : 0);
}

inline std::int64_t ceil_divide(std::int64_t a, std::int64_t b) {
    const Division d(a, b);
    return d.quotient + (d.remainder != 0 && d.same_sign ? 1 : 0);
}

// Remainder of a floor division; it has the divisor's sign.
inline std::int64_t modulo(std::int64_t a, std::int64_t b) {
    if (b == -1) {
        return 0;
    }
    const Division d(a, b);
    return d.remainder + (d.remainder != 0 && !d.same_sign ? b : 0);
}

}  // namespace scalar

// The value of a scalar instruction. Throws Error for a division by 0 and a result that exceeds 64 bits.
inline std::int64_t evaluate(const Instruction& i, const std::int64_t* registers) {
    const auto a = registers[i.x], b = registers[i.y];
    switch (i.op) {
        case Op::kAdd:
            return scalar::add(a, b);
        case Op::kSub:
            return scalar::subtract(a, b);
        case Op::kMul:
            return scalar::multiply(a, b);
        case Op::kFloorDiv:
            return scalar::floor_divide(a, b);
        case Op::kCeilDiv:
            return scalar::ceil_divide(a, b);
        case Op::kMod:
            return scalar::modulo(a, b);
        case Op::kMin:
            return std::min(a, b);
        case Op::kMax:
            return std::max(a, b);
        case Op::kEq:
            return a == b;
        case Op::kNe:
            return a != b;
        case Op::kLt:
            return a < b;
        case Op::kLe:
            return a <= b;
        case Op::kGt:
            return a > b;
        case Op::kGe:
            return a >= b;
        case Op::kAnd:
            return a & b;
        case Op::kOr:
            return a | b;
        case Op::kSelect:
            return a != 0 ? b : registers[i.z];
        case Op::kLookup:
            if (a < 0 || a >= i.z) {
                scalar::no_such_entry(a, i.z);
            }
            return registers[i.y + a];
        default:
            return 0;  // control flow, which the walk handles
    }
}

}  // namespace sscc
