"""Elementary functions on vectors of f32 as polynomials, because MLIR would call libm once per lane.

Each function is accurate to a few units in the last place over the range that it names, and gives the same bits on
every CPU with a fused multiply-add. There are three exponentials because attention knows the range of its exponents:
`exp` takes any number, while `decay` and `exp2` need about half the instructions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sscc.runtime.backends.cpu.codegen.features import LANES
from sscc.runtime.backends.cpu.codegen.mlir import F32, I32, Function, Value, vector, with_element

LOG2E = 1.44269504088896340736
# ln 2 in two parts, the first with zeros at its end, so that n * first is exact.
_LN2_HIGH = 0.693359375
_LN2_LOW = -2.12194440e-4
# Minimax coefficients of (exp(r) - 1 - r) / r**2 on |r| <= ln(2) / 2, as in Cephes' expf (Moshier).
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_EXP_LOWEST = -104.0
_EXP_HIGHEST = 88.72283935546875
_DECAY_LOWEST = -87.0
# Minimax coefficients of 2**r on |r| <= 1/2, relative error 1e-7; exactly 1 at 0.
_EXP2 = (0.0013264723820611835, 0.009671512991189957, 0.05550733581185341, 0.24022242426872253, 0.6931470036506653, 1.0)
# Coefficients of (ln(1 + r) - r + r**2 / 2) / r**3 for sqrt(1/2) < 1 + r < sqrt(2), as in Cephes' logf (Moshier).
_LOG = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
    2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
_ROUND = 1.5 * 2.0**23
"""Adding this number to an f32 rounds it to an integer, which then occupies the last bits of the sum."""


def polynomial(f: Function, coefficients: Sequence[float], x: Value) -> Value:
    """Evaluate a polynomial by Horner's rule; the coefficient of the highest power comes first."""
    result = f.constant(coefficients[0], x.type)
    for coefficient in coefficients[1:]:
        result = f.fma(result, x, f.constant(coefficient, x.type))
    return result


def exp(f: Function, x: Value) -> Value:
    """Return e**x for f32 lanes: relative error below 2e-7 for normal results; inf on overflow, NaN for NaN."""
    bounded = f.min(f.max(x, _EXP_LOWEST), 89.0)
    n = f.op("math.roundeven", [bounded * LOG2E], x.type)
    r = f.fma(n, -_LN2_LOW, f.fma(n, -_LN2_HIGH, bounded))
    p = polynomial(f, _EXP, r)
    p = f.fma(p * r, r, r + 1.0)
    # 2**n in two factors, so that results below the smallest normal number are correct too.
    whole = f.cast("arith.fptosi", n, I32)
    half = f.op("arith.shrsi", [whole, f.like(1, whole)], whole.type)
    result = p * _power_of_two(f, half, x.type) * _power_of_two(f, whole - half, x.type)
    return f.select(x > _EXP_HIGHEST, float("inf"), f.select(f.compare("ne", x, x), x, result))


def _power_of_two(f: Function, n: Value, type: str) -> Value:
    return f.bitcast((n + 127) << 23, with_element(type, "f32"))


def decay(f: Function, x: Value) -> Value:
    """Return e**x for 16 lanes of x <= 0: relative error below 2e-7; 0 below -87, where results would not be normal
    numbers; NaN for NaN."""
    low = x < _DECAY_LOWEST
    bounded = f.select(low, _DECAY_LOWEST, x)
    shifted = f.fma(bounded, LOG2E, f.splat(_ROUND))
    n = shifted - _ROUND
    r = f.fma(n, -_LN2_LOW, f.fma(n, -_LN2_HIGH, bounded))
    p = polynomial(f, _EXP, r)
    p = f.fma(p * r, r, r + 1.0)
    power = (f.bitcast(shifted, vector(I32, LANES)) << 23) + 0x3F80_0000
    return f.select(low, 0.0, p * f.bitcast(power, x.type))


def exp2(f: Function, x: Value) -> Value:
    """Return 2**x for 16 lanes: relative error below 2e-7 from -126 on; 0 up to -127, inf from 128 on, NaN for NaN.

    It uses compare-and-select, which is one instruction on CPUs whose maximum does not follow IEEE.
    """
    low, high = f.like(-127.0, x), f.like(128.0, x)
    x = f.select(low > x, low, x)
    x = f.select(high < x, high, x)
    return _exp2_bounded(f, x)


