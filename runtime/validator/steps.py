"""Sizes and settings of the algorithm's operations that their patterns cannot express."""

from __future__ import annotations

from typing import Any

from sscc.ir import operations as ops
from sscc.ir import quantized_keys
from sscc.ir.choices import PLAIN_BITS
from sscc.ir.errors import UsageError
from sscc.ir.geometry import LARGEST_POOL
from sscc.ir.operations import latent_fits, recurrence_fits
from sscc.ir.opspec import Op, Sizes, spec_of_step
from sscc.ir.weight_formats.registry import format_named
from sscc.runtime.validator.failure import ProofKind


class StepProofErrors(ProofKind):
    """Steps of the algorithm with invalid sizes or settings."""

    HEADS = "{heads} query heads do not divide into groups of {kv_heads} KV heads"
    NO_SEGMENT = "it has no segment to attend to"
    NEGATIVE_SELECTION = "it selects with sink {sink} and recent {recent}, which must not be negative"
    NEGATIVE_RECENT = "it scores with recent {recent}, which must not be negative"
    LATENT_ROWS = (
        "its rows of {row} numbers, whose first {compressed} give {columns} columns from {first} on, do not give keys "
        "of {key} numbers"
    )
    RECURRENCE = (
        "its {heads} heads do not divide into {groups} groups, or {decays} decays do not fit keys of {numbers} numbers"
    )
    NEGATIVE_WINDOW = "it attends within a window of {window} positions, which must not be negative"
    WINDOW_STRIDE = "its window of {window} positions moves in steps of {stride} behind {sink} sinks"
    SCALE = "its scale must be above 0 and at most {most:g}, got {scale}"
    SOFTCAP = "the cap of its scores must be {least:g} to {most:g}, got {softcap}"
    TOO_FEW_NUMBERS = "it chooses {chosen} of {numbers} numbers"
    FORMAT = "its weights have the unknown format {format!r}: {cause}"
    PARTS = "its parts have rows of {widths!r} bytes, which are not those of {columns} numbers in {format}"
    INDEX = "an index of its segments has rows neither for each slot nor for each token"
    CHOICES = "it makes {choices} choices for {kv_heads} KV heads, which do not divide into that many groups"
    CHOICE = "it chooses {topk} positions in blocks of {block}, {local} of them local"
    POOL = "it pools with mode {mode!r} and width {width}"
    VALUES_MISSING = "it has values for some of its keys, but not {missing}: it must have all or none"
    VALUES_TOO_WIDE = "its values are the first {values} numbers of its keys, which have {key}"
    QUANTIZED_KEY_WIDTH = "it keeps keys of {key} numbers as {bits}-bit quantized keys in rows of {width}"
    QUANTIZED_KEY_SCALES = "its quantized keys have {bits} bits and scales, but only codes have scales"
    QUANTIZED_KEY_NO_SCALES = "its quantized keys have {bits} bits and no scales"
    TOKENS = "it has {tokens} tokens for {slots} slots; it must have one per slot, or in {steps} equally many"
    SPARE_ROWS = "it has {tokens} tokens per slot, and {spare} spare rows"
    RING = "the ring has sink {sink} and recent {recent} in {rows} rows"
    NEGATIVE_SPARE = "its ring has {spare} spare rows, which must not be negative"
    NEGATIVE_CHOICE = "it chooses {topk} rows, which must not be negative"
    NO_FETCH = "it must fetch at least 1 row, got {fetch}"
    RESIDENT_ROWS = "it chooses {topk} rows and fetches {fetch}, with {resident} operands of {rows} resident rows"
    SELECTED_ROWS = (
        "it has {segments} segments of {selected} selected rows in a cache of {rows} rows, {ring} of them without "
        "these"
    )
    RING_TOO_LARGE = "rows 0 .. {last} of sink {sink} and recent {recent} are used, but the cache has {rows} rows"


_WITH_SPARE = (ops.DecodeAttention, ops.ChooseRows, ops.QueryAttention)
"""Steps whose ring may have rows that a query does not see."""
LARGEST_SCALE = 1024.0
"""Maximum scale of attention. Models use at most 1; larger scores lose precision in the exponential."""
LARGEST_SOFTCAP = 1e6
"""Maximum cap of scores; models use 20 to 50. Beyond this, intermediate numbers could overflow."""


