"""Buffers and compute units on machines that are small."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import prod

import pytest
from torch_mlir import ir

from sscc.ir.context import mlir, parse_module
from sscc.ir.dialects import df
from sscc.ir.dialects.df import BufferPlace, buffers_of, stage_name
from sscc.ir.levels import set_target, walk
from sscc.ir.sizes import align
from sscc.ir.target import load_target
from sscc.passes.base import run_passes
from sscc.passes.pass_pipeline import parse_pipeline
from sscc.passes.place_stages import PlaceStagesErrors
from sscc.passes.stage_work import points_of
from tests.errors import raises
from tests.targets import changed, with_chip

CHUNKS = """
func.func private @k(%h: tensor<64x64xf32> {sscc.state = "h"}, %w: tensor<64x256xf32> {sscc.weight = "w"},
    %u: tensor<256x64xf32> {sscc.weight = "u"}, %n: index {sscc.input = "n"}) -> (tensor<64x64xf32> {sscc.state = "h"})
    attributes {sscc.kernel} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<8x64xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<8x64xf32>) -> tensor<8x64xf32>
  %f = tensor.empty() : tensor<8x256xf32>
  %y = linalg.fill ins(%zero : f32) outs(%f : tensor<8x256xf32>) -> tensor<8x256xf32>
  %l = scf.for %i = %c0 to %n step %c1 iter_args(%x = %h) -> tensor<64x64xf32> {
    %o = arith.muli %i, %c8 : index
    %c = tensor.extract_slice %x[%o, 0] [8, 64] [1, 1] : tensor<64x64xf32> to tensor<8x64xf32>
    %a = linalg.exp ins(%c : tensor<8x64xf32>) outs(%e : tensor<8x64xf32>) -> tensor<8x64xf32>
    %p = linalg.matmul ins(%a, %w : tensor<8x64xf32>, tensor<64x256xf32>) outs(%y : tensor<8x256xf32>)
      -> tensor<8x256xf32> loc("up")
    %q = linalg.matmul ins(%p, %u : tensor<8x256xf32>, tensor<256x64xf32>) outs(%z : tensor<8x64xf32>)
      -> tensor<8x64xf32> loc("down")
    %r = linalg.add ins(%q, %c : tensor<8x64xf32>, tensor<8x64xf32>) outs(%e : tensor<8x64xf32>) -> tensor<8x64xf32>
    %x1 = tensor.insert_slice %r into %x[%o, 0] [8, 64] [1, 1] : tensor<8x64xf32> into tensor<64x64xf32>
    scf.yield %x1 : tensor<64x64xf32>
  }
  return %l : tensor<64x64xf32>
}
"""
"""Loads of 2 KiB (h) and 64 KiB (w, u); streams of 2 (exp), 8 (up) and 2 KiB (down)."""

KIB = 1024
LOADED, BETWEEN = (2 + 64 + 64) * KIB, (2 + 8 + 2) * KIB


@pytest.fixture(autouse=True)
def _context() -> Iterator[None]:
    with mlir():
        yield


def placed(text: str = CHUNKS, sram: int | None = None, pcus: int | None = None) -> ir.Module:
    """`text`, placed on a machine of `sram` bytes and `pcus` compute units (default: as it comes)."""
    module = parse_module('module attributes {sscc.level = "kernels"} {\n' + text + "\n}", "the test")
    target = load_target("rdu") if sram is None else with_chip(sram)
    set_target(module, target if pcus is None else changed({"pcus": pcus}, target))
    run_passes(module, parse_pipeline("form-stages,tile-stages,place-stages"))
    return module


def buffers(module: ir.Module) -> dict[str, tuple[BufferPlace, int]]:
    """Name of a load or stage -> its (only) buffer, and the bytes of a slot."""
    buffers = {}
    for op in walk(module):
        if df.BUFFERS in op.attributes and df.STAGE in op.attributes:
            (place,) = buffers_of(op)
            shape = op.results[0].type.shape
            buffers[stage_name(op)] = (place, 4 * prod(shape))
    return buffers


def depths(module: ir.Module) -> dict[str, int]:
    return {name: place.depth for name, (place, _) in buffers(module).items()}


def test_everything_has_two_slots_where_iterations_overlap() -> None:
    assert depths(placed()) == {"h": 2, "exp": 2, "w": 2, "up": 2, "u": 2, "down": 2}


EXCHANGE = """
shard.grid @ranks(shape = 2)
func.func private @k(%h: tensor<8x256xf32> {sscc.state = "h"}, %w: tensor<256x1024xf32> {sscc.weight = "w"},
    %u: tensor<1024x256xf32> {sscc.weight = "u"}, %n: index {sscc.input = "n"})
    -> (tensor<8x256xf32> {sscc.state = "h"}) attributes {sscc.kernel} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<8x256xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<8x256xf32>) -> tensor<8x256xf32>
  %f = tensor.empty() : tensor<8x1024xf32>
  %y = linalg.fill ins(%zero : f32) outs(%f : tensor<8x1024xf32>) -> tensor<8x1024xf32>
  BEGIN
    %p = linalg.matmul ins(INPUT, %w : tensor<8x256xf32>, tensor<256x1024xf32>) outs(%y : tensor<8x1024xf32>)
      -> tensor<8x1024xf32> loc("up")
    %s = SUM tensor<8x1024xf32> loc("sum")
    %q = linalg.matmul ins(%s, %u : tensor<8x1024xf32>, tensor<1024x256xf32>) outs(%z : tensor<8x256xf32>)
      -> tensor<8x256xf32> loc("down")
  END
}
"""
"""Products of 4 tiles of 256 KiB each, between them a sum over ranks."""

RUN = {"BEGIN": "", "INPUT": "%h", "END": "return %q : tensor<8x256xf32>"}
LOOP = {
    "BEGIN": "%l = scf.for %i = %c0 to %n step %c1 iter_args(%x = %h) -> tensor<8x256xf32> {",
    "INPUT": "%x",
    "END": "scf.yield %q : tensor<8x256xf32>\n  }\n  return %l : tensor<8x256xf32>",
}
SUM = "shard.all_reduce %p on @ranks grid_axes = [0] : tensor<8x1024xf32> ->"
NO_SUM = "linalg.exp ins(%p : tensor<8x1024xf32>) outs(%f : tensor<8x1024xf32>) ->"


def layer(control: dict[str, str], between: str, sram: int | None = None) -> ir.Module:
    text = EXCHANGE
    for name, part in {**control, "SUM": between}.items():
        text = text.replace(name, part)
    return placed(text, sram=sram)


def exchanging(control: dict[str, str], between: str = SUM, sram: int | None = None) -> dict[str, int]:
    """Slots of the matrices' tiles."""
    slots = depths(layer(control, between, sram))
    return {name: slots[name] for name in ("w", "u")}


