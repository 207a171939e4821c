"""All weight formats by name, and the encoding of a stored tensor: one part of a weight in a format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Union

from sscc.ir.errors import ErrorKind, InputError, UsageError
from sscc.ir.sharding import Cut, Segment
from sscc.ir.weight_formats import ggml, microscaling
from sscc.ir.weight_formats.groups import GroupFormat
from sscc.ir.weight_formats.weight_format import RANKS, WeightFormat


class EncodingErrors(ErrorKind):
    FORMAT = InputError, "unknown encoding {text!r}: {cause}"
    UNKNOWN = InputError, "unknown encoding {text!r}"
    STORED_SHAPE = InputError, "a tensor of shape [{shape}] cannot hold the {part} of {format}"


KEEP: Literal["keep"] = "keep"
"""Keep each weight in the format in which the checkpoint stores it."""

DENSE: Literal["dense"] = "dense"
"""Store weights as numbers of the program's dtype."""

Weights = Union[WeightFormat, Literal["keep"]]
"""Storage of weights other than as numbers of the program's dtype."""

_TRANSPOSED = "transposed"
_ORDERED = "ordered"
ORDER = "order"
"""Name, beside those of a format's parts, of the order of columns, i64 [K]: number i of a row of codes is that of
column `order[i]`."""
_SOURCE_OF_ORDER = "#order"


WeightChoice = Union[WeightFormat, Literal["keep", "dense"]]
"""Values of the option."""


def parse_format(text: str) -> WeightChoice:
    """Read ``keep``, ``dense``, or the name of a format. Raises UsageError for any other text."""
    return KEEP if text == KEEP else DENSE if text == DENSE else format_named(text)


CHECKPOINT_FORMATS: dict[str, WeightFormat] = {**ggml.FORMATS, **microscaling.FORMATS}
"""Formats of checkpoints, by name."""


def format_named(name: str) -> WeightFormat:
    """Return a format by its name. Raises UsageError where there is none."""
    known = CHECKPOINT_FORMATS.get(name)
    return GroupFormat.parse(name).descriptor if known is None else known


@dataclass(frozen=True)
class Encoding:
    """Relation of a stored tensor to its source: a part of a format, ``int4:32/values``, ``Q4_K/blocks``.

    Attributes:
        format: the weight format.
        part: name of a part of the format.
        transposed: True if the source is [.., K, N] instead of [.., N, K], written ``int4:32/values/transposed``.
        ordered: True if the columns of the source are stored in another order, so that those of a group are adjacent,
            written ``int4:32/values/ordered``.
    """

    format: WeightFormat
    part: str
    transposed: bool = False
    ordered: bool = False

    @classmethod
    def parse(cls, text: str) -> Encoding:
        """Read an encoding as `__str__` writes it. Raises InputError for any other text."""
        name, *words = text.split("/")
        try:
            encoding = cls(format_named(name), words[0] if words else "", _TRANSPOSED in words, _ORDERED in words)
        except UsageError as error:
            raise EncodingErrors.FORMAT(text=text, cause=error) from None
        if str(encoding) != text or encoding.part not in encoding.format.bytes_of:
            raise EncodingErrors.UNKNOWN(text=text)
        return encoding

    def __str__(self) -> str:
        marks = {_TRANSPOSED: self.transposed, _ORDERED: self.ordered}
        return "/".join([str(self.format), self.part, *(mark for mark, has in marks.items() if has)])

    @property
    def is_first(self) -> bool:
        """True for the first part of the format: each weight has exactly one such tensor."""
        return self.part == self.format.parts[0].name

    def source_shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the source of a stored tensor. Raises InputError where that is not of rank 2 or 3."""
        if len(stored) not in RANKS:
            raise EncodingErrors.STORED_SHAPE(shape=stored, part=self.part, format=self.format)
        *experts, rows, nbytes = stored
        columns = self.format.columns(self.part, nbytes)
        return (*experts, columns, rows) if self.transposed else (*experts, rows, columns)

    def cut_of_part(self, source: Cut, rank: int) -> Cut:
        """Return the cut of the stored tensor, from the cut of its source. Along the summed axis no segment may begin
        within a block."""
        return self._converted(source, rank, self.format.block, self.format.bytes_of[self.part], of_source=True)

    def cut_of_source(self, stored: Cut, rank: int) -> Cut:
        """Return the cut of the source whose stored tensor, of this rank, is cut so."""
        return self._converted(stored, rank, self.format.bytes_of[self.part], self.format.block, of_source=False)

    def _converted(self, cut: Cut, rank: int, divisor: int, factor: int, *, of_source: bool) -> Cut:
        swapped = {rank - 1: rank - 2, rank - 2: rank - 1} if self.transposed else {}
        axis = swapped.get(cut.axis, cut.axis)
        if (axis if of_source else cut.axis) != rank - 1:
            return Cut(axis, cut.segments)
        return Cut(axis, tuple(Segment(segment.size // divisor * factor, segment.parts) for segment in cut.segments))


def order_of(source: str) -> str:
    """Return the name under which a program has the order of the columns of a source."""
    return source + _SOURCE_OF_ORDER


def ordered_source(name: str) -> str | None:
    """Return the source whose order of columns has this name; None for any other name."""
    return name.removesuffix(_SOURCE_OF_ORDER) if name.endswith(_SOURCE_OF_ORDER) else None