def check_sizes(step: Any, sizes: Sizes, where: str) -> None:
    """Check the sizes and settings of a step that stands at `where`."""
    if {"H", "Hkv"} <= sizes.keys() and sizes["H"] % sizes["Hkv"]:
        raise StepProofErrors.HEADS(where=where, heads=sizes["H"], kv_heads=sizes["Hkv"])
    if {"Q", "B"} <= sizes.keys():
        _check_tokens(step, sizes["Q"], sizes["B"], where)
    if isinstance(step, ops.CachedAttention) and not step.segments:
        raise StepProofErrors.NO_SEGMENT(where=where)
    by_query = ops.QuantizedKeyScores | ops.ChooseRows | ops.FetchRows | ops.QueryAttention
    if isinstance(step, ops.DecodeAttention | by_query):
        _check_ring(step, sizes, where)
    _check_sides(step, sizes, where)
    if isinstance(step, ops.Dequantize | ops.LookUp):
        _check_parts(step, sizes, where)
    if isinstance(step, ops.QuantizeKeys | ops.QuantizedKeyScores | ops.QueryAttention):
        _check_quantized_keys(step, sizes, where)
    if isinstance(step, ops.Select) and (step.sink < 0 or step.recent < 0):
        raise StepProofErrors.NEGATIVE_SELECTION(where=where, sink=step.sink, recent=step.recent)
    if isinstance(step, ops.ObservationScores) and step.recent < 0:
        raise StepProofErrors.NEGATIVE_RECENT(where=where, recent=step.recent)
    if isinstance(step, ops.RecurrentStep | ops.RecurrentChunk) and not recurrence_fits(sizes):
        raise StepProofErrors.RECURRENCE(
            where=where, heads=sizes["H"], groups=sizes["G"], decays=sizes["N"], numbers=sizes["D"]
        )
    if not ops.index_fits(sizes):
        raise StepProofErrors.INDEX(where=where)
    if isinstance(step, ops.AttendChosen) and sizes["Hkv"] % sizes["Hc"]:
        raise StepProofErrors.CHOICES(where=where, choices=sizes["Hc"], kv_heads=sizes["Hkv"])
    if isinstance(step, ops.ChooseByIndex):
        _check_choice(step, sizes, where)
    if isinstance(step, ops.LatentChunkAttention) and not latent_fits(sizes, step.first):
        raise StepProofErrors.LATENT_ROWS(
            where=where, row=sizes["L"], compressed=sizes["P"], columns=sizes["N"], first=step.first, key=sizes["D"]
        )
    if isinstance(step, ops.CausalAttention | ops.ChunkAttention) and step.window < 0:
        raise StepProofErrors.NEGATIVE_WINDOW(where=where, window=step.window)
    if isinstance(step, ops.CausalAttention | ops.ChunkAttention):
        _check_stride(step.window_stride, step.window, 0, where)
    if isinstance(step, ops.DecodeAttention):
        _check_stride(step.window_stride, step.recent, step.sink, where)
    if hasattr(step, "scale") and not 0 < step.scale <= LARGEST_SCALE:
        raise StepProofErrors.SCALE(where=where, scale=step.scale, most=LARGEST_SCALE)
    softcap = getattr(step, "softcap", None)
    if softcap is not None and not 1 / LARGEST_SOFTCAP <= softcap <= LARGEST_SOFTCAP:
        raise StepProofErrors.SOFTCAP(where=where, softcap=softcap, least=1 / LARGEST_SOFTCAP, most=LARGEST_SOFTCAP)
    if isinstance(step, ops.TopK) and sizes["Top"] > sizes["N"]:
        raise StepProofErrors.TOO_FEW_NUMBERS(where=where, chosen=sizes["Top"], numbers=sizes["N"])
    if isinstance(step, ops.Pool) and (step.width not in range(1, LARGEST_POOL, 2) or step.mode not in ("avg", "max")):
        raise StepProofErrors.POOL(where=where, mode=step.mode, width=step.width)


