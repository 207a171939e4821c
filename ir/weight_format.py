"""How weights are stored in 8 or 4 bits: formats, and what each stored tensor is a part of.

What the parts are, and the formula that makes them, is in sscc.runtime.quantization.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Union

from sscc.ir.errors import ErrorKind, InputError, UsageError
from sscc.ir.sharding import Cut, Segment


class WeightFormatErrors(ErrorKind):
    """Formats of quantised weights that do not exist."""

    BITS = UsageError, "weights cannot have {bits} bits, they must have one of {choices}"
    GROUP = UsageError, "a group cannot have {group} weights, it must have an even number"
    MINIMUM = UsageError, "a minimum goes with weights of 4 bits, and in place of a zero point"
    FLOATING = UsageError, "weights of {kind} have 8 bits, and neither zero points nor minimums"
    SCALES = UsageError, "scales cannot have dtype {scales!r}, it must be one of {choices}"
    UNKNOWN = (
        UsageError,
        "weights {text!r} are not known: give int8 or int4, then :GROUP (elements that share a scale, {group} by "
        "default), then one of {bases} if groups have one, then one of {scales} for the dtype of scales",
    )
    ENCODING_FORMAT = InputError, "the encoding {text!r} is not known: {cause}"
    ENCODING = InputError, "the encoding {text!r} is not known"
    STORED_SHAPE = InputError, "a tensor of shape [{shape}] cannot be the {part} of {format}"


BITS = (8, 4)
RANKS = (2, 3)
"""Of weights: a matrix, and one per expert."""
PARTS = ("values", "scales", "zeros", "minimums")
ZERO_POINT = "zero-point"
MINIMUM = "minimum"
DEFAULT_GROUP = 32
SCALE_DTYPES = ("bf16", "f16", "f32")
FLOAT8 = "e4m3"
"""The kind of codes that are small floats, of dtype FLOAT8_DTYPE, where others are integers."""
FLOAT8_DTYPE = "f8E4M3FN"
_TRANSPOSED = "transposed"


@dataclass(frozen=True)
class WeightFormat:
    """How weights are quantised, written ``int4:32``, ``int4:32:zero-point``, ``int4:32:minimum:f16``, ``e4m3:128``.

    Attributes:
        bits: of a code, 8 or 4.
        group: elements along K that share a scale, an even number.
        zero_point: whether a group has a zero point too, an integer.
        minimum: whether a group has instead what its lowest code stands for, a number of the scales' dtype; of 4 bits.
        scales: the dtype of scales (and minimums), one of SCALE_DTYPES.
        floating: whether codes, of 8 bits, are floats (e4m3).

    Raises:
        UsageError: another number of bits, a group that is odd or below 2, or parts that exclude each other.
    """

    bits: int
    group: int = DEFAULT_GROUP
    zero_point: bool = False
    minimum: bool = False
    scales: str = SCALE_DTYPES[0]
    floating: bool = False

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise WeightFormatErrors.BITS(bits=self.bits, choices=BITS)
        if self.group < 2 or self.group % 2:
            raise WeightFormatErrors.GROUP(group=self.group)
        if self.minimum and (self.zero_point or self.bits != 4):
            raise WeightFormatErrors.MINIMUM()
        if self.floating and (self.zero_point or self.minimum or self.bits != BITS[0]):
            raise WeightFormatErrors.FLOATING(kind=FLOAT8)
        if self.scales not in SCALE_DTYPES:
            raise WeightFormatErrors.SCALES(scales=self.scales, choices=SCALE_DTYPES)

    @classmethod
    def parse(cls, text: str) -> WeightFormat:
        """Reads what ``__str__`` writes, with or without a group, and with a dtype of scales that is the default.
        Raises UsageError for anything else."""
        kind, *words = text.split(":")
        scales = words.pop() if words[-1:] and words[-1] in SCALE_DTYPES else SCALE_DTYPES[0]
        base = words.pop() if words[-1:] and words[-1] in (ZERO_POINT, MINIMUM) else ""
        kinds = (FLOAT8, *(f"int{bits}" for bits in BITS))
        if kind not in kinds or len(words) > 1 or not all(map(str.isdecimal, words)):
            raise WeightFormatErrors.UNKNOWN(
                text=text, group=DEFAULT_GROUP, bases=(f":{ZERO_POINT}", f":{MINIMUM}"),
                scales=[f":{dtype}" for dtype in SCALE_DTYPES],
            )  # fmt: skip
        group = int(words[0]) if words else DEFAULT_GROUP
        bits = BITS[0] if kind == FLOAT8 else int(kind.removeprefix("int"))
        return cls(bits, group, base == ZERO_POINT, base == MINIMUM, scales, kind == FLOAT8)

    def __str__(self) -> str:
        base = f":{ZERO_POINT}" if self.zero_point else f":{MINIMUM}" if self.minimum else ""
        kind = FLOAT8 if self.floating else f"int{self.bits}"
        return f"{kind}:{self.group}{base}" + (f":{self.scales}" if self.scales != SCALE_DTYPES[0] else "")

    @property
    def parts(self) -> tuple[str, ...]:
        """What a weight is stored as."""
        base = PARTS[2:3] if self.zero_point else PARTS[3:] if self.minimum else ()
        return (*PARTS[:2], *base)

    def dtype(self, part: str) -> str:
        """The schedule's dtype of a part."""
        if part in ("scales", "minimums"):
            return self.scales
        return FLOAT8_DTYPE if self.floating else "i8"

    @property
    def half(self) -> int:
        """h: codes are -h .. h - 1."""
        return 1 << (self.bits - 1)

    @property
    def offset(self) -> int:
        """What is added to codes, and to zero points, where they are stored."""
        return self.half if self.bits == 4 else 0

    def stored(self, part: str, *shape: int) -> tuple[int, ...]:
        """The shape of a part of a weight [.., rows, columns], `columns` a multiple of the group."""
        *rows, columns = shape
        if part == "values":
            return *rows, columns * self.bits // 8
        return *rows, columns // self.group


