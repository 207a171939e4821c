"""Threading of the rows of all positions, from which each step's query selects by quantized keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import arith

from sscc.ir.builders import (
    Argument,
    Offset,
    arguments_of,
    extract_slice,
    index_constant,
    insert_slice,
    not_negative,
    positions_tensor,
    reshape,
    tensor_type,
)
from sscc.ir.dialects import kv
from sscc.ir.errors import UsageError
from sscc.ir.layer_state.selectors import QUANTIZED_KEY_SCRATCHES, QUANTIZED_KEYS, RESIDENT, RESIDENT_PLACES
from sscc.ir.layer_state.state_tensors import Extent, StateTensor
from sscc.ir.locations import origin_of
from sscc.ir.quantized_keys import check_bits, quantized_key_width
from sscc.passes.attended import Attended, ThreadCacheErrors
from sscc.passes.layer_threading import Rewritten, Values, appended, filled, parted
from sscc.passes.row_endings import IndexedEnding, RowEnding
from sscc.passes.row_threading import IndexedThreader


class QueryThreader(IndexedThreader):
    """Threads rows of all positions, from which each step's query selects."""

    def check(self) -> None:
        """Refuse quantized keys that are impossible for this width of keys."""
        try:
            check_bits(self.rows.selector.key_bits, self.streams[0].width)
        except UsageError as error:
            raise ThreadCacheErrors.BAD_KEY_BITS(origin=origin_of(self.attention), cause=error) from None
        super().check()

    def selects(self, own: dict[str, ir.Value]) -> ir.Value:
        """See `RowThreader`: the end of a prompt selects none."""
        return index_constant(0)

    # ------------------------------------------------------------------------------------------ arguments

    def quantized_keys(self) -> list[Argument]:
        """Return the states of the quantized keys of every slot."""
        return [self.argument(self.states[name]) for name in QUANTIZED_KEYS if name in self.states]

    def noted_states(self) -> list[Argument]:
        """See `RowThreader`: the quantized keys of the prompt in progress."""
        pairs = zip(QUANTIZED_KEYS, QUANTIZED_KEY_SCRATCHES, strict=True)
        kept = [(self.states[name], scratch) for name, scratch in pairs if name in self.states]
        states = [StateTensor(scratch, Extent.PROMPT, state.dtype, state.shape) for state, scratch in kept]
        return [self.argument(state) for state in states]

    def residents(self) -> list[Argument]:
        """Return the states of every slot's rows that stay near, where a step may fetch only few."""
        names = [RESIDENT, RESIDENT_PLACES, *(stream.resident for stream in self.streams)]
        return [self.argument(self.states[name]) for name in names if name in self.states]

    # ------------------------------------------------------------------------------------------ decode

    def rewrite_decode(self) -> Any:
        """See `RowThreader`."""
        stores = [self.argument(self.states[stream.store]) for stream in self.streams]
        kept = [*self.caches(), *stores, *self.quantized_keys(), *self.residents()]
        updated, read = ([], kept) if self.shares else (kept, [])
        return self.rebuild(updated, [*read, *self.decode_inputs()], self._query_attention)

    def _query_attention(self, values: Values, added: list[ir.Value]) -> Rewritten:
        """Return attention whose second segment are the rows that the query chooses, of all that the slot has."""
        attended = Attended.by(self.attention, values)
        query, g, count = attended.query, self.geometry, len(self.streams)
        *states, position, base, active = added
        now, stores, quantized_keys, residents = parted(states, [count, count, len(self.quantized_keys())])
        stored = [*stores, *quantized_keys]
        if not self.shares:  # otherwise the layer that keeps the rows has updated them
            row = kv.Row(position, base, self.selects({}), position.type).row
            new_quantized_keys = self._quantized_keys_of(attended.rows[0])
            rows = [self.encoded(new) for new in attended.rows]
            caches = zip(now, rows, strict=True)
            now = [kv.UpdateRows(cache, new, row, active, cache.type).updated for cache, new in caches]
            new_rows = zip(stored, (*rows, *new_quantized_keys), strict=True)
            stored = [kv.UpdateRows(store, new, position, active, store.type).updated for store, new in new_rows]
        flags = tensor_type([position.type.shape[0], g.covered_rows], ir.IntegerType.get_signless(1))
        valid = kv.Validity(position, base, active, index_constant(g.topk), None, flags).valid
        codes, scales = [*stored[count:], None][:2]
        asking, sinks = self.of_all_heads(query, attended.sinks)
        scores = self.quantized_key_scores(asking, codes, scales, position, active)
        if residents:
            none = [None] * (2 - count)
            operands = (
                asking, now[0], scores, *stored[:count], *none, position, active, *residents, *none,
                *(sinks or [None]),
            )  # fmt: skip
            types = [value.type for value in residents]
            residents = list(kv.FetchRows(*operands, self.scale, *types, *none).results)
            _, index, *chosen = residents
        else:
            chosen = stored[:count]
            index = self.choose(asking, now[0], scores, position, active, sinks)
        out = self.cached_attention(attended, valid, (now, None), (chosen, index))
        return out, [] if self.shares else [*now, *stored, *residents]

    def of_all_heads(self, query: ir.Value, sinks: Sequence[ir.Value]) -> tuple[ir.Value, list[ir.Value]]:
        """Return queries, and logits of learned sinks, of all heads that read a KV head, on whichever ranks they are.
        Each rank that has the KV head selects its rows by all of them."""
        if self.peers is None:
            return query, list(sinks)
        return self.peers.gathered(query, 1), [self.peers.gathered(logits, 0) for logits in sinks]

    def quantized_key_scores(
        self, query: ir.Value, codes: ir.Value, scales: ir.Value | None, position: ir.Value, active: ir.Value
    ) -> ir.Value:
        """Return the scores [B, H, T] of all positions by their quantized keys."""
        slots, heads, *_ = query.type.shape
        scores_type = tensor_type([slots, heads, codes.type.shape[2]], ir.F32Type.get())
        scores: ir.Value = kv.QuantizedKeyScores(query, codes, scales, position, active, self.scale, scores_type).scores
        return scores

    def choose(
        self, query: ir.Value, key: ir.Value, scores: ir.Value, position: ir.Value, active: ir.Value,
        sinks: Sequence[ir.Value],
    ) -> ir.Value:  # fmt: skip
        """Return the positions [B, Hkv, K] that queries select.

        Args:
            sinks: logits of learned sinks; None without them.
        """
        picks = tensor_type([query.type.shape[0], self.kv_heads, self.geometry.topk], ir.IntegerType.get_signless(64))
        operands = (query, key, scores, position, active, *(sinks or [None]))
        selected: ir.Value = kv.ChooseRows(*operands, self.scale, picks).selected
        return selected

    # ------------------------------------------------------------------------------------------ prefill

    def noted_keys(self, keys: ir.Value, states: list[ir.Value], start: ir.Value) -> list[ir.Value]:
        """See `RowThreader`."""
        return appended(self._quantized_keys_of(keys), states, start)

    def _quantized_keys_of(self, key: ir.Value) -> list[ir.Value]:
        """Quantize keys [.., J, D]."""
        if not self.rows.selector.rounds_keys:
            return [key]
        slots, heads, rows, width = key.type.shape
        codes = quantized_key_width(width, self.rows.selector.key_bits)
        i8, bf16 = ir.IntegerType.get_signless(8), ir.BF16Type.get()
        types = tensor_type([slots, heads, rows, codes], i8), tensor_type([slots, heads, rows, 1], bf16)
        quantized_keys = kv.QuantizeKeys(key, *types)
        return [quantized_keys.codes, quantized_keys.scales]

    def ending(self) -> RowEnding:
        """See `RowThreader`."""
        return QueryEnding(self)


