"""Emission of placed modules: loops become pipelines and grids, streams become buffers, bodies are shared.

The modules are written by hand, as place-stages leaves them, so that each says only what its test is about.
"""

from __future__ import annotations

import pytest
import torch

from sscc.compiler.emit.kernels import KernelEmissionErrors
from sscc.compiler.emit.layout import KernelLayoutErrors
from sscc.ir.schedule import Body, Buffer, For, If, Kernel, Pipeline, Port, Program, Stage, View
from sscc.runtime.backends.reference import ReferenceInterpreter
from tests.compiler.backend.programs import emit_placed, entry, launched, run
from tests.errors import raises

BODIES = """
func.func private @body.product(%h: tensor<2x8xf32> {sscc.input = "x0"}, %w: tensor<8x4xf32> {sscc.input = "x1"})
    -> (tensor<2x4xf32> {sscc.output = "y0"}) attributes {df.body} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x4xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<2x4xf32>) -> tensor<2x4xf32>
  %y = linalg.matmul ins(%h, %w : tensor<2x8xf32>, tensor<8x4xf32>) outs(%z : tensor<2x4xf32>) -> tensor<2x4xf32>
  return %y : tensor<2x4xf32>
}
func.func private @body.add(%a: tensor<2x8xf32> {sscc.input = "x0"}, %b: tensor<2x8xf32> {sscc.input = "x1"})
    -> (tensor<2x8xf32> {sscc.output = "y0"}) attributes {df.body} {
  %e = tensor.empty() : tensor<2x8xf32>
  %y = linalg.add ins(%a, %b : tensor<2x8xf32>, tensor<2x8xf32>) outs(%e : tensor<2x8xf32>) -> tensor<2x8xf32>
  return %y : tensor<2x8xf32>
}
"""


def buffer(depth: int, address: int = -1) -> str:
    return f"df.buffers = [{{address = {address} : i64, depth = {depth} : i64}}]"


LOOPED = f"""{BODIES}
func.func private @layers(%h: tensor<2x8xf32> {{sscc.state = "h"}}, %w: tensor<3x8x8xf32> {{sscc.input = "w"}},
    %b: tensor<2x8xf32> {{sscc.input = "b"}}) -> (tensor<2x8xf32> {{sscc.state = "h"}}) attributes {{sscc.kernel}} {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c3 = arith.constant 3 : index
  %c4 = arith.constant 4 : index
  %bs = "df.load"(%b) {{{buffer(1, 0)}, df.early, df.stage = "b"}} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %hs = "df.load"(%h) {{{buffer(2, 64)}, df.early, df.stage = "h"}} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %out = scf.for %i = %c0 to %c3 step %c1 iter_args(%x = %hs) -> (tensor<2x8xf32>) {{
    %layer = tensor.extract_slice %w[%i, 0, 0] [1, 8, 8] [1, 1, 1] : tensor<3x8x8xf32> to tensor<8x8xf32>
    %empty = tensor.empty() : tensor<2x8xf32>
    %y = scf.for %t = %c0 to %c2 step %c1 iter_args(%acc = %empty) -> (tensor<2x8xf32>) {{
      %o = arith.muli %t, %c4 : index
      %wt = tensor.extract_slice %layer[0, %o] [8, 4] [1, 1] : tensor<8x8xf32> to tensor<8x4xf32>
      %ws = "df.load"(%wt) {{{buffer(2, 192)}, df.stage = "w"}} : (tensor<8x4xf32>) -> tensor<8x4xf32>
      %yt = func.call @body.product(%x, %ws) {{df.stage = "proj", df.pcus = 3 : i64}}
        : (tensor<2x8xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>
      %next = tensor.insert_slice %yt into %acc[0, %o] [2, 4] [1, 1] : tensor<2x4xf32> into tensor<2x8xf32>
      scf.yield %next : tensor<2x8xf32>
    }} {{df.tiles, {buffer(1, 448)}}}
    %z = func.call @body.add(%y, %bs) {{df.stage = "add", df.pcus = 2 : i64, {buffer(2)}}}
      : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
    scf.yield %z : tensor<2x8xf32>
  }} {{df.carried = array<i64: 0>, df.pipelined}}
  return %out : tensor<2x8xf32>
}}
"""
LOOPED_ENTRY = entry(
    "h: 2x8xf32, w: 3x8x8xf32, b: 2x8xf32",
    "2x8xf32",
    "%out = func.call @layers(%h, %w, %b) : (tensor<2x8xf32>, tensor<3x8x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>",
)