def test_tiles_behind_an_exchange_have_slots_for_all_of_them() -> None:
    """While stages wait for other ranks, there is time to load whole matrices."""
    assert exchanging(LOOP) == {"w": 4, "u": 4}
    assert exchanging(RUN) == {"w": 2, "u": 4}
    assert exchanging(LOOP, NO_SUM) == exchanging(RUN, NO_SUM) == {"w": 2, "u": 2}


def test_tiles_that_do_not_fit_have_fewer_slots() -> None:
    assert exchanging(LOOP, sram=3 * 1024 * KIB) == {"w": 4, "u": 4}
    assert exchanging(LOOP, sram=2 * 1024 * KIB) == {"w": 2, "u": 2}


def test_no_two_buffers_share_an_address() -> None:
    spans = sorted((place.address, place.depth * size) for place, size in buffers(placed()).values())
    assert spans[0][0] == 0
    assert all(address + align(size) == after for (address, size), (after, _) in pairwise(spans))


@pytest.mark.parametrize(
    ("sram", "between", "whole"),
    [
        (2 * LOADED + 2 * BETWEEN, 2, 2),
        (2 * LOADED + 2 * BETWEEN - 1, 1, 2),
        (2 * LOADED + BETWEEN, 1, 2),
        (2 * LOADED + BETWEEN - 1, 2, 1),
        (LOADED + 2 * BETWEEN, 2, 1),
        (LOADED + 2 * BETWEEN - 1, 1, 1),
        (LOADED + BETWEEN, 1, 1),
    ],
)
def test_where_it_is_tight_there_are_fewer_slots(sram: int, between: int, whole: int) -> None:
    """Streams between stages give way first, then what is loaded."""
    places = buffers(placed(sram=sram))
    assert {name: place.depth for name, (place, _) in places.items()} == {
        **dict.fromkeys(("h", "w", "u"), whole),
        **dict.fromkeys(("exp", "up", "down"), between),
    }
    assert max(place.address + place.depth * size for place, size in places.values()) <= sram


@pytest.mark.parametrize(
    ("sram", "loads"),
    [
        (LOADED + BETWEEN, {"h", "w", "u"}),
        (LOADED + BETWEEN - 1, {"h", "u"}),
        (LOADED + BETWEEN - 64 * KIB, {"h", "u"}),
        (LOADED + BETWEEN - 64 * KIB - 1, {"h"}),
        (LOADED + BETWEEN - 128 * KIB, {"h"}),
    ],
)
def test_weights_that_do_not_fit_stay_in_memory(sram: int, loads: set[str]) -> None:
    """The largest weights stay there first; stages read them in place."""
    module = placed(sram=sram)
    assert {stage_name(op) for op in walk(module) if op.name == "df.load"} == loads
    assert set(buffers(module)) == loads | {"exp", "up", "down"}
    weights = {stage_name(op): op.operands[1] for op in walk(module) if df.is_stage(op) and len(op.operands) > 1}
    assert isinstance(weights["up"].owner, ir.Block) == ("w" not in loads)
    assert isinstance(weights["down"].owner, ir.Block) == ("u" not in loads)


