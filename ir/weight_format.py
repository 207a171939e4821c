"""How weights are stored in 8 or 4 bits: formats, and what each stored tensor is a part of.

What the parts are, and the formula that makes them, is in sscc.runtime.quantization.
"""

from __future__ import annotations

from dataclasses import dataclass

from sscc.ir.errors import InputError, UsageError

BITS = (8, 4)
RANKS = (2, 3)
"""Of weights: a matrix, and one per expert."""
PARTS = ("values", "scales", "zeros")
ZERO_POINT = "zero-point"
DEFAULT_GROUP = 32
_PART_DTYPES = {"values": "i8", "scales": "bf16", "zeros": "i8"}
_TRANSPOSED = "transposed"


@dataclass(frozen=True)
class WeightFormat:
    """How weights are quantised, written ``int4:32`` or ``int4:32:zero-point``.

    Attributes:
        bits: of a code, 8 or 4.
        group: elements along K that share a scale, an even number.
        zero_point: whether a group has a zero point too.

    Raises:
        UsageError: another number of bits, or a group that is odd or below 2.
    """

    bits: int
    group: int = DEFAULT_GROUP
    zero_point: bool = False

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise UsageError(f"weights of {self.bits} bits are not known, there are {' and '.join(map(str, BITS))}")
        if self.group < 2 or self.group % 2:
            raise UsageError(f"a group of {self.group} weights is not possible, it must be an even number")

    @classmethod
    def parse(cls, text: str) -> WeightFormat:
        """Reads ``int8``, ``int4:64``, ``int8:zero-point``, ``int4:32:zero-point``. Raises UsageError for others."""
        kind, *words = text.split(":")
        zero_point = words[-1:] == [ZERO_POINT]
        numbers = words[:-1] if zero_point else words
        if kind not in [f"int{bits}" for bits in BITS] or len(numbers) > 1 or not all(map(str.isdecimal, numbers)):
            raise UsageError(
                f"weights {text!r} are not known: give int8 or int4, then :GROUP (elements that share a scale, "
                f"{DEFAULT_GROUP} by default), then :{ZERO_POINT} if groups are to have one"
            )
        return cls(int(kind.removeprefix("int")), int(numbers[0]) if numbers else DEFAULT_GROUP, zero_point)

    def __str__(self) -> str:
        return f"int{self.bits}:{self.group}" + (f":{ZERO_POINT}" if self.zero_point else "")

    @property
    def parts(self) -> tuple[str, ...]:
        """What a weight is stored as."""
        return PARTS if self.zero_point else PARTS[:2]

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
        """Raises InputError for what `__str__` does not give."""
        kind, *words = text.split("/")
        transposed = words[1:] == [_TRANSPOSED]
        try:
            encoding = cls(WeightFormat.parse(kind), words[0] if words else "", transposed)
        except UsageError as error:
            raise InputError(f"the encoding {text!r} is not known: {error}") from None
        if str(encoding) != text or encoding.part not in encoding.format.parts:
            raise InputError(f"the encoding {text!r} is not known")
        return encoding

    def __str__(self) -> str:
        return f"{self.format}/{self.part}" + (f"/{_TRANSPOSED}" if self.transposed else "")

    @property
    def dtype(self) -> str:
        """The schedule's dtype of the stored tensor."""
        return _PART_DTYPES[self.part]

    def source_shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the source of a stored tensor. Raises InputError where that is not of rank 2, or of rank 3 as
        of experts."""
        if len(stored) not in RANKS:
            raise InputError(f"a tensor of shape {list(stored)} cannot be the {self.part} of {self.format}")
        *experts, rows, columns = stored
        length = columns * 8 // self.format.bits if self.part == "values" else columns * self.format.group
        return (*experts, length, rows) if self.transposed else (*experts, rows, length)
