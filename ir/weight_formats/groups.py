"""Formats of codes that have a scale per group, into which sscc quantizes weights: int8, int4 and e4m3."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.weight_formats.fields import FLOAT_BYTES, Field, Kind, Run, bits_field, float_field
from sscc.ir.weight_formats.weight_format import Part, WeightFormat


class GroupFormatErrors(ErrorKind):
    """Invalid formats of groups."""

    BITS = UsageError, "bits of weights must be one of {choices}, got {bits}"
    GROUP = UsageError, "a group must have an even number of weights, got {group}"
    MINIMUM = UsageError, "a minimum requires weights of 4 bits, and excludes a zero point"
    FLOATING = UsageError, "{kind} weights must have 8 bits and neither zero points nor minimums"
    SCALES = UsageError, "the dtype of scales must be one of {choices}, got {scales!r}"
    UNKNOWN = (
        UsageError,
        "unknown weight format {text!r}: give int8 or int4, then :GROUP (elements that share a scale, {group} by "
        "default), then one of {bases} if groups have one, then one of {scales} for the dtype of scales",
    )


BITS = (8, 4)
ZERO_POINT = "zero-point"
MINIMUM = "minimum"
DEFAULT_GROUP = 32
SCALE_DTYPES: tuple[Kind, ...] = ("bf16", "f16", "f32")
FLOAT8 = "e4m3"
"""Kind of codes that are 8-bit floats."""
VALUES, SCALES, ZEROS, MINIMUMS = "values", "scales", "zeros", "minimums"
"""Names of parts."""


@dataclass(frozen=True)
class GroupFormat:
    """A format of groups, written ``int4:32``, ``int4:32:zero-point``, ``int4:32:minimum:f16``, ``e4m3:128``.

    Attributes:
        bits: bits of a code, 8 or 4.
        group: elements along K that share a scale, an even number.
        zero_point: True if a group has an integer zero point.
        minimum: True if a group of 4-bit codes has instead the value of its lowest code, in the dtype of scales.
        scales: dtype of scales and minimums, one of SCALE_DTYPES.
        floating: True if codes are 8-bit floats, e4m3.

    Raises:
        UsageError: another number of bits, a group that is odd or below 2, or parts that exclude each other.
    """

    bits: int
    group: int = DEFAULT_GROUP
    zero_point: bool = False
    minimum: bool = False
    scales: Kind = SCALE_DTYPES[0]
    floating: bool = False

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise GroupFormatErrors.BITS(bits=self.bits, choices=BITS)
        if self.group < 2 or self.group % 2:
            raise GroupFormatErrors.GROUP(group=self.group)
        if self.minimum and (self.zero_point or self.bits != 4):
            raise GroupFormatErrors.MINIMUM()
        if self.floating and (self.zero_point or self.minimum or self.bits != BITS[0]):
            raise GroupFormatErrors.FLOATING(kind=FLOAT8)
        if self.scales not in SCALE_DTYPES:
            raise GroupFormatErrors.SCALES(scales=self.scales, choices=SCALE_DTYPES)

    @classmethod
    def parse(cls, text: str) -> GroupFormat:
        """Return the format that `__str__` writes as `text`; the group and the default dtype of scales may be omitted.

        Raises UsageError for other text.
        """
        kind, *words = text.split(":")
        scales = next((dtype for dtype in SCALE_DTYPES if words[-1:] == [dtype]), None)
        words = words[:-1] if scales else words
        base = words.pop() if words[-1:] and words[-1] in (ZERO_POINT, MINIMUM) else ""
        kinds = (FLOAT8, *(f"int{bits}" for bits in BITS))
        if kind not in kinds or len(words) > 1 or not all(map(str.isdecimal, words)):
            raise GroupFormatErrors.UNKNOWN(
                text=text, group=DEFAULT_GROUP, bases=(f":{ZERO_POINT}", f":{MINIMUM}"),
                scales=[f":{dtype}" for dtype in SCALE_DTYPES],
            )  # fmt: skip
        group = int(words[0]) if words else DEFAULT_GROUP
        bits = BITS[0] if kind == FLOAT8 else int(kind.removeprefix("int"))
        return cls(bits, group, base == ZERO_POINT, base == MINIMUM, scales or SCALE_DTYPES[0], kind == FLOAT8)

    def __str__(self) -> str:
        base = f":{ZERO_POINT}" if self.zero_point else f":{MINIMUM}" if self.minimum else ""
        kind = FLOAT8 if self.floating else f"int{self.bits}"
        return f"{kind}:{self.group}{base}" + (f":{self.scales}" if self.scales != SCALE_DTYPES[0] else "")

    @property
    def half(self) -> int:
        """h: codes are -h .. h - 1."""
        return 1 << (self.bits - 1)

    @property
    def offset(self) -> int:
        """Number that is added to codes and zero points when they are stored."""
        return self.half if self.bits == 4 else 0

    @property
    def descriptor(self) -> WeightFormat:
        """Descriptor of the format; a block is a group."""
        return _descriptor(self)


@cache
def _descriptor(of: GroupFormat) -> WeightFormat:
    size, group = FLOAT_BYTES[of.scales], of.group
    parts = [Part(VALUES, group * of.bits // 8), Part(SCALES, size)]
    if of.floating:
        codes = float_field("codes", VALUES, 1, 0, "e4m3", count=group)
    elif of.bits == 8:
        codes = bits_field("codes", VALUES, 1, Run(0, group, 8), kind="signed")
    else:
        based = of.zero_point or of.minimum
        codes = bits_field("codes", VALUES, 1, Run(0, group, 4), bias=0 if based else of.offset)
    scales = float_field("scales", SCALES, group, 0, of.scales)
    minimums: tuple[Field, ...] = ()
    zeros = None
    if of.minimum:
        minimums = (float_field("minimums", MINIMUMS, group, 0, of.scales),)
        parts.append(Part(MINIMUMS, size))
    if of.zero_point:
        zeros = bits_field("zeros", ZEROS, group, Run(0, 1, 8), kind="signed")
        parts.append(Part(ZEROS, 1))
    return WeightFormat(str(of), group, tuple(parts), codes, (scales,), minimums, zeros)
