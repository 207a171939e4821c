"""SnapKV's scores of a prompt's positions: softmax weights of the observed queries, summed over the queries; pooling;
top-K.

The scores use panels without sums of values: all queries of a KV head's group are packed, with rows ordered (head of
the group, query), and each unit processes the keys of a slice of positions. Work depends on the prompt's length, not on
the rows of its scratch: each KV head has a fixed number of units (`SLICES` at most) that share its positions evenly;
units without positions do nothing.
"""

from __future__ import annotations

from sscc.ir.operations import ObservationScores, Pool, Select
from sscc.ir.opspec import executes
from sscc.runtime.backends.cpu.attention.combination import LOWEST_PEAK, larger, panel_softmax
from sscc.runtime.backends.cpu.attention.panels import FLOATS, PLACES, QueryRows, Tiling
from sscc.runtime.backends.cpu.attention.scoring import Scoring, score_panel
from sscc.runtime.backends.cpu.attention.visibility import EVERY_POSITION, holds, panel_mask, prompt_slices, slices_of
from sscc.runtime.backends.cpu.codegen.approximations import LOG2E, exp2, log
from sscc.runtime.backends.cpu.codegen.encoded_rows import plain_rows
from sscc.runtime.backends.cpu.codegen.features import Features
from sscc.runtime.backends.cpu.codegen.figures import LINE
from sscc.runtime.backends.cpu.codegen.mlir import F32, I32, Function, Value
from sscc.runtime.backends.cpu.codegen.phases import Context, Lowered, Phase, units
from sscc.runtime.backends.cpu.codegen.row_copies import Meta, ScratchPieces, address, check_rows
from sscc.runtime.backends.cpu.codegen.topk import choice_bytes, choose, key_bytes, store_keys


@executes(ObservationScores)
def lower_observation_scores(step: ObservationScores, operands: dict[str, Meta], features: Features) -> Lowered:
    """Lower `ObservationScores` to one phase in units of (KV head, slice of positions), with another phase before it if
    the log-sum-exp is not an operand.

    Shared scratch: peaks and totals of the slices, if the log-sum-exp is computed. Does nothing unless the length is 1
    .. T.
    """
    check_rows(step, operands)
    scorer = _Scorer(step, operands, features)
    phases = [Phase(scorer.units, scorer.emit_scores, private_bytes=scorer.scratch.nbytes)]
    if not step.log_sum_exp:
        phases.insert(0, Phase(scorer.units, scorer.emit_partial_sums, private_bytes=scorer.scratch.nbytes))
    return Lowered(tuple(phases), 0 if step.log_sum_exp else scorer.units * 2 * scorer.rows.row_bytes)


class _Scorer:
    """Scores of positions, from the observed queries of a KV head's group."""

    def __init__(self, step: ObservationScores, operands: dict[str, Meta], features: Features) -> None:
        (_, heads, self.window, depth), _, query_type = operands[step.observed]
        (_, self.kv_heads, self.limit, _), _, key_type = operands[step.key]
        self.step, self.scoring, self.group = step, Scoring(step.scale, step.softcap), heads // self.kv_heads
        self.tiles = tiles = Tiling(features, (query_type, key_type), depth)
        self.rows = QueryRows(tiles, depth, self.group * self.window)
        self.slices = slices_of(self.limit)
        self.units = self.kv_heads * self.slices
        self.scratch = ScratchPieces(  # all panels of a KV head's queries, one block of keys
            query=self.rows.nbytes,
            staging=self.rows.staging_bytes,
            **dict.fromkeys(("positions", "sums", "shrink"), self.rows.row_bytes),
            scores=tiles.block * tiles.row_bytes,
            key=0 if key_type == tiles.numbers else tiles.block * depth * 4,
            votes=tiles.block * LINE,
        )

    def emit_scores(self, context: Context) -> None:
        """Write the scores [0, length) of the units' slices."""
        f, length = context.f, context.scalars[self.step.length]
        end = length - f.min(length, min(self.window, self.step.recent))  # later positions score zero by definition
        with prompt_slices(context, self.kv_heads, self.limit, length, end) as (head, part, first, last):
            scores = address(f, context.operands[self.step.scores], head)
            with f.when(part.eq(0)), f.loop(end, length) as place:
                f.store(f.constant(0.0, F32), scores + place.index * 4)
            with f.when(first < last):
                piece = _Slice(self, context, head, last)
                piece.pack_queries()
                piece.prepare_sums()
                with f.loop(first, last, self.tiles.block) as block:
                    piece.score(block.index, scores)

    def emit_partial_sums(self, context: Context) -> None:
        """Write the peak and the total of every packed row over the units' slices of keys to shared scratch."""
        f, length, row_bytes = context.f, context.scalars[self.step.length], self.rows.row_bytes
        with prompt_slices(context, self.kv_heads, self.limit, length, length) as (head, part, first, last):
            peaks = context.shared + (head * self.slices + part) * (2 * row_bytes)
            totals = peaks + row_bytes
            f.fill(peaks, row_bytes, LOWEST_PEAK)
            f.fill(totals, row_bytes)
            with f.when(first < last):
                piece = _Slice(self, context, head, last)
                piece.pack_queries()
                with f.loop(first, last, self.tiles.block) as block:
                    piece.accumulate(block.index, peaks, totals)