KEEP: Literal["keep"] = "keep"
"""As the checkpoint has it: each weight in the format in which it is stored, or as it is."""

Weights = Union[WeightFormat, Literal["keep"]]
"""How the weights of products are to be stored."""


def parse_format(text: str) -> Weights:
    """``keep``, or what `WeightFormat.parse` reads. Raises UsageError as it does."""
    return KEEP if text == KEEP else WeightFormat.parse(text)


@dataclass(frozen=True)
class Encoding:
    """How a stored tensor is made from a source: which part of which format, ``int4:32/values``.

    Attributes:
        part: one of PARTS.
        transposed: the source is [.., K, N] instead of [.., N, K], written ``int4:32/values/transposed``.
    """

    format: WeightFormat
    part: str
    transposed: bool = False

    @classmethod
    def parse(cls, text: str) -> Encoding:
        """Read what `__str__` writes. Raises InputError for anything else."""
        kind, *words = text.split("/")
        transposed = words[1:] == [_TRANSPOSED]
        try:
            encoding = cls(WeightFormat.parse(kind), words[0] if words else "", transposed)
        except UsageError as error:
            raise WeightFormatErrors.ENCODING_FORMAT(text=text, cause=error) from None
        if str(encoding) != text or encoding.part not in encoding.format.parts:
            raise WeightFormatErrors.ENCODING(text=text)
        return encoding

    def __str__(self) -> str:
        return f"{self.format}/{self.part}" + (f"/{_TRANSPOSED}" if self.transposed else "")

    @property
    def dtype(self) -> str:
        """The schedule's dtype of the stored tensor."""
        return self.format.dtype(self.part)

    def source_shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the source of a stored tensor. Raises InputError where that is not of rank 2, or of rank 3 as
        of experts."""
        if len(stored) not in RANKS:
            raise WeightFormatErrors.STORED_SHAPE(shape=stored, part=self.part, format=self.format)
        *experts, rows, columns = stored
        length = columns * 8 // self.format.bits if self.part == "values" else columns * self.format.group
        return (*experts, length, rows) if self.transposed else (*experts, rows, length)

    def cut_of_part(self, source: Cut, rank: int) -> Cut:
        """How the stored tensor is cut where its source, of this rank, is cut so. Along the summed axis no block may
        begin within a group."""
        axis = self._other_axis(source.axis, rank)
        if axis != rank - 1:
            return Cut(axis, source.segments)
        groups = [Segment(segment.size // self.format.group, segment.parts) for segment in source.segments]
        width = self.format.stored(self.part, self.format.group)[-1]
        return Cut(axis, tuple(Segment(segment.size * width, segment.parts) for segment in groups))

    def cut_of_source(self, stored: Cut, rank: int) -> Cut:
        """How the source is cut where the stored tensor, of this rank, is cut so."""
        axis = self._other_axis(stored.axis, rank)
        if stored.axis != rank - 1:
            return Cut(axis, stored.segments)
        width = self.format.stored(self.part, self.format.group)[-1]
        sizes = [(segment.size // width * self.format.group, segment.parts) for segment in stored.segments]
        return Cut(axis, tuple(Segment(size, parts) for size, parts in sizes))

    def _other_axis(self, axis: int, rank: int) -> int:
        """The axis of the source that one of the stored tensor is, and the other way round."""
        swapped = {rank - 1: rank - 2, rank - 2: rank - 1} if self.transposed else {}
        return swapped.get(axis, axis)