def test_what_does_not_fit_at_all_is_refused_with_the_numbers() -> None:
    """14 KiB are needed even without weights."""
    largest = {"largest": ["up", "h", "exp"], "sizes": [8 * KIB, 2 * KIB, 2 * KIB]}
    with raises(
        PlaceStagesErrors.TOO_LARGE, kernel="k", required=14 * KIB, capacity=13 * KIB, memory="SRAM", **largest
    ):
        placed(sram=13 * KIB)


def shares(module: ir.Module) -> dict[str, int]:
    return {stage_name(op): op.attributes[df.PCUS].value for op in walk(module) if df.is_stage(op)}


@pytest.mark.parametrize("pcus", [3, 4, 7, 100, 1040])
def test_units_are_shared_out_by_work(pcus: int) -> None:
    units = shares(placed(pcus=pcus))
    assert sum(units.values()) <= pcus
    assert all(share >= 1 for share in units.values())
    assert units["exp"] <= units["down"]
    assert pcus < 7 or units["up"] + units["down"] > pcus // 2


PRODUCT = 2 * 8 * 256 * 1024 / 319e12 * 1040
"""Seconds of the products of `EXCHANGE` on one unit: two operations for each pair, in f32."""
ELEMENTS = 8 * 1024 / (32 * 1.6e9)
"""Seconds for the element-wise work on each element: one lane and one cycle."""


def test_units_are_proportional_to_the_time_of_one_where_iterations_overlap() -> None:
    units = shares(layer(LOOP, SUM))
    product = 1 + int((1040 - 3) * PRODUCT / (2 * PRODUCT + ELEMENTS))
    elements = 1 + int((1040 - 3) * ELEMENTS / (2 * PRODUCT + ELEMENTS))
    assert units == {"up": product, "sum": elements, "down": product}


def test_where_stages_wait_for_each_other_the_sum_of_their_times_is_as_small_as_it_can_be() -> None:
    units = shares(layer(RUN, SUM))

    def seconds(up: int, sum_: int) -> float:
        return 2 * PRODUCT / up + ELEMENTS / sum_

    assert units["up"] == units["down"]
    least = min(seconds(up, 1040 - 2 * up) for up in range(1, 520))
    assert seconds(units["up"], units["sum"]) == pytest.approx(least, rel=2e-3)
    assert seconds(517, 6) > 1.1 * least


def test_more_stages_than_units_are_refused() -> None:
    with raises(PlaceStagesErrors.TOO_MANY_STAGES, kernel="k", stages=3, units=2):
        placed(pcus=2)


def test_scores_by_quantized_keys_are_work() -> None:
    """A step that chooses among more positions gets more of the units beside a stage that stays as it is."""
    geometry = "sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 3 : i64, pool = 1 : i64, pool_mode = \"avg\""
    policy = "max_context = T : i64, rows = \"indexed\", policy = \"query\", key_bits = 2 : i64"
    q, n, c, s, p, a = "2x4x1x8xf32", "2x2x1x8xf32", "2x2x3x8xf32", "2x2xTx8xf32", "2xi64", "2xi1"
    quantized_keys, results = ["2x2xTx2xi8", "2x2xTx1xbf16"], [q, c, c, s, s]
    operands = [q, n, n, c, c, c, c, s, s, *quantized_keys, p, a]
    types = [f"tensor<{shape}>" for shape in operands]
    names = [f"%{number}" for number in range(len(operands))]
    # No resident rows, and no learned sinks.
    there = [", ".join(["1"] * count + ["0"] * none) for count, none in ((len(operands), 5), (7, 4))]
    sizes = [f"operandSegmentSizes = array<i32: {there[0]}>", f"resultSegmentSizes = array<i32: {there[1]}>"]
    text = f"""module attributes {{kv.geometry = {{{geometry}, {policy}}}}} {{
      func.func private @k({", ".join(map(": ".join, zip(names, types, strict=True)))}) {{
        %o:7 = "kv.query_attention"({", ".join(names)}) {{{", ".join(sizes)}, scale = 1.0 : f64}}
          : ({", ".join(types)}) -> ({", ".join(f"tensor<{shape}>" for shape in [*results, *quantized_keys])})
        return
      }}
    }}"""

    def points(positions: int) -> int:
        module = parse_module(text.replace("T", str(positions)), "the test")
        (step,) = (op for op in walk(module) if op.name == "kv.query_attention")
        return points_of(step)

    assert points(4096) - points(2048) == 2048 * 2 * 4 * 8 // 2
