"""The positions of a text that a slot's cache holds, by layer and KV head, with reasons."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from sscc.ir.cache_plan import LayerGroup
from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.geometry import Geometry
from sscc.ir.layer_state.kept import Reason
from sscc.ir.layer_state.protocol import Selected, Tensors
from sscc.ir.sizes import format_bytes
from sscc.runtime.artifact.signature import Signature
from sscc.runtime.artifact.tensor_files import Array


class KeptPositionErrors(ErrorKind):
    NO_HEAD = UsageError, "KV head {head} does not exist, layer {layer} has heads 0 .. {last}"
    NO_LAYER = UsageError, "layer {layer} does not exist; the program has layers 0 .. {last}"
    SEVERAL_RANKS = (
        UsageError,
        "the kept positions are unknown: the program has several ranks, each of which knows only the positions "
        "of its own heads; compile it without --tp to see them",
    )


@dataclass(frozen=True, eq=False)
class LayerKept:
    """The contents of one layer's cache.

    Attributes:
        layer: number of the layer.
        source: the layer whose rows it reads, if it keeps none of its own; else None.
        geometry: geometry of its rows.
        reasons: [Hkv, length] u8, a `Reason` for every position that was written.
        choice_known: False if a step's query selects among more candidates than it reads, and the selection is not
            kept: all candidates are `STORED` then. With a limit on fetched rows (`Geometry.fetch`) it is known.
    """

    layer: int
    source: int | None
    geometry: Geometry
    reasons: Array
    choice_known: bool = True

    @property
    def kv_heads(self) -> int:
        return len(self.reasons)

    def positions(self, head: int, *reasons: Reason) -> Array:
        """Return the positions that a KV head has for one of `reasons`, [n] i64, ascending; without any, those that
        every step reads. Raises UsageError for a head that does not exist."""
        if not 0 <= head < self.kv_heads:
            raise KeptPositionErrors.NO_HEAD(head=head, layer=self.layer, last=self.kv_heads - 1)
        wanted = reasons or tuple(reason for reason in Reason if reason.near)
        positions: Array = np.flatnonzero(np.isin(self.reasons[head], wanted))
        return positions

    def __repr__(self) -> str:
        counts = {reason.name.lower(): int((self.reasons[0] == reason).sum()) for reason in reversed(Reason)}
        listed = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        shared = "" if self.source is None else f", rows of layer {self.source}"
        open_choice = "" if self.choice_known else ", chosen anew by every step"
        return f"LayerKept(layer {self.layer}{shared}: {self.kv_heads} KV heads with {listed}{open_choice})"


@dataclass(frozen=True)
class Kept:
    """The contents of one slot's cache: positions by layer and KV head, and counts.

    Attributes:
        prompt_len: tokens of the prompt.
        length: positions written so far (prompt plus fed tokens).
        kept: positions whose rows a layer under the requested geometry holds, per KV head.
        evicted: positions that are no longer in the cache, length - kept.
        budget: maximum number of positions that the slot may hold.
        kv_bytes: bytes of the slot's K and V, including its whole prompt if the selected rows are indexed, and of its
            quantized keys.
        full_bytes: bytes of an uncompressed cache of max_context rows.
        full_bytes_now: bytes of an uncompressed cache of `length` rows.
        of_layers: `layers`, or None if unknown.
    """

    prompt_len: int
    length: int
    kept: int
    evicted: int
    budget: int
    kv_bytes: int
    full_bytes: int
    full_bytes_now: int
    of_layers: tuple[LayerKept, ...] | None = field(default=None, compare=False)

    @property
    def layers(self) -> tuple[LayerKept, ...]:
        """Contents of every layer, in order. Raises UsageError for a program of several ranks, each of which knows only
        the positions of its own heads."""
        if self.of_layers is None:
            raise KeptPositionErrors.SEVERAL_RANKS()
        return self.of_layers

    def reasons(self, layer: int | None = None, head: int | None = None) -> Array:
        """Return the `Reason` of every position, [N, length] u8: of all layers and KV heads one after another, of one
        layer's heads, or of one head. Raises UsageError for a layer or head that does not exist."""
        chosen = self.layers if layer is None else (self._layer(layer),)
        if head is None:
            return np.concatenate([one.reasons for one in chosen])
        for one in chosen:
            one.positions(head)
        return np.stack([one.reasons[head] for one in chosen])

    def shares(self, layer: int | None = None, head: int | None = None) -> Array:
        """Return the fraction of the layers and KV heads of `reasons` in which every step reads a position's row,
        [length] f64."""
        shares: Array = (self.reasons(layer, head) >= Reason.SELECTED).mean(axis=0)
        return shares

    def _layer(self, layer: int) -> LayerKept:
        if not 0 <= layer < len(self.layers):
            raise KeptPositionErrors.NO_LAYER(layer=layer, last=len(self.layers) - 1)
        return self.layers[layer]

    def __repr__(self) -> str:
        held = f"{format_bytes(self.kv_bytes)} of {format_bytes(self.full_bytes)}"
        what = f"{self.kept} of {self.length} positions kept, budget {self.budget}, {held}"
        return f"Kept({what}; {len(self.of_layers or ())} layers)" if self.of_layers else f"Kept({what})"


def selected_by_prompt(signature: Signature, tensor: Tensors, length: int) -> Selected:
    """Return copies of the positions that the last prefilled prompt, of `length` tokens, has selected, if the program
    keeps those of one prompt only: if the selected rows are copied into the cache."""
    return {
        group: tensor(name)[:, :, :count].read()
        for _, state in signature.states
        for group, (name, count) in state.remembered(length).items()
    }


def kept_layers(
    signature: Signature,
    tensor: Tensors,
    slot: int,
    length: int,
    prompt_len: int,
    selected: Selected,
) -> tuple[LayerKept, ...]:
    """Return the contents of every layer of a slot.

    Args:
        tensor: returns a state by its name.
        length: positions written so far, `prompt_len` of them by prefill.
        selected: result of `selected_by_prompt` after the slot's prompt.
    """
    layers: dict[int, LayerKept] = {}
    first = ((group, state) for group, state in signature.states if not group.beside)
    for group, state in first:
        for index, layer, source in _readers(group):
            kept = state.kept(tensor, index, slot, length, prompt_len, selected)
            layers[layer] = LayerKept(
                layer, source, group.geometry.of_layer(index), kept.reasons, kept.choice_known
            )
    return tuple(layers[layer] for layer in sorted(layers))


def _readers(group: LayerGroup) -> Iterator[tuple[int, int, int | None]]:
    """Yield the layers that read the rows of a group: index of the rows in it, layer, and the layer that keeps the rows
    if it is another one."""
    for index, layer in enumerate(group.layers):
        yield index, layer, None
    for sharer in group.sharers:
        yield 0, sharer, group.layers[0]


__all__ = ["Kept", "LayerKept", "Reason", "Selected", "kept_layers", "selected_by_prompt"]
