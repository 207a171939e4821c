"""The end of a prompt in a layer that keeps rows: the selection of those that stay, and their copies to the cache."""

from __future__ import annotations

from collections.abc import Sequence

from torch_mlir import ir
from torch_mlir.dialects import func

from sscc.ir.builders import Argument, Offset, insert_slice, tensor_type
from sscc.ir.dialects import kv
from sscc.ir.layer_state.selectors import OBSERVED, SELECTED
from sscc.ir.layer_state.stores import FIRST, TOPK
from sscc.passes.layer_threading import CHOOSE, COMPRESS, OWN_SLOT, filled, parted
from sscc.passes.row_layers import RowLayer


class RowEnding:
    """Adds the functions that run after the last chunk of a prompt, for rows that are copied into a cache."""

    def __init__(self, layer: RowLayer) -> None:
        self.layer = layer

    def add(self) -> None:
        """Add `compress`, and `choose` if ranks that share KV heads have different slots."""
        if self.layer.split:
            self._of_own_slots()
        else:
            self._of_all_slots()

    def _of_all_slots(self) -> None:
        layer, index_type = self.layer, ir.IndexType.get()
        caches, outputs, logits = layer.caches(), self.outputs(), self.logits()
        absorbs = OBSERVED in layer.states and bool(layer.attended.ups)
        scratch = [*layer.prompt_rows(), *layer.observed(), *self.asked_states()]
        arguments = [
            *scratch,
            *caches,
            *self.filled_states(),
            *logits,
            *([layer.up_weight()[0]] if absorbs else []),
            *(Argument("input", name, index_type) for name in ("slot", "length", *layer.numbers)),
        ]
        function = layer.end_function(COMPRESS, arguments, [*caches, *outputs])
        count, states = len(layer.streams), list(function.arguments)[: len(scratch)]
        scratches, observed = states[:count], states[count:]
        others = list(function.arguments)[len(scratch) :]
        wholes, (others, own) = others[:count], layer.own_numbers(others[count:])
        *picks, slot, length = others
        weight = picks.pop() if absorbs else None
        picks, learned = picks[: len(picks) - len(logits)], picks[len(picks) - len(logits) :]
        with ir.InsertionPoint(function.entry_block), function.location:
            selected = None
            if weight is not None:
                observed[0] = layer.asked(observed[0], weight)
            if SELECTED in layer.states:
                selected = layer.choice().positions(observed, scratches, length, layer.selects(own))
            index = self.index(length, layer.selects(own), selected)
            offsets: list[Offset] = [slot, 0, own.get(FIRST, 0), 0]
            pairs = zip(wholes, scratches, strict=True)
            caches_now = [filled(cache, offsets, scratch, index) for cache, scratch in pairs]
            more = self.kept_choice(selected, picks, slot)
            more += self.first_choice(observed, scratches, caches_now, picks, slot, length, learned, offsets)
            func.ReturnOp([*caches_now, *more])
        layer.note_settings(function)

    def filled_states(self) -> list[Argument]:
        """Return the states beside caches that the end of a prompt fills for its slot."""
        return []

    def outputs(self) -> list[Argument]:
        """Return the states beside caches that the end of a prompt gives."""
        return self.layer.selected()

    def logits(self) -> list[Argument]:
        """Return the logits of learned sinks, where the end of a prompt needs them."""
        return []

    def asked_states(self) -> list[Argument]:
        """Return the states of the prompt in progress, beside rows and last queries, that its end reads."""
        return []

    def index(self, length: ir.Value, topk: ir.Value, selected: ir.Value | None) -> ir.Value:
        """Return the position that each row of the cache holds."""
        type_ = tensor_type([self.layer.kv_heads, self.layer.geometry.cache_rows], ir.IntegerType.get_signless(64))
        kept: ir.Value = kv.KeptPositions(length, topk, selected, type_).positions
        return kept

    def kept_choice(self, selected: ir.Value | None, states: list[ir.Value], slot: ir.Value) -> list[ir.Value]:
        """Return the new value of the state of selected positions."""
        return [] if selected is None else [selected]

    def first_choice(
        self, observed: Sequence[ir.Value], scratches: Sequence[ir.Value], caches: Sequence[ir.Value],
        states: Sequence[ir.Value], slot: ir.Value, length: ir.Value, logits: Sequence[ir.Value],
        offsets: list[Offset],
    ) -> list[ir.Value]:  # fmt: skip
        """Return the new values of the states of rows that stay near, as the prompt's last query chooses them."""
        return []

    def _of_own_slots(self) -> None:
        """Add the functions that run after the last chunk if ranks that share KV heads have different slots: `choose`,
        which all of them run together, and `compress`, which only the rank that has the slot runs."""
        layer, index_type = self.layer, ir.IndexType.get()
        rows, selected, caches = layer.prompt_rows(), layer.selected(), layer.caches()
        length = Argument("input", "length", index_type)
        numbers = [Argument("input", TOPK, index_type)] if TOPK in layer.numbers else []
        if selected:
            weights = [layer.up_weight()[0]] if layer.attended.ups else []
            function = layer.end_function(CHOOSE, [rows[0], *layer.observed(), *weights, length, *numbers], selected)
            with ir.InsertionPoint(function.entry_block), function.location:
                keys, asked, sums, *weight, end = list(function.arguments)[: 4 + len(weights)]
                if weight:
                    asked = layer.asked(asked, weight[0])
                topk = layer.selects({TOPK: list(function.arguments)[-1]} if numbers else {})
                func.ReturnOp([layer.choice().positions([asked, sums], [keys], end, topk)])
            layer.note_settings(function)
        slot = Argument("input", OWN_SLOT, index_type)
        own_numbers = [Argument("input", name, index_type) for name in layer.numbers]
        function = layer.end_function(COMPRESS, [*rows, *caches, *selected, slot, length, *own_numbers], caches)
        with ir.InsertionPoint(function.entry_block), function.location:
            scratches, wholes, rest = parted(list(function.arguments), [len(rows), len(rows)])
            chosen, (rest, own) = rest[: len(selected)], layer.own_numbers(rest[len(selected) :])
            number, end = rest
            index = self.index(end, layer.selects(own), chosen[0] if chosen else None)
            offsets: list[Offset] = [number, 0, own.get(FIRST, 0), 0]
            pairs = zip(wholes, scratches, strict=True)
            func.ReturnOp([filled(cache, offsets, scratch, index) for cache, scratch in pairs])
        layer.note_settings(function)


class IndexedEnding(RowEnding):
    """The end of a prompt whose rows stay in place, and of which an index names those that steps read."""

    def filled_states(self) -> list[Argument]:
        """See `RowEnding`."""
        return self.layer.selected()

    def index(self, length: ir.Value, topk: ir.Value, selected: ir.Value | None) -> ir.Value:
        """See `RowEnding`: the selected rows of a longer prompt are not copied."""
        return super().index(length, topk, None)

    def kept_choice(self, selected: ir.Value | None, states: list[ir.Value], slot: ir.Value) -> list[ir.Value]:
        """See `RowEnding`."""
        return [] if selected is None else [insert_slice(selected, states[0], [slot, 0, 0])]