def only(items: tuple[object, ...]) -> Pipeline:
    (pipeline,) = items
    assert isinstance(pipeline, Pipeline)
    return pipeline


def kernel(program: Program, name: str) -> Kernel:
    return next(kernel for kernel in program.kernels if kernel.name == name)


def body(program: Program, name: str) -> Body:
    return next(body for body in program.bodies if body.name == name)


@pytest.fixture(scope="module")
def looped() -> Program:
    return emit_placed(LOOPED + LOOPED_ENTRY)


@pytest.fixture(scope="module")
def stages(looped: Program) -> dict[str, Stage]:
    return {stage.name: stage for stage in only(kernel(looped, "layers").body).stages}


# --------------------------------------------------------------------------------------------- a looped kernel


def test_a_loop_of_stages_is_one_pipeline(looped: Program) -> None:
    pipeline = only(kernel(looped, "layers").body)
    assert (pipeline.lower, pipeline.upper, pipeline.scalars) == (0, 3, ())
    assert [(stage.name, stage.grid, stage.when) for stage in pipeline.stages] == [
        ("load b", (), "first"),
        ("load h", (), "first"),
        ("load w", (2,), "each"),
        ("proj", (2,), "each"),
        ("add", (), "each"),
        ("store y0", (), "last"),
    ]
    assert launched(looped.entry("main").body) == ["layers"]


def test_a_looped_kernel_computes_what_its_loop_says(looped: Program) -> None:
    h, w, b = torch.randn(2, 8), torch.randn(3, 8, 8) / 3, torch.randn(2, 8)
    expected = h
    for layer in w:
        expected = expected @ layer + b
    torch.testing.assert_close(run(looped, h=h, w=w, b=b), expected)


def test_a_tile_of_memory_is_a_window_of_iteration_and_firing(stages: dict[str, Stage]) -> None:
    source, target = stages["load w"].ports
    assert source == Port(View("x1", (8, 4), (8, 1), 0, (("i0", 64), ("t0", 4))))
    assert target == Port(View("w", (8, 4), (4, 1)), per=1)


def test_a_tiled_stage_uses_a_slot_for_all_its_firings_and_a_tile_for_one(stages: dict[str, Stage]) -> None:
    carried, tile, output = stages["proj"].ports
    assert (carried.view.tensor, carried.per, carried.lag) == ("h", 2, 0)
    assert (tile.view.tensor, tile.per) == ("w", 1)
    assert output == Port(View("proj", (2, 4), (8, 1), 0, (("t0", 4),)), per=2)


def test_what_is_loaded_once_is_one_slot_for_all_iterations(stages: dict[str, Stage]) -> None:
    assert (stages["add"].ports[1].view.tensor, stages["add"].ports[1].per) == ("b", 3)


def test_what_iterations_hand_on_goes_into_the_next_slot(stages: dict[str, Stage]) -> None:
    """Iteration i reads slot i and fills slot i + 1; the store after 3 iterations takes slot 3."""
    assert stages["load h"].ports[1] == Port(View("h", (2, 8), (8, 1)), per=1)
    assert stages["add"].ports[2] == Port(View("h", (2, 8), (8, 1)), per=1, lag=1)
    stored, memory = stages["store y0"].ports
    assert stored == Port(View("h", (2, 8), (8, 1)), per=1, lag=3)
    assert memory == Port(View("y0", (2, 8), (8, 1)))


def test_buffers_are_where_they_were_placed(looped: Program) -> None:
    assert only(kernel(looped, "layers").body).buffers == (
        Buffer("b", (2, 8), "f32", "sram", 0, 1),
        Buffer("h", (2, 8), "f32", "sram", 64, 2),
        Buffer("proj", (2, 8), "f32", "sram", 448, 1),
        Buffer("w", (8, 4), "f32", "sram", 192, 2),
    )


def test_stages_wait_for_every_buffer_that_they_touch(stages: dict[str, Stage]) -> None:
    for stage in stages.values():
        assert stage.waits == tuple(port.view.tensor for port in stage.ports if port.per), stage.name
    assert stages["proj"].waits == ("h", "w", "proj")
    assert [stage.pcus for stage in stages.values()] == [0, 0, 0, 3, 2, 0]


