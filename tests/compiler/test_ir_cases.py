"""The cases of .mlir tests: a test that checks nothing, or the wrong thing, does not pass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sscc.compiler.tools.testing.ir_cases import IrCaseErrors, WrongOutput, check_case, read_cases, run_commands, run_ir
from sscc.ir.errors import ErrorKind, InputError
from sscc.passes.pass_pipeline import PassPipelineErrors
from tests.errors import raises

FUNCTION = "func.func @f(%a: f32) -> f32 {\n  %0 = math.exp %a : !number\n  return %0 : f32\n}\n"
ALIASES = "// what all cases share\n!number = f32\n\n// -----\n\n"


def run(directives: str, body: str = FUNCTION) -> None:
    (case,) = read_cases(f"{ALIASES}// CASE: one\n{directives}\n{body}")
    check_case(case, Path("test.mlir"))


def test_cases_are_cut_apart() -> None:
    one, two = f"// CASE: one\n// CHECK: exp\n{FUNCTION}", f"// CASE: two\n// ERROR: InputError: no\n{FUNCTION}"
    first, second = read_cases(f"{ALIASES}{one}\n// -----\n{two}")
    assert (first.name, first.line, first.passes, first.error) == ("one", 5, (), "")
    assert (second.name, second.error, second.aliases) == ("two", "InputError: no", first.aliases)
    assert "!number = f32" in first.aliases


def test_what_is_there_passes() -> None:
    run("// CHECK: func.func @f(%[[A:.+]]: f32)\n// CHECK-NEXT: math.exp %[[A]]\n// CHECK-NOT: math.tanh")


@pytest.mark.parametrize(
    "checks",
    [
        "// CHECK: math.tanh",
        "// CHECK: math.exp\n// CHECK: func.func",
        "// CHECK-NOT: math.exp",
        "// CHECK: func.func\n// CHECK-NEXT: return",
        "// CHECK: math.exp\n// CHECK-NOT: return",
        "// CHECK-LABEL: func.func @g",
    ],
)
def test_what_is_not_there_fails(checks: str) -> None:
    with pytest.raises(WrongOutput, match="the output was:"):
        run(checks)


def test_errors_are_compared_by_kind_and_fields() -> None:
    graph = f'module attributes {{sscc.level = "placed"}} {{\n{FUNCTION}}}'
    passes = "// PASSES: tile-stages\n"
    run(f"{passes}// ERROR: pass.wrong-level name=tile-stages\n// ERROR: takes=fused level=placed", graph)
    run(f"{passes}// ERROR: pass.wrong-level", graph)
    for error in ("pass.not-captured", "pass.wrong-level level=fused", "pass.wrong-level depth=3"):
        with pytest.raises(WrongOutput, match=r"found pass\.wrong-level name=tile-stages"):
            run(f"{passes}// ERROR: {error}", graph)


def test_errors_are_compared_to_the_end() -> None:
    bad = FUNCTION.replace("@f(%a: f32)", "@f(%a: f64)")
    message = "use of value '%a' expects different type than prior uses: 'f32' vs 'f64'"
    run(f"// ERROR: InputError: {message}", bad)
    run("// ERROR: InputError: use of value '%a' expects different type than\n// ERROR: " + message[-26:], bad)
    for error in (f"UsageError: {message}", f"InputError: {message[:-5]}", "InputError: something else"):
        with pytest.raises(WrongOutput, match=r"found ir-text\.invalid "):
            run(f"// ERROR: {error}", bad)
    with pytest.raises(WrongOutput, match="but the module was accepted"):
        run(f"// ERROR: InputError: {message}")
    with pytest.raises(InputError):
        run("// CHECK: math.exp", bad)


@pytest.mark.parametrize("directives", ["", "// ERROR: InputError: no\n// CHECK: exp"])
def test_a_case_checks_one_thing(directives: str) -> None:
    with raises(IrCaseErrors.CHECKS_AND_ERROR):
        run(directives)


def test_a_case_has_a_name() -> None:
    with raises(IrCaseErrors.NO_NAME, line=1):
        read_cases(f"// CHECK: exp\n{FUNCTION}")


def test_an_unknown_pass_is_refused() -> None:
    with raises(PassPipelineErrors.UNKNOWN_PASS, name="fuse"):
        run_ir("", ("fuse",))


def test_locations_stand_where_they_belong() -> None:
    text = FUNCTION.replace("!number", 'f32 loc("layers.0"("model.py":5:0))')
    assert 'math.exp %arg0 : f32 loc("layers.0"("model.py":5:0))' in run_ir(text, locations=True)
    assert "loc(" not in run_ir(text)


# ------------------------------------------------------------------------------------------------------- commands


def test_what_a_command_writes_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "test.mlir"
    runs = "// RUN: sscc opt --explain cse\n// RUN: sscc opt --list-passes\n"
    path.write_text(f"// CASE: one\n{runs}// CHECK: {{{{cse +any}}}}\n")
    (case,) = read_cases(path.read_text())
    check_case(case, path)
    with pytest.raises(WrongOutput, match="the output was:"):
        check_case(replace(case, text=case.text.replace("+any", "+none")), path)
    refused = run_commands(("not sscc opt %S/none.mlir",), path)
    assert refused.startswith(f"sscc: error: {tmp_path}/none.mlir cannot be read")
    with pytest.raises(WrongOutput, match="ended with exit code 5:\nsscc: error: "):
        run_commands(("sscc opt %S/none.mlir",), path)
    with pytest.raises(WrongOutput, match="succeeded, but must fail"):
        run_commands(("not sscc opt --list-passes",), path)


@pytest.mark.parametrize(
    ("lines", "kind", "fields"),
    [
        ("// RUN: rm -r %S\n// CHECK: a", IrCaseErrors.NOT_SSCC, {}),
        ("// RUN: sscc opt %s | FileCheck %s\n// CHECK: a", IrCaseErrors.PIPE, {}),
        ("// RUN: sscc opt 'a\n// CHECK: a", IrCaseErrors.UNREADABLE_COMMAND, {"reason": "No closing quotation"}),
        ("// RUN: sscc opt a\n// ERROR: InputError: a", IrCaseErrors.RUN_WITH_OTHERS, {}),
    ],
)
def test_commands_that_are_refused(lines: str, kind: ErrorKind, fields: dict[str, Any]) -> None:
    with raises(kind, **fields):
        read_cases(f"// CASE: one\n{lines}\n")
