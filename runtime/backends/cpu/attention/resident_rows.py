"""Rows that stay near from step to step (`FetchRows`): what `sscc.ir.resident_rows` says, in generated code.

Whether a position is held, and whether it is wanted, is a mark of a byte per candidate. Only the marks of positions
that are asked about are written before, so that no pass over all candidates is needed. Lists are ascending, which makes
the choice of rows to fetch and of rows to keep that of `selection.choose`: ties go to the lower position.
"""

from __future__ import annotations

from dataclasses import dataclass

from sscc.ir.operations import FetchRows, QueryAttention
from sscc.runtime.backends.cpu.attention.row_choice import Choice, Slot, Unit, store_keys
from sscc.runtime.backends.cpu.attention.selection import LOWEST_KEY, choice_bytes, choose, key_bytes
from sscc.runtime.backends.cpu.codegen.encoded_rows import copy_bytes
from sscc.runtime.backends.cpu.codegen.features import LANES
from sscc.runtime.backends.cpu.codegen.indices import report_index
from sscc.runtime.backends.cpu.codegen.mlir import I8, I32, I64, Value, vector
from sscc.runtime.backends.cpu.codegen.row_copies import Meta, ScratchPieces, address, check_strides, copy_row

_NEVER = (1 << 63) - 1
"""Behind the last position of a list."""


@dataclass(frozen=True)
class ResidentRows:
    """The sizes of a step.

    Attributes:
        choice: what the step wants; of it `topk` rows are resident.
        fetch: rows that it may fetch.
    """

    choice: Choice
    fetch: int

    @classmethod
    def of(cls, step: FetchRows | QueryAttention, operands: dict[str, Meta], choice: Choice) -> ResidentRows:
        """Raises InputError where a row is not contiguous."""
        rows = [name for pair in _sides(step) for name in pair]
        check_strides(step.kind, operands, (step.resident, step.places, *rows))
        return cls(choice, min(step.fetch, choice.topk))

    @property
    def scratch(self) -> ScratchPieces:
        """Private scratch of `keep_rows`."""
        room, lists = self.choice.topk, (self.choice.topk + 1) * 8
        return ScratchPieces(
            chosen=lists,
            marks=self.choice.rows,
            keys=key_bytes(room + LANES),
            missing=lists,
            picked=lists,
            fetched=lists,
            kept=lists,
            kept_places=lists,
            free=lists,
            choosing=max(choice_bytes(self.choice.rows, room), choice_bytes(room, room)),
        )


def _sides(step: FetchRows | QueryAttention) -> list[tuple[str, str]]:
    """Store and resident rows, of K and of V where there are any."""
    sides = [(step.k_store, step.k_resident), (step.v_store, step.v_resident)]
    return sides if step.v_store else sides[:1]


def keep_rows(unit: Unit, rows: ResidentRows, step: FetchRows | QueryAttention, slot: Slot, scratch: Value) -> None:
    """Brings the resident set of a slot and KV head up to date. Its candidates, if any, must have been scored."""
    with unit.context.f.when(slot.candidates > 0):
        _Keeper(unit, rows, step, slot.candidates, rows.scratch.at(scratch)).keep()


