"""Published deployments beside the model: what is compared how, without compiling any."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import published
from benchmarks.published import (
    DEPLOYMENTS,
    OVER,
    PREFILL_SHARES,
    TABLES,
    UP_TO,
    Row,
    distance,
    exchange_seconds,
    fitted,
    kernel_of,
    kernel_shares,
)
from benchmarks.table import replace_block
from sscc.ir.schedule import Program, Tensor
from sscc.runtime.timing.result import PipelineTiming, StageTiming

PAGE = Path(__file__).parents[2] / "docs" / "results" / "published.md"


@pytest.mark.parametrize(
    ("row", "inside"),
    [
        (Row("x", 100, 86, ""), True),
        (Row("x", 100, 84, ""), False),
        (Row("x", 100, 116, ""), False),
        (Row("x", 100, 116, "", OVER), True),
        (Row("x", 100, 84, "", OVER), False),
        (Row("x", 100, 116, "", UP_TO), False),
    ],
)
def test_rows_are_inside_or_outside(row: Row, inside: bool) -> None:
    assert row.inside is inside


def test_a_table_says_what_is_outside() -> None:
    rows = [
        Row("step", 80, 40, "ms", why="a reason", lacks="an effect"),
        Row("share", 90, 99, "%", OVER, lacks="nothing that shows"),
    ]
    lines = published.table(lambda _: iter(rows))(published.Programs(Path())).splitlines()
    assert lines[2:] == [
        "| step | 80 ms | 40 ms | **outside** 0.50 | a reason; an effect |",
        "| share | over 90 % | 99 % | 1.10 |  |",
    ]


def test_the_page_has_a_place_for_every_table() -> None:
    page = PAGE.read_text()
    for name in (*TABLES, "figures"):
        assert f"\n\n{name} again\n\n" in replace_block(page, name, f"{name} again")


def test_the_page_says_of_every_row_outside_what_explains_it() -> None:
    outside = [line for line in PAGE.read_text().splitlines() if "| **outside** " in line]
    assert outside
    assert [line for line in outside if not line.rstrip("| ").rpartition("|")[2].strip(" *outside.0123456789")] == []


def test_published_batches_hold_as_many_rows() -> None:
    assert {one.batch * one.rows for one in DEPLOYMENTS} == {2_097_152}
    assert sum(PREFILL_SHARES.values()) == pytest.approx(100, abs=0.5)


def test_links_are_better_by_a_factor() -> None:
    machine = published.node(16)
    (link,), (other,) = machine.links, published.with_links(machine, 4).links
    assert other.bandwidth.value == 4 * link.bandwidth.value
    assert link.latency is not None
    assert other.latency is not None
    assert other.latency.value == link.latency.value / 4
    assert replace(published.with_links(machine, 4), links=machine.links) == machine


def test_the_largest_batch_fills_main_memory() -> None:
    """Of 1000 bytes the caches of 4 slots take 400, everything else 300: 7 slots are room for."""

    def tensor(name: str, role: Any, size: int) -> Tensor:
        return Tensor(name, (size,), "i8", role, "hbm", 0)

    tensors = (tensor("k_cache", "state", 400), tensor("hidden", "state", 100), tensor("w", "weight", 200))
    artifact: Any = SimpleNamespace(program=Program(tensors, (), (), (), 500), signature=SimpleNamespace(batch=4))
    assert published.largest_batch(artifact, _with_main(1000)) == 7
    assert published.largest_batch(artifact, _with_main(1099)) == 7
    assert published.largest_batch(artifact, _with_main(1100)) == 8


def _with_main(capacity: int) -> Any:
    machine = published.node(1)
    main = replace(machine.main, capacity=replace(machine.main.capacity, value=capacity))
    return replace(machine, levels=(machine.nearest, main, *machine.far))


@pytest.mark.parametrize(
    ("stage", "kernel"),
    [
        ("load q_a_proj.weight.values", "QKV"),
        ("gate 2", "router"),
        ("gate+experts", "experts"),
        ("gate_proj+up_proj", "experts"),
        ("addf", "output projection"),
        ("addf 2", "experts"),
        ("gather", "ring"),
    ],
)
def test_stages_belong_to_published_kernels(stage: str, kernel: str) -> None:
    assert kernel_of(stage) == kernel


def test_an_unknown_stage_belongs_to_none() -> None:
    with pytest.raises(ValueError, match="'rotation' belongs to no published kernel"):
        kernel_of("rotation")


def test_a_kernel_takes_what_takes_longest() -> None:
    """On half of the units 2 s of arithmetic are 1 s; 1.6 TB from HBM take 1 s, 300 GB over links 3 s."""

    def stage(name: str, pcus: int, compute: float, **nbytes: int) -> StageTiming:
        return StageTiming(name, "body", pcus, 1, 0.0, compute, 0.0, nbytes)

    stages = (
        stage("q_a_proj", 520, 2.0),
        stage("load o_proj.weight", 0, 0.0, hbm=1_600_000_000_000),
        stage("o_proj", 1040, 0.5),
        stage("o_proj 2", 1, 0.0, socket=300_000_000_000),
    )
    pipeline = PipelineTiming("p", 1, 9.0, 0, 1040, stages, {}, None)
    assert kernel_shares([pipeline], published.node(16)) == pytest.approx({"QKV": 25, "output projection": 75})


def test_one_constant_for_all_steps() -> None:
    """A constant that explains all steps is found; it is 0 if modelled steps take as long as published ones, or
    longer."""
    exact = fitted([(1.0, 10, 6.0), (2.0, 20, 12.0), (0.5, 1, 1.0)])
    assert exact == pytest.approx(0.5, rel=1e-3)
    assert fitted([(1.0, 10, 1.0), (2.0, 20, 1.9)]) == 0
    between = fitted([(1.0, 1, 2.0), (1.0, 1, 8.0)])  # the mean of logarithms: 1 + 3 of 4
    assert between == pytest.approx(3, rel=2e-3)


def test_how_far_off_rows_are() -> None:
    """Too small and too large by a factor are as far off; a bound that is kept is not off at all."""
    assert distance([Row("x", 4, 2, ""), Row("y", 2, 4, ""), Row("z", 90, 99, "", OVER)]) == pytest.approx(1.7613, 1e-3)
    assert distance([Row("x", 100, 100, "")]) == 1


def test_how_long_stages_exchange() -> None:
    """A sum that goes whole in each of two iterations, one in tiles, and a sum and a norm that could be parts'."""

    def stage(name: str, firings: int, busy: float, sent: int = 0) -> StageTiming:
        return StageTiming(name, "body", 1, firings, busy, 0.0, 0.0, {"socket": sent} if sent else {})

    stages = (
        stage("load o_proj.weight", 8, 9e-6),
        stage("o_proj", 8, 4e-6),
        stage("o_proj 2", 8, 9e-6, 800_000),
        stage("addf", 2, 2e-6),
        stage("down_proj 2", 2, 3e-6, 800_000),
        stage("store y0", 1, 1e-6),
    )
    pipeline = PipelineTiming("p0", 2, 2e-5, 0, 1, stages, {}, None)
    seconds = exchange_seconds(pipeline, published.node(16), 16)
    assert seconds == pytest.approx({"tiles": 9e-6, "whole": 3e-6, "norms": 2e-6 * 15 / 16})