class _Slice:
    """Emitter of a unit's work on the keys of one KV head up to `last`."""

    def __init__(self, scorer: _Scorer, context: Context, head: Value, last: Value) -> None:
        self.s, self.tiles, self.context, self.f = scorer, scorer.tiles, context, context.f
        self.at, self.head, self.last = scorer.scratch.at(context.private), head, last

    def pack_queries(self) -> None:
        """Pack queries and positions of all rows, with position -1 for padding; and the log-sum-exp, if it is an
        operand."""
        f, s, at, observed = self.f, self.s, self.at, self.context.operands[self.s.step.observed]
        length = self.context.scalars[s.step.length]
        filled = f.min(length, s.window)

        def query(row: Value) -> tuple[Value, Value]:
            known = f.min(row, s.group * s.window - 1)
            return self.head * s.group + known // s.window, known % s.window

        def put_state(row: Value) -> None:
            head, i = query(row)
            exists = (row < s.group * s.window) & (i < filled)
            position = f.select(exists, length - filled + i, -1)
            f.store(f.cast("arith.trunci", position, I32), at["positions"] + row * 4)
            if s.step.log_sum_exp:
                sums = self.context.operands[s.step.log_sum_exp]
                f.store(f.load(address(f, sums, 0, head, i), F32), at["sums"] + row * 4)

        def source(row: Value) -> Value:
            return address(f, observed, 0, *query(row))

        s.rows.pack(f, s.rows.panels, source, observed.dtype, at["staging"], at["query"], put_state)

    def prepare_sums(self) -> None:
        """Convert log-sum-exps (operand, or combined from the slices) to addends of an exponent of 2."""
        f = self.f
        with f.loop(0, self.s.rows.row_bytes, LINE) as place:
            target = self.at["sums"] + place.index
            log_sum_exp = f.load(target, FLOATS) if self.s.step.log_sum_exp else self._combined(place.index)
            f.store(log_sum_exp * -LOG2E, target)

    def _combined(self, place: Value) -> Value:
        """Return the log-sum-exp of 16 rows from the peaks and totals of the slices."""
        f, s, row_bytes = self.f, self.s, self.s.rows.row_bytes
        step = 2 * row_bytes
        peaks = self.context.shared + self.head * (s.slices * step) + place
        with f.loop(0, s.slices, 1, [f.splat(LOWEST_PEAK)]) as part:
            part.carry(larger(f, part.state[0], f.load(peaks + part.index * step, FLOATS)))
        highest = part.results[0]
        with f.loop(0, s.slices, 1, [f.splat(0.0)]) as part:
            peak, total = (f.load(peaks + part.index * step + place, FLOATS) for place in (0, row_bytes))
            part.carry(f.fma(total, exp2(f, (peak - highest) * (s.scoring.left * LOG2E)), part.state[0]))
        return f.fma(highest, s.scoring.left, log(f, part.results[0]))

    def score(self, first: Value, scores: Value) -> None:
        """Write the scores of a block of positions."""
        f = self.f
        key, count = self._keys(first)
        f.fill(self.at["votes"], count * LINE)
        with f.loop(0, self.s.rows.panels) as panel:
            self._products(panel.index, key, count)
            self._vote(first, count, panel.index * self.tiles.row_bytes)
        with f.loop(0, count) as row:
            total = f.reduce("add", f.load(self.at["votes"] + row.index * LINE, FLOATS))
            f.store(total / float(self.s.group), scores + (first + row.index) * 4)

    def accumulate(self, first: Value, peaks: Value, totals: Value) -> None:
        """Update the running peaks and totals with a block of keys."""
        f, tiles, scores = self.f, self.tiles, self.at["scores"]
        key, count = self._keys(first)
        with f.loop(0, self.s.rows.panels) as panel:
            place = panel.index * tiles.row_bytes
            keys = self._products(panel.index, key, count)
            # Entries beyond the slice's last key repeat that key.
            with f.loop(count * tiles.row_bytes, keys * tiles.row_bytes, LINE) as extra:
                f.store(f.splat(float("-inf")), scores + extra.index)
            panel_mask(f, tiles, EVERY_POSITION)(scores, first, keys, self.at["positions"] + place)
            softmax = panel_softmax(f, tiles, self.s.scoring.left)
            softmax(scores, keys, peaks + place, totals + place, self.at["shrink"] + place)

    def _keys(self, first: Value) -> tuple[tuple[Value, int], Value]:
        """Return a block of keys as operands of products, and their number."""
        f, s = self.f, self.s
        key, count = self.context.operands[s.step.key], f.min(self.last - first, self.tiles.block)
        place = (0, self.head, first)
        return plain_rows(f, key, place, s.rows.depth, count - 1, count, self.at["key"], self.tiles.numbers), count

    def _products(self, panel: Value, key: tuple[Value, int], count: Value) -> Value:
        """Compute bounded products for one panel of queries; entries beyond the last key repeat it."""
        query = self.at["query"] + panel * self.s.rows.panel_bytes
        return score_panel(self.f, self.s.rows, self.s.scoring, query, key, count - 1, count, self.at["scores"])

    def _vote(self, first: Value, count: Value, place: Value) -> None:
        """Add a panel's softmax weights to the votes of `count` keys."""
        f, tiles, factor = self.f, self.tiles, self.f.splat(self.s.scoring.left * LOG2E)
        sums = [f.load(self.at["sums"] + place + v * LINE, FLOATS) for v in range(tiles.vectors)]
        positions = [f.load(self.at["positions"] + place + v * LINE, PLACES) for v in range(tiles.vectors)]
        with f.loop(0, count) as key:
            here = f.broadcast(f.cast("arith.trunci", first + key.index, I32), 16)
            row = self.at["scores"] + key.index * tiles.row_bytes
            total = f.load(self.at["votes"] + key.index * LINE, FLOATS)
            for v in range(tiles.vectors):
                weight = exp2(f, f.fma(f.load(row + v * LINE, FLOATS), factor, sums[v]))
                total = total + f.select(here > positions[v], 0.0, weight)
            f.store(total, self.at["votes"] + key.index * LINE)


