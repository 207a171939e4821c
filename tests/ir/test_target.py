"""The description of a target: what ships, one's own, and every way in which a file can be wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sscc.compiler.cli import main
from sscc.ir.choices import TIERS
from sscc.ir.errors import InputError, UsageError
from sscc.ir.target import Target, load_target, parse_target, shipped_targets
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
    with pytest.raises(InputError, match="the target sn40l has no DDR, which the program uses"):
        target.level("ddr")


def test_another_number_of_sockets() -> None:
    target = load_target("rdu").with_sockets(8)
    assert target.sockets.value == 8
    assert target.capacity("hbm") == 8 * 2**36
    assert target.seconds({"hbm": 8 * 1_600_000_000_000}) == 1.0
    with pytest.raises(UsageError, match="0 sockets"):
        target.with_sockets(0)


def test_sockets_need_links() -> None:
    data = description()
    data["links"] = []
    assert parsed(data).with_sockets(1).links == ()
    with pytest.raises(UsageError, match="sn40l has no links, which 2 sockets would need"):
        parsed(data).with_sockets(2)
    figure(data, "sockets")["value"] = 2
    with pytest.raises(InputError, match=r"mine\.json has 2 sockets and no links between them"):
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
    with pytest.raises(InputError, match=r"mine\.json has the base .*, it must be one of sn40l, sn40l-16, sn40l-8"):
        parsed({"format": 2, "base": base})


@pytest.mark.parametrize("target", ["gpu", "rdu:", "", "RDU"])
def test_other_targets_are_refused(target: str) -> None:
    with pytest.raises(UsageError, match="must be rdu, rdu:sn40l, rdu:sn40l-16, rdu:sn40l-8 or rdu:FILE"):
        load_target(target)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot be read: .*; shipped are sn40l, sn40l-16, sn40l-8$"):
        load_target(f"rdu:{tmp_path / 'none.json'}")


def test_ranks_share_the_sockets_of_a_node() -> None:
    node = load_target("rdu:sn40l-16")
    assert [node.of_rank(ranks).sockets.value for ranks in (1, 2, 4, 16)] == [16, 8, 4, 1]
    assert load_target("rdu").of_rank(32).sockets.value == 1
    with pytest.raises(UsageError, match="the 16 sockets of sn40l-16 cannot be shared by 3 ranks"):
        node.of_rank(3)
    data = description()
    data["links"] = []
    with pytest.raises(UsageError, match="sn40l has no links, which 2 ranks would need"):
        parsed(data).of_rank(2)


def clock(**values: Any) -> Callable[[Any], Any]:
    return lambda data: figure(data, "clock").update(**values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["units"].pop("clock"), "it.units lacks clock$"),
        (lambda d: d["units"].update(cores={}), "it.units has what no Units has: cores$"),
        (lambda d: d["costs"].pop("launch_seconds"), "it.costs lacks launch_seconds$"),
        (lambda d: d["levels"][1].pop("capacity"), r"it.levels\[1\] lacks capacity$"),
        (lambda d: d["links"][0].update(capacity=LATENCY), r"it.links\[0\] has what no SocketLink has: capacity$"),
        (lambda d: d.update(levels={}), "it.levels is '{}', expected a list"),
        (lambda d: d.update(units=[]), r"it.units is .*, expected Units"),
        (lambda d: d["levels"].pop(0), "levels are hbm, ddr, they must be sram, hbm, ddr, at least 2"),
        (lambda d: d.update(levels=d["levels"][:1]), "levels are sram, they must be"),
        (lambda d: d["levels"].reverse(), "levels are ddr, hbm, sram, they must be"),
        (lambda d: d["levels"][2].update(name="tape"), r"it.levels\[2\].name is 'tape', expected one of \('sram'"),
        (lambda d: d["levels"][2].update(name=[]), r"it.levels\[2\].name is .*, expected one of"),
        (lambda d: d["links"][0].update(name="a b"), "'a b' is no name of one of its links"),
        (lambda d: d["links"].append(d["links"][0]), "two of sram, hbm, ddr, socket, socket have the same name"),
        (lambda d: d["links"][0].update(name="hbm"), "two of sram, hbm, ddr, hbm have the same name"),
        (lambda d: figure(d, "pmu_bytes").update(value=1000), "sram.capacity is no multiple of pmu_bytes"),
        (lambda d: d["sockets"].update(value=1.5), "sockets is 1.5, it must be a whole number"),
        (lambda d: d["levels"][0].update(latency=3), r"it.levels\[0\].latency is '3', expected Figure"),
        (lambda d: d.update(cores=4), "it has what no Target has: cores$"),
        (lambda d: d.pop("name"), "it lacks name$"),
        (lambda d: d.update(note=3), "it.note is '3', expected str"),
        (lambda d: d.update(format=3), "has format 3, this sscc reads 2"),
        (clock(value=10**400), "it.units.clock.value is .*, expected int or float"),
        (clock(origin=["published"]), "it.units.clock.origin is .*, expected one of"),
        (clock(value=0), "clock is 0, it must be a positive number"),
        (clock(value="fast"), "it.units.clock.value is 'fast', expected int or float"),
        (clock(value=True), "it.units.clock.value is 'True', expected int or float"),
        (clock(origin="rumour"), "it.units.clock.origin is 'rumour', expected one of"),
        (lambda d: figure(d, "clock").pop("unit"), "it.units.clock lacks unit$"),
    ],
)
def test_wrong_descriptions(change: Any, message: str) -> None:
    data = description()
    change(data)
    with pytest.raises(InputError, match=message):
        parsed(data)


def test_the_form_of_earlier_versions_is_refused() -> None:
    with pytest.raises(InputError, match="format 1, this sscc reads 2: `sscc targets --json` prints one to start from"):
        parsed({"name": "old", "note": "", "figures": {}})


@pytest.mark.parametrize("data", [[], "words", 3])
def test_json_that_is_no_object(data: Any) -> None:
    with pytest.raises(InputError, match=r"mine\.json is malformed: it is .*, expected Target"):
        parsed(data)


@pytest.mark.parametrize("text", ["{", "[" * 10**5], ids=["cut", "deep"])
def test_text_that_is_not_json(text: str) -> None:
    with pytest.raises(InputError, match=r"mine\.json is not JSON"):
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