def exp2_not_positive(f: Function, x: Value) -> Value:
    """Return `exp2` for x that exceed 0 by no more than rounding."""
    low = f.like(-127.0, x)
    return _exp2_bounded(f, f.select(low > x, low, x))


def exp2_below(f: Function, x: Value, base: Value) -> Value:
    """Return 2**(x - base) for 16 lanes of x <= base. `base` holds integers below 2**22 and only shifts the exponent,
    so it adds no rounding. The result is at least 2**-126, the smallest normal number; NaN for NaN."""
    low = base - 126.0
    x = f.select(low > x, low, x)
    # The last bits of `shifted` are the exponent of the result: the integer nearest to x, minus the base.
    shift = f.splat(_ROUND) - base
    shifted = x + shift
    p = polynomial(f, _EXP2, x - (shifted - shift))
    bits = vector(I32, LANES)
    return f.bitcast(f.bitcast(p, bits) + (f.bitcast(shifted, bits) << 23), x.type)


def _exp2_bounded(f: Function, x: Value) -> Value:
    """Return `exp2` for -127 <= x <= 128 and NaN."""
    shifted = x + _ROUND
    r = x - (shifted - _ROUND)
    p = polynomial(f, _EXP2, r)
    bits = vector(I32, LANES)
    return f.bitcast(f.bitcast(p, bits) + (f.bitcast(shifted, bits) << 23), x.type)


def log(f: Function, x: Value) -> Value:
    """Return the natural logarithm of 16 lanes that are normal, 0 (gives -inf), inf or NaN; a few units in the last
    place."""
    bits = f.bitcast(x, vector(I32, LANES))
    exponent = (bits >> 23) - 126
    mantissa = f.bitcast((bits & 0x007FFFFF) | 0x3F000000, x.type)  # in [1/2, 1)
    small = mantissa < math.sqrt(0.5)
    mantissa = f.select(small, mantissa + mantissa, mantissa)
    e = f.cast("arith.sitofp", exponent, F32) - f.select(small, f.splat(1.0), f.splat(0.0))
    r = mantissa - 1.0
    p = polynomial(f, _LOG, r)
    square = r * r
    rest = f.fma(e, _LN2_LOW, p * r * square) - square * 0.5
    result = f.fma(e, _LN2_HIGH, r + rest)
    result = f.select(x < float("inf"), result, x)  # inf and NaN are returned unchanged
    return f.select(x.eq(0.0), float("-inf"), result)


_TANH = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)


def tanh(f: Function, x: Value) -> Value:
    """Return tanh for f32 lanes: relative error below 3e-7; NaN for NaN. As in Cephes' tanhf (Moshier)."""
    size = f.op("math.absf", [x], x.type)
    far = 1.0 - f.like(2.0, x) / (exp(f, size + size) + 1.0)
    square = x * x
    near = f.fma(polynomial(f, _TANH, square) * square, x, x)
    return f.select(size < 0.625, near, f.op("math.copysign", [far, x], x.type))


_ERF_NEAR = (-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1)
_ERF_FAR = (-1.06777877e-1, -6.34846687e-1, -1.28717512e-1)


def erf(f: Function, x: Value) -> Value:
    """Return the error function for f32 lanes: relative error below 2e-7; NaN for NaN. Minimax polynomials by N. Juffa.
    """
    size, square = f.op("math.absf", [x], x.type), x * x
    near = f.fma(polynomial(f, _ERF_NEAR, square), x, x)
    cut = f.min(size, 4.0)  # beyond 4 the result is 1 in f32
    r = polynomial(f, (-1.72853470e-5, 3.83197126e-4), cut)
    u = polynomial(f, (-3.88396438e-3, 2.42546219e-2), cut)
    r = f.fma(r, cut * cut, u)
    for coefficient in _ERF_FAR:
        r = f.fma(r, cut, f.constant(coefficient, x.type))
    r = f.fma(r, cut, -cut)
    far = f.op("math.copysign", [1.0 - exp(f, r), x], x.type)
    return f.select(f.compare("ne", x, x), x, f.select(size > 0.927734375, far, near))
