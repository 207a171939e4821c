"""The levels that passes take, as data: they fit the pipelines, and every pass is refused at every other level."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_mlir import ir

from sscc.compiler.tools.commands import cli
from sscc.ir.choices import LEVELS
from sscc.ir.context import mlir, parse_module, print_module
from sscc.ir.levels import LEGAL_DIALECTS, get_level
from sscc.ir.weight_formats.registry import parse_format
from sscc.passes.base import Pass, PassErrors, check_levels, run_passes
from sscc.passes.pass_pipeline import PIPELINES, REGISTRY, pipeline_of
from sscc.passes.shard import Shard
from sscc.passes.upstream import UPSTREAM
from tests.errors import raises

DUMPED = tuple(LEGAL_DIALECTS)
"""Levels that a dump may have."""
WHOLE = [
    pipeline_of(opt_level, weights, shard)
    for opt_level in PIPELINES
    for weights in (None, parse_format("int8"))
    for shard in (Shard(), Shard(2))
]
"""Every pipeline that a compilation may run."""


def empty(level: str) -> ir.Module:
    return parse_module(f'module attributes {{sscc.level = "{level}"}} {{}}', "the test")


@pytest.mark.parametrize("level", DUMPED)
@pytest.mark.parametrize("name", REGISTRY)
def test_a_pass_is_refused_at_every_level_that_it_does_not_take(name: str, level: str) -> None:
    kind = REGISTRY[name]
    if level in kind.takes:
        check_levels(level, [kind()])
        return
    error = PassErrors.WRONG_LEVEL if kind.follows else PassErrors.NOT_CAPTURED
    with mlir():
        module = empty(level)
        before = print_module(module)
        with raises(error, name=name, level=level, takes=kind.takes):
            run_passes(module, [kind()])
        assert print_module(module) == before


@pytest.mark.parametrize("level", DUMPED)
@pytest.mark.parametrize("name", UPSTREAM)
def test_mlirs_own_passes_run_at_every_level(name: str, level: str) -> None:
    with mlir():
        module = empty(level)
        run_passes(module, [UPSTREAM[name]()])
        assert get_level(module) == level


@pytest.mark.parametrize("name", REGISTRY)
def test_levels_fit_the_pipelines(name: str) -> None:
    kind = REGISTRY[name]
    assert kind.takes
    assert {*kind.takes, kind.level} <= {*LEVELS}
    reached: set[str] = set()
    followed: set[str] = set()
    for pipeline in WHOLE:
        level, last = "import", ""
        for item in pipeline:
            if type(item) is kind:
                reached.add(level)
                followed |= {last} - {""}
            level, last = item.level, item.name
    assert reached <= {*kind.takes} <= reached | {kind.level}
    assert {*kind.follows} == followed


@pytest.mark.parametrize("pipeline", WHOLE, ids=str)
def test_a_compilation_finds_the_levels(pipeline: tuple[Pass, ...]) -> None:
    check_levels("import", pipeline)


def test_nothing_runs_where_a_later_pass_is_refused() -> None:
    with mlir():
        module = empty("kernels")
        before = print_module(module)
        with raises(PassErrors.WRONG_LEVEL, name="place-stages", level="fused", follows=["tile-stages"]):
            run_passes(module, [REGISTRY["form-stages"](), REGISTRY["place-stages"]()])
        assert print_module(module) == before


def test_the_command_line_names_what_comes_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.graph.mlir"
    path.write_text('module attributes {sscc.level = "graph"} {}\n')
    assert cli.main(["opt", str(path), "--pass-pipeline", "form-stages"]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.count("\n") == 1
    for word in ("form-stages", "level graph", "kernels, fused", "merge-equal-kernels, fuse-compressed-attention"):
        assert word in error
    assert not (tmp_path / "sscc-reproducer").exists()
