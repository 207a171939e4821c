"""The collector of .mlir tests: a test that checks nothing, or the wrong thing, does not pass."""

from __future__ import annotations

import pytest

from sscc.ir.errors import InputError, UsageError
from tests.filecheck_items import WrongOutput, check_case, read_cases, run_ir

FUNCTION = "func.func @f(%a: f32) -> f32 {\n  %0 = math.exp %a : !number\n  return %0 : f32\n}\n"
ALIASES = "// what all cases share\n!number = f32\n\n// -----\n\n"


def run(directives: str, body: str = FUNCTION) -> None:
    (case,) = read_cases(f"{ALIASES}// CASE: one\n{directives}\n{body}")
    check_case(case, "test.mlir")


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


def test_errors_are_compared_to_the_end() -> None:
    bad = FUNCTION.replace("@f(%a: f32)", "@f(%a: f64)")
    message = "use of value '%a' expects different type than prior uses: 'f32' vs 'f64'"
    run(f"// ERROR: InputError: {message}", bad)
    run("// ERROR: InputError: use of value '%a' expects different type than\n// ERROR: " + message[-26:], bad)
    for error in (f"UsageError: {message}", f"InputError: {message[:-5]}", "InputError: something else"):
        with pytest.raises(WrongOutput, match="found InputError: "):
            run(f"// ERROR: {error}", bad)
    with pytest.raises(WrongOutput, match="but the module was accepted"):
        run(f"// ERROR: InputError: {message}")
    with pytest.raises(InputError):
        run("// CHECK: math.exp", bad)


@pytest.mark.parametrize("directives", ["", "// ERROR: InputError: no\n// CHECK: exp"])
def test_a_case_checks_one_thing(directives: str) -> None:
    with pytest.raises(ValueError, match="a case has either"):
        run(directives)


def test_a_case_has_a_name() -> None:
    with pytest.raises(ValueError, match="line 1: the case has no"):
        read_cases(f"// CHECK: exp\n{FUNCTION}")


def test_an_unknown_pass_is_refused() -> None:
    with pytest.raises(UsageError, match="there is no pass 'fuse', there are absorb-latent, "):
        run_ir("", ("fuse",))


def test_locations_stand_where_they_belong() -> None:
    text = FUNCTION.replace("!number", 'f32 loc("layers.0"("model.py":5:0))')
    assert 'math.exp %arg0 : f32 loc("layers.0"("model.py":5:0))' in run_ir(text, locations=True)
    assert "loc(" not in run_ir(text)
