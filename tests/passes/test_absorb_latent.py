"""absorb-latent: what is multi-head latent attention and what only looks so. Two heads, keys of 1 and 1 numbers, values
of 3, latent rows of 2 and 1."""

from __future__ import annotations

import pytest

from sscc.compiler.tools.testing.ir_cases import run_ir

MODULE = """
#heads = affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)>
#all = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
module attributes {{
  kv.geometry = {{sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 1 : i64, pool = 1 : i64, pool_mode = "avg",
                 max_context = 8 : i64}},
  sscc.program = {{batch = 3 : i64, chunk = 4 : i64, dtype = "f32", layers = 1 : i64, vocab_size = 9 : i64,
                  config = "{{}}", digest = "", eos = "[]"}}, sscc.level = "graph" }} {{
{functions}
}}
"""

LAYER = """
func.func private @{entry}.layer.0(%q: tensor<{b}x2x{s}x2xf32> {{sscc.input = "hidden"}},
    %x: tensor<{n}x2xf32> {{sscc.input = "latent"}}, %p: tensor<{b}x{s}x1xf32> {{sscc.input = "shared"}},
    %w: tensor<8x2xf32> {{sscc.weight = "up"}}, %w2: tensor<2x2xf32> {{sscc.weight = "of keys"}})
    -> (tensor<{b}x2x{s}x3xf32> {{sscc.output = "hidden"}})
    attributes {{sscc.entry = "{entry}", sscc.layer = 0 : i64}} {{
  %zero = arith.constant {start} : f32
  %e0 = tensor.empty() : tensor<2x8xf32>
  %wt = linalg.transpose ins(%w : tensor<8x2xf32>) outs(%e0 : tensor<2x8xf32>) permutation = [1, 0]
  %e1 = tensor.empty() : tensor<{n}x8xf32>
  %z1 = linalg.fill ins(%zero : f32) outs(%e1 : tensor<{n}x8xf32>) -> tensor<{n}x8xf32>
  %product = linalg.matmul ins(%x, %wt : tensor<{n}x2xf32>, tensor<2x8xf32>) outs(%z1 : tensor<{n}x8xf32>)
    -> tensor<{n}x8xf32>
  {after_product}
  %open = tensor.expand_shape %made [[0, 1], [2, 3]] output_shape [{b}, {s}, 2, 4]
    : tensor<{n}x8xf32> into tensor<{b}x{s}x2x4xf32>
  %e3 = tensor.empty() : tensor<{b}x2x{s}x4xf32>
  %parts = linalg.transpose ins(%open : tensor<{b}x{s}x2x4xf32>) outs(%e3 : tensor<{b}x2x{s}x4xf32>)
    permutation = [0, 2, 1, 3]
  %v = tensor.extract_slice %parts[0, 0, 0, 1] [{b}, 2, {s}, 3] [1, 1, 1, 1]
    : tensor<{b}x2x{s}x4xf32> to tensor<{b}x2x{s}x3xf32>
  %e2 = tensor.empty() : tensor<{b}x2x{s}x1xf32>
  {own_key}
  %ks = linalg.generic {{indexing_maps = [#heads, #all],
      iterator_types = ["parallel", "parallel", "parallel", "parallel"]}}
      ins(%p : tensor<{b}x{s}x1xf32>) outs(%e2 : tensor<{b}x2x{s}x1xf32>) {{
  ^bb0(%in: f32, %out: f32):
    {shared}
    linalg.yield %number : f32
  }} -> tensor<{b}x2x{s}x1xf32>
  %k = tensor.concat dim(3) {order} : (tensor<{b}x2x{s}x1xf32>, tensor<{b}x2x{s}x1xf32>) -> tensor<{b}x2x{s}x2xf32>
  %o = "kv.self_attention"(%q, %k, %v) {{layer = 0 : i64, scale = 0.5 : f64{window}}}
    : (tensor<{b}x2x{s}x2xf32>, tensor<{b}x2x{s}x2xf32>, tensor<{b}x2x{s}x3xf32>) -> tensor<{b}x2x{s}x3xf32>
  return %o : tensor<{b}x2x{s}x3xf32>
}}
"""

SLICED_KEY = """%kn = tensor.extract_slice %parts[0, 0, 0, 0] [{b}, 2, {s}, 1] [1, 1, 1, 1]
    : tensor<{b}x2x{s}x4xf32> to tensor<{b}x2x{s}x1xf32>"""
