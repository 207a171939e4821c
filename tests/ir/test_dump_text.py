"""Dumps name arguments and put what is long out of line; they stay the module's text."""

from __future__ import annotations

import re

import pytest

from sscc.ir.context import mlir, parse_module, print_module

SOURCES = [f"model.layers.{layer}.self_attn.q_proj.weight" for layer in range(4)]
LIST = ", ".join(f'"{source}"' for source in SOURCES)
MODULE = f"""module attributes {{sscc.level = "looped", sscc.passes = [{LIST}], sscc.machine = "{"x" * 200} = #no"}} {{
  func.func private @k(%h: tensor<2xf32> {{sscc.input = "hidden"}},
      %w: tensor<4x2xf32> {{sscc.weight = "model.layers.0-3.self_attn.q_proj.weight", sscc.sources = [{LIST}]}},
      %b: tensor<2xf32> {{sscc.weight = "model.layers.3.bias"}},
      %c: tensor<2xf32> {{sscc.weight = "model.layers.4.bias"}},
      %t: tensor<2xf32> {{sscc.state = "table.0"}}, %e: tensor<2xf32> {{sscc.input = "extracted_slice"}}, %n: index,
      %s: tensor<2xf32> {{sscc.input = "3 spaces!"}}, %z: tensor<2xf32> {{sscc.input = "arg1"}})
      -> (tensor<2xf32> {{sscc.output = "%arg1"}}) {{
    %0 = tensor.extract_slice %w[%n, 0] [1, 2] [1, 1] : tensor<4x2xf32> to tensor<2xf32>
    %1 = tensor.extract_slice %w[0, 0] [1, 2] [1, 1] : tensor<4x2xf32> to tensor<2xf32>
    %lower = arith.constant 0 : index
    %one = arith.constant 1 : index
    %2 = scf.for %i = %lower to %n step %one iter_args(%a = %h) -> (tensor<2xf32>) {{
      %3 = arith.addf %a, %b : tensor<2xf32>
      scf.yield %3 : tensor<2xf32>
    }}
    %4 = arith.addf %2, %z : tensor<2xf32>
    return %4 : tensor<2xf32>
  }}
  func.func private @declared(tensor<2xf32>) -> tensor<2xf32>
  func.func private @other(%w: tensor<4x2xf32> {{sscc.weight = "w", sscc.sources = [{LIST}]}}) -> tensor<4x2xf32> {{
    return %w : tensor<4x2xf32>
  }}
}}
"""


@pytest.fixture(scope="module")
def text() -> str:
    with mlir():
        return print_module(parse_module(MODULE, "the test"))


def test_arguments_have_their_names(text: str) -> None:
    header = text[text.index("func.func private @k(") : text.index("func.func private @declared(")]
    names = re.findall(r"^.*?(%[\w$.-]+): [^\n]* loc\(", header[: header.index("->")], re.MULTILINE)
    assert names == [
        "%hidden",
        "%self_attn.q_proj.weight",  # without what all layers share
        "%model.layers.3.bias",  # but not where that says two
        "%model.layers.4.bias",
        "%table.0",
        "%extracted_slice_1",  # what else is in the function has its name already
        "%arg6",  # of no role
        "%_3_spaces_",
        "%arg1_0",
    ]
    assert "tensor.extract_slice %self_attn.q_proj.weight[%arg6, 0]" in header
    assert "iter_args(%arg10 = %hidden)" in header
    assert "arith.addf %arg10, %model.layers.3.bias" in header
    assert 'sscc.output = "%arg1"' in header


def test_large_attributes_are_out_of_line(text: str) -> None:
    listed = "[\n  " + ",\n  ".join(f'"{source}"' for source in SOURCES) + "\n]"
    assert f"#passes = {listed}\n" in text
    assert 'attributes {sscc.level = "looped", sscc.machine = #machine, sscc.passes = #passes} {' in text
    assert text.count("sscc.sources = #passes") == 2  # what is equal is said once
    assert text.count(SOURCES[1]) == 1


def test_it_is_the_modules_text(text: str) -> None:
    with mlir():
        plain, again = parse_module(MODULE, "the test"), parse_module(text, "the text")
        assert plain.operation.get_asm() == again.operation.get_asm()
        assert print_module(again) == text


def test_what_is_invalid_is_printed_as_mlir_does() -> None:
    with mlir():
        module = parse_module(MODULE, "the test")
        module.body.operations[0].attributes["sym_name"] = module.body.operations[2].attributes["sym_name"]
        assert "%arg0" in print_module(module)
