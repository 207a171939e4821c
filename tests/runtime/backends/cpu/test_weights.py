"""Packed weights and their layouts; programs compute the same with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from sscc.ir.operations import Dequantize, StoredPart
from sscc.ir.schedule import (
    Access,
    Body,
    Entry,
    Instr,
    Kernel,
    Launch,
    Local,
    Pipeline,
    Port,
    Product,
    Program,
    Reduction,
    Stage,
    Vector,
    View,
    Window,
)
from sscc.ir.weight_formats.registry import format_named
from sscc.runtime.backends.backend import Conditions
from sscc.runtime.backends.cpu import backend as cpu_backend
from sscc.runtime.backends.cpu import interpreter
from sscc.runtime.backends.cpu.codegen.bodies import NativeBodyErrors
from sscc.runtime.backends.cpu.interpreter import NativeInterpreter, store_weights
from sscc.runtime.backends.cpu.plan import planner
from sscc.runtime.backends.cpu.plan.library import make_code
from sscc.runtime.backends.cpu.plan.storage import PanelPacking
from sscc.runtime.backends.cpu.plan.weights import aliased_params, overlap, packed_weights
from sscc.runtime.backends.cpu.products.packing import Panels
from sscc.runtime.backends.cpu.products.quantized_packing import QuantizedPanels
from sscc.runtime.backends.reference import ReferenceInterpreter
from sscc.runtime.backends.reference.arrays import to_array, to_tensors
from sscc.runtime.support.quantization import dequantize
from tests.errors import raises
from tests.runtime.backends.cpu.harness_bodies import access
from tests.runtime.programs import DTYPES
from tests.runtime.schedules import identity, lay_out, one_stage, read, view_of, whole, write

M, K = 3, 24
ROWS = identity(3)


@dataclasses.dataclass(frozen=True)
class WeightUse:
    """A kernel that reads the weight `w` through a view, with its other inputs and its outputs."""

    kernel: Kernel
    bodies: tuple[Body, ...]
    view: View
    inputs: tuple[tuple[str, tuple[int, ...], str], ...]
    output: tuple[str, tuple[int, ...], str]


def product(name: str, n: int, k: int = K, *, transposed: bool = False, dtype: Any = "f32", rows: int = M) -> Body:
    """y[m, n] = sum over k of x[m, k] * w[n, k], or w[k, n]."""
    b = Access("w", (ROWS[2], ROWS[1]) if transposed else ROWS[1:])
    step = Product((rows, n, k), (2,), Access("x", (ROWS[0], ROWS[2])), b, Access("y", ROWS[:2]))
    shape = (k, n) if transposed else (n, k)
    params = (read("x", (rows, k), dtype), read("w", shape, dtype), write("y", (rows, n), dtype))
    return Body(name, params, (), (), (), (step,))


def linear(number: int, n: int, k: int = K, offset: int = 0, **options: Any) -> WeightUse:
    """A product with n rows of `w`, from an element on."""
    body = product(f"linear{number}", n, k, **options)
    dtype = body.params[0].dtype
    x, y = (f"x{number}", (M, k), dtype), (f"y{number}", (M, n), dtype)
    return WeightUse(one_stage(body), (body,), view_of("w", body.params[1].shape, offset), (x,), y)


def tiled(number: int, n: int, tile: int, k: int = K) -> WeightUse:
    """A product that fires once per tile of rows."""
    body = product(f"tile{number}", tile, k)
    out = View("y", (M, tile), (n, 1), 0, (("t0", tile),))
    ports = (Port(view_of("x", (M, k))), Port(view_of("w", (tile, k), 0, ("t0", tile * k))), Port(out))
    stage = Stage("tiles", body.name, (n // tile,), ports, (), ())
    pipeline = Pipeline("p", "i", 0, 1, (), (), (stage,))
    kernel = Kernel(f"tiled{number}", (read("x", (M, k)), read("w", (n, k)), write("y", (M, n))), (), (pipeline,))
    inputs = ((f"x{number}", (M, k), "f32"),)
    return WeightUse(kernel, (body,), view_of("w", (n, k)), inputs, (f"y{number}", (M, n), "f32"))


def gather(number: int, n: int, k: int = K, offset: int = 0, dtype: Any = "f32") -> WeightUse:
    """Rows of `w` by number, as of an embedding."""
    program = (Instr("j", "index", (1,), "index"), Instr("r", "load", ("w", "in0", "j"), dtype))
    step = Vector((M, k), (access("rows", (1, 0, 0)),), Access("y", identity(2)), program, "r")
    params = (read("rows", (M,), "i64"), read("w", (n, k), dtype), write("y", (M, k), dtype))
    body = Body(f"gather{number}", params, (), (), (), (step,))
    inputs = ((f"rows{number}", (M,), "i64"),)
    return WeightUse(one_stage(body), (body,), view_of("w", (n, k), offset), inputs, (f"y{number}", (M, k), dtype))


def sums(number: int, n: int, k: int = K) -> WeightUse:
    """w + x, element by element."""
    add = (Instr("r", "addf", ("in0", "in1"), "f32"),)
    both = (Access("x", identity(2)), Access("w", identity(2)))
    step = Vector((n, k), both, Access("y", identity(2)), add, "r")
    body = Body(f"sum{number}", (read("x", (n, k)), read("w", (n, k)), write("y", (n, k))), (), (), (), (step,))
    x, y = (f"x{number}", (n, k), "f32"), (f"y{number}", (n, k), "f32")
    return WeightUse(one_stage(body), (body,), view_of("w", (n, k)), (x,), y)


def program_of(shape: tuple[int, ...], *uses: WeightUse, dtype: str = "f32") -> Program:
    tensors, end = lay_out(
        ("w", shape, dtype, "weight"),
        *((*source, "input") for use in uses for source in use.inputs),
        *((*use.output, "output") for use in uses),
    )
    by_name = {t.name: t for t in tensors}
    launches = []
    for use in uses:
        others = [whole(by_name[name]) for name, *_ in use.inputs]
        launches.append(Launch(use.kernel.name, (*others, use.view, whole(by_name[use.output[0]]))))
    inputs = tuple(name for use in uses for name, *_ in use.inputs)
    entry = Entry("main", inputs, tuple(use.output[0] for use in uses), (), (), tuple(launches))
    bodies = tuple({b.name: b for use in uses for b in use.bodies}.values())
    kernels = tuple({use.kernel.name: use.kernel for use in uses}.values())
    return Program.from_json(Program(tensors, bodies, kernels, (entry,), end).to_json())


def packing_of(program: Program) -> PanelPacking | None:
    """Return the packing of `w`. Checks that the program computes the same as on the reference interpreter."""
    torch.manual_seed(1)
    torch_dtypes = {name: dtype for dtype, name in DTYPES.items() if dtype is not torch.float64}
    values = {
        t.name: (torch.randn if t.dtype != "i64" else lambda shape: torch.randint(0, 16, shape))(t.shape).to(
            torch_dtypes[t.dtype]
        )
        for t in program.tensors
        if t.role in ("weight", "input")
    }
    weights = {t.name: values[t.name] for t in program.tensors if t.role == "weight"}
    inputs = {name: values[name] for name in program.entries[0].inputs}
    expected, _ = ReferenceInterpreter(program, weights).run("main", inputs)
    arrays = {name: to_array(value) for name, value in weights.items()}
    native = NativeInterpreter(program, arrays, code=make_code(program, optimise=0), threads=2)
    outputs, _ = native.run("main", {name: to_array(value) for name, value in inputs.items()})
    for name, value in to_tensors(outputs).items():
        close = 2e-2 if value.dtype is torch.bfloat16 else 1e-5
        torch.testing.assert_close(value, expected[name], rtol=close, atol=close)
    return packed_weights(program).get("w")


# ----------------------------------------------------------------------------------------------------- packed


def test_a_weight_of_a_product() -> None:
    assert packing_of(program_of((40, K), linear(0, 40))) == PanelPacking(Panels(40, K, "f32", K, 1), 40 * K, K)


def test_a_transposed_weight() -> None:
    """[K, N], as of a Conv1D."""
    use = linear(0, 40, transposed=True)
    assert packing_of(program_of((K, 40), use)) == PanelPacking(Panels(40, K, "f32", 1, 40), 40 * K, 1)


def test_a_weight_of_bf16() -> None:
    use = linear(0, 32, dtype="bf16")
    packing = packing_of(program_of((32, K), use, dtype="bf16"))
    assert packing == PanelPacking(Panels(32, K, "bf16", K, 1), 32 * K, K)


@pytest.mark.parametrize(("n", "tile", "packed"), [(48, 16, True), (64, 32, True), (48, 12, False), (48, 24, False)])
def test_tiles_are_whole_panels_or_the_weight_is_not_packed(n: int, tile: int, packed: bool) -> None:
    packing = packing_of(program_of((n, K), tiled(0, n, tile)))
    assert packing == (PanelPacking(Panels(n, K, "f32", K, 1), n * K, K) if packed else None)


def test_layers_are_slices() -> None:
    """Each launch reads one of three stacked weights of 40 rows, the last panel of each of which is padded."""
    uses = [linear(n, 40, offset=n * 40 * K) for n in range(3)]
    packing = packing_of(program_of((3, 40, K), *uses))
    assert packing == PanelPacking(Panels(40, K, "f32", K, 1), 40 * K, K)
    assert packing.stored_shape((3, 40, K)) == (3, 3, K, 16, 1)


def test_parts_of_a_slice_are_whole_panels() -> None:
    """Rows 16 .. 47 of a weight, as of keys in a fused projection."""
    assert packing_of(program_of((64, K), linear(0, 64), linear(1, 32, offset=16 * K))) is not None
    assert packing_of(program_of((64, K), linear(0, 64), linear(1, 32, offset=8 * K))) is None
    assert packing_of(program_of((72, K), linear(0, 72), linear(1, 32, offset=16 * K))) is None


def test_a_weight_that_is_used_twice_is_packed_once() -> None:
    assert packing_of(program_of((48, K), linear(0, 48), linear(1, 48), tiled(2, 48, 16))) is not None
    half = linear(1, 32, k=K // 2)
    assert packing_of(program_of((48, K), linear(0, 48), half)) is None, "other sums"


def test_a_tied_embedding_is_packed_and_gathered_from() -> None:
    packing = packing_of(program_of((40, K), gather(0, 40), linear(1, 40)))
    assert packing == PanelPacking(Panels(40, K, "f32", K, 1), 40 * K, K)
    odd = program_of((33, 7), gather(0, 33, 7, dtype="bf16"), linear(1, 33, 7, dtype="bf16"), dtype="bf16")
    assert packing_of(odd) == PanelPacking(Panels(33, 7, "bf16", 7, 1), 33 * 7, 7)


# --------------------------------------------------------------------------------------------------- not packed


def test_what_is_only_gathered_from_is_not_packed() -> None:
    assert packing_of(program_of((40, K), gather(0, 40))) is None


def test_part_of_a_table_is_not_gathered_from_panels() -> None:
    assert packing_of(program_of((48, K), gather(0, 32, offset=16 * K), linear(1, 48))) is None
    assert packing_of(program_of((K, 40), gather(0, K, 40), linear(1, 40, transposed=True))) is None


def test_what_another_step_reads_is_not_packed() -> None:
    assert packing_of(program_of((40, K), linear(0, 40), sums(1, 40))) is None


def test_what_another_step_of_the_same_body_reads_is_not_packed() -> None:
    """Beside the product: a vector step, a reduction, or a product that it is the first operand of."""
    square = product("square", K)
    out = square.steps[0].output  # type: ignore[union-attr]
    row = access("w", (1, 0, 0), (0, 1, 0))
    others = (
        Vector((M, K), (row,), Access("y", identity(2)), (), "in0"),
        Reduction((M, K, K), (2,), (Access("w", ROWS[1:]),), out, (), "in0", "addf", 0.0),
        Product((M, K, K), (2,), Access("w", (ROWS[0], ROWS[2])), Access("w", ROWS[1:]), out),
    )
    for other in others:
        body = dataclasses.replace(square, steps=(*square.steps, other))
        use = dataclasses.replace(linear(0, K), kernel=one_stage(body), bodies=(body,))
        assert packing_of(program_of((K, K), use)) is None


def test_a_first_operand_is_not_packed() -> None:
    swapped = Product((M, 40, K), (2,), Access("w", ROWS[1:]), Access("x", (ROWS[0], ROWS[2])), Access("y", ROWS[:2]))
    body = dataclasses.replace(product("swapped", 40), steps=(swapped,))
    use = dataclasses.replace(linear(0, 40), kernel=one_stage(body), bodies=(body,))
    assert packing_of(program_of((40, K), use)) is None


# ---------------------------------------------------------------------------------------------------- quantized


def dequantizing(n: int, k: int, name: str, *, second: bool = False) -> Program:
    """A product with a local of the numbers of a quantized weight; `second` reads the local in another way too."""
    weight_format = format_named(name)
    steps: list[Any] = [
        Dequantize(tuple(StoredPart(f"{part.name}3") for part in weight_format.parts), "b3", name),
        Product((M, n, k), (2,), Access("x", (ROWS[0], ROWS[2])), Access("b", ROWS[1:]), Access("y", ROWS[:2])),
    ]
    if second:
        steps.append(Vector((M, n), (access("b", (0, 1, 0), (0, 0, 0)),), Access("y", identity(2)), (), "in0"))
    parts = {part.name: weight_format.stored(part.name, n, k) for part in weight_format.parts}
    params = (read("x", (M, k)), *(read(part, shape, "i8") for part, shape in parts.items()), write("y", (M, n)))
    windows = [Window("b3", view_of("b", (1, n, k)))]
    windows += [Window(f"{part}3", view_of(part, (1, *shape))) for part, shape in parts.items()]
    kernel_body = Body("dequantize", params, (), (Local("b", (n, k), "f32"),), tuple(windows), tuple(steps))
    roles = {"x": "input", "y": "output"}
    tensors, end = lay_out(*((p.name, p.shape, p.dtype, roles.get(p.name, "weight")) for p in params))
    launch = Launch("dequantize", tuple(whole(t) for t in tensors))
    entry = Entry("main", ("x",), ("y",), (), (), (launch,))
    return Program(tensors, (kernel_body,), (one_stage(kernel_body),), (entry,), end)


@pytest.mark.parametrize(("n", "k", "name"), [(32, 64, "int8:32"), (40, 24, "int8:24"), (20, 48, "int8:16:zero-point")])
def test_quantized_values_of_a_product_are_packed_with_their_scales(n: int, k: int, name: str) -> None:
    packings = packed_weights(dequantizing(n, k, name))
    assert packings == {"values": PanelPacking(QuantizedPanels(n, k, format_named(name)), n * k, k)}
    assert packings["values"].quantized
    assert packings["values"].companions("w.values")[0] == "w.scales"


def test_quantized_values_that_are_read_in_another_way_are_not_packed() -> None:
    assert packed_weights(dequantizing(32, 64, "int8:32", second=True)) == {}
    assert packed_weights(dequantizing(32, 60, "int8:20")) == {}, "groups that no lines hold"


OTHERS = [("int8:20", 60, False), ("int4:32:minimum:f32", 64, True), ("e4m3:32", 64, True), ("Q6_K", 256, True)]
OTHERS += [("TQ1_0", 256, True), ("IQ4_XS", 256, True), ("mxfp4", 64, True)]


@pytest.mark.parametrize(
    ("name", "k", "second"), [("int8:32", 64, False), ("int8:32:zero-point", 64, False), ("Q4_K", 512, False), *OTHERS]
)
def test_quantized_programs_compute_the_same(name: str, k: int, second: bool) -> None:
    """Packed for products, and where they are not, from the stored parts."""
    n, draw, weight_format = 40, np.random.default_rng(1), format_named(name)
    program = dequantizing(n, k, name, second=second)
    assert bool(packed_weights(program)) == ((name, k, second) not in OTHERS)
    weights = {}
    for part in weight_format.parts:
        raw = draw.integers(0, 256, (n, k // weight_format.block, part.bytes), np.uint8)
        for field in (*weight_format.scales, *weight_format.minimums):
            if field.part == part.name and field.is_float:
                dtype = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}[field.kind]
                floats = draw.random((*raw.shape[:2], 1)).astype(dtype).view(np.uint8)
                raw[..., field.runs[0][0].at :][..., : floats.shape[-1]] = floats
            elif field.part == part.name and field.kind == "exponent":
                raw[..., 0] = draw.integers(120, 130, raw.shape[:2])
        if weight_format.codes.kind == "e4m3" and part.name == weight_format.codes.part:
            raw[raw % 128 == 127] = 3  # no number
        weights[part.name] = raw.reshape(n, -1).view(np.int8)
    x = draw.standard_normal((M, k)).astype(np.float32)
    native = NativeInterpreter(program, weights, code=make_code(program, optimise=0), threads=2)
    (outputs, _) = native.run("main", {"x": x})
    dense = dequantize(weights, weight_format).astype(np.float64)
    expected = np.broadcast_to(dense[:, 0], (M, n)) if second else x @ dense.T
    error = np.linalg.norm(outputs["y"] - expected) / np.linalg.norm(expected)
    assert error < 1e-3


# ------------------------------------------------------------------------------------------------------ storage

STORED = [
    (PanelPacking(Panels(40, K, "f32", K, 1), 40 * K, K), (3, 40, K), np.float32),
    (PanelPacking(Panels(32, K, "bf16", K, 1), 32 * K, K), (2, 2, 32, K), "bf16"),
    (PanelPacking(Panels(33, 7, "bf16", 7, 1), 33 * 7, 7), (33, 7), "bf16"),
    (PanelPacking(Panels(40, K, "f32", 1, 40), 40 * K, 1), (2, K, 40), np.float32),
]


@pytest.mark.parametrize(("packing", "shape", "dtype"), STORED)
def test_packing_and_back(packing: PanelPacking, shape: tuple[int, ...], dtype: Any) -> None:
    values = torch.arange(1, int(np.prod(shape)) + 1).reshape(shape).float()
    array = to_array(values.bfloat16() if dtype == "bf16" else values)
    stored = packing.pack(array)
    assert stored.shape == packing.stored_shape(shape)
    assert stored.nbytes == packing.stored_bytes(array.size)
    assert stored.dtype == array.dtype
    assert (packing.unpack(stored, shape) == array).all()


@pytest.mark.parametrize(("packing", "shape", "dtype"), [s for s in STORED if s[0].row_elements > 1])
def test_panels_begin_where_offset_says(packing: PanelPacking, shape: tuple[int, ...], dtype: Any) -> None:
    values = torch.randn(shape)
    array = to_array(values.bfloat16() if dtype == "bf16" else values)
    stored, flat = packing.pack(array).reshape(-1), array.reshape(-1)
    for first in range(0, array.size, packing.slice_elements):
        panels = range(0, packing.panels.n, 16)
        for element in (first + row * packing.row_elements for row in panels):
            assert stored[packing.offset(element) // array.itemsize] == flat[element]


@pytest.mark.parametrize("name", ["int8:16", "int8:16:zero-point", "int4:16:zero-point", "Q4_0"])
def test_packing_quantized_values_and_back(name: str) -> None:
    draw, weight_format = np.random.default_rng(2), format_named(name)
    shapes = [(3, *weight_format.stored(part.name, 20, 32)) for part in weight_format.parts]
    parts = [draw.integers(-128, 128, shape).astype(np.int8) for shape in shapes]
    row = shapes[0][-1]
    packing = PanelPacking(QuantizedPanels(20, 32, weight_format), 20 * row, row)
    stored = packing.pack(*parts)
    assert stored.shape == packing.stored_shape(parts[0].shape)
    assert stored.nbytes == packing.stored_bytes(parts[0].size)
    assert (packing.unpack(stored, parts[0].shape) == parts[0]).all()


def test_stored_arrays_are_used_where_they_lie() -> None:
    program = program_of((40, K), linear(0, 40))
    packed = packed_weights(program)
    array = np.random.default_rng(3).standard_normal((40, K)).astype(np.float32)
    once = store_weights(program, packed, {"w": array})
    assert store_weights(program, packed, once)["w"] is once["w"]


# ------------------------------------------------------------------------------------------------------ overlap


def aliased(*offsets: int) -> Sequence[str]:
    """Parameters of a kernel from x to y that overlap, where both are tensors of 64 bytes at these addresses."""
    tensors, end = lay_out(("a", (16,), "f32", "state"), ("b", (16,), "f32", "state"))
    tensors = tuple(dataclasses.replace(t, address=at) for t, at in zip(tensors, offsets, strict=True))
    step = Vector((16,), (Access("x", identity(1)),), Access("y", identity(1)), (), "in0")
    body = Body("copy", (read("x", (16,)), write("y", (16,))), (), (), (), (step,))
    launch = Launch("copy", (whole(tensors[0]), whole(tensors[1])))
    program = Program(tensors, (body,), (one_stage(body),), (Entry("main", (), (), (), (), (launch,)),), end)
    assert overlap(tensors[0], tensors[1]) == overlap(tensors[1], tensors[0])
    return sorted(aliased_params(program)[program.kernels[0].name])


def test_parameters_that_overlap_with_what_is_written() -> None:
    assert aliased(0, 64) == []
    assert aliased(0, 60) == ["x"]
    assert aliased(64, 64) == ["x"]


def test_packed_weights_are_not_read_as_plain_ones() -> None:
    """A launch may show the first operand with any strides, of which the packing knows nothing."""
    program = program_of((40, K), linear(0, 40))
    assert packing_of(program) is not None
    (launch,) = program.entries[0].body
    assert isinstance(launch, Launch)
    views = [dataclasses.replace(v, strides=(K, 0)) if v.tensor.startswith("x") else v for v in launch.args]
    entry = dataclasses.replace(program.entries[0], body=(dataclasses.replace(launch, args=tuple(views)),))
    with raises(NativeBodyErrors.PACKED_ELEMENTS, weight="w"):
        make_code(dataclasses.replace(program, entries=(entry,)), optimise=0)


def test_a_backend_finds_out_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Once for the artifact's files, the code and the weights in memory."""
    monkeypatch.setenv("SSCC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SSCC_NATIVE_OPTIMISE", "0")
    found: list[Program] = []

    def counted(program: Program) -> dict[str, PanelPacking]:
        found.append(program)
        return packed_weights(program)

    for module in (cpu_backend, interpreter, planner):
        monkeypatch.setattr(module, "packed_weights", counted)
    program = program_of((40, K), linear(0, 40))
    backend = cpu_backend.Cpu(program)
    assert set(backend.packings) == {"w"}
    assert "cache" in backend.lower()
    backend.open({"w": np.zeros((40, K), np.float32)}, Conditions(threads=1))
    assert len(found) == 1
