"""What must hold of an operation's sizes and settings, which its patterns cannot say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sscc.ir import landmarks
from sscc.ir import schedule as sch
from sscc.ir.choices import PLAIN_BITS
from sscc.ir.geometry import LARGEST_POOL
from sscc.ir.operations import latent_misfit
from sscc.ir.opspec import Op, Sizes, spec_of_step

Refuse = Callable[[str], None]

LARGEST_SCALE = 1024.0
"""Of attention. Models scale by 1 at most; scores that are too large round by more than the exponent can stand."""
LARGEST_SOFTCAP = 1e6
"""Of what caps scores; models cap at 20 to 50. Beyond, intermediate numbers could overflow."""


def check_sizes(step: Any, sizes: Sizes, refuse: Refuse) -> None:
    """The sizes of a cache and of the groups of heads: what patterns cannot say."""
    if {"H", "Hkv"} <= sizes.keys() and sizes["H"] % sizes["Hkv"]:
        refuse(f"{sizes['H']} query heads do not divide into groups of {sizes['Hkv']} KV heads")
    if isinstance(step, sch.CachedAttention) and not step.segments:
        refuse("it attends to no segment")
    if isinstance(step, sch.DecodeAttention | sch.LandmarkScores | sch.ChooseRows | sch.FetchRows | sch.QueryAttention):
        _check_ring(step, sizes, refuse)
    _check_sides(step, sizes, refuse)
    if isinstance(step, sch.Landmarks | sch.LandmarkScores | sch.QueryAttention):
        _check_landmarks(step, sizes, refuse)
    if isinstance(step, sch.Select) and (step.sink < 0 or step.recent < 0):
        refuse(f"it selects with sink {step.sink} and recent {step.recent}")
    if isinstance(step, sch.ObservationScores) and step.recent < 0:
        refuse(f"it scores with recent {step.recent}")
    if isinstance(step, sch.LatentChunkAttention) and (misfit := latent_misfit(sizes, step.first)):
        refuse(f"its {misfit}")
    if isinstance(step, sch.CausalAttention | sch.ChunkAttention) and step.window < 0:
        refuse(f"it attends within a window of {step.window} positions")
    if isinstance(step, sch.CausalAttention | sch.ChunkAttention):
        _check_stride(step.window_stride, step.window, 0, refuse)
    if isinstance(step, sch.DecodeAttention):
        _check_stride(step.window_stride, step.recent, step.sink, refuse)
    if hasattr(step, "scale") and not 0 < step.scale <= LARGEST_SCALE:
        refuse(f"its scale is {step.scale}, it must be above 0 and at most {LARGEST_SCALE:g}")
    softcap = getattr(step, "softcap", None)
    if softcap is not None and not 1 / LARGEST_SOFTCAP <= softcap <= LARGEST_SOFTCAP:
        refuse(f"its scores are capped at {softcap}, it must be {1 / LARGEST_SOFTCAP:g} to {LARGEST_SOFTCAP:g}")
    if isinstance(step, sch.TopK) and sizes["Top"] > sizes["N"]:
        refuse(f"it chooses {sizes['Top']} of {sizes['N']} numbers")
    if isinstance(step, sch.Pool) and (step.width not in range(1, LARGEST_POOL, 2) or step.mode not in ("avg", "max")):
        refuse(f"it pools with mode {step.mode!r} and width {step.width}")


def _check_stride(stride: int | None, window: int, sink: int, refuse: Refuse) -> None:
    """A window slides, or moves by all of itself, and is a ring alone: so what a query sees are its first rows."""
    if stride is not None and (stride != window or window < 1 or sink):
        behind = f" behind {sink} sinks" if sink else ""
        refuse(f"its window of {window} positions{behind} moves in steps of {stride}")


def _check_sides(step: Op, sizes: Sizes, refuse: Refuse) -> None:
    """The step has the values of all its keys, or of none, whose first numbers they are then."""
    spec = spec_of_step(step)
    try:
        has_values = spec.has_values(spec.regions(step))
    except ValueError as error:
        refuse(f"it {error}")
    else:
        if not has_values and sizes.get("Dv", 0) > sizes["D"]:
            refuse(f"its values are the first {sizes['Dv']} numbers of its keys, which have {sizes['D']}")


def _check_landmarks(
    step: sch.Landmarks | sch.LandmarkScores | sch.QueryAttention, sizes: Sizes, refuse: Refuse
) -> None:
    """Codes fill their bytes and have scales; keys have neither."""
    exact = step.bits == PLAIN_BITS and not isinstance(step, sch.Landmarks)
    wrong = step.bits not in landmarks.MAGNITUDES or sizes["D"] * step.bits != 8 * sizes["E"]
    if sizes["D"] != sizes["E"] if exact else wrong:
        unit = "numbers" if exact else "bytes"
        refuse(f"it keeps keys of {sizes['D']} numbers in {step.bits} bits, {sizes['E']} {unit}")
    if not isinstance(step, sch.Landmarks) and exact == bool(step.scales):
        refuse(f"its landmarks have {step.bits} bits and {'scales' if exact else 'no scales'}")


def _check_ring(
    step: sch.DecodeAttention | sch.LandmarkScores | sch.ChooseRows | sch.FetchRows | sch.QueryAttention,
    sizes: Sizes,
    refuse: Refuse,
) -> None:
    ring = step.sink + step.recent
    rows = sizes.get("R", ring)
    if step.sink < 0 or step.recent < 1 or (rows != ring and not isinstance(step, sch.DecodeAttention)):
        refuse(f"the ring has sink {step.sink} and recent {step.recent} in {rows} rows")
    if isinstance(step, sch.QueryAttention) and step.topk < 0:
        refuse(f"it chooses {step.topk} rows")
    if isinstance(step, sch.FetchRows) and step.fetch < 1:
        refuse(f"it fetches {step.fetch} rows")
    if isinstance(step, sch.QueryAttention):
        near = {bool(name) for name in (step.resident, step.places, step.k_resident)}
        if near != {step.fetch > 0} or step.fetch < 0 or sizes.get("K", step.topk) != step.topk:
            refuse(f"it chooses {step.topk} rows and fetches {step.fetch}, of {sizes.get('K', 'no')} resident rows")
    if ring > rows:
        refuse(f"rows 0 .. {ring - 1} of sink {step.sink} and recent {step.recent} are used, the cache has {rows} rows")