# ----------------------------------------------------------------------------------------------------------- pooling


@executes(Pool)
def lower_pool(step: Pool, operands: dict[str, Meta], features: Features) -> Lowered:
    """Lower `Pool` to one phase in units of (KV head, slice of positions). It writes pooled[:, :length] only.

    Does nothing unless the length is 1 .. T.
    """
    check_rows(step, operands)
    kv_heads, limit = operands[step.scores][0]

    def pool(context: Context) -> None:
        f, length = context.f, context.scalars[step.length]
        with prompt_slices(context, kv_heads, limit, length, length) as (head, _, first, last):
            scores, pooled = (address(f, context.operands[name], head) for name in (step.scores, step.pooled))
            with f.loop(first, last, 16) as place:
                values = _pooled(f, scores, place.index, length, step)
                f.store_masked(values, pooled + place.index * 4, f.first_lanes(last - place.index))

    return Lowered((Phase(kv_heads * slices_of(limit), pool),))


def _pooled(f: Function, scores: Value, place: Value, length: Value, step: Pool) -> Value:
    """Return the pooled scores of positions place .. place + 15 from f32 scores [length]; unspecified from `length`
    on."""
    width, mean = step.width, step.mode == "avg"
    first = f.broadcast(f.cast("arith.trunci", place - width // 2, I32), 16) + f.lanes()
    end = f.broadcast(f.cast("arith.trunci", length, I32), 16)
    with f.loop(0, width, 1, [f.splat(0.0 if mean else float("-inf"))]) as tap:
        position = first + f.broadcast(f.cast("arith.trunci", tap.index, I32), 16)
        inside = (position >= 0) & (position < end)
        value = f.load_masked(scores + (place + tap.index - width // 2) * 4, inside, FLOATS)
        if mean:
            tap.carry(tap.state[0] + value)
        else:
            tap.carry(f.max(tap.state[0], f.select(inside, value, float("-inf"))))
    return tap.results[0] / float(width) if mean else tap.results[0]


# --------------------------------------------------------------------------------------------------------- selection


@executes(Select)
def lower_select(step: Select, operands: dict[str, Meta], features: Features) -> Lowered:
    """Lower `Select` to one phase in units of KV heads. NaN ranks above all scores, as in the reference interpreter.

    Shared scratch: an i32 per score. Does nothing unless the length is 1 .. T.
    """
    check_rows(step, operands, step.selected)
    (kv_heads, limit), (_, room) = operands[step.scores][0], operands[step.selected][0]
    row = key_bytes(limit)

    def select(context: Context) -> None:
        f, length = context.f, context.scalars[step.length]
        with f.when(holds(length, limit)), units(context, kv_heads) as (head,):
            scores = address(f, context.operands[step.scores], head)
            keys = context.shared + head * row
            end = f.max(length - step.recent, step.sink)
            with f.loop(step.sink, end, 16) as place:
                mask = f.first_lanes(end - place.index)
                candidate_scores = f.load_masked(scores + place.index * 4, mask, FLOATS)
                store_keys(f, candidate_scores, mask, keys + (place.index - step.sink) * 4)
            target = address(f, context.operands[step.selected], head)
            topk = context.scalars[step.topk]
            scored = f.select(length > topk + (step.sink + step.recent), end - step.sink, 0)
            choose(f, keys, step.sink, scored, topk, room, target, context.private, limit)

    return Lowered((Phase(kv_heads, select, choice_bytes(limit, room)),), kv_heads * row)
