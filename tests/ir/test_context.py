"""One context; text that cannot be parsed is the person's input, not a bug."""

from __future__ import annotations

import pytest

from sscc.ir.context import IrTextErrors, context, mlir, parse_module, print_module
from sscc.ir.errors import InputError
from tests.errors import raises

FUNCTION = "func.func @f(%a: f32) -> f32 {\n  %0 = math.exp %a : f32\n  return %0 : f32\n}\n"


def test_there_is_one_context() -> None:
    with mlir() as first, mlir() as second:
        assert first is second is context()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("func.func @f(%a: f32) {", "x.mlir is not valid IR: x.mlir:1:"),
        (FUNCTION[:40], "x.mlir is not valid IR: x.mlir:2:"),
        ("hello", "x.mlir is not valid IR: x.mlir:1:1: custom op 'hello' is unknown"),
        ('"nobody.knows"() : () -> ()', "is not valid IR: x.mlir:1:15: operation being parsed"),
        (FUNCTION.replace("%0 :", "%a :").replace("-> f32", "-> f64"), "is not valid IR: x.mlir:3:3: "),
        ("\x00\x01", "is not valid IR: "),
    ],
    ids=["no end", "truncated", "not IR", "unregistered", "invalid", "binary"],
)
def test_what_does_not_parse_is_refused_with_a_place(text: str, message: str) -> None:
    with mlir(), pytest.raises(InputError) as caught:
        parse_module(text, "x.mlir")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("padding", [0, 300])
def test_the_line_at_fault_is_shown_with_a_caret(padding: int) -> None:
    text = FUNCTION.replace("math.exp", " " * padding + "math.expp")
    with mlir(), pytest.raises(InputError) as caught:
        parse_module(text, "x.mlir")
    line, caret = caught.value.excerpt.split("\n")
    assert line[caret.index("^") :].startswith("math.expp %a")
    assert len(line) <= 102


@pytest.mark.parametrize("depth", [300, 100_000])
@pytest.mark.parametrize("opening", ["scf.if %true {", "[", "(", "tuple<"])
def test_text_nested_without_end_is_refused_before_it_is_parsed(opening: str, depth: int) -> None:
    closing = {"{": "}", "[": "]", "(": ")", "<": ">"}[opening[-1]]
    with mlir(), raises(IrTextErrors.TOO_DEEP, name="x.mlir", line=2, levels=100):
        parse_module("module {\n" + opening * depth + closing * depth + "}", "x.mlir")


def test_brackets_in_strings_and_comments_and_arrows_are_no_nesting() -> None:
    text = FUNCTION + "// " + "{" * 200 + '\nmodule attributes {a.b = "' + "(" * 200 + '"} {}\n'
    with mlir():
        assert parse_module(text + "\n".join(f"func.func private @p{i}() -> ()" for i in range(150)), "x.mlir")


def test_a_verifier_error_has_its_line_and_the_models() -> None:
    """A verifier knows an operation's location alone, which in a dump is a place in the model."""
    row = '"kv.row"() : () -> () loc("layers.0)"(#loc))'
    text = f'#loc = loc("model.py":5:0)\nmodule {{\n  // loc(\n  {row}\n}} loc(unknown)\n'
    with mlir(), raises(IrTextErrors.INVALID, name="x.mlir") as caught:
        parse_module(text, "x.mlir")
    line, caret = caught.value.excerpt.split("\n")
    assert line[caret.index("^") :].startswith('"kv.row"()')


def test_what_is_printed_parses_to_the_same() -> None:
    text = FUNCTION.replace("math.exp %a : f32", 'math.exp %a : f32 loc("layers.0"("model.py":5:0))')
    with mlir():
        printed = print_module(parse_module(text, "x.mlir"))
        assert 'loc("model.py":5:0)' in printed
        assert print_module(parse_module(printed, "printed")) == printed