class QueryEnding(IndexedEnding):
    """The end of a prompt, if each step's query selects from its rows."""

    layer: QueryThreader

    def asked_states(self) -> list[Argument]:
        """See `RowEnding`: the quantized keys of the prompt, where its last query chooses rows that stay near."""
        return self.layer.noted_states() if self.layer.residents() else []

    def filled_states(self) -> list[Argument]:
        """See `RowEnding`."""
        return self.layer.residents()

    def outputs(self) -> list[Argument]:
        """See `RowEnding`."""
        return self.layer.residents()

    def logits(self) -> list[Argument]:
        """See `RowEnding`: as an argument of another function; none where the layer has none."""
        if not self.layer.residents():
            return []
        sinks, arguments = self.layer.attended.sinks, list(self.layer.function.arguments)
        if not all(value in arguments for value in sinks):
            raise ThreadCacheErrors.COMPUTED_SINKS(origin=origin_of(self.layer.attention), layer=self.layer.layer)
        return [arguments_of(self.layer.function)[arguments.index(value)] for value in sinks]

    def first_choice(
        self, observed: Sequence[ir.Value], scratches: Sequence[ir.Value], caches: Sequence[ir.Value],
        states: Sequence[ir.Value], slot: ir.Value, length: ir.Value, logits: Sequence[ir.Value],
        offsets: list[Offset],
    ) -> list[ir.Value]:  # fmt: skip
        """See `RowEnding`."""
        if not self.layer.residents():
            return []
        ring = extract_slice(caches[0], offsets, [1, *list(caches[0].type.shape)[1:]])
        chosen = self._last_choice(observed, ring, length, logits)
        return self._first_residents(chosen, scratches, states, slot)

    def _last_choice(
        self, observed: Sequence[ir.Value], ring: ir.Value, length: ir.Value, sinks: Sequence[ir.Value]
    ) -> ir.Value:
        """Return the positions [1, Hkv, K] that the last query of a prompt selects.

        Args:
            observed: the kept last queries, then quantized keys.
        """
        queries, codes, scales = [*observed, None][:3]
        one = index_constant(1)
        row = arith.SubIOp(arith.MinSIOp(length, index_constant(self.layer.geometry.obs)).result, one).result
        query = extract_slice(queries, [0, 0, row, 0], [1, self.layer.heads, 1, self.layer.streams[0].width])
        query, sinks = self.layer.of_all_heads(query, sinks)
        last = arith.SubIOp(length, one).result
        position = positions_tensor([1], last, last)
        active = not_negative(position)  # always true; the operation needs a flag
        scores = self.layer.quantized_key_scores(query, codes, scales, position, active)
        return self.layer.choose(query, ring, scores, position, active, sinks)

    def _first_residents(
        self, chosen: ir.Value, scratches: Sequence[ir.Value], states: Sequence[ir.Value], slot: ir.Value
    ) -> list[ir.Value]:
        """Return the resident states, in which a slot has the chosen rows of its prompt."""
        numbers, rows = states[:2], zip(states[2:], scratches, strict=True)
        places = positions_tensor(chosen.type.shape, index_constant(0), index_constant(self.layer.geometry.topk))
        first = [insert_slice(n, state, [slot, 0, 0]) for n, state in zip((chosen, places), numbers, strict=True)]
        index = reshape(chosen, list(chosen.type.shape)[1:])
        return first + [filled(state, [slot, 0, 0, 0], scratch, index) for state, scratch in rows]
