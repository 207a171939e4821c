"""Streams of rows: the sequences of rows, one per position and KV head, that a layer keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sscc.ir.layer_state.codecs import RowCodec

K_AND_V, LATENT, INPUTS, RECURRENT, INDEX = ("k", "v"), ("latent",), ("inputs",), ("recurrent",), ("index",)
PENDING = (*RECURRENT, "pending")
STREAMS_OF_A_GROUP = (K_AND_V, LATENT, INPUTS, RECURRENT, PENDING, INDEX)
"""Names of the streams that a group of layers may have. A latent row is the key of all heads, and its first numbers are
their value (`absorb-latent`). "Inputs" are those of a convolution, all channels in one row. The rows of a recurrent
state are those of its matrices; "pending" are inputs of tokens that it does not include yet. An index has the keys of
a learned selection of rows."""
STREAMS = tuple(dict.fromkeys(name for names in STREAMS_OF_A_GROUP for name in names))
CACHES, SCRATCHES, STORES, RESIDENT_ROWS = (
    tuple(f"{name}_{what}" for name in STREAMS) for what in ("cache", "scratch", "store", "resident")
)
"""The states of each stream: the rows that are kept; those of the prompt in progress; those of every slot's
positions, where they stay; those that stay near from step to step, where a step may fetch only few."""


@dataclass(frozen=True)
class Stream:
    """A sequence of rows, one per position and KV head, that every layer of a group keeps.

    Attributes:
        name: one of `STREAMS`.
        width: numbers of a row.
        rows: rows of a recurrent state; 0 if each position has a row.
    """

    name: str
    width: int
    rows: int = 0

    @property
    def cache(self) -> str:
        return f"{self.name}_cache"

    @property
    def scratch(self) -> str:
        return f"{self.name}_scratch"

    @property
    def store(self) -> str:
        """The state that holds the rows of every slot's prompt where the selected ones stay there, and those of later
        positions too where queries choose."""
        return f"{self.name}_store"

    @property
    def resident(self) -> str:
        """The state that holds the rows of every slot that stay near, where a step may fetch only few."""
        return f"{self.name}_resident"


def is_latent(streams: Sequence[Stream]) -> bool:
    """Return True if all heads make their K and V of one row per position."""
    return any(stream.name in LATENT for stream in streams)


def state_name(name: str, group: str) -> str:
    """Return the name of a state of the layers of a group in the entries."""
    return f"{name}.{group}" if group else name


def streams_of(names: Sequence[str], shapes: Mapping[str, Sequence[int]], codec: RowCodec) -> tuple[Stream, ...]:
    """Return the streams that have a state among `shapes`.

    Args:
        names: the name of each stream's state, in the order of `STREAMS`.
        codec: codec of the rows in these states.
    """
    known = {stream: shapes[name] for stream, name in zip(STREAMS, names, strict=True) if name in shapes}
    return tuple(
        Stream(name, codec.numbers(shape[-1]), shape[-2] if name in RECURRENT else 0) for name, shape in known.items()
    )