def test_a_kernel_says_how_it_uses_its_parameters(looped: Program) -> None:
    params = [(param.name, param.access) for param in kernel(looped, "layers").params]
    assert params == [("x0", "read"), ("x1", "read"), ("x2", "read"), ("y0", "write")]


def test_a_loop_of_unknown_length_cannot_carry_on_chip() -> None:
    """The slot with the last value depends on the number of iterations."""
    dynamic = LOOPED.replace("%b: tensor<2x8xf32> {sscc.input = \"b\"})", '%b: tensor<2x8xf32> {sscc.input = "b"}, '
                             '%n: index {sscc.input = "n"})').replace("to %c3 step", "to %n step")  # fmt: skip
    with raises(KernelEmissionErrors.CARRIED_VALUE, kernel="layers"):
        emit_placed(dynamic)


# ----------------------------------------------------------------------------------------------- straight runs

ADD = '%{0} = func.call @body.add(%{1}, %{2}) {{df.stage = "add", {3}}}' + (
    " : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>"
)


def straight(work: str, result: str = "2x8xf32", bodies: str = BODIES) -> str:
    """Kernel `k` of parameters %x and %y that returns %out, and an entry that calls it."""
    return f"""{bodies}
func.func private @k(%x: tensor<2x8xf32> {{sscc.input = "x"}}, %y: tensor<2x8xf32> {{sscc.input = "y"}})
    -> (tensor<{result}> {{sscc.output = "out"}}) attributes {{sscc.kernel}} {{
{work}
return %out : tensor<{result}>
}}
""" + entry(
        "x: 2x8xf32, y: 2x8xf32",
        result,
        f"%out = func.call @k(%x, %y) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<{result}>",
    )


def test_a_straight_run_is_a_pipeline_of_one_iteration() -> None:
    """Memory is read as it lies; a stream joins the stages; the last value is stored."""
    program = emit_placed(
        straight(ADD.format("a", "x", "y", buffer(1, 0)) + "\n" + ADD.format("out", "a", "a", buffer(1, 64)))
    )
    pipeline = only(kernel(program, "k").body)
    assert (pipeline.lower, pipeline.upper) == (0, 1)
    assert [(stage.name, stage.when) for stage in pipeline.stages] == [
        ("add", "each"),
        ("add 2", "each"),
        ("store y0", "each"),
    ]
    assert [port.per for port in pipeline.stages[0].ports] == [0, 0, 1]
    assert [port.view.tensor for port in pipeline.stages[1].ports] == ["add", "add", "add.1"]
    x, y = torch.randn(2, 8), torch.randn(2, 8)
    torch.testing.assert_close(run(program, x=x, y=y), 2 * (x + y))


def test_a_result_that_is_a_stream_seen_differently() -> None:
    """The stream's window is stored, without a copy in another order."""
    work = ADD.format("a", "x", "y", buffer(1, 0)) + (
        "\n%out = tensor.collapse_shape %a [[0, 1]] : tensor<2x8xf32> into tensor<16xf32>"
    )
    program = emit_placed(straight(work, "16xf32"))
    store = only(kernel(program, "k").body).stages[-1]
    assert [port.view.shape for port in store.ports] == [(16,), (16,)]
    x, y = torch.randn(2, 8), torch.randn(2, 8)
    torch.testing.assert_close(run(program, x=x, y=y), (x + y).flatten())


FLATTENING = """
func.func private @body.flat(%a: tensor<2x8xf32> {sscc.input = "x0"}, %b: tensor<2x8xf32> {sscc.input = "x1"})
    -> (tensor<16xf32> {sscc.output = "y0"}) attributes {df.body} {
  %e = tensor.empty() : tensor<2x8xf32>
  %y = linalg.add ins(%a, %b : tensor<2x8xf32>, tensor<2x8xf32>) outs(%e : tensor<2x8xf32>) -> tensor<2x8xf32>
  %f = tensor.collapse_shape %y [[0, 1]] : tensor<2x8xf32> into tensor<16xf32>
  return %f : tensor<16xf32>
}
"""


