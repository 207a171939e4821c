"""`sscc inspect`: stages, `--set` for the machine's figures, and sweeps over one figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import sscc
from sscc.compiler.options.modelling_options import ModellingErrors, Sweep, parse_figure, parse_sweep
from sscc.compiler.tools.commands.cli import main
from sscc.compiler.tools.commands.inspect import InspectErrors
from sscc.ir.errors import ErrorKind
from sscc.ir.target import TargetErrors
from tests.errors import check, raises, reported

TINY = Path(__file__).parents[2] / "models" / "tiny"


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("inspect") / "tiny.rdu"
    sscc.compile(TINY, output=out, max_context=128, kv_budget=64, prefill_chunk=32, weights="none", native_code=False)
    return str(out)


def inspected(words: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    assert main(["inspect", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_stages_add_up(artifact: str, capsys: pytest.CaptureFixture[str]) -> None:
    plain = inspected([artifact], capsys)
    values = inspected([artifact, "--stages", "--prompt", "64"], capsys)
    assert "stages" not in plain or plain["stages"] != values["stages"]
    assert values["stages"].keys() == {"decode", "prefill"}
    for entry, stages in values["stages"].items():
        for tier, nbytes in values[entry]["nbytes"].items():
            assert sum(stage["nbytes"].get(tier, 0) for stage in stages) == nbytes
        assert all(stage["bound"] in ("compute", "memory", "firings") for stage in stages)
        assert all(0 < stage["busy_seconds"] <= values[entry]["seconds"] for stage in stages)
    assert main(["inspect", artifact, "--stages"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (begin,) = [number for number, line in enumerate(lines) if line.startswith("stages of decode")]
    rows = [line for line in lines[begin + 1 :] if line.startswith("  ")]
    assert len(rows) == len(values["stages"]["decode"])


def test_figures_change_the_time_and_not_the_program(artifact: str, capsys: pytest.CaptureFixture[str]) -> None:
    plain = inspected([artifact], capsys)
    slow = inspected([artifact, "--set", "hbm.bandwidth=1e9", "--set", "boundary_seconds=1e-9"], capsys)
    assert slow["decode"]["nbytes"] == plain["decode"]["nbytes"]
    assert slow["decode_floor_seconds"] == pytest.approx(1600 * plain["decode_floor_seconds"])
    assert slow["decode"]["overhead_seconds"] < plain["decode"]["overhead_seconds"]
    assert main(["inspect", artifact, "--set", "hbm.bandwidth=1e9"]) == 0
    assert "hbm.bandwidth 1e+09 bytes/s per socket: chosen" in capsys.readouterr().out


def test_a_sweep_is_one_inspection_for_each_value(
    artifact: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "sweep.svg"
    words = ["--sweep", "hbm.bandwidth=1e9,2e9,1e12", "--plot", str(plot), "--context", "100"]
    sweep = inspected([artifact, *words], capsys)["sweep"]
    assert sweep["figure"] == "hbm.bandwidth"
    for point in sweep["points"]:
        alone = inspected([artifact, "--set", f"hbm.bandwidth={point['value']}", "--context", "100"], capsys)
        assert (point["seconds"], point["tokens_per_second"]) == (
            alone["decode"]["seconds"], alone["tokens_per_second"]
        )  # fmt: skip
    drawing = plot.read_bytes()
    assert b"<svg" in drawing
    inspected([artifact, *words], capsys)
    assert plot.read_bytes() == drawing
    assert main(["inspect", artifact, "--sweep", "hbm.bandwidth=1e9..4e9:4"]) == 0
    table = capsys.readouterr().out.splitlines()[-4:]
    assert [float(line.split()[0]) for line in table] == [1e9, 2e9, 3e9, 4e9]


def test_parsing() -> None:
    assert parse_figure("hbm.bandwidth=3.2e12") == ("hbm.bandwidth", 3.2e12)
    assert parse_sweep("clock=1e9") == Sweep("clock", (1e9,))
    assert parse_sweep("clock=1..2:5") == Sweep("clock", (1.0, 1.25, 1.5, 1.75, 2.0))
    for text in ("clock", "=1", "clock=", "clock=fast"):
        with raises(ModellingErrors.NOT_A_FIGURE, option="--set", text=text):
            parse_figure(text)
    for values in ("", "=", "=1,x", "=1..2", "=1..2:1", "=1..2:1000", "=1..:3"):
        text = f"clock{values}"
        with raises(ModellingErrors.NOT_A_SWEEP, option="--sweep", text=text):
            parse_sweep(text)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["--plot", "a.svg"], InspectErrors.PLOT_WITHOUT_SWEEP),
        (["--set", "hbm=1"], TargetErrors.UNKNOWN_FIGURE),
        (["--sweep", "hbm=1,2"], TargetErrors.UNKNOWN_FIGURE),
        (["--sweep", "clock=0,1"], TargetErrors.FIGURE),
    ],
)
def test_refusals(words: list[str], kind: ErrorKind, artifact: str) -> None:
    check(reported(["inspect", artifact, *words]), kind)
