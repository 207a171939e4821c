"""Elementary functions on vectors of f32 as polynomials: MLIR would call libm once per lane.

Each is accurate to a few units in the last place over the whole range, and the same on every CPU that has a fused
multiply-add.
"""

from __future__ import annotations

from sscc.runtime.codegen.mlir import I32, Function, Value, with_element

_LOG2E = 1.44269504088896340736
# ln 2 in two parts, the first with zeros at its end, so that n * first is exact.
_LN2_HIGH = 0.693359375
_LN2_LOW = -2.12194440e-4
# Minimax coefficients of (exp(r) - 1 - r) / r**2 on |r| <= ln(2) / 2, as in Cephes' expf (Moshier).
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_EXP_LOWEST = -104.0
_EXP_HIGHEST = 88.72283935546875


def exp(f: Function, x: Value) -> Value:
    """e**x for f32 lanes, rel. error below 2e-7 where the result is a normal number; overflow gives inf, NaN NaN."""
    bounded = f.min(f.max(x, _EXP_LOWEST), 89.0)
    n = f.op("math.roundeven", [bounded * _LOG2E], x.type)
    r = f.fma(n, -_LN2_LOW, f.fma(n, -_LN2_HIGH, bounded))
    p = f.constant(_EXP[0], x.type)
    for coefficient in _EXP[1:]:
        p = f.fma(p, r, f.constant(coefficient, x.type))
    p = f.fma(p * r, r, r + 1.0)
    # 2**n in two factors, so that results below the smallest normal number come out right.
    whole = f.cast("arith.fptosi", n, I32)
    half = f.op("arith.shrsi", [whole, f.like(1, whole)], whole.type)
    result = p * _power_of_two(f, half, x.type) * _power_of_two(f, whole - half, x.type)
    return f.select(x > _EXP_HIGHEST, float("inf"), f.select(f.compare("ne", x, x), x, result))


def _power_of_two(f: Function, n: Value, type: str) -> Value:
    return f.bitcast((n + 127) << 23, with_element(type, "f32"))


_TANH = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)


def tanh(f: Function, x: Value) -> Value:
    """Hyperbolic tangent for f32 lanes, rel. error below 3e-7; NaN gives NaN. As in Cephes' tanhf (Moshier)."""
    size = f.op("math.absf", [x], x.type)
    far = 1.0 - f.like(2.0, x) / (exp(f, size + size) + 1.0)
    square = x * x
    p = f.constant(_TANH[0], x.type)
    for coefficient in _TANH[1:]:
        p = f.fma(p, square, f.constant(coefficient, x.type))
    near = f.fma(p * square, x, x)
    return f.select(size < 0.625, near, f.op("math.copysign", [far, x], x.type))


_ERF_NEAR = (-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1)
_ERF_FAR = (-1.06777877e-1, -6.34846687e-1, -1.28717512e-1)


def erf(f: Function, x: Value) -> Value:
    """Error function for f32 lanes, rel. error below 2e-7; NaN gives NaN. Minimax polynomials by N. Juffa."""
    size, square = f.op("math.absf", [x], x.type), x * x
    near = f.constant(_ERF_NEAR[0], x.type)
    for coefficient in _ERF_NEAR[1:]:
        near = f.fma(near, square, f.constant(coefficient, x.type))
    near = f.fma(near, x, x)
    cut = f.min(size, 4.0)  # from there on it is 1 in f32
    r = f.fma(cut, -1.72853470e-5, f.constant(3.83197126e-4, x.type))
    u = f.fma(cut, -3.88396438e-3, f.constant(2.42546219e-2, x.type))
    r = f.fma(r, cut * cut, u)
    for coefficient in _ERF_FAR:
        r = f.fma(r, cut, f.constant(coefficient, x.type))
    r = f.fma(r, cut, -cut)
    far = f.op("math.copysign", [1.0 - exp(f, r), x], x.type)
    return f.select(f.compare("ne", x, x), x, f.select(size > 0.927734375, far, near))