def test_a_body_writes_what_it_returns_reshaped() -> None:
    """Through a local and a step of its own: the parameter may be a strided tile, which has no reshapes."""
    call = f'%out = func.call @body.flat(%x, %y) {{df.stage = "flat", {buffer(1, 0)}}}'
    program = emit_placed(
        straight(f"{call} : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<16xf32>", "16xf32", FLATTENING)
    )
    emitted = body(program, "body.flat")
    assert len(emitted.steps) == 2
    assert [window.view for window in emitted.windows] == [View("t0", (16,), (1,))]
    x, y = torch.randn(2, 8), torch.randn(2, 8)
    torch.testing.assert_close(run(program, x=x, y=y), (x + y).flatten())


SUMMED = """
func.func private @body.sum(%a: tensor<2x8xf32> {sscc.input = "x0"})
    -> (tensor<1x8xf32> {sscc.output = "y0"}) attributes {df.body} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<1x8xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<1x8xf32>) -> tensor<1x8xf32>
  %l = tensor.expand_shape %a [[0, 1], [2]] output_shape [1, 2, 8] : tensor<2x8xf32> into tensor<1x2x8xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(i, j, k) -> (i, j, k)>, affine_map<(i, j, k) -> (i, k)>],
      iterator_types = ["parallel", "reduction", "parallel"]}
      ins(%l : tensor<1x2x8xf32>) outs(%z : tensor<1x8xf32>) {
    ^bb0(%p: f32, %o: f32):
    %s = arith.addf %o, %p : f32
    linalg.yield %s : f32
  } -> tensor<1x8xf32>
  return %y : tensor<1x8xf32>
}
"""


def test_dimensions_of_one_element_need_no_window() -> None:
    """A tile of a parameter is not dense, and a window would need it so."""
    call = f'%out = func.call @body.sum(%x) {{df.stage = "sum", {buffer(1, 0)}}}'
    program = emit_placed(straight(f"{call} : (tensor<2x8xf32>) -> tensor<1x8xf32>", "1x8xf32", SUMMED))
    emitted = body(program, "body.sum")
    assert not emitted.windows
    x = torch.randn(2, 8)
    torch.testing.assert_close(run(program, x=x, y=x), x.sum(0, keepdim=True))


def test_a_body_copies_what_it_returns_transposed() -> None:
    """A parameter that it returns from, seen differently, is moved into the result's parameter by a step."""
    flipped = """
func.func private @body.flip(%a: tensor<2x8xf32> {sscc.input = "x0"})
    -> (tensor<8x2xf32> {sscc.output = "y0"}) attributes {df.body} {
  %e = tensor.empty() : tensor<2x8xf32>
  %y = linalg.exp ins(%a : tensor<2x8xf32>) outs(%e : tensor<2x8xf32>) -> tensor<2x8xf32>
  %f = tensor.empty() : tensor<8x2xf32>
  %t = linalg.transpose ins(%y : tensor<2x8xf32>) outs(%f : tensor<8x2xf32>) permutation = [1, 0]
  return %t : tensor<8x2xf32>
}
"""
    call = f'%out = func.call @body.flip(%x) {{df.stage = "flip", {buffer(1, 0)}}}'
    program = emit_placed(straight(f"{call} : (tensor<2x8xf32>) -> tensor<8x2xf32>", "8x2xf32", flipped))
    assert len(body(program, "body.flip").steps) == 2
    x = torch.randn(2, 8)
    torch.testing.assert_close(run(program, x=x, y=x), x.exp().T)


def test_a_stream_without_a_buffer_is_refused() -> None:
    unplaced = ADD.format("a", "x", "y", buffer(0)) + "\n" + ADD.format("out", "a", "a", buffer(1, 64))
    with raises(KernelLayoutErrors.RESULT_NOT_PLACED, stage="add"):
        emit_placed(straight(unplaced))


def test_a_part_of_an_operand_is_copied_into_the_result() -> None:
    work = "%out = tensor.extract_slice %x[1, 0] [1, 8] [1, 1] : tensor<2x8xf32> to tensor<8xf32>"
    x = torch.randn(2, 8)
    assert torch.equal(run(emit_placed(straight(work, "8xf32")), x=x, y=x), x[1])


def test_a_body_that_only_looks_at_its_operand_copies_it() -> None:
    same = """
func.func private @body.same(%x: tensor<2x8xf32> {sscc.input = "x0"}) -> (tensor<2x8xf32> {sscc.output = "y0"})
    attributes {df.body} {
  return %x : tensor<2x8xf32>
}
"""
    call = f'%out = func.call @body.same(%x) {{df.stage = "same", {buffer(1, 0)}}}'
    program = emit_placed(straight(f"{call} : (tensor<2x8xf32>) -> tensor<2x8xf32>", "2x8xf32", same))
    x = torch.randn(2, 8)
    assert torch.equal(run(program, x=x, y=x), x)


