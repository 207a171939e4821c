"""The kinds of state that layers keep in rows, by their streams."""

from __future__ import annotations

from collections.abc import Sequence

from sscc.ir.layer_state.index_keys import IndexKeys
from sscc.ir.layer_state.inputs import Inputs
from sscc.ir.layer_state.recurrent import Recurrent
from sscc.ir.layer_state.row_streams import INDEX, INPUTS, PENDING, RECURRENT, Stream
from sscc.ir.layer_state.rows import Rows
from sscc.ir.layer_state.stateless import Stateless

_KINDS: dict[tuple[str, ...], type[Rows]] = {
    INDEX: IndexKeys,
    INPUTS: Inputs,
    RECURRENT: Recurrent,
    PENDING: Recurrent,
    (): Stateless,
}
"""The kinds whose rows are not those of attention, by the names of their streams."""


def kind_of(streams: Sequence[Stream]) -> type[Rows]:
    """Return the kind of state of a group of layers."""
    return _KINDS.get(tuple(stream.name for stream in streams), Rows)
