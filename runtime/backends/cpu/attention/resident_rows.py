"""Rows that stay resident from step to step (`FetchRows`), in generated code; `sscc.ir.resident_rows` defines them.

A byte per candidate marks resident positions and requested positions. Only the marks of positions that are looked up
are initialized, so that no pass over all candidates is needed. Lists are ascending; the choice of rows to fetch and of
rows to keep is therefore that of `topk.choose`: ties go to the lower position.
"""

from __future__ import annotations

from sscc.ir.operations import FetchRows, QueryAttention
from sscc.runtime.backends.cpu.attention.row_choice import Choice, Pair
from sscc.runtime.backends.cpu.codegen.encoded_rows import put_row
from sscc.runtime.backends.cpu.codegen.features import LANES
from sscc.runtime.backends.cpu.codegen.indices import report_index
from sscc.runtime.backends.cpu.codegen.mlir import I8, I32, I64, Value, vector
from sscc.runtime.backends.cpu.codegen.row_copies import ScratchPieces
from sscc.runtime.backends.cpu.codegen.topk import LOWEST_KEY, choice_bytes, choose, key_bytes

_NEVER = (1 << 63) - 1
"""End marker, greater than every position of a list."""
_LISTS = ("missing", "picked", "fetched", "kept", "kept_places", "free")


class ResidentRows:
    """Resident set of a step: it may fetch `fetch` of the rows that `choice` selects. Its private scratch follows that
    of the choice."""

    def __init__(self, step: FetchRows | QueryAttention, choice: Choice) -> None:
        self.step, self.choice, self.fetch, room = step, choice, min(step.fetch, choice.topk), choice.topk
        self.sides = [(step.k_store, step.k_resident), (step.v_store, step.v_resident)][: 2 if step.v_store else 1]
        self.scratch = ScratchPieces(
            chosen=(room + 1) * 8,
            marks=choice.rows,
            keys=key_bytes(room + LANES),
            **dict.fromkeys(_LISTS, (room + 1) * 8),
            choosing=max(choice_bytes(choice.rows, room), choice_bytes(room, room)),
        )

    def keep(self, pair: Pair) -> None:
        """Update the resident set of a slot and KV head. Its candidates, if any, must have been scored."""
        with pair.f.when(pair.seen.candidates > 0):
            _Keeper(self, pair).keep()