def test_equal_bodies_are_one() -> None:
    """However they are called: the second kernel's stage fires the first one's body."""
    again = BODIES.replace("@body.add", "@body.sum").replace("@body.product", "@body.dot")
    text = straight(ADD.format("a", "x", "y", buffer(1, 0)) + "\n" + ADD.format("out", "a", "a", buffer(1, 64)).replace(
        "@body.add", "@body.sum"))  # fmt: skip
    program = emit_placed(again + text)
    fired = [stage.body for stage in only(kernel(program, "k").body).stages]
    assert fired == ["body.add", "body.add", "copy.2x8.f32"]
    assert [item.name for item in program.bodies] == ["body.add", "copy.2x8.f32"]


# ----------------------------------------------------------------------------------- control around pipelines

CONTROLLED = f"""{BODIES}
func.func private @k(%x: tensor<4x2x8xf32> {{sscc.input = "x"}}, %sum: tensor<2x8xf32> {{sscc.state = "sum"}},
    %begin: index {{sscc.input = "begin"}}, %end: index {{sscc.input = "end"}})
    -> (tensor<2x8xf32> {{sscc.state = "sum"}}) attributes {{sscc.kernel}} {{
  %one = arith.constant 1 : index
  %some = arith.cmpi slt, %begin, %end : index
  %total = scf.for %i = %begin to %end step %one iter_args(%s = %sum) -> (tensor<2x8xf32>) {{
    %row = tensor.extract_slice %x[%i, 0, 0] [1, 2, 8] [1, 1, 1] : tensor<4x2x8xf32> to tensor<2x8xf32>
    {ADD.format("next", "s", "row", buffer(1, 0))}
    scf.yield %next : tensor<2x8xf32>
  }}
  %twice = scf.if %some -> (tensor<2x8xf32>) {{
    {ADD.format("t", "total", "total", buffer(1, 0))}
    scf.yield %t : tensor<2x8xf32>
  }} else {{
    scf.yield %total : tensor<2x8xf32>
  }}
  return %twice : tensor<2x8xf32>
}}
func.func public @main(%x: tensor<4x2x8xf32> {{sscc.input = "x"}}, %begin: index {{sscc.input = "begin"}},
    %end: index {{sscc.input = "end"}}, %sum: tensor<2x8xf32> {{sscc.state = "sum"}})
    -> (tensor<2x8xf32> {{sscc.state = "sum"}}) {{
  %out = func.call @k(%x, %sum, %begin, %end)
    : (tensor<4x2x8xf32>, tensor<2x8xf32>, index, index) -> tensor<2x8xf32>
  return %out : tensor<2x8xf32>
}}
"""


def test_loops_and_branches_of_a_kernel_stand_around_pipelines() -> None:
    program = emit_placed(CONTROLLED)
    emitted = kernel(program, "k")
    assert emitted.scalars == ("x2", "x3")
    assert [param.access for param in emitted.params] == ["read", "update"]
    scalar, loop, branch = emitted.body
    assert isinstance(loop, For)
    assert isinstance(branch, If)
    assert (loop.lower, loop.upper) == ("x2", "x3")
    assert branch.condition == scalar.name  # type: ignore[union-attr]
    assert [stage.name for stage in only(loop.body).stages] == ["add", "store x1"]
    assert only(loop.body).stages[0].ports[1].view.terms == ((loop.index, 16),)
    assert [stage.name for stage in only(branch.body).stages] == ["add", "store x1"]


@pytest.mark.parametrize(("begin", "end"), [(0, 4), (1, 3), (2, 2)])
def test_a_kernel_with_control_updates_what_it_is_given(begin: int, end: int) -> None:
    interpreter = ReferenceInterpreter(emit_placed(CONTROLLED), {}, checked=True)
    x, start = torch.randn(4, 2, 8), torch.randn(2, 8)
    interpreter.tensor("sum").copy_(start)
    interpreter.run("main", {"x": x}, {"begin": begin, "end": end})
    expected = (start + x[begin:end].sum(0)) * (2 if begin < end else 1)
    torch.testing.assert_close(interpreter.tensor("sum"), expected)


