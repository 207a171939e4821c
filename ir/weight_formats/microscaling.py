"""Microscaling formats of checkpoints of transformers: codes and scales in tensors of their own.

OCP Microscaling Formats (MX) v1.0: a block of 32 numbers of e2m1 shares an exponent of 2 (e8m0).
"""

from __future__ import annotations

from sscc.ir.weight_formats.fields import Run, bits_field
from sscc.ir.weight_formats.weight_format import Part, WeightFormat

BLOCKS, SCALES = "blocks", "scales"
E2M1_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""The numbers of e2m1 times 2, which are integers; scales are half of the stored ones."""

MXFP4_FORMAT = WeightFormat(
    "mxfp4",
    32,
    (Part(BLOCKS, 16), Part(SCALES, 1)),
    bits_field("codes", BLOCKS, 1, Run(0, 32, 4), table=E2M1_DOUBLED),
    (bits_field("scales", SCALES, 32, Run(0, 1, 8), kind="exponent", bias=128),),
)

FORMATS: dict[str, WeightFormat] = {item.name: item for item in (MXFP4_FORMAT,)}
"""By name."""
