"""Passes of the user: loaded from files, placed among those of a compilation, refused where they are malformed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import sscc
from sscc.compiler.tools.commands.cli import main
from sscc.ir.choices import LEVELS
from sscc.passes import pass_pipeline
from sscc.passes.base import Pass, step_text
from sscc.passes.pass_pipeline import PIPELINES, load, pass_by_name, passes_between
from sscc.passes.user_passes import UserPassErrors, load_passes, placed
from tests.errors import raises

ROOT = Path(__file__).parents[2]
EXAMPLE = str(ROOT / "examples" / "passes" / "hard_silu.py")
TINY = ROOT / "tests" / "models" / "tiny"
HEAD = """from dataclasses import dataclass
from typing import ClassVar
from sscc.passes.base import Pass
"""
BODY = """
@dataclass(frozen=True)
class Mine(Pass):
    name: ClassVar[str] = "mine"
    takes: ClassVar[tuple[str, ...]] = ("graph",)
    follows: ClassVar[tuple[str, ...]] = ("thread-cache", "split-layers")
    level: ClassVar[str] = ""
    def run(self, module):
        pass
"""


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_pipeline, "LOADED", {})
    return


def written(folder: Path, text: str, name: str = "mine.py") -> str:
    (folder / name).write_text(HEAD + text)
    return str(folder / name)


def instance(folder: Path, **changes: str) -> Pass:
    text = BODY
    for field, value in changes.items():
        (line,) = [line for line in text.splitlines() if line.strip().startswith(f"{field}:")]
        text = text.replace(line, f"{line.partition(' = ')[0]} = {value}")
    (kind,) = load_passes(written(folder, text))
    return kind()


def names(steps: tuple[Pass, ...]) -> list[str]:
    return [item.name for item in steps]


def test_a_pass_runs_after_the_last_that_it_follows(tmp_path: Path) -> None:
    steps = names(placed(PIPELINES[2], [instance(tmp_path)]))
    assert steps[steps.index("mine") - 1] == "thread-cache"
    assert [name for name in steps if name != "mine"] == names(PIPELINES[2])
    steps = names(placed(PIPELINES[2], [instance(tmp_path, follows='("split-layers",)')]))
    assert steps[steps.index("mine") - 1] == "split-layers"


def test_a_pass_without_a_place_is_refused(tmp_path: Path) -> None:
    with raises(UserPassErrors.NO_PLACE, name="mine"):
        placed(PIPELINES[2], [instance(tmp_path, follows="()")])
    with raises(UserPassErrors.NOT_REACHED, name="mine", follows=("kernel-looping",)):
        placed(PIPELINES[0], [instance(tmp_path, follows='("kernel-looping",)')])


def test_a_dump_goes_on_with_the_passes_that_it_lacks(tmp_path: Path) -> None:
    mine, plain = instance(tmp_path), PIPELINES[2]
    place = names(plain).index("thread-cache") + 1
    done = tuple(map(step_text, plain[:place]))
    assert names(passes_between((), "graph", 2, loaded=[mine])) == [
        *names(plain[:place]), "mine", "build-entries"
    ]  # fmt: skip
    assert names(passes_between(done, "schedule", 2, loaded=[mine])) == ["mine", *names(plain[place:])]
    later = tuple(map(step_text, plain[: place + 1]))
    assert "mine" not in names(passes_between(later, "schedule", 2, loaded=[mine]))


def test_a_pass_with_a_level_is_recorded(tmp_path: Path) -> None:
    mine, plain = instance(tmp_path, level='"graph"'), PIPELINES[2]
    steps = placed(plain, [mine])
    place = names(steps).index("mine") + 1
    done = tuple(map(step_text, steps[:place]))
    assert names(passes_between(done, "schedule", 2, loaded=[mine])) == names(steps[place:])


@pytest.mark.parametrize("opt_level", PIPELINES)
def test_as_it_is_a_module_goes_on_behind_its_last_pass_or_its_level(opt_level: int) -> None:
    plain = PIPELINES[opt_level]
    odd = ("split-layers", "outline-kernels{granularity=layer}")
    assert names(passes_between(odd, "schedule", opt_level, from_level="kernels")) == names(plain)[
        names(plain).index("outline-kernels") + 1 :
    ]
    reached = {item.level for item in plain}
    for level in LEVELS:
        rest = passes_between((), "schedule", opt_level, from_level=level)
        if level in reached:
            assert all(LEVELS.index(item.level) > LEVELS.index(level) for item in rest)


@pytest.mark.parametrize(
    ("text", "kind", "fields"),
    [
        ("x = 1\n", UserPassErrors.NO_PASS, {}),
        ("raise OSError('broken')\n", UserPassErrors.NOT_READ, {"reason": "OSError: broken"}),
        ("def f(:\n", UserPassErrors.NOT_READ, {}),
        (BODY.replace('"mine"', '"Not A Name"'), UserPassErrors.BAD_NAME, {"name": "Not A Name"}),
        (BODY.replace('("graph",)', '("grahp",)'), UserPassErrors.BAD_LEVEL, {"field": "takes", "levels": ("grahp",)}),
        (BODY.replace('[str] = ""', '[str] = "top"'), UserPassErrors.BAD_LEVEL, {"field": "level"}),
        (BODY + "    width: int\n", UserPassErrors.NOT_A_DATACLASS, {"name": "mine"}),
        (BODY.replace("    def run(self", "    def ran(self"), UserPassErrors.NO_PASS, {}),
        (BODY.replace('"mine"', '"thread-cache"'), UserPassErrors.NAME_TAKEN, {"name": "thread-cache"}),
        (BODY + BODY.replace("Mine", "Second"), UserPassErrors.NAME_TAKEN, {"name": "mine"}),
    ],
)
def test_malformed_files(text: str, kind: UserPassErrors, fields: dict[str, Any], tmp_path: Path) -> None:
    with raises(kind, **fields):
        load([written(tmp_path, text)])
    assert not pass_pipeline.LOADED


def test_what_is_no_file_must_be_of_a_package() -> None:
    with raises(UserPassErrors.NO_SOURCE, source="nothing"):
        load(["nothing"])


def test_passes_of_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "more_passes-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: more-passes\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[sscc.passes]\nmine = more_passes:Mine\nall = more_passes\n")
    written(tmp_path, BODY, "more_passes.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [kind.name for kind in load_passes("mine")] == ["mine"]
    (loaded,) = load(["all"])
    assert pass_by_name("mine") is type(loaded)
    with raises(UserPassErrors.NO_SOURCE, source="mien", known=["all", "mine"]):
        load(["mien"])


def test_the_example_compiles_and_bisect_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "hard.rdu"
    words = ["--load-pass", EXAMPLE, "--max-context", "64", "--kv-budget", "64"]
    more = ["--pass-statistics", "--no-native-code"]
    assert main(["compile", str(TINY), "-o", str(out), *words, *more]) == 0
    assert "4  hard-silu: gates" in caplog.text
    capsys.readouterr()
    plain = sscc.compile(TINY, output=tmp_path / "plain.rdu", max_context=64, kv_budget=64, native_code=False)
    schedules = [(path / "schedule.json").read_bytes() for path in (out, plain.path)]
    assert schedules[0] != schedules[1]
    assert main(["bisect", str(TINY), *words, "--json"]) == 4
    out_lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["name"] for line in out_lines if "name" in line][-1] == "hard-silu"
    api = sscc.compile(
        TINY, output=tmp_path / "api.rdu", load_pass=(EXAMPLE,), max_context=64, kv_budget=64, native_code=False
    )
    assert (api.path / "schedule.json").read_bytes() == schedules[0]