def _check_tokens(step: Any, tokens: int, slots: int, where: str) -> None:
    """Check the number of tokens in a decode step over the caches of slots."""
    if tokens % slots or (tokens > slots and not isinstance(step, ops.SEVERAL_TOKENS)):
        names = [record.kind for record in ops.SEVERAL_TOKENS if record.kind]
        raise StepProofErrors.TOKENS(where=where, tokens=tokens, slots=slots, steps=names)
    if isinstance(step, _WITH_SPARE) and tokens // slots > step.spare + 1:
        raise StepProofErrors.SPARE_ROWS(where=where, tokens=tokens // slots, spare=step.spare)


def _check_choice(step: ops.ChooseByIndex, sizes: Sizes, where: str) -> None:
    """Check that an index makes one choice of sums over heads, or one for each head, of whole blocks."""
    choices = 1 if step.weight else sizes["Hi"]
    blocks = sizes["Top"] // step.block if step.block > 0 else 0
    if sizes["Hc"] != choices or blocks * step.block != sizes["Top"] or not 0 <= step.local <= blocks or not blocks:
        raise StepProofErrors.CHOICE(where=where, topk=sizes["Top"], block=step.block, local=step.local)


def _check_parts(step: ops.Dequantize | ops.LookUp, sizes: Sizes, where: str) -> None:
    """Check that the widths of a weight's parts are those of its format."""
    try:
        weight_format = format_named(step.format)
    except UsageError as error:
        raise StepProofErrors.FORMAT(where=where, format=step.format, cause=error) from None
    members = step.parts if isinstance(step, ops.Dequantize) else step.tables
    widths = [sizes[f"E{number}"] for number in range(len(members))]
    if not weight_format.has_widths(widths, sizes["I"]):
        raise StepProofErrors.PARTS(where=where, format=step.format, widths=widths, columns=sizes["I"])


def _check_stride(stride: int | None, window: int, sink: int, where: str) -> None:
    """Check that a window slides, or moves by all of itself without sinks: a query sees the first rows of its ring."""
    if stride is not None and (stride != window or window < 1 or sink):
        raise StepProofErrors.WINDOW_STRIDE(where=where, window=window, stride=stride, sink=sink)


def _check_sides(step: Op, sizes: Sizes, where: str) -> None:
    """Check that the step has the values of all its keys, or of none; values are then the first numbers of keys."""
    spec = spec_of_step(step)
    operands = spec.regions(step)
    if missing := spec.missing_values(operands):
        raise StepProofErrors.VALUES_MISSING(where=where, missing=missing)
    if not spec.has_values(operands) and sizes.get("Dv", 0) > sizes["D"]:
        raise StepProofErrors.VALUES_TOO_WIDE(where=where, values=sizes["Dv"], key=sizes["D"])


def _check_quantized_keys(
    step: ops.QuantizeKeys | ops.QuantizedKeyScores | ops.QueryAttention, sizes: Sizes, where: str
) -> None:
    """Check that codes fill their bytes and have scales, and that keys kept as they are have neither."""
    exact = step.bits == PLAIN_BITS and not isinstance(step, ops.QuantizeKeys)
    wrong = step.bits not in quantized_keys.MAGNITUDES or sizes["D"] * step.bits != 8 * sizes["E"]
    if sizes["D"] != sizes["E"] if exact else wrong:
        raise StepProofErrors.QUANTIZED_KEY_WIDTH(where=where, key=sizes["D"], bits=step.bits, width=sizes["E"])
    if not isinstance(step, ops.QuantizeKeys) and exact == bool(step.scales):
        kind = StepProofErrors.QUANTIZED_KEY_SCALES if exact else StepProofErrors.QUANTIZED_KEY_NO_SCALES
        raise kind(where=where, bits=step.bits)


def _check_ring(
    step: ops.DecodeAttention | ops.QuantizedKeyScores | ops.ChooseRows | ops.FetchRows | ops.QueryAttention,
    sizes: Sizes,
    where: str,
) -> None:
    spare = step.spare if isinstance(step, _WITH_SPARE) else 0
    if spare < 0:
        raise StepProofErrors.NEGATIVE_SPARE(where=where, spare=spare)
    ring = step.sink + step.recent + spare
    rows = sizes.get("R", ring)
    if step.sink < 0 or step.recent < 1 or (rows != ring and not isinstance(step, ops.DecodeAttention)):
        raise StepProofErrors.RING(where=where, sink=step.sink, recent=step.recent, rows=rows)
    if isinstance(step, ops.QueryAttention) and step.topk < 0:
        raise StepProofErrors.NEGATIVE_CHOICE(where=where, topk=step.topk)
    if isinstance(step, ops.FetchRows) and step.fetch < 1:
        raise StepProofErrors.NO_FETCH(where=where, fetch=step.fetch)
    if isinstance(step, ops.QueryAttention):
        resident = [bool(name) for name in (step.resident, step.places, step.k_resident)]
        rows_kept = sizes.get("K", 0)
        if set(resident) != {step.fetch > 0} or step.fetch < 0 or sizes.get("K", step.topk) != step.topk:
            raise StepProofErrors.RESIDENT_ROWS(
                where=where, topk=step.topk, fetch=step.fetch, resident=sum(resident), rows=rows_kept
            )
    if ring > rows:
        raise StepProofErrors.RING_TOO_LARGE(
            where=where, last=ring - 1, sink=step.sink, recent=step.recent, rows=rows
        )
    if isinstance(step, ops.DecodeAttention) and (len(step.segments) > 1 or sizes.get("R0", 0) > rows - ring):
        raise StepProofErrors.SELECTED_ROWS(
            where=where, segments=len(step.segments), selected=sizes.get("R0", 0), rows=rows, ring=ring
        )
