"""The end of a prompt in one step: selection in a single pass over the keys, then the rows of the cache.

Scores arrive in tiles. Pooling holds back the last `pool` - 1 scores, because a pooled score needs its neighbours
of the next tile; the top-K holds the best rows so far. So nothing grows with the prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

import torch
from torch import Tensor

from sscc.ir.schedule import Compress
from sscc.runtime.backends.reference.cache import gathered
from sscc.runtime.backends.reference.encoded_rows import as_stored
from sscc.runtime.backends.reference.interface import Bind, Fire, Interface, Scalars, Views
from sscc.runtime.backends.reference.selection import POOLS, PromptScores, check_pool, check_topk
from sscc.runtime.backends.reference.softmax import check_groups


def compile_compress(step: Compress, interface: Interface) -> Bind:
    sizes = interface.match(step)
    check_groups(sizes, interface)
    check_pool(step.pool_mode, step.pool, interface)
    ring, chosen = step.sink + step.recent, sizes.get("K", 0)
    if step.sink < 0 or step.recent < 1 or sizes["R"] not in (ring + chosen, ring):
        interface.refuse(
            f"compress fills {sizes['R']} rows with sink {step.sink} + recent {step.recent} + topk {chosen}"
        )
    length, topk = interface.scalar(step.length), interface.scalar(step.topk)
    wide = interface.numerics.accumulate

    def bind(views: Views) -> Fire:
        observed, log_sum_exp, key, value = (
            views[name] for name in (step.observed, step.log_sum_exp, step.key, step.value)
        )
        k_cache, v_cache = views[step.k_cache], views[step.v_cache]
        selected = views[step.selected] if step.selected else torch.empty(sizes["Hkv"], 0, dtype=torch.int64)

        def fire(scalars: Scalars) -> None:
            n = scalars[length]
            prompt = PromptScores(observed, key, length=n, scale=step.scale, recent=step.recent, wide=wide)
            select_streaming(prompt, log_sum_exp, selected, scalars[topk], step)
            rows = kept_rows(n, step.sink, step.recent).expand(sizes["Hkv"], -1)
            if sizes["R"] > ring:
                rows = torch.cat([rows, selected], 1)
            for source, cache in ((key, k_cache), (value, v_cache)):
                cache.copy_(as_stored(gathered(source, rows[None]), cache))

        return fire

    return bind


def kept_rows(length: int, sink: int, recent: int) -> Tensor:
    """The position in each sink and ring row after `length` tokens, [sink + recent] i64; -1 for an empty ring row."""
    last = length - 1
    ring = last - torch.remainder(last - sink - torch.arange(recent), recent)
    return torch.cat([torch.arange(sink), torch.where(ring >= sink, ring, -1)])


def select_streaming(prompt: PromptScores, log_sum_exp: Tensor, selected: Tensor, topk: int, step: Compress) -> None:
    """What `ObservationScores`, `Pool` and `Select` leave in `selected`, in one pass over the keys.

    `log_sum_exp` is [1, H, obs], of the scaled scores of the observed queries over the keys that they see.
    """
    check_topk(topk, selected)
    heads = selected.shape[0]
    stop = prompt.length - step.recent
    best = TopPositions(heads, topk, prompt.wide)
    if topk and stop > step.sink:
        scores = (tile for _, tile in prompt.tiles(prompt.kept(log_sum_exp)))
        for begin, tile in pooled_tiles(scores, heads, step.pool, step.pool_mode, prompt.wide):
            low, high = max(begin, step.sink), min(begin + tile.shape[1], stop)
            if low < high:
                best.add(low, tile[:, low - begin : high - begin])
    best.write(selected)


def pooled_tiles(
    tiles: Iterable[Tensor], heads: int, width: int, mode: str, dtype: torch.dtype
) -> Iterator[tuple[int, Tensor]]:
    """Pools scores [heads, n] that arrive in tiles, as `Pool` would all of them: (first position, pooled tile).

    Behind the last one come zeros (the observation window) or nothing (the end of the prompt). Scores are not
    negative, so to either mode that is the same.
    """
    position = 0
    edge = torch.full((heads, width // 2), 0.0 if mode == "avg" else -torch.inf, dtype=dtype)
    held = edge  # scores that pooled scores to come still need
    for tile in chain(tiles, [edge]):
        held = torch.cat([held, tile], 1)
        if held.shape[1] >= width:
            pooled = POOLS[mode](held, width, stride=1)
            yield position, pooled
            position += pooled.shape[1]
            held = held[:, pooled.shape[1] :]


class TopPositions:
    """The best positions so far per KV head, by (score descending, position ascending)."""

    def __init__(self, heads: int, count: int, dtype: torch.dtype) -> None:
        self._count = count
        self._scores = torch.empty(heads, 0, dtype=dtype)
        self._positions = torch.empty(heads, 0, dtype=torch.int64)

    def add(self, first: int, scores: Tensor) -> None:
        """Takes scores [heads, n] of positions first, first + 1, ..; all later than those before."""
        positions = torch.arange(first, first + scores.shape[1]).expand_as(scores)
        scores = torch.cat([self._scores, scores], 1)
        positions = torch.cat([self._positions, positions], 1)
        order = torch.sort(scores, dim=1, descending=True, stable=True).indices[:, : self._count]
        self._scores, self._positions = scores.gather(1, order), positions.gather(1, order)

    def write(self, selected: Tensor) -> None:
        """selected [heads, count]: positions ascending, then -1."""
        found = self._positions.shape[1]
        selected[:, :found] = self._positions.sort(1).values
        selected[:, found:] = -1