class _Keeper:
    """Emitter of the update for one slot and KV head."""

    def __init__(self, rows: ResidentRows, pair: Pair) -> None:
        self.f, self.pair, self.rows, self.step = pair.f, pair, rows, rows.step
        self.at = rows.scratch.at(pair.context.private + rows.choice.choosing_bytes)
        self.candidates, self.room, self.sink = pair.seen.candidates, rows.choice.topk, rows.choice.sink
        self.resident, self.places = pair.operand(self.step.resident), pair.operand(self.step.places)
        self.keys = pair.kept("exponentials", 0)

    def keep(self) -> None:
        chosen_count = self.f.min(self.candidates, self.room)
        tops = self.pair.put_keys()
        rows, topk = self.rows.choice.rows, self.f.constant(self.room)
        self._choose(self.keys, self.candidates, topk, "chosen", self.sink, rows, tops)
        fetched = self._fetched(chosen_count)
        self._merge(self._kept(chosen_count, fetched))

    # -- lists

    def _choose(
        self, keys: Value, count: Value, topk: Value, target: str, first: int = 0, rows: int | None = None,
        tops: tuple[Value, Value] | None = None,
    ) -> None:  # fmt: skip
        at, rows = self.at, self.room if rows is None else rows
        choose(self.f, keys, first, count, topk, self.room, at[target], at["choosing"], rows, tops)

    def _number(self, list_: Value, index: Value) -> Value:
        return self.f.load(list_ + index * 8, I64)

    def _put(self, list_: Value, index: Value, number: Value) -> None:
        self.f.store(number, list_ + index * 8)

    def _mark(self, position: Value) -> Value:
        return self.at["marks"] + (position - self.sink)

    def _is_unmarked(self, position: Value) -> Value:
        return self.f.load(self._mark(position), I8).eq(0)

    def _set_marks(self, list_: Value, count: Value | int, mark: int) -> None:
        """Mark the positions of a list of candidates."""
        f = self.f
        with f.loop(0, count) as entry:
            position = self._number(list_, entry.index)
            with f.when(self._exists(position)):
                f.store(f.constant(mark, I8), self._mark(position))

    def _exists(self, position: Value) -> Value:
        """Return True if a position is that of a candidate (i1)."""
        return (position >= self.sink) & (position < self.candidates + self.sink)

    def _one_if(self, flag: Value) -> Value:
        return self.f.cast("arith.extui", flag, I64)

    def _put_key(self, index: Value, position: Value) -> None:
        """Append the sort key of a position to the list."""
        self.f.store(self.f.load(self.keys + (position - self.sink) * 4, I32), self.at["keys"] + index * 4)

    def _end_keys(self, count: Value) -> None:
        """Pad the list with the lowest key to a whole vector."""
        self.f.store(self.f.constant(LOWEST_KEY, vector(I32, LANES)), self.at["keys"] + count * 4)

    # -- steps

    def _fetched(self, chosen_count: Value) -> Value:
        """List the fetched positions, and return their number."""
        f, at = self.f, self.at
        self._set_marks(at["chosen"], chosen_count, 0)
        self._set_marks(self.resident, self.room, 1)
        with f.loop(0, chosen_count, 1, [f.constant(0)]) as entry:
            position, count = self._number(at["chosen"], entry.index), entry.state[0]
            self._put(at["missing"], count, position)
            self._put_key(count, position)
            entry.carry(count + self._one_if(self._is_unmarked(position)))
        missing = entry.results[0]
        self._end_keys(missing)
        self._choose(at["keys"], missing, f.constant(self.rows.fetch), "picked")
        count = f.min(missing, self.rows.fetch)
        with f.loop(0, count) as entry:
            self._put(at["fetched"], entry.index, self._number(at["missing"], self._number(at["picked"], entry.index)))
        self._put(at["fetched"], count, f.constant(_NEVER))
        return count

    def _kept(self, chosen_count: Value, fetched: Value) -> Value:
        """List the resident rows that stay, and free places. Return the number of rows that stay."""
        f, at, zero = self.f, self.at, self.f.constant(0)
        self._set_marks(self.resident, self.room, 0)
        self._set_marks(at["chosen"], chosen_count, 1)
        with f.loop(0, self.room, 1, [zero, zero]) as entry:
            (spare, held), position = entry.state, self._number(self.resident, entry.index)
            exists = self._exists(position)
            known = f.select(exists, position, self.sink)
            self._put_key(spare, known)
            entry.carry(spare + self._one_if(exists & self._is_unmarked(known)), held + self._one_if(exists))
        spare, held = entry.results
        self._end_keys(spare)
        stay = f.max(fetched * -1 + self.room - (held - spare), 0)
        self._choose(at["keys"], spare, stay, "picked")
        self._put(at["picked"], f.constant(self.room), f.constant(-1))
        with f.loop(0, self.room, 1, [zero, zero, zero, zero]) as entry:
            kept, free, number, chosen = entry.state
            position, place = (self._number(list_, entry.index) for list_ in (self.resident, self.places))
            report_index(f, (place < 0) | (place >= self.room))
            exists = self._exists(position)
            is_spare = exists & self._is_unmarked(f.select(exists, position, self.sink))
            is_chosen = is_spare & self._number(at["picked"], chosen).eq(number)
            stays = exists & (is_spare.eq(0) | is_chosen)
            self._put(at["kept"], kept, position)
            self._put(at["kept_places"], kept, place)
            self._put(at["free"], free, place)
            flags = (stays, stays.eq(0), is_spare, is_chosen)
            entry.carry(*(count + self._one_if(flag) for count, flag in zip(entry.state, flags, strict=True)))
        kept = entry.results[0]
        self._put(at["kept"], kept, f.constant(_NEVER))
        return kept

    def _merge(self, kept: Value) -> None:
        """Write positions and places, and copy the fetched rows."""
        f, at, zero, pair = self.f, self.at, self.f.constant(0), self.pair
        with f.loop(0, self.room, 1, [zero, zero]) as entry:
            old, new = entry.state
            first, second = self._number(at["kept"], old), self._number(at["fetched"], new)
            is_new, position = second < first, f.min(first, second)
            exists = position < _NEVER
            # The remaining free places follow the last position.
            free_place = self._number(at["free"], f.select(exists, new, entry.index - kept))
            place = f.select(is_new | exists.eq(0), free_place, self._number(at["kept_places"], old))
            place = f.min(f.max(place, 0), self.room - 1)
            self._put(self.resident, entry.index, f.select(exists, position, -1))
            self._put(self.places, entry.index, place)
            with f.when(is_new):
                for far, near in self.rows.sides:
                    source, target = (pair.context.operands[name] for name in (far, near))
                    put_row(f, source, (pair.slot, pair.kv_head, position), target, (pair.slot, pair.kv_head, place))
            entry.carry(old + self._one_if(exists & is_new.eq(0)), new + self._one_if(is_new))
