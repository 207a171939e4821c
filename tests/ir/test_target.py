"""Descriptions of targets: the included ones, user-defined ones, and every kind of invalid file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sscc.compiler.tools.commands.cli import main
from sscc.ir.choices import TIERS
from sscc.ir.errors import ErrorKind
from sscc.ir.file_form import RecordErrors
from sscc.ir.target import Target, TargetErrors, load_target, parse_target, shipped_targets
from tests.errors import raises
from tests.targets import changed, described, description, figure

LATENCY = {"value": 1e-6, "unit": "s", "origin": "assumed", "note": "a test"}


def parsed(data: Any) -> Target:
    return parse_target(json.dumps(data), "mine.json")


def test_the_shipped_target_says_where_each_figure_comes_from() -> None:
    target = load_target("rdu")
    assert target.units.pcus.value == target.pmus == 1040
    assert target.nearest.capacity.value == 1040 * 512 * 1024
    figures = target.figures
    assert {figure.origin for figure in figures.values()} <= {"published", "assumed", "fitted", "chosen"}
    assert all(figure.note for figure in figures.values())
    assumed = {name for name, figure in figures.items() if figure.origin == "assumed"}
    assert assumed == {
        *("clock", "socket.bandwidth", "socket.latency", "launch_seconds", "firing_seconds"),
        *("f32_flops", "simd_lanes", "simd_stages"),
    }
    assert figures["boundary_seconds"].origin == "fitted"


def test_lanes_stages_and_clock_give_the_published_peak() -> None:
    units = load_target("rdu").units
    per_cycle = units.pcus.value * units.simd_lanes.value * units.simd_stages.value
    assert 2 * per_cycle * units.clock.value == pytest.approx(units.bf16_flops.value, rel=0.01)


def test_levels_are_reached_by_order_and_by_name() -> None:
    target = load_target("rdu")
    assert [level.name for level in (target.nearest, target.main, *target.far)] == list(TIERS)
    assert target.memories == (target.main, *target.far)
    assert target.level("ddr") is target.far[0]
    assert target.main.label == "HBM"


def test_a_target_without_far_memory() -> None:
    data = description()
    del data["levels"][2:]
    target = parsed(data)
    assert target.far == ()
    assert target.memories == (target.main,)
    assert "ddr.capacity" not in target.figures
    with raises(TargetErrors.NO_TIER, target="sn40l", tier="DDR"):
        target.level("ddr")


def test_another_number_of_sockets() -> None:
    target = load_target("rdu").with_sockets(8)
    assert target.sockets.value == 8
    assert target.capacity("hbm") == 8 * 2**36
    assert target.seconds({"hbm": 8 * 1_600_000_000_000}) == 1.0
    with raises(TargetErrors.NO_SOCKETS, sockets=0):
        target.with_sockets(0)


def test_other_figures() -> None:
    plain = load_target("rdu")
    values = {"hbm.bandwidth": 3.2e12, "pcus": 500.0, "socket.latency": 1e-6, "launch_seconds": 1e-6}
    target = plain.with_figures(values)
    changed = {name: figure for name, figure in target.figures.items() if figure != plain.figures[name]}
    assert {name: figure.value for name, figure in changed.items()} == values
    assert {figure.origin for figure in changed.values()} == {"chosen"}
    assert isinstance(target.units.pcus.value, int)
    assert target.bandwidth("hbm") == 2 * plain.bandwidth("hbm")
    assert parse_target(target.to_json(), "it") == target
    with raises(TargetErrors.UNKNOWN_FIGURE, name="hbm.bandwith"):
        plain.with_figures({"hbm.bandwith": 1.0})
    for value in (0.0, -1.0, math.nan, math.inf, 1e31):
        with raises(TargetErrors.FIGURE, figure="clock"):
            plain.with_figures({"clock": value})
    with raises(TargetErrors.PARTIAL_SOCKETS):
        plain.with_figures({"sockets": 1.5})


def test_sockets_need_links() -> None:
    data = description()
    data["links"] = []
    assert parsed(data).with_sockets(1).links == ()
    with raises(TargetErrors.NO_LINKS_FOR_SOCKETS, target="sn40l", sockets=2):
        parsed(data).with_sockets(2)
    figure(data, "sockets")["value"] = 2
    with raises(TargetErrors.NO_LINKS, sockets=2):
        parsed(data)


def test_the_file_form_reads_back() -> None:
    target = load_target("rdu")
    assert parse_target(target.to_json(), "test") == target
    data = description()
    data["levels"][2]["latency"] = data["links"][0]["latency"] = LATENCY
    slow = parsed(data)
    assert slow.figures["ddr.latency"].value == slow.figures["socket.latency"].value == 1e-6
    assert parse_target(slow.to_json(), "test") == slow


def test_ones_own_target(tmp_path: Path) -> None:
    file = tmp_path / "machine.json"
    file.write_text(json.dumps({**described({"sockets": 2}), "name": "two sockets"}))
    target = load_target(f"rdu:{file}")
    assert target.name == "two sockets"
    assert target.seconds({"hbm": 3_200_000_000_000}) == 1.0
    assert load_target("rdu").seconds({"hbm": 3_200_000_000_000}) == 2.0


def test_the_slowest_tier_decides_how_long_bytes_take() -> None:
    target = changed({"hbm.bandwidth": 1e9, "ddr.bandwidth": 1e8})
    assert target.seconds({}) == 0
    assert target.seconds({"hbm": 10**9, "ddr": 10**7}) == 1.0
    assert target.seconds({"hbm": 10**9, "ddr": 2 * 10**8}) == 2.0


@pytest.mark.parametrize("name", shipped_targets())
def test_nodes_are_sockets_of_one_description(name: str) -> None:
    socket, node = load_target("rdu"), load_target(f"rdu:{name}")
    sockets = int(name.partition("-")[2] or 1)
    assert (node.name, node.sockets.value) == (name, sockets)
    assert {**node.figures, "sockets": socket.sockets} == socket.figures
    assert node.of_rank(sockets).figures | {"sockets": socket.sockets} == socket.figures


def test_nodes_of_8_and_16_ship() -> None:
    assert shipped_targets() == ("sn40l", "sn40l-16", "sn40l-8")


def test_a_description_may_change_a_shipped_one(tmp_path: Path) -> None:
    file = tmp_path / "faster.json"
    slower = {"name": "link", "bandwidth": {**LATENCY, "unit": "bytes/s"}}
    file.write_text(json.dumps({
        "format": 2, "base": "sn40l-8", "name": "faster",
        "levels": [{"name": "hbm", "bandwidth": {"value": 1.8e12}}], "links": [slower],
    }))  # fmt: skip
    target, node = load_target(f"rdu:{file}"), load_target("rdu:sn40l-8")
    different = {name for name, figure in target.figures.items() if figure != node.figures.get(name)}
    assert different == {"hbm.bandwidth", "link.bandwidth"}
    assert target.figures["hbm.bandwidth"].note == node.figures["hbm.bandwidth"].note
    assert [link.name for link in target.links] == ["socket", "link"]
    assert parse_target(target.to_json(), "written") == target


@pytest.mark.parametrize("base", ["sn40l-32", "", ["sn40l"], None, "../sn40l"])
def test_other_bases_are_refused(base: Any) -> None:
    with raises(TargetErrors.UNKNOWN_BASE, shipped=["sn40l", "sn40l-16", "sn40l-8"]):
        parsed({"format": 2, "base": base})


@pytest.mark.parametrize("target", ["gpu", "rdu:", "", "RDU"])
def test_other_targets_are_refused(target: str) -> None:
    with raises(TargetErrors.UNKNOWN, names=["rdu", "rdu:sn40l", "rdu:sn40l-16", "rdu:sn40l-8"], family="rdu"):
        load_target(target)


def test_a_missing_file(tmp_path: Path) -> None:
    with raises(TargetErrors.UNREADABLE, shipped=["sn40l", "sn40l-16", "sn40l-8"]):
        load_target(f"rdu:{tmp_path / 'none.json'}")


def test_ranks_share_the_sockets_of_a_node() -> None:
    node = load_target("rdu:sn40l-16")
    assert [node.of_rank(ranks).sockets.value for ranks in (1, 2, 4, 16)] == [16, 8, 4, 1]
    assert load_target("rdu").of_rank(32).sockets.value == 1
    with raises(TargetErrors.SOCKETS_NOT_SHARED, sockets=16, target="sn40l-16", ranks=3):
        node.of_rank(3)
    data = description()
    data["links"] = []
    with raises(TargetErrors.NO_LINKS_FOR_RANKS, target="sn40l", ranks=2):
        parsed(data).of_rank(2)


def clock(**values: Any) -> Callable[[Any], Any]:
    return lambda data: figure(data, "clock").update(**values)


@pytest.mark.parametrize(
    ("change", "kind", "fields"),
    [
        (lambda d: d["units"].pop("clock"), RecordErrors.LACKS, {"place": "it.units", "missing": ["clock"]}),
        (
            lambda d: d["units"].update(cores={}), RecordErrors.UNKNOWN,
            {"place": "it.units", "record": "Units", "unknown": ["cores"]},
        ),
        (
            lambda d: d["costs"].pop("launch_seconds"), RecordErrors.LACKS,
            {"place": "it.costs", "missing": ["launch_seconds"]},
        ),
        (
            lambda d: d["levels"][1].pop("capacity"), RecordErrors.LACKS,
            {"place": "it.levels[1]", "missing": ["capacity"]},
        ),
        (
            lambda d: d["links"][0].update(capacity=LATENCY), RecordErrors.UNKNOWN,
            {"place": "it.links[0]", "record": "SocketLink", "unknown": ["capacity"]},
        ),
        (
            lambda d: d.update(levels={}), RecordErrors.WRONG_VALUE,
            {"place": "it.levels", "value": "{}", "expected": "a list"},
        ),
        (lambda d: d.update(units=[]), RecordErrors.WRONG_VALUE, {"place": "it.units", "expected": "Units"}),
        (
            lambda d: d["levels"].pop(0), TargetErrors.LEVELS,
            {"levels": ["hbm", "ddr"], "known": ["sram", "hbm", "ddr"]},
        ),
        (lambda d: d.update(levels=d["levels"][:1]), TargetErrors.LEVELS, {"levels": ["sram"]}),
        (
            lambda d: d["levels"].reverse(), TargetErrors.LEVELS,
            {"levels": ["ddr", "hbm", "sram"], "known": ["sram", "hbm", "ddr"]},
        ),
        (
            lambda d: d["levels"][2].update(name="tape"), RecordErrors.WRONG_VALUE,
            {"place": "it.levels[2].name", "value": "tape"},
        ),
        (lambda d: d["levels"][2].update(name=[]), RecordErrors.WRONG_VALUE, {"place": "it.levels[2].name"}),
        (lambda d: d["links"][0].update(name="a b"), TargetErrors.LINK_NAME, {"link": "a b"}),
        (
            lambda d: d["links"].append(d["links"][0]), TargetErrors.NAME_TWICE,
            {"names": ["sram", "hbm", "ddr", "socket", "socket"]},
        ),
        (lambda d: d["links"][0].update(name="hbm"), TargetErrors.NAME_TWICE, {"names": ["sram", "hbm", "ddr", "hbm"]}),
        (lambda d: figure(d, "pmu_bytes").update(value=1000), TargetErrors.PMU_BYTES, {"level": "sram"}),
        (lambda d: d["sockets"].update(value=1.5), TargetErrors.PARTIAL_SOCKETS, {"sockets": 1.5}),
        (
            lambda d: d["levels"][0].update(latency=3), RecordErrors.WRONG_VALUE,
            {"place": "it.levels[0].latency", "value": 3, "expected": "Figure"},
        ),
        (lambda d: d.update(cores=4), RecordErrors.UNKNOWN, {"place": "it", "record": "Target", "unknown": ["cores"]}),
        (lambda d: d.pop("name"), RecordErrors.LACKS, {"place": "it", "missing": ["name"]}),
        (lambda d: d.update(note=3), RecordErrors.WRONG_VALUE, {"place": "it.note", "value": 3, "expected": "str"}),
        (lambda d: d.update(format=3), TargetErrors.FORMAT_VERSION, {"version": 3, "known": 2}),
        (clock(value=10**400), RecordErrors.WRONG_VALUE, {"place": "it.units.clock.value", "expected": "int or float"}),
        (clock(origin=["published"]), RecordErrors.WRONG_VALUE, {"place": "it.units.clock.origin"}),
        (clock(value=0), TargetErrors.FIGURE, {"figure": "clock", "value": 0}),
        (
            clock(value="fast"), RecordErrors.WRONG_VALUE,
            {"place": "it.units.clock.value", "value": "fast", "expected": "int or float"},
        ),
        (clock(value=True), RecordErrors.WRONG_VALUE, {"place": "it.units.clock.value", "expected": "int or float"}),
        (clock(origin="rumour"), RecordErrors.WRONG_VALUE, {"place": "it.units.clock.origin", "value": "rumour"}),
        (
            lambda d: figure(d, "clock").pop("unit"), RecordErrors.LACKS,
            {"place": "it.units.clock", "missing": ["unit"]},
        ),
    ],
)
def test_wrong_descriptions(change: Any, kind: ErrorKind, fields: dict[str, Any]) -> None:
    data = description()
    change(data)
    with raises(kind, **fields):
        parsed(data)


def test_the_form_of_earlier_versions_is_refused() -> None:
    with raises(TargetErrors.FORMAT_VERSION, version=1, known=2):
        parsed({"name": "old", "note": "", "figures": {}})


@pytest.mark.parametrize("data", [[], "words", 3])
def test_json_that_is_no_object(data: Any) -> None:
    with raises(RecordErrors.WRONG_VALUE, place="it", expected="Target"):
        parsed(data)


@pytest.mark.parametrize("text", ["{", "[" * 10**5], ids=["cut", "deep"])
def test_text_that_is_not_json(text: str) -> None:
    with raises(TargetErrors.NOT_JSON):
        parse_target(text, "mine.json")


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets"]) == 0
    out = capsys.readouterr().out
    for name, found in load_target("rdu").figures.items():
        line = next(line for line in out.splitlines() if line.split()[0] == name)
        assert found.origin in line
    assert main(["targets", "--json"]) == 0
    assert parse_target(capsys.readouterr().out, "stdout") == load_target("rdu")
    assert main(["targets", "--target", "gpu"]) == 2
