"""Threading of rows: the part of `thread-cache` that implements the algorithm.

`RowThreader` is for rows that are copied into a cache. Its subclasses are for rows in other places: concatenated if
layers have different budgets, in the prompt if an index names those that steps read, and
(`sscc.passes.query_threading`) in a store of all positions from which each step's query selects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch_mlir import ir

from sscc.ir.builders import Argument, Offset, extract_slice, insert_slice, tensor_type
from sscc.ir.dialects import kv
from sscc.ir.layer_state.stores import FIRST
from sscc.ir.locations import origin_of
from sscc.ir.operations import CachedAttention
from sscc.passes.attended import Attended, ThreadCacheErrors
from sscc.passes.layer_threading import Rewritten, Values, appended, parted
from sscc.passes.row_endings import IndexedEnding, RowEnding
from sscc.passes.row_layers import RowLayer


class RowThreader(RowLayer):
    """Threads rows that are copied into the cache of the layer, or of the layer whose rows it shares."""

    def rewrite(self) -> Any:
        """See `LayerThreader`."""
        self.check()
        if self.is_step:
            return self.rewrite_decode()
        if self.shares:
            inputs = [*self.prompt_rows(), *self.chunk_inputs()]
            return self.rebuild([], inputs, self._shared_prefill_attention)
        states = [*self.prompt_rows(), *self.observed(), *self.noted_states()]
        function = self.rebuild(states, self.chunk_inputs(), self._prefill_attention)
        self.ending().add()
        return function

    def ending(self) -> RowEnding:
        """Return the builder of the functions that run after the last chunk of a prompt."""
        return RowEnding(self)

    def check(self) -> None:
        """Refuse rows whose codes do not fill whole bytes."""
        for stream in self.streams:
            bits = self.rows.codec.partial_bits(stream.width)
            if bits:
                raise ThreadCacheErrors.ROW_NOT_WHOLE_BYTES(
                    origin=origin_of(self.attention), width=stream.width, bits=bits
                )

    # ------------------------------------------------------------------------------------------ decode

    def rewrite_decode(self) -> Any:
        """Return the function that replaces that of a decode step."""
        updated, read = ([], self.caches()) if self.shares else (self.caches(), [])
        return self.rebuild(updated, [*read, *self.far_states(), *self.decode_inputs()], self._decode_attention)

    def far_states(self) -> list[Argument]:
        """Return the states that a step reads but does not update: the rows of each stream, then their index."""
        return []

    def decode_inputs(self) -> list[Argument]:
        """Return the inputs of a decode step."""
        own = (Argument("input", name, ir.IndexType.get()) for name in self.numbers)
        return [*self.step_inputs(), *own]

    def _decode_attention(self, values: Values, added: list[ir.Value]) -> Rewritten:
        attended = Attended.by(self.attention, values)
        added, own = self.own_numbers(added)
        *states, position, base, active = added
        if self.split:
            attended, (position, base, active) = self._of_own_slots(attended, position, base, active)
        wholes, indexed = states[: len(self.streams)], states[len(self.streams) :]
        now, topk = [self.window(cache, own) for cache in wholes], self.selects(own)
        if not self.shares:  # otherwise the layer that keeps the rows has updated them
            row = kv.Row(position, base, topk, position.type).row
            rows = zip(now, attended.rows, strict=True)
            now = [kv.UpdateRows(cache, self.encoded(new), row, active, cache.type).updated for cache, new in rows]
        *far, index = indexed or [None]
        more = [(far, index)] if index is not None else []
        covered = self.geometry.covered_rows + len(more) * self.geometry.topk
        flags = tensor_type([self.slots * self.tokens, covered], ir.IntegerType.get_signless(1))
        valid = kv.Validity(position, base, active, topk, index, flags).valid
        out = self.cached_attention(attended, valid, (now, None), *more)
        if self.split and self.peers is not None:
            out = self.peers.exchanged(out, split=1, join=0)
        return out, [] if self.shares else self.replaced(wholes, now, own)

    def window(self, cache: ir.Value, own: dict[str, ir.Value]) -> ir.Value:
        """Return the rows of this layer in a cache."""
        return cache

    def replaced(self, wholes: list[ir.Value], now: list[ir.Value], own: dict[str, ir.Value]) -> list[ir.Value]:
        """Return caches with the new rows of this layer in them."""
        return now

    def _of_own_slots(self, attended: Attended, *of_slots: ir.Value) -> tuple[Attended, list[ir.Value]]:
        """Return the operands of attention on one of the ranks that share KV heads: with all query heads that read
        these, and only for its part of the slots. Queries are sent to the ranks that have the rows of their slots."""
        peers = self.peers
        assert peers is not None
        sinks = tuple(peers.gathered(logits, 0) for logits in attended.sinks)
        rows = tuple(peers.sliced(row, 0) for row in attended.rows)
        query = peers.exchanged(attended.query, split=0, join=1)
        return Attended(query, rows, sinks=sinks), [peers.sliced(value, 0) for value in of_slots]

    def cached_attention(
        self, attended: Attended, valid: ir.Value, *segments: tuple[Sequence[ir.Value], ir.Value | None]
    ) -> ir.Value:
        """Return attention over segments, each the rows of its streams with an optional index. `valid` [B, R] covers
        the rows of all segments in order."""
        members, first = [], 0
        for rows, index in segments:
            slots, count = valid.type.shape[0], (rows[0] if index is None else index).type.shape[2]
            mask = valid if len(segments) == 1 else extract_slice(valid, [0, first], [slots, count])
            member = {**dict(zip(("key", "value"), rows, strict=False)), "valid": mask}
            members.append(member if index is None else {**member, "index": index})
            first += count
        type_ = tensor_type([*list(attended.query.type.shape)[:3], self.value_width], self.element)
        operands = (attended.query, *(attended.sinks or [None]), *kv.members(CachedAttention, *members))
        out: ir.Value = kv.CachedAttention(*operands, self.scale, type_).out
        return out

    # ------------------------------------------------------------------------------------------ prefill

    def _prefill_attention(self, values: Values, added: list[ir.Value]) -> Rewritten:
        attended = Attended.by(self.attention, values)
        *states, start, length = added
        scratches, observed, more = parted(states, [len(self.streams), len(self.observed())])
        more = self.noted_keys(attended.rows[0], more, start)
        out, sums, now = self._chunk_attended(attended, scratches, start, length)
        last = zip(observed, (attended.query, sums), strict=False)
        observed = [kv.Observe(kept, new, start, length, kept.type).updated for kept, new in last]
        return out, [*now, *observed, *more]

    def noted_keys(self, keys: ir.Value, states: list[ir.Value], start: ir.Value) -> list[ir.Value]:
        """Return the new values of the states, besides rows, that prefill keeps of a chunk's keys."""
        return states

    def _chunk_attended(
        self, attended: Attended, scratches: Sequence[ir.Value], start: ir.Value, length: ir.Value
    ) -> tuple[ir.Value, ir.Value, list[ir.Value]]:
        """Return a chunk's attention, its log-sum-exp, and the scratches with the chunk's rows in them."""
        if attended.ups:
            type_ = self.attention.results[0].type
            sums = tensor_type([*attended.query.type.shape[:3], 1], ir.F32Type.get())
            operands = (attended.query, attended.rows[0], scratches[0], *attended.ups, start, length)
            settings = self.scale, self.attention.attributes["first"]
            chunk = kv.LatentChunkAttention(*operands, *settings, type_, sums, scratches[0].type)
            return chunk.out, chunk.log_sum_exp, [chunk.appended]
        rows = [self.encoded(row) for row in attended.rows] if self.rows.store.prompt_codec.rounds else attended.rows
        now = appended(rows, scratches, start)
        done = self._causal_attention(attended, now, start, length)
        return done.out, done.log_sum_exp, now

    def _shared_prefill_attention(self, values: Values, added: list[ir.Value]) -> Rewritten:
        """Return attention to the rows of a prompt that another layer has appended, in its own phase."""
        attended = Attended.by(self.attention, values)
        *scratches, start, length = added
        return self._causal_attention(attended, scratches, start, length).out, []

    def _causal_attention(
        self, attended: Attended, rows: Sequence[ir.Value], start: ir.Value, length: ir.Value
    ) -> Any:
        query, type_, sinks = attended.query, self.attention.results[0].type, attended.sinks or [None]
        sums = tensor_type([*query.type.shape[:3], 1], ir.F32Type.get())
        return kv.CausalAttention(query, *rows, start, length, *sinks, self.scale, type_, sums)


class BudgetThreader(RowThreader):
    """Threads layers with different budgets, whose rows are concatenated in one cache."""

    def window(self, cache: ir.Value, own: dict[str, ir.Value]) -> ir.Value:
        """Return the rows of this layer in a cache; behind them others follow, up to the most that any layer has."""
        slots, heads, _, width = cache.type.shape
        return extract_slice(cache, [0, 0, own[FIRST], 0], [slots, heads, self.geometry.cache_rows, width])

    def replaced(self, wholes: list[ir.Value], now: list[ir.Value], own: dict[str, ir.Value]) -> list[ir.Value]:
        """See `RowThreader`."""
        offsets: list[Offset] = [0, 0, own[FIRST], 0]
        return [insert_slice(new, whole, offsets) for new, whole in zip(now, wholes, strict=True)]


class IndexedThreader(RowThreader):
    """Threads rows that stay in the prompt, where an index names those that steps read."""

    def far_states(self) -> list[Argument]:
        """See `RowThreader`."""
        return [*(self.argument(self.states[stream.store]) for stream in self.streams), *self.selected()]

    def ending(self) -> RowEnding:
        """See `RowThreader`."""
        return IndexedEnding(self)
