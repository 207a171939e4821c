"""Formats of small floats that share a scale: MXFP4 and NVFP4, with codes and scales in tensors of their own.

OCP Microscaling Formats (MX) v1.0: a block of 32 numbers of e2m1 shares an exponent of 2 (e8m0). NVFP4: 16 numbers of
e2m1 share an e4m3, and all numbers of a weight one f32. A program repeats this f32 once per block, so that a row is
whole blocks; the blocks are long where the rows allow it.
"""

from __future__ import annotations

from sscc.ir.weight_formats.fields import Run, bits_field, float_field
from sscc.ir.weight_formats.weight_format import Part, WeightFormat

BLOCKS, SCALES, WHOLE = "blocks", "scales", "whole"
E2M1_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Values of e2m1 times 2, which are integers; scales are half of the stored ones."""
NVFP4_GROUP = 16
_NVFP4_BLOCKS = (256, 64)

MXFP4_FORMAT = WeightFormat(
    "mxfp4",
    32,
    (Part(BLOCKS, 16), Part(SCALES, 1)),
    bits_field("codes", BLOCKS, 1, Run(0, 32, 4), table=E2M1_DOUBLED),
    (bits_field("scales", SCALES, 32, Run(0, 1, 8), kind="exponent", bias=128),),
)


def _nvfp4(name: str, block: int, side: int) -> WeightFormat:
    """Return NVFP4 in which `side` neighboring numbers lie in the low halves of `side` bytes."""
    groups = block // NVFP4_GROUP
    return WeightFormat(
        name if block == _NVFP4_BLOCKS[0] else f"{name}:{block}",
        block,
        (Part(BLOCKS, block // 2), Part(SCALES, groups), Part(WHOLE, 4)),
        bits_field("codes", BLOCKS, 1, Run(0, block, 4, side=side), table=E2M1_DOUBLED),
        (
            float_field("whole", WHOLE, block, 0, "f32"),
            float_field("scales", SCALES, NVFP4_GROUP, 0, "e4m3", count=groups),
        ),
    )


_OF_SAFETENSORS = tuple(_nvfp4("nvfp4", block, 1) for block in _NVFP4_BLOCKS)
_OF_GGUF = tuple(_nvfp4("NVFP4", block, 8) for block in _NVFP4_BLOCKS)


def nvfp4_of(columns: int, *, gguf: bool = False) -> WeightFormat | None:
    """Return the NVFP4 format of rows of `columns` numbers; None for rows that are no whole blocks."""
    known = _OF_GGUF if gguf else _OF_SAFETENSORS
    return next((item for item in known if columns % item.block == 0), None)


FORMATS: dict[str, WeightFormat] = {item.name: item for item in (MXFP4_FORMAT, *_OF_SAFETENSORS, *_OF_GGUF)}
"""Formats by name."""