ITS_OWN_WEIGHT = """%e5 = tensor.empty() : tensor<2x2xf32>
  %wt2 = linalg.transpose ins(%w2 : tensor<2x2xf32>) outs(%e5 : tensor<2x2xf32>) permutation = [1, 0]
  %e6 = tensor.empty() : tensor<{n}x2xf32>
  %z6 = linalg.fill ins(%zero : f32) outs(%e6 : tensor<{n}x2xf32>) -> tensor<{n}x2xf32>
  %p6 = linalg.matmul ins(%x, %wt2 : tensor<{n}x2xf32>, tensor<2x2xf32>) outs(%z6 : tensor<{n}x2xf32>)
    -> tensor<{n}x2xf32>
  %open6 = tensor.expand_shape %p6 [[0, 1], [2, 3]] output_shape [{b}, {s}, 2, 1]
    : tensor<{n}x2xf32> into tensor<{b}x{s}x2x1xf32>
  %kn = linalg.transpose ins(%open6 : tensor<{b}x{s}x2x1xf32>) outs(%e2 : tensor<{b}x2x{s}x1xf32>)
    permutation = [0, 2, 1, 3]"""
ROTATED_KEY = SLICED_KEY.replace("%kn", "%raw") + """
  %kn = linalg.exp ins(%raw : tensor<{b}x2x{s}x1xf32>) outs(%e2 : tensor<{b}x2x{s}x1xf32>) -> tensor<{b}x2x{s}x1xf32>"""
BIAS = "%made = linalg.exp ins(%product : tensor<{n}x8xf32>) outs(%e1 : tensor<{n}x8xf32>) -> tensor<{n}x8xf32>"
PLAIN = {
    "start": "0.0",
    "after_product": "",
    "own_key": SLICED_KEY,
    "shared": "",
    "order": "%kn, %ks",
    "window": "",
}


def layer(entry: str, **changes: str) -> str:
    slots, tokens = {"decode": (3, 1), "prefill": (1, 4)}[entry]
    sizes = {"b": slots, "s": tokens, "n": slots * tokens}
    parts = {name: text.format(**sizes) for name, text in (PLAIN | changes).items()}
    text = LAYER.format(entry=entry, **sizes, **parts)
    if not parts["after_product"]:
        text = text.replace("%made", "%product")
    return text if parts["shared"] else text.replace("%number", "%in")


def absorbed(*functions: str) -> str:
    return run_ir(MODULE.format(functions="\n".join(functions)), ("absorb-latent",))


def both(**changes: str) -> str:
    return absorbed(layer("decode", **changes), layer("prefill", **changes))


@pytest.mark.parametrize(
    ("changes", "up"),
    [
        ({}, "tensor<2x1x2xf32>"),
        ({"own_key": ITS_OWN_WEIGHT}, "tensor<2x1x2xf32>"),
        ({"order": "%ks, %kn"}, "tensor<2x1x2xf32>"),
    ],
    ids=["one weight", "a weight for keys alone", "shared numbers first"],
)
def test_both_entries_know_the_latent_row(changes: dict[str, str], up: str) -> None:
    after = both(**changes)
    assert after.count("linalg.contract") == 2
    decode, prefill = after.split("@prefill.layer.0")
    assert "(tensor<3x2x1x3xf32>, tensor<3x1x1x3xf32>, tensor<3x1x1x2xf32>) -> tensor<3x2x1x2xf32>" in decode
    assert f"tensor<1x1x4x3xf32>, {up}, tensor<2x3x2xf32>) -> tensor<1x2x4x3xf32>" in prefill
    assert f"first = {1 if changes.get('order') == '%ks, %kn' else 0} : i64" in prefill
    assert "linalg.matmul" not in decode, "what made K and V is still there"


@pytest.mark.parametrize(
    "changes",
    [
        {"own_key": ROTATED_KEY},
        {"after_product": BIAS},
        {"shared": "%number = arith.addf %in, %in : f32"},
        {"start": "1.0"},
        {"order": "%kn, %kn"},
        {"window": ", window = 4 : i64"},
    ],
    ids=["keys rotated", "more than a product", "shared numbers computed", "a bias", "two products", "a window"],
)
def test_what_is_something_else_stays(changes: dict[str, str]) -> None:
    after = both(**changes)
    assert after.count('"kv.self_attention"') == 2
    assert "linalg.contract" not in after


def test_one_entry_alone_stays_as_it_is() -> None:
    after = absorbed(layer("decode"), layer("prefill", after_product=BIAS))
    assert after.count('"kv.self_attention"') == 2


def test_a_window_as_long_as_the_context_is_none() -> None:
    assert "kv.latent_attention" in both(window=", window = 8 : i64")
