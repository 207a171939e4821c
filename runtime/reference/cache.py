"""Stages that move rows: into the caches, into the observation window, through the pool, and by selection."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, max_pool1d

from sscc.ir.errors import InputError
from sscc.ir.geometry import POOL_MODES
from sscc.runtime.reference.interface import Bind, Fire, Interface, Views
from sscc.runtime.schedule import GatherRows, Observe, Pool, Select, UpdateRows


def compile_update_rows(stage: UpdateRows, kernel: Interface) -> Bind:
    kernel.match(stage, "cache", cache="float B V R D", new="float B V 1 D", row="i64 B", active="i1 B")

    def bind(views: Views) -> Fire:
        operands = [views[name] for name in (stage.cache, stage.new, stage.row, stage.active)]
        return lambda _: update_rows(*operands)

    return bind


def update_rows(cache: Tensor, new: Tensor, row: Tensor, active: Tensor) -> None:
    """The stage `UpdateRows` (shapes there). Raises InputError where an active slot's row is not in the cache."""
    slots = active.nonzero()[:, 0]
    rows = row[slots]
    if bool(((rows < 0) | (rows >= cache.shape[2])).any()):
        raise InputError(f"a cache of {cache.shape[2]} rows is updated at rows {rows.tolist()}")
    cache[slots, :, rows] = new[slots, :, 0].to(cache.dtype)


def compile_observe(stage: Observe, kernel: Interface) -> Bind:
    kernel.match(stage, "observed", observed="float 1 H N D", query="float 1 H C D")
    start, length = kernel.scalar(stage.start), kernel.scalar(stage.length)

    def bind(views: Views) -> Fire:
        observed, query = views[stage.observed], views[stage.query]
        return lambda scalars: observe(observed, query, start=scalars[start], length=scalars[length])

    return bind


def observe(observed: Tensor, query: Tensor, *, start: int, length: int) -> None:
    """The stage `Observe` (shapes there)."""
    window = observed.shape[2]
    shift = start - max(length - window, 0)  # query i belongs in row i + shift
    first = max(0, -shift)
    last = min(query.shape[2], min(window, length) - shift)
    if first < last:
        observed[:, :, first + shift : last + shift] = query[:, :, first:last]


def compile_pool(stage: Pool, kernel: Interface) -> Bind:
    kernel.match(stage, "pooled", scores="f32 V T", pooled="f32 V T")
    length = kernel.scalar(stage.length)
    if stage.mode not in POOL_MODES or stage.width < 1 or stage.width % 2 == 0:
        kernel.refuse(f"it pools with mode {stage.mode!r} and width {stage.width}")

    def bind(views: Views) -> Fire:
        scores, pooled = views[stage.scores], views[stage.pooled]
        return lambda scalars: pool(scores, pooled, length=scalars[length], width=stage.width, mode=stage.mode)

    return bind


def pool(scores: Tensor, pooled: Tensor, *, length: int, width: int, mode: str) -> None:
    """The stage `Pool` (shapes there): pooled[:, :length]; "avg" divides by `width` at the edges too."""
    _check_length(length, scores)
    padding = width // 2
    if mode == "avg":
        result = avg_pool1d(scores[:, :length], width, stride=1, padding=padding, count_include_pad=True)
    else:
        result = max_pool1d(scores[:, :length], width, stride=1, padding=padding)
    pooled[:, :length] = result


def compile_select(stage: Select, kernel: Interface) -> Bind:
    kernel.match(stage, "selected", scores="f32 V T", selected="i64 V K")
    length = kernel.scalar(stage.length)
    if stage.sink < 0 or stage.recent < 0:
        kernel.refuse(f"it selects with sink {stage.sink} and recent {stage.recent}")

    def bind(views: Views) -> Fire:
        scores, selected = views[stage.scores], views[stage.selected]
        return lambda scalars: select(scores, selected, length=scalars[length], sink=stage.sink, recent=stage.recent)

    return bind


def select(scores: Tensor, selected: Tensor, *, length: int, sink: int, recent: int) -> None:
    """The stage `Select` (shapes there). A stable sort keeps equal scores in order of position."""
    _check_length(length, scores)
    candidates = scores[:, sink : max(length - recent, sink)]
    count = min(candidates.shape[1], selected.shape[1])
    order = torch.sort(candidates, dim=1, descending=True, stable=True).indices[:, :count]
    selected[:, :count] = torch.sort(order, dim=1).values + sink
    selected[:, count:] = -1


def compile_gather_rows(stage: GatherRows, kernel: Interface) -> Bind:
    shared = len(kernel.param(stage.index).shape) == 1
    index = "i64 J" if shared else "i64 V J"
    kernel.match(stage, "out", source="float 1 V T D", index=index, out="float 1 V J D")

    def bind(views: Views) -> Fire:
        source, index, out = views[stage.source], views[stage.index], views[stage.out]
        return lambda _: gather_rows(source, index, out)

    return bind


def gather_rows(source: Tensor, index: Tensor, out: Tensor) -> None:
    """The stage `GatherRows` (shapes there). Raises InputError where an index is beyond the source."""
    if bool((index >= source.shape[2]).any()):
        raise InputError(f"row {int(index.max())} is gathered from a source of {source.shape[2]} rows")
    heads = torch.arange(source.shape[1])[:, None]
    rows = source[0, heads, index.clamp(min=0)]  # [Hkv, J, D]
    out[0] = torch.where((index < 0)[..., None], 0, rows)


def _check_length(length: int, scores: Tensor) -> None:
    if not 1 <= length <= scores.shape[1]:
        raise InputError(f"scores of a prompt of {length} tokens, the scratch holds 1 .. {scores.shape[1]}")