PIPELINED = CONTROLLED.replace(
    "    scf.yield %next : tensor<2x8xf32>\n  }", "    scf.yield %next : tensor<2x8xf32>\n  } {df.pipelined}"
)


def test_a_pipeline_of_unknown_length_carries_in_memory() -> None:
    """The bounds are the kernel's scalars; the sum goes through memory every iteration."""
    assert PIPELINED != CONTROLLED
    program = emit_placed(PIPELINED)
    pipeline = next(item for item in kernel(program, "k").body if isinstance(item, Pipeline))
    assert (pipeline.lower, pipeline.upper) == ("x2", "x3")
    assert [(stage.name, stage.when) for stage in pipeline.stages] == [("add", "each"), ("store x1", "each")]
    interpreter = ReferenceInterpreter(program, {}, checked=True)
    x = torch.randn(4, 2, 8)
    interpreter.run("main", {"x": x}, {"begin": 1, "end": 4})
    torch.testing.assert_close(interpreter.tensor("sum"), 2 * x[1:4].sum(0))


# --------------------------------------------------------------------------------------------------- what is returned


def calling(returns: str, results: str, work: str = "") -> str:
    """An entry that adds x and y by kernel `k` into %a, does `work`, and returns `returns`."""
    kernel_ = straight(ADD.format("out", "x", "y", buffer(1, 0)))
    head = kernel_[: kernel_.index("func.func public")]
    return f"""{head}
func.func public @main(%x: tensor<2x8xf32> {{sscc.input = "x"}}, %y: tensor<2x8xf32> {{sscc.input = "y"}},
    %s: tensor<2x8xf32> {{sscc.state = "s"}}) -> ({results}) {{
  %a = func.call @k(%x, %y) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  {work}
  return {returns}
}}
"""


def test_a_returned_temporary_is_the_output_itself() -> None:
    """No copy, no temporary: the kernel writes where the caller reads, also where the result is reshaped."""
    work = "%flat = tensor.collapse_shape %a [[0, 1]] : tensor<2x8xf32> into tensor<16xf32>"
    program = emit_placed(calling("%flat : tensor<16xf32>", 'tensor<16xf32> {sscc.output = "out"}', work))
    assert launched(program.entry("main").body) == ["k"]
    assert program.entry("main").body[0].args[-1].tensor == "out"  # type: ignore[union-attr]
    assert all(tensor.role != "temporary" for tensor in program.tensors)
    x, y = torch.randn(2, 8), torch.randn(2, 8)
    torch.testing.assert_close(run(program, x=x, y=y), (x + y).flatten())


def test_a_value_returned_twice_is_copied_once() -> None:
    results = 'tensor<2x8xf32> {sscc.output = "out"}, tensor<2x8xf32> {sscc.state = "s"}'
    program = emit_placed(calling("%a, %a : tensor<2x8xf32>, tensor<2x8xf32>", results))
    assert launched(program.entry("main").body) == ["k", "copy.2x8.f32"]
    interpreter = ReferenceInterpreter(program, {}, checked=True)
    x, y = torch.randn(2, 8), torch.randn(2, 8)
    outputs, _ = interpreter.run("main", {"x": x, "y": y})
    torch.testing.assert_close(outputs["out"], x + y)
    torch.testing.assert_close(interpreter.tensor("s"), x + y)


def test_an_input_that_is_returned_is_copied() -> None:
    program = emit_placed(calling("%x : tensor<2x8xf32>", 'tensor<2x8xf32> {sscc.output = "out"}'))
    assert launched(program.entry("main").body) == ["k", "copy.2x8.f32"]
    x = torch.randn(2, 8)
    assert torch.equal(run(program, x=x, y=x), x)


def test_a_part_of_a_temporary_is_copied() -> None:
    """The output would be only a part of the tensor that the kernel writes."""
    work = "%row = tensor.extract_slice %a[1, 0] [1, 8] [1, 1] : tensor<2x8xf32> to tensor<8xf32>"
    program = emit_placed(calling("%row : tensor<8xf32>", 'tensor<8xf32> {sscc.output = "out"}', work))
    assert launched(program.entry("main").body) == ["k", "copy.8.f32"]
    x, y = torch.randn(2, 8), torch.randn(2, 8)
    torch.testing.assert_close(run(program, x=x, y=y), (x + y)[1])
