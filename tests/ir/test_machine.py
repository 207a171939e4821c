"""The machine description: what ships, one's own, and every way in which a file can be wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sscc.compiler.cli import main
from sscc.ir.errors import InputError, UsageError
from sscc.ir.machine import ORIGINS, load_machine, parse_machine


def description() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(load_machine("rdu").to_json())
    return data


def test_the_shipped_machine_says_where_each_figure_comes_from() -> None:
    machine = load_machine("rdu")
    assert machine.pcus.value == machine.pmus.value == 1040
    assert machine.sram_bytes == 1040 * 512 * 1024
    assert {figure.origin for figure in machine.figures.values()} <= set(ORIGINS)
    assert all(figure.note for figure in machine.figures.values())
    assert machine.clock.origin == machine.link_bandwidth.origin == machine.launch_seconds.origin == "assumed"
    assert machine.f32_flops.origin == machine.simd_lanes.origin == machine.simd_stages.origin == "assumed"
    assert machine.boundary_seconds.origin == "fitted"


def test_lanes_stages_and_clock_give_the_published_peak() -> None:
    machine = load_machine("rdu")
    per_cycle = machine.pcus.value * machine.simd_lanes.value * machine.simd_stages.value
    assert 2 * per_cycle * machine.clock.value == pytest.approx(machine.bf16_flops.value, rel=0.01)


def test_another_number_of_sockets() -> None:
    machine = load_machine("rdu").with_sockets(8)
    assert machine.sockets.value == 8
    assert machine.hbm_seconds(8 * 1.6e12) == 1.0
    with pytest.raises(UsageError, match="0 sockets"):
        machine.with_sockets(0)


def test_the_file_form_reads_back() -> None:
    machine = load_machine("rdu")
    assert parse_machine(machine.to_json(), "test") == machine


def test_ones_own_machine(tmp_path: Path) -> None:
    data = description()
    data["name"] = "two sockets"
    data["figures"]["sockets"]["value"] = 2
    file = tmp_path / "machine.json"
    file.write_text(json.dumps(data))
    machine = load_machine(f"rdu:{file}")
    assert machine.name == "two sockets"
    assert machine.hbm_seconds(3.2e12) == 1.0
    assert load_machine("rdu").hbm_seconds(3.2e12) == 2.0


def test_seconds_are_bytes_over_bandwidth() -> None:
    assert load_machine("rdu").hbm_seconds(1.6e9) == pytest.approx(1e-3)


@pytest.mark.parametrize("target", ["gpu", "rdu:", "", "RDU"])
def test_other_targets_are_refused(target: str) -> None:
    with pytest.raises(UsageError, match="must be rdu or rdu:FILE"):
        load_machine(target)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load_machine(f"rdu:{tmp_path / 'none.json'}")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["figures"].pop("clock"), "missing or unknown figures: clock"),
        (lambda d: d.update(cores=4), "has the unknown cores"),
        (lambda d: d["figures"]["clock"].update(value=10**400), "must be a positive number up to 1e.30"),
        (lambda d: d["figures"]["clock"].update(origin=["published"]), "origin of clock must be one of"),
        (lambda d: d["figures"].update(cores={}), "missing or unknown figures: cores"),
        (lambda d: d["figures"]["clock"].update(value=0), "clock is 0, it must be a positive number"),
        (lambda d: d["figures"]["clock"].update(value="fast"), "clock is 'fast'"),
        (lambda d: d["figures"]["clock"].update(value=True), "clock is True"),
        (lambda d: d["figures"]["clock"].update(origin="rumour"), "origin of clock must be one of"),
        (lambda d: d["figures"]["clock"].pop("unit"), "clock needs note, origin, unit, value"),
        (lambda d: d.pop("name"), "needs name, note and figures"),
        (lambda d: d.update(figures=[]), "needs name, note and figures"),
    ],
)
def test_wrong_descriptions(change: Any, message: str) -> None:
    data = description()
    change(data)
    with pytest.raises(InputError, match=message):
        parse_machine(json.dumps(data), "mine.json")


@pytest.mark.parametrize("text", ["{", "[" * 10**5], ids=["cut", "deep"])
def test_text_that_is_not_json(text: str) -> None:
    with pytest.raises(InputError, match=r"mine\.json is not JSON"):
        parse_machine(text, "mine.json")


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets"]) == 0
    out = capsys.readouterr().out
    for name, figure in load_machine("rdu").figures.items():
        line = next(line for line in out.splitlines() if line.split()[0] == name)
        assert figure.origin in line
    assert main(["targets", "--json"]) == 0
    assert parse_machine(capsys.readouterr().out, "stdout") == load_machine("rdu")
    assert main(["targets", "--target", "gpu"]) == 2
