"""Block formats of GGUF files, by the names of their types.

Layouts and formulas are those of `ggml-quants.c` of llama.cpp and of the package `gguf`; tests compare with the latter.
Each format has one part, the blocks as stored in the file.
"""

from __future__ import annotations

from sscc.ir.weight_formats.fields import Field, Kind, Run, bits_field, float_field
from sscc.ir.weight_formats.microscaling import E2M1_DOUBLED
from sscc.ir.weight_formats.weight_format import Part, WeightFormat

BLOCKS = "blocks"
_IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def _format(
    name: str,
    block: int,
    nbytes: int,
    codes: Field,
    *scales: Field,
    minimums: tuple[Field, ...] = (),
    subtracts: bool = False,
) -> WeightFormat:
    return WeightFormat(name, block, (Part(BLOCKS, nbytes),), codes, scales, minimums, None, subtracts)


def _codes(*runs: Run, kind: Kind = "unsigned", bias: int = 0, table: tuple[int, ...] = ()) -> Field:
    return bits_field("codes", BLOCKS, 1, *runs, kind=kind, bias=bias, table=table)


def _half(name: str, per: int, at: int) -> Field:
    return float_field(name, BLOCKS, per, at, "f16")


def _six_bits(name: str, low: int, at: int) -> Field:
    """Return 6-bit scales or minimums of Q4_K and Q5_K: the last four have their high bits beside the first four."""
    first, high, rest = Run(at, 4, 6, side=4), Run(at, 4, 2, side=4, low=6, shift=4), Run(12, 4, 4, side=4, low=low)
    return Field(name, BLOCKS, 32, 8, ((first,), (rest, high)))


def _k_scales() -> tuple[tuple[Field, Field], tuple[Field, Field]]:
    """Return scales and minimums of Q4_K and Q5_K."""
    scales = _half("d", 256, 0), _six_bits("scales", 0, 4)
    return scales, (_half("dmin", 256, 2), _six_bits("minimums", 4, 8))


_K_SCALES, _K_MINIMUMS = _k_scales()

FORMATS: dict[str, WeightFormat] = {
    item.name: item
    for item in (
        _format("Q8_0", 32, 34, _codes(Run(2, 32, 8, side=32), kind="signed"), _half("d", 32, 0)),
        _format("Q4_0", 32, 18, _codes(Run(2, 32, 4, side=16), bias=8), _half("d", 32, 0)),
        _format(
            "Q4_1", 32, 20, _codes(Run(4, 32, 4, side=16)), _half("d", 32, 0), minimums=(_half("m", 32, 2),)
        ),
        _format(
            "Q5_0", 32, 22, _codes(Run(6, 32, 4, side=16), Run(2, 32, 1, shift=4), bias=16), _half("d", 32, 0)
        ),
        _format(
            "Q5_1",
            32,
            24,
            _codes(Run(8, 32, 4, side=16), Run(4, 32, 1, shift=4)),
            _half("d", 32, 0),
            minimums=(_half("m", 32, 2),),
        ),
        _format(
            "Q2_K",
            256,
            84,
            _codes(Run(16, 256, 2, side=32)),
            _half("d", 256, 80),
            bits_field("scales", BLOCKS, 16, Run(0, 16, 4, side=16)),
            minimums=(_half("dmin", 256, 82), bits_field("minimums", BLOCKS, 16, Run(0, 16, 4, side=16, low=4))),
            subtracts=True,
        ),
        _format(
            "Q3_K",
            256,
            110,
            _codes(Run(32, 256, 2, side=32), Run(0, 256, 1, side=32, shift=2), bias=4),
            _half("d", 256, 108),
            bits_field("scales", BLOCKS, 16, Run(96, 16, 4, side=8), Run(104, 16, 2, side=4, shift=4), bias=32),
        ),
        _format(
            "Q4_K", 256, 144, _codes(Run(16, 256, 4, side=32)), *_K_SCALES, minimums=_K_MINIMUMS, subtracts=True
        ),
        _format(
            "Q5_K",
            256,
            176,
            _codes(Run(48, 256, 4, side=32), Run(16, 256, 1, side=32, shift=4)),
            *_K_SCALES,
            minimums=_K_MINIMUMS,
            subtracts=True,
        ),
        _format(
            "Q6_K",
            256,
            210,
            _codes(Run(0, 256, 4, side=64), Run(128, 256, 2, side=32, shift=4), bias=32),
            _half("d", 256, 208),
            bits_field("scales", BLOCKS, 16, Run(192, 16, 8, side=16), kind="signed"),
        ),
        _format("IQ4_NL", 32, 18, _codes(Run(2, 32, 4, side=16), table=_IQ4_VALUES), _half("d", 32, 0)),
        _format(
            "IQ4_XS",
            256,
            136,
            _codes(Run(8, 256, 4, side=16), table=_IQ4_VALUES),
            _half("d", 256, 0),
            bits_field("scales", BLOCKS, 32, Run(4, 8, 4), Run(2, 8, 2, shift=4), bias=32),
        ),
        _format(
            "MXFP4",
            32,
            17,
            _codes(Run(1, 32, 4, side=16), table=E2M1_DOUBLED),
            bits_field("scales", BLOCKS, 32, Run(0, 1, 8), kind="exponent", bias=128),
        ),
        _format(
            "TQ1_0",
            256,
            54,
            Field(
                "codes",
                BLOCKS,
                1,
                256,
                (
                    (Run(0, 160, 2, side=32, base=3),),
                    (Run(32, 80, 2, side=16, base=3),),
                    (Run(48, 16, 2, side=4, base=3),),
                ),
                bias=1,
            ),
            _half("d", 256, 52),
        ),
        _format("F16", 32, 64, float_field("codes", BLOCKS, 1, 0, "f16", count=32)),
        _format("TQ2_0", 256, 66, _codes(Run(0, 256, 2, side=32), bias=1), _half("d", 256, 64)),
    )
}
"""Formats by the name of the type."""
