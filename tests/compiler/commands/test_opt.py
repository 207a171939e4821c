"""`sscc opt`: pipelines on dumps, explanations, printing between passes, reproducers."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

import sscc
from sscc.compiler.driver.dumps import DumpErrors
from sscc.compiler.driver.printing import IrPrintingErrors
from sscc.compiler.options.compile_options import OptionErrors
from sscc.compiler.tools.commands.cli import main
from sscc.compiler.tools.commands.opt import REPRODUCER, OptCommandErrors
from sscc.ir.context import IrTextErrors, mlir, parse_module, print_module
from sscc.ir.errors import ErrorKind
from sscc.passes.base import Pass
from sscc.passes.pass_pipeline import PIPELINES, REGISTRY, PassPipelineErrors, options_of, parse_pipeline, pipeline_text
from sscc.passes.upstream import UPSTREAM
from tests.errors import check, one_line, raises, reported

MODULE = """module attributes {sscc.level = "kernels", kv.geometry = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64,
    obs = 1 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 8 : i64}, sscc.program = {batch = 1 : i64,
    chunk = 4 : i64, dtype = "f32", layers = 1 : i64, vocab_size = 9 : i64, config = "{}", digest = "", eos = "[]"}} {
  func.func private @tanh.0(%x: tensor<2xf32> {sscc.input = "x0"}) -> (tensor<2xf32> {sscc.output = "y0"})
      attributes {sscc.kernel} {
    %y = math.tanh %x : tensor<2xf32>
    return %y : tensor<2xf32>
  }
  func.func private @tanh.1(%x: tensor<2xf32> {sscc.input = "x0"}) -> (tensor<2xf32> {sscc.output = "y0"})
      attributes {sscc.kernel} {
    %y = math.tanh %x : tensor<2xf32>
    return %y : tensor<2xf32>
  }
  func.func public @decode(%h: tensor<2xf32> {sscc.input = "h"}) -> (tensor<2xf32> {sscc.output = "logits"}) {
    %a = func.call @tanh.0(%h) : (tensor<2xf32>) -> tensor<2xf32>
    %b = func.call @tanh.1(%a) : (tensor<2xf32>) -> tensor<2xf32>
    return %b : tensor<2xf32>
  }
}
"""


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    with mlir():
        text = print_module(parse_module(MODULE, "test"))
    path = tmp_path / "kernels.mlir"
    path.write_text(text)
    return path


def test_runs_a_pipeline_and_prints_the_result(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opt", str(dump), "--pass-pipeline=merge-equal-kernels", "--timing"]) == 0
    out, err = capsys.readouterr()
    assert out.count("func.func private") == 1
    assert out.count("call @tanh.0") == 2
    assert "s  merge-equal-kernels" in err


def test_without_passes_it_verifies_and_prints(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opt", str(dump)]) == 0
    assert capsys.readouterr().out == dump.read_text()


def test_a_dump_on_stdin_and_a_place_in_it(
    dump: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = dump.read_text()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main(["opt", "-", "-o", "-"]) == 0
    assert capsys.readouterr().out == text
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.replace("math.tanh", "math.tan?").encode())))
    check(reported(["opt", "-"]), IrTextErrors.INVALID, name="<stdin>", diagnostic="<stdin>:8:18: expected SSA operand")
    message, line, caret = capsys.readouterr().err.splitlines()
    assert message.startswith("sscc: error: ")
    assert line[caret.index("^") :].startswith("? %x")


@pytest.mark.parametrize("name", UPSTREAM)
def test_a_pass_of_mlirs_own_stays_at_its_level_and_is_not_noted(
    name: str, dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = dump.read_text().replace("return %y", "%z = math.exp %y : tensor<2xf32>\n    return %y", 1)
    dump.write_text(text)
    assert main(["opt", str(dump), "--pass-pipeline", name]) == 0
    out = capsys.readouterr().out
    assert name not in ("canonicalize", "cse") or "math.exp" not in out  # which nobody uses
    assert 'sscc.level = "kernels"' in out
    assert "sscc.passes" not in out
    assert main(["opt", "--explain", name]) == 0
    assert "A pass of MLIR" in capsys.readouterr().out


def test_writes_to_a_file(dump: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.mlir"
    assert main(["opt", str(dump), "-o", str(out)]) == 0
    assert out.read_text() == dump.read_text()
    assert main(["opt", str(dump), "-o", str(tmp_path / "no" / "folder.mlir")]) == 6


@pytest.mark.parametrize(
    ("options", "shown", "hidden"),
    [
        (["--print-ir-after", "change"], ["after merge-equal-kernels -----"], ["before"]),
        (["--print-ir-before", "merge-equal-kernels"], ["before merge-equal-kernels"], ["after"]),
        (["--print-ir-before", "all", "--print-ir-after", "all"], ["before merge", "after merge"], []),
    ],
)
def test_prints_between_passes(
    options: list[str], shown: list[str], hidden: list[str], dump: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["opt", str(dump), "--pass-pipeline=merge-equal-kernels", *options]) == 0
    err = capsys.readouterr().err
    assert all(text in err for text in shown)
    assert not any(f"// ----- {text}" in err for text in hidden)


def test_a_pass_that_changes_nothing_is_not_a_change(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    twice = "merge-equal-kernels,merge-equal-kernels"
    assert main(["opt", str(dump), f"--pass-pipeline={twice}", "--print-ir-after", "all"]) == 0
    assert capsys.readouterr().err.count("-----\n") == 2


def test_an_excerpt_is_to_be_read(dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opt", str(dump), "--ir-function", "tanh.*", "--no-ir-locations"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("// excerpt: functions tanh.*, without locations; for reading only\nmodule ")
    assert re.findall(r"@([a-z.0-9]+)\(", out) == ["tanh.0", "tanh.1"]
    assert "loc(" not in out
    assert "kv.geometry" not in out
    excerpt = tmp_path / "excerpt.mlir"
    assert main(["opt", str(dump), "--no-ir-locations", "-o", str(excerpt)]) == 0
    assert excerpt.read_text().count("func.func") == 3
    assert "#geometry = {" in excerpt.read_text()
    left_out = "without locations; for reading only"
    check(one_line(["opt", str(excerpt)], capsys), DumpErrors.EXCERPT, file=excerpt, what=left_out)
    error = one_line(["opt", str(dump), "--ir-function", "cosh"], capsys)
    check(error, IrPrintingErrors.NO_FUNCTION, name="cosh", functions=["tanh.0", "tanh.1", "decode"])


def test_an_excerpt_changes_when_its_function_does(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """merge-equal-kernels keeps the first of two equal kernels unchanged, and removes the second."""
    words = ["opt", str(dump), "--pass-pipeline=merge-equal-kernels", "--print-ir-after", "change", "--ir-function"]
    for name, times in (("decode", 1), ("tanh.0", 0), ("*", 1)):
        assert main([*words, name]) == 0
        assert capsys.readouterr().err.count("// ----- after merge-equal-kernels -----\n// excerpt: ") == times


def test_lists_and_explains(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opt", "--list-passes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*REGISTRY, *UPSTREAM]
    assert main(["opt", "--explain", "thread-cache"]) == 0
    out = capsys.readouterr().out
    assert "kv.cached_attention" in out
    assert "When it does not apply" in out


@pytest.mark.parametrize(
    ("words", "kind", "fields"),
    [
        (["--pass-pipeline=no-such-pass"], PassPipelineErrors.UNKNOWN_PASS, {"name": "no-such-pass"}),
        (
            ["--pass-pipeline=split-layers{depth=3}"],
            PassPipelineErrors.NO_OPTIONS,
            {"name": "split-layers", "option": "depth=3"},
        ),
        (["--pass-pipeline=split layers"], PassPipelineErrors.UNREADABLE, {"text": "split layers"}),
        (["--print-ir-after", "nothing"], PassPipelineErrors.UNKNOWN_PASS, {"name": "nothing"}),
        (["--print-ir-before", "change"], IrPrintingErrors.CHANGE_BEFORE, {}),
        (["--explain", "nothing"], PassPipelineErrors.UNKNOWN_PASS, {"name": "nothing"}),
    ],
)
def test_wrong_words_are_usage_errors(
    words: list[str], kind: ErrorKind, fields: dict[str, Any], dump: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(one_line(["opt", str(dump), *words], capsys), kind, **fields)


def test_needs_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    check(one_line(["opt"], capsys), OptCommandErrors.NO_FILE)


def test_a_crash_leaves_a_reproducer(
    dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = REGISTRY["merge-equal-kernels"]

    def crash(self: Pass, module: object) -> None:
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(kind, "run", crash)
    monkeypatch.chdir(tmp_path)
    assert main(["opt", str(dump), "--pass-pipeline=merge-equal-kernels"]) == 70
    err = capsys.readouterr().err
    kept = REPRODUCER / "merge-equal-kernels"
    assert f"sscc opt {kept / 'before.mlir'} --pass-pipeline='merge-equal-kernels'" in err
    assert (kept / "before.mlir").read_text() == dump.read_text()
    assert "ZeroDivisionError: on purpose" in (kept / "error.txt").read_text()
    assert set(json.loads((kept / "versions.json").read_text())) == {"sscc", "torch", "torch-mlir", "transformers"}
    monkeypatch.undo()
    assert main(["opt", str(tmp_path / kept / "before.mlir"), "--pass-pipeline=merge-equal-kernels"]) == 0


def test_pipelines_read_back_what_they_print() -> None:
    for passes in PIPELINES.values():
        text = pipeline_text(passes)
        assert re.sub(r"\{[^}]*\}", "", text) == ",".join(item.name for item in passes)
        assert parse_pipeline(text) == passes
    assert "outline-kernels{granularity=layer}" in pipeline_text(PIPELINES[2])
    assert "form-stages{fuse=false}" in pipeline_text(PIPELINES[0])
    assert parse_pipeline("") == ()
    for kind in REGISTRY.values():
        assert all(isinstance(type_, type) for type_, _ in options_of(kind).values())


def test_option_values_are_typed() -> None:
    with raises(PassPipelineErrors.NO_OPTIONS, name="merge-equal-kernels", option="x"):
        parse_pipeline("merge-equal-kernels{x}")


def test_an_illegal_dump_is_the_persons_not_a_bug(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump.write_text(dump.read_text().replace('sscc.level = "kernels"', 'sscc.level = "import"'))
    error = reported(["opt", str(dump)])
    check(error, DumpErrors.ILLEGAL_LINE, file=dump, level="import", reason="'math.tanh' is not legal at level import")
    line = dump.read_text().splitlines()[error.fields["line"] - 1]
    message, shown, _ = capsys.readouterr().err.splitlines()
    assert message == f"sscc: error: {error}"
    assert shown == f"  {line}"
    assert line[error.fields["column"] - 1 :].startswith("math.tanh")


@pytest.mark.parametrize(
    ("text", "count"),
    [("func.func(cse,canonicalize)", 1), ("builtin.module(func.func(cse),merge-equal-kernels),sccp", 3), ("", 0)],
)
def test_nested_pipelines(text: str, count: int) -> None:
    passes = parse_pipeline(text)
    assert len(passes) == count
    assert parse_pipeline(pipeline_text(passes)) == passes


@pytest.mark.parametrize(
    ("text", "kind", "fields"),
    [
        ("func.func(kernel-looping)", PassPipelineErrors.NOT_NESTED, {"name": "kernel-looping", "anchor": "func.func"}),
        ("func.func(symbol-dce)", PassPipelineErrors.NOT_NESTED, {"name": "symbol-dce"}),
        ("func.func(nothing)", PassPipelineErrors.UNKNOWN_PASS, {"name": "nothing"}),
        ("scf.for(cse)", PassPipelineErrors.NO_ANCHOR, {"anchor": "scf.for"}),
        ("func.func(cse", PassPipelineErrors.UNREADABLE, {"text": "cse"}),
        ("func.func(cse))", PassPipelineErrors.UNREADABLE, {"text": ")"}),
    ],
)
def test_malformed_nests(text: str, kind: PassPipelineErrors, fields: dict[str, Any]) -> None:
    with raises(kind, **fields):
        parse_pipeline(text)


def test_calls_are_inlined_and_functions_that_nobody_calls_removed(
    dump: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["opt", str(dump), "--pass-pipeline", "inline,func.func(canonicalize),symbol-dce"]) == 0
    out = capsys.readouterr().out
    assert out.count("math.tanh") == 2
    assert "func.func private" not in out


PARTS = """module attributes {sscc.level = "graph"} {
  func.func @a(%x: tensor<2xf32>) -> tensor<2xf32> {
    // expected-error@+1 {{undeclared SSA value}}
    %y = math.exp %z : tensor<2xf32>
    return %y : tensor<2xf32>
  }
}
// ----- a line between two modules
module attributes {sscc.level = "graph"} {
  func.func @a(%x: tensor<2xf32>) -> tensor<2xf32> {
    %y = math.exp %z : tensor<2xf32>
    // expected-error-re@above {{undeclared SSA {{value|name}} name}}
    return %y : tensor<2xf32>
  }
}
// -----
// expected-error@unknown {{takes a module of level fused}}
module attributes {sscc.level = "graph"} {
  func.func @a(%x: tensor<2xf32>) -> tensor<2xf32> {
    return %x : tensor<2xf32>
  }
}
"""


def test_expected_diagnostics_of_several_modules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "parts.mlir"
    path.write_text(PARTS)
    words = ["opt", str(path), "--split-input-file", "--verify-diagnostics", "--pass-pipeline", "tile-stages"]
    assert main(words) == 0
    path.write_text(PARTS.replace("undeclared SSA value}}", "something else}}").replace("level fused", "level x"))
    assert main(words) == 4
    found = re.findall(r"parts.mlir:?(\d*):? (expected|unexpected) error", capsys.readouterr().err)
    assert sorted(found) == [("", "unexpected"), ("17", "expected"), ("3", "expected"), ("4", "unexpected")]
    check(reported(words), OptCommandErrors.DIAGNOSTICS_DIFFER, name=str(path), count=4)


def test_modules_that_are_split_are_printed_one_after_another(
    dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = tmp_path / "both.mlir"
    both.write_text(f"{dump.read_text()}\n// -----\n{dump.read_text()}")
    assert main(["opt", str(both), "--split-input-file", "--pass-pipeline", "merge-equal-kernels"]) == 0
    first, second = capsys.readouterr().out.split("\n// -----\n")
    assert first == second
    assert first.count("func.func private") == 1
    both.write_text(f"{dump.read_text()}\n// -----\nnothing")
    line = dump.read_text().count("\n") + 3
    error = reported(["opt", str(both), "--split-input-file"])
    assert error is not None
    assert f"both.mlir:{line}:1" in str(error.fields["diagnostic"])


def test_what_opt_prints_goes_on(dump: Path, tmp_path: Path) -> None:
    model = Path(__file__).parents[2] / "models" / "tiny"
    graph, kernels, out = (str(tmp_path / name) for name in ("graph.mlir", "kernels.mlir", "out.rdu"))
    words = ["--max-context", "64", "--kv-budget", "64"]
    assert main(["compile", str(model), "--compile-to", "graph", "-o", graph, "-q", *words]) == 0
    assert main(["opt", graph, "--pass-pipeline", "func.func(cse),outline-kernels", "-o", kernels]) == 0
    on = ["compile", kernels, "--compile-from", "kernels", "--checkpoint", str(model), "-o", out, "-q"]
    check(reported(on), PassPipelineErrors.OTHER_LEVEL)
    assert main([*on, "--as-is", "--no-native-code"]) == 0
    assert sscc.load(out, interpreter="reference").prefill(0, [1, 2, 3]).shape == (200,)
    check(reported(["compile", str(model), "--as-is"]), OptionErrors.ONLY_FOR_DUMPS, option="--as-is")