class _Keeper:
    """One slot and KV head under construction."""

    def __init__(
        self, unit: Unit, rows: ResidentRows, step: FetchRows | QueryAttention, candidates: Value, at: dict[str, Value]
    ) -> None:
        self.f, self.unit, self.rows, self.step, self.at = unit.context.f, unit, rows, step, at
        self.candidates, self.room, self.sink = candidates, rows.choice.topk, rows.choice.sink
        operands = unit.context.operands
        self.resident, self.places = (
            address(self.f, operands[name], unit.slot, unit.kv_head) for name in (step.resident, step.places)
        )

    def keep(self) -> None:
        f, at = self.f, self.at
        chosen_count = f.min(self.candidates, self.room)
        tops = store_keys(self.unit, self.candidates)
        keys, rows = self.unit.kept("exponentials", 0), self.rows.choice.rows
        self._choose(keys, self.sink, self.candidates, f.constant(self.room), at["chosen"], rows, tops)
        fetched = self._fetched(chosen_count, keys)
        self._merge(self._kept(chosen_count, keys, fetched))

    # -- lists

    def _choose(
        self, keys: Value, first: int, count: Value, topk: Value, target: Value, rows: int,
        tops: tuple[Value, Value] | None = None,
    ) -> None:  # fmt: skip
        choose(self.f, keys, first, count, topk, self.room, target, self.at["choosing"], rows, tops)

    def _number(self, list_: Value, index: Value) -> Value:
        return self.f.load(list_ + index * 8, I64)

    def _put(self, list_: Value, index: Value, number: Value) -> None:
        self.f.store(number, list_ + index * 8)

    def _mark(self, position: Value) -> Value:
        return self.at["marks"] + (position - self.sink)

    def _set_marks(self, list_: Value, count: Value | int, mark: int) -> None:
        """Marks the positions of a list, those of candidates."""
        f = self.f
        with f.loop(0, count) as entry:
            position = self._number(list_, entry.index)
            with f.when(self._exists(position)):
                f.store(f.constant(mark, I8), self._mark(position))

    def _exists(self, position: Value) -> Value:
        """Whether a position is one of a candidate."""
        return (position >= self.sink) & (position < self.candidates + self.sink)

    def _one_if(self, flag: Value) -> Value:
        return self.f.cast("arith.extui", flag, I64)

    def _end_keys(self, count: Value) -> None:
        """The lowest keys behind the last of a list, up to a whole vector."""
        self.f.store(self.f.constant(LOWEST_KEY, vector(I32, LANES)), self.at["keys"] + count * 4)

    # -- steps

    def _fetched(self, chosen_count: Value, keys: Value) -> Value:
        """Lists the positions that are fetched; how many."""
        f, at = self.f, self.at
        self._set_marks(at["chosen"], chosen_count, 0)
        self._set_marks(self.resident, self.room, 1)
        with f.loop(0, chosen_count, 1, [f.constant(0)]) as entry:
            position, count = self._number(at["chosen"], entry.index), entry.state[0]
            self._put(at["missing"], count, position)
            f.store(f.load(keys + (position - self.sink) * 4, I32), at["keys"] + count * 4)
            entry.carry(count + self._one_if(f.load(self._mark(position), I8).eq(0)))
        missing = entry.results[0]
        self._end_keys(missing)
        self._choose(at["keys"], 0, missing, f.constant(self.rows.fetch), at["picked"], self.room)
        count = f.min(missing, self.rows.fetch)
        with f.loop(0, count) as entry:
            self._put(at["fetched"], entry.index, self._number(at["missing"], self._number(at["picked"], entry.index)))
        self._put(at["fetched"], count, f.constant(_NEVER))
        return count

    def _kept(self, chosen_count: Value, keys: Value, fetched: Value) -> Value:
        """Lists resident rows that stay, and free places; how many stay."""
        f, at = self.f, self.at
        self._set_marks(self.resident, self.room, 0)
        self._set_marks(at["chosen"], chosen_count, 1)
        zero = f.constant(0)
        with f.loop(0, self.room, 1, [zero, zero]) as entry:
            (spare, held), position = entry.state, self._number(self.resident, entry.index)
            exists, place = self._exists(position), f.select(self._exists(position), position, self.sink)
            f.store(f.load(keys + (place - self.sink) * 4, I32), at["keys"] + spare * 4)
            is_spare = exists & f.load(self._mark(place), I8).eq(0)
            entry.carry(spare + self._one_if(is_spare), held + self._one_if(exists))
        spare, held = entry.results
        self._end_keys(spare)
        stay = f.max(fetched * -1 + self.room - (held - spare), 0)
        self._choose(at["keys"], 0, spare, stay, at["picked"], self.room)
        self._put(at["picked"], f.constant(self.room), f.constant(-1))
        with f.loop(0, self.room, 1, [zero, zero, zero, zero]) as entry:
            kept, free, number, chosen = entry.state
            position, place = (self._number(list_, entry.index) for list_ in (self.resident, self.places))
            report_index(f, (place < 0) | (place >= self.room))
            exists = self._exists(position)
            known = f.select(exists, position, self.sink)
            is_spare = exists & f.load(self._mark(known), I8).eq(0)
            is_chosen = is_spare & self._number(at["picked"], chosen).eq(number)
            stays = exists & (is_spare.eq(0) | is_chosen)
            self._put(at["kept"], kept, position)
            self._put(at["kept_places"], kept, place)
            self._put(at["free"], free, place)
            entry.carry(
                kept + self._one_if(stays),
                free + self._one_if(stays.eq(0)),
                number + self._one_if(is_spare),
                chosen + self._one_if(is_chosen),
            )
        kept = entry.results[0]
        self._put(at["kept"], kept, f.constant(_NEVER))
        return kept

    def _merge(self, kept: Value) -> None:
        """Writes positions and places, and copies what is fetched."""
        f, at, zero = self.f, self.at, self.f.constant(0)
        with f.loop(0, self.room, 1, [zero, zero]) as entry:
            old, new = entry.state
            first, second = self._number(at["kept"], old), self._number(at["fetched"], new)
            is_new, position = second < first, f.min(first, second)
            exists = position < _NEVER
            # Behind the last position stand the places that are still free.
            free_place = self._number(at["free"], f.select(exists, new, entry.index - kept))
            place = f.select(is_new | exists.eq(0), free_place, self._number(at["kept_places"], old))
            place = f.min(f.max(place, 0), self.room - 1)
            self._put(self.resident, entry.index, f.select(exists, position, -1))
            self._put(self.places, entry.index, place)
            with f.when(is_new):
                self._copy(position, place)
            entry.carry(old + self._one_if(exists & is_new.eq(0)), new + self._one_if(is_new))

    def _copy(self, position: Value, place: Value) -> None:
        f, unit, operands, step = self.f, self.unit, self.unit.context.operands, self.step
        for far, near in _sides(step):
            source, target = operands[far], operands[near]
            here = address(f, source, unit.slot, unit.kv_head, position)
            there = address(f, target, unit.slot, unit.kv_head, place)
            if source.dtype == "i8":
                copy_bytes(f, here, there, source.shape[3])
            else:
                copy_row(f, here, source.dtype, there, target.dtype, source.shape[3])
