"""The state of layers that attend: its tensors, bytes, and the parts that a slot is copied by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sscc.ir.geometry import Geometry, Span
from sscc.ir.layer_state.kept import Reason
from sscc.ir.layer_state.row_streams import Stream
from sscc.ir.layer_state.rows import Rows
from sscc.ir.layer_state.state_tensors import Extent, ProgramSizes
from sscc.runtime.backends.interpreter import HostTensor

G = Geometry(sink=2, recent=4, topk=3, obs=2, pool=3, pool_mode="avg", max_context=20)
SIZES = ProgramSizes(batch=3, chunk=8, dtype="f32", max_context=20)
STREAMS = (Stream("k", 8), Stream("v", 6))
GEOMETRIES = {
    "compact": G,
    "int8": replace(G, dtype="int8"),
    "streaming": replace(G, topk=0),
    "window": G.windowed(Span(5)),
    "layers": G.with_layers([3, 0]),
    "indexed": replace(G, rows="indexed"),
    "query": replace(G, rows="indexed", policy="query", key_bits=2),
    "fetch": replace(G, rows="indexed", policy="query", key_bits=16, fetch=2),
}
LENGTH = 11


def rows(name: str, **changes: Any) -> Rows:
    values: dict[str, Any] = {"group": "", "scratch": "", "layers": 2, "heads": 4, "kv_heads": 2, "streams": STREAMS}
    return Rows(**{**values, "geometry": GEOMETRIES[name], "sizes": SIZES, **changes})


def states(kept: Rows) -> Callable[[str], Any]:
    """The tensors of a program of one rank, each element of which is its place."""
    shapes = {kept.name_of(part): part.entry_shape(kept.layers, SIZES.batch) for part in kept.tensors()}
    arrays = {
        name: np.arange(np.prod([size or 5 for size in shape])).reshape([size or 5 for size in shape])
        for name, shape in shapes.items()
    }
    return lambda name: HostTensor(arrays[name])


SUMS = {"log_sum_exp": (1, 4, 2, 1)}
TENSORS = {
    "compact": {
        "k_cache": (2, 3, 2, 9, 8), "k_scratch": (1, 2, 24, 8), "observed": (1, 4, 2, 8), "selected": (2, 2, 3), **SUMS,
    },
    "int8": {
        "k_cache": (2, 3, 2, 9, 12), "k_scratch": (1, 2, 24, 8), "observed": (1, 4, 2, 8), "selected": (2, 2, 3),
        **SUMS,
    },
    "streaming": {"k_cache": (2, 3, 2, 6, 8), "k_scratch": (1, 2, 24, 8)},
    "window": {"k_cache": (2, 3, 2, 5, 8), "k_scratch": (1, 2, 24, 8)},
    "layers": {
        "k_cache": (3, 2, 18, 8), "k_scratch": (1, 2, 24, 8), "observed": (1, 4, 2, 8), "selected": (2, 2, 3), **SUMS,
    },
    "indexed": {
        "k_cache": (2, 3, 2, 9, 8), "k_store": (2, 3, 2, 24, 8), "observed": (1, 4, 2, 8),
        "selected": (2, 3, 2, 3), **SUMS,
    },
    "query": {
        "k_cache": (2, 3, 2, 6, 8), "k_store": (2, 3, 2, 24, 8),
        "quantized_keys": (2, 3, 2, 24, 2), "quantized_key_scales": (2, 3, 2, 24, 1),
    },
    "fetch": {
        "k_cache": (2, 3, 2, 6, 8), "k_store": (2, 3, 2, 24, 8), "k_resident": (2, 3, 2, 3, 8),
        "quantized_keys": (2, 3, 2, 24, 8), "resident": (2, 3, 2, 3), "resident_places": (2, 3, 2, 3),
        "observed": (1, 4, 2, 8),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", GEOMETRIES)
def test_tensors(name: str) -> None:
    kept = rows(name)
    shapes = {part.name: part.entry_shape(2, 3) for part in kept.tensors() if not part.name.startswith("v_")}
    assert shapes == TENSORS[name]
    values = {part.name: part.entry_shape(2, 3)[-1] for part in kept.tensors() if part.name.startswith("v_")}
    assert len(values) == sum(part.startswith("k_") for part in shapes)
    assert set(values.values()) <= {6, 6 + 4}


def test_names_are_those_of_the_group_and_a_scratch_has_that_of_its_owner() -> None:
    kept = rows("window", group="window5", scratch="")
    assert {kept.name_of(part): part.extent for part in kept.tensors()} == {
        "k_cache.window5": Extent.SLOTS, "k_scratch": Extent.PROMPT,
        "v_cache.window5": Extent.SLOTS, "v_scratch": Extent.PROMPT,
    }  # fmt: skip


def test_the_queries_of_a_latent_layer_are_as_wide_as_the_model_has_them() -> None:
    kept = rows("compact", streams=(Stream("latent", 12),), kv_heads=1)
    assert kept.latent
    assert {part.name: part.shape for part in kept.tensors()}["observed"] == (4, 2, None)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_the_tensors_of_slots_are_as_many_bytes_as_a_sequence_holds(name: str) -> None:
    """The tensors that number the rows are not counted."""
    kept = rows(name)
    sizes = {"f32": 4, "i8": 1, "bf16": 2}
    held = sum(
        int(np.prod([size or 0 for size in part.entry_shape(2, 1)])) * sizes[part.dtype]
        for part in kept.tensors()
        if part.part
    )
    assert kept.held_bytes() == held
    assert sum(kept.far_bytes().values()) == held - _of_caches(kept)


def _of_caches(kept: Rows) -> int:
    near = [part for part in kept.tensors() if part.part in ("cache", "resident rows")]
    sizes = {"f32": 4, "i8": 1}
    return sum(int(np.prod([size or 0 for size in part.entry_shape(2, 1)])) * sizes[part.dtype] for part in near)


@pytest.mark.parametrize(
    ("name", "read", "full", "row"),
    [
        ("compact", 2 * 9 * 2 * 14 * 4, 2 * 20 * 2 * 14 * 4, 2 * 2 * 14 * 4),
        ("int8", 2 * 9 * 2 * (14 + 8), 2 * 20 * 2 * 14 * 4, 2 * 2 * 14 * 4),
        ("window", 2 * 5 * 2 * 14 * 4, 2 * 5 * 2 * 14 * 4, 2 * 2 * 14 * 4),
        ("layers", (9 + 6) * 2 * 14 * 4, 2 * 20 * 2 * 14 * 4, 2 * 2 * 14 * 4),
        ("query", 2 * 9 * 2 * 14 * 4 + 2 * 2 * 14 * 4, 2 * 20 * 2 * 14 * 4, 2 * 2 * (14 * 4 + 4)),
    ],
)
def test_bytes(name: str, read: int, full: int, row: int) -> None:
    kept = rows(name)
    assert (kept.read_bytes(20), kept.uncompressed_bytes(20), kept.chunk_bytes()) == (read, full, 8 * row)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_a_copy_of_a_slot_is_what_its_rows_are(name: str) -> None:
    kept = rows(name)
    tensor = states(kept)
    views = kept.slot(tensor, 1, LENGTH)
    assert all(np.shares_memory(view.array, tensor(part).array) for part, view in views.items())
    caches = kept.geometry.packed_rows if kept.geometry.packed else kept.geometry.cache_rows
    expected = {"cache": caches, "store": LENGTH, "quantized keys": LENGTH}
    parts = {kept.name_of(part): part for part in kept.tensors()}
    assert set(views) == {part for part, of in parts.items() if of.extent in (Extent.SLOTS, Extent.PACKED)}
    for part, view in views.items():
        axis = 1 if parts[part].extent is Extent.PACKED else 2
        assert view.shape[axis] == expected.get(parts[part].part, parts[part].shape[1])
    if not kept.geometry.packed:
        short = kept.slot(tensor, 1, 3)
        assert {view.shape[2] for part, view in short.items() if parts[part].part == "cache"} == {3}


def test_positions_of_a_prompt_are_where_they_stay() -> None:
    for name, expected in {
        "indexed": {"k_store", "v_store"},
        "query": {"k_store", "v_store", "quantized_keys", "quantized_key_scales"},
        "window": {"k_scratch.g", "v_scratch.g"},
        "compact": {"k_scratch", "v_scratch"},
    }.items():
        kept = rows(name, group="g" if name == "window" else "")
        found = dict(kept.positions(states(kept), 1, 2))
        assert set(found) == expected
        assert all(view.shape[:2] == (2, 24) for view in found.values())


def test_budgets_of_layers() -> None:
    assert rows("layers").budgets == (9, 6)
    assert rows("compact").budgets == (9, 9)
    assert rows("window").budgets == (5, 5)
    assert rows("layers").tables() == ((3, 0), (0, 9))
    assert rows("layers").selected_counts() == {0, 3}
    assert rows("layers").unequal_budgets() == {9: (9, 6)}
    assert rows("compact").unequal_budgets() == {}


def test_the_rows_of_a_layer_are_a_view_of_its_cache() -> None:
    """Behind it there may be rows of other layers, which a program sees too."""
    for name, first in {"compact": [(0, 9), (0, 9)], "layers": [(0, 18), (9, 18)], "indexed": [(0, 9), (0, 9)]}.items():
        kept = rows(name)
        tensor = states(kept)
        for index, (begin, end) in enumerate(first):
            view = kept.layer_rows(tensor, STREAMS[0], index)
            whole = tensor("k_cache") if name == "layers" else tensor("k_cache")[index]
            assert np.shares_memory(view.array, tensor("k_cache").array)
            assert np.array_equal(view.array, whole[:, :, begin:end].array)


def test_reasons() -> None:
    selected = {"": np.array([[[3, 5, 7], [4, 5, 6]], [[2, 3, 4], [2, 3, 8]]])}
    kept = rows("compact").kept(lambda name: HostTensor(selected[name]), 1, 0, 13, 12, selected)
    first = [int(reason) for reason in kept.reasons[0]]
    sink, chosen, ring = int(Reason.SINK), int(Reason.SELECTED), int(Reason.RECENT)
    assert first == [sink, sink, chosen, chosen, chosen, 0, 0, 0, 0, ring, ring, ring, ring]
    assert kept.choice_known
    nothing = {"": np.full((2, 2, 3), -1)}
    for prompt_len, length, between in ((3, 13, 1), (6, 13, 3), (9, 13, 3), (6, 9, 3), (1, 9, 0)):
        short = rows("compact").kept(lambda name: HostTensor(nothing[name]), 1, 0, length, prompt_len, nothing)
        evicted, newest = max(length - 9, 0), min(length, 9) - 2 - between
        expected = [sink] * 2 + [chosen] * between + [0] * evicted + [ring] * newest
        assert short.reasons.tolist() == [expected] * 2, (prompt_len, length)
    stored = rows("query").kept(lambda name: HostTensor(selected[name]), 0, 0, 13, 12, {})
    assert not stored.choice_known
    assert set(stored.reasons[0, 2:9]) == {int(Reason.STORED)}
    few = rows("query").kept(lambda name: HostTensor(selected[name]), 0, 0, 9, 9, {})
    assert few.choice_known
    assert set(few.reasons[0, 2:5]) == {chosen}
