"""The file form of a schedule: what goes out comes back, and nothing malformed comes in."""

from __future__ import annotations

import json
from types import FunctionType, ModuleType
from typing import Any

import pytest

from sscc.compiler.interpret import experts
from sscc.compiler.interpret import kv_cache as cache
from sscc.compiler.interpret.module import OPERATIONS
from sscc.ir import operations, schedule
from sscc.ir.dialects import kv
from sscc.ir.errors import ErrorKind
from sscc.ir.file_form import RecordErrors
from sscc.ir.opspec import Op
from sscc.ir.schedule import (
    Access,
    Body,
    Buffer,
    Entry,
    For,
    If,
    Instr,
    Kernel,
    Launch,
    Local,
    Param,
    Pipeline,
    Port,
    Program,
    Scalar,
    ScheduleErrors,
    Stage,
    Tensor,
    View,
    Window,
)
from sscc.runtime.backends.cpu.codegen import steps as native
from sscc.runtime.backends.reference import steps as interpreted
from sscc.runtime.timing import work
from tests.errors import raises

ONE = Access("x", ((1, 0),))
INSTRUCTIONS = (Instr("r", "addf", ("in0", 1.5), "f32"), Instr("i", "index", (0,), "i64"))
STEPS = (
    schedule.Vector((4,), (ONE,), ONE, INSTRUCTIONS, "r"),
    schedule.Reduction((4,), (0,), (ONE,), Access("y", ()), INSTRUCTIONS, "r", "maximumf", float("-inf")),
    schedule.Product((4, 4), (1,), ONE, ONE, ONE),
    schedule.Product((4, 4), (1,), ONE, Access("y", ((0, 0),), schedule.Indirect(0, ONE)), ONE),
    operations.UpdateRows("c", "n", "r", "a"),
    operations.QuantizeRows("s", "o"),
    operations.CachedAttention("q", (operations.Segment("k", "v", "m"),), "o", 0.125),
    operations.CausalAttention("q", "k", "v", "o", "s", "n", 0.125, "l"),
    operations.Observe("o", "q", "s", "n"),
    operations.ObservationScores("o", "k", "s", "n", 0.125, 8),
    operations.Pool("s", "p", "n", 7, "avg"),
    operations.Select("s", "i", "n", "top", 4, 8),
    operations.GatherRows("s", "i", "o"),
    operations.DecodeAttention("q", "k", "v", "kc", "vc", "kc", "vc", "p", "b", "a", "t", "o", 0.125, 4, 8),
    operations.DecodeAttention(
        *("q", "k", "v", "kc", "vc", "kc", "vc", "p", "b", "a", "t", "o", 0.125, 4, 8),  # type: ignore[arg-type]
        (operations.SelectedRows("kp", "vp", "i"),),
    ),
    operations.QuantizeKeys("k", "c", "s", 2),
    operations.QuantizedKeyScores("q", "c", "s", "p", "a", "o", 0.125, 4, 8, 2),
    operations.ChooseRows("q", "k", "s", "p", "a", "i", 0.125, 4, 8),
    operations.FetchRows(
        *("q", "k", "s", "ks", "vs", "p", "a", "r", "l", "kr", "vr", 0.125, 4, 8, 2)  # type: ignore[arg-type]
    ),
    operations.QueryAttention(
        *("q", "k", "v", "kc", "vc", "kc", "vc", "ks", "vs", "c", "s", "p", "a", "o", 0.125, 4, 8, 16, 2)  # type: ignore[arg-type]
    ),
    operations.ChunkAttention("q", "k", "v", "ks", "vs", "o", "s", "n", 0.125, "l"),
    operations.LatentChunkAttention("q", "r", "rs", "ku", "vu", "o", "s", "n", 0.125, 3, "l"),
    operations.TopK("s", "i", "v"),
    operations.ChooseByIndex("q", "n", "k", "p", "c", "s", 1, 0, "w"),
    operations.AttendChosen("q", "nk", "nv", "ks", "vs", "p", "c", "o", 0.125),
    operations.RecurrentStep("q", "k", "v", "d", "s", "a", "o", "r", "b"),
    operations.RecurrentChunk("q", "k", "v", "d", "s", "o", "s", "n", beta="b"),
    operations.Dequantize((operations.StoredPart("b"), operations.StoredPart("c")), "o", "int4:32"),
    operations.LookUp("i", (operations.StoredTable("b"),), "o", "Q8_0"),
    schedule.AllReduce("p", "t", (0,)),
    schedule.ReduceScatter("p", "s", 0, (1,)),
    schedule.AllGather("p", "w", 1, (0, 1)),
    schedule.AllSlice("w", "p", 1, (0,)),
    schedule.AllToAll("p", "j", 0, 1, (1,)),
)
BODY = Body(
    "b",
    (Param("x", (4,), "f32", "update"),),
    ("i",),
    (Local("t", (2, 2), "bf16"),),
    (Window("w", View("t", (2,), (2,), 1)),),
    STEPS,
    "model.py:3",
)
PIPELINE = Pipeline(
    "p",
    "i0",
    0,
    "j",
    (Scalar("e", "min", ("i0", 1)),),
    (Buffer("q", (4,), "f32", "sram", 64, 3),),
    (
        Stage("load", "b", (2,), (Port(View("q", (4,), (1,), 0, (("t0", 2),)), 2),), ("e",), ("q",), "first", 5),
        Stage("use", "b", (), (Port(View("q", (4,), (1,)), 1, 1),), (3,), ("q",)),
    ),
)


def sample() -> Program:
    launch = Launch("k", (View("x", (4,), (1,), 2, (("i", 4),)),), ("i", 3))
    body = (Scalar("n", "add", ("m", 1)), For("i", 0, "n", (If("i", (launch,)),)))
    kernel_body = (For("c", 0, "i", (If("c", (PIPELINE,)),)),)
    return Program(
        (
            Tensor("x", (4, 4), "f32", "input", "hbm", 0),
            Tensor("w", (2, 4), "bf16", "weight", "ddr", 64, ("layers.0.w", "layers.1.w"), cut="1:16/4"),
        ),
        (BODY,),
        (Kernel("k", (Param("x", (4,), "f32", "update"),), ("i", "j"), kernel_body, "model.py:3"),),
        (Entry("main", ("x",), (), ("m",), ("n", 7), body),),
        64,
        grid=(2, 2),
    )


def test_every_kind_survives_the_file_form_and_equal_programs_are_equal_bytes() -> None:
    text = sample().to_json()
    assert Program.from_json(text) == sample()
    assert Program.from_json(text).to_json() == text
    assert {step.kind for step in STEPS} == {kind.kind for kind in schedule.STEPS}


@pytest.mark.parametrize("kind", schedule.STEPS, ids=lambda kind: kind.__name__)
def test_every_kind_of_step_is_executed_proved_and_timed(kind: type) -> None:
    """Interpreters and the timing model know it, and the validator where its specification does not say it."""
    assert kind in interpreted.STEPS
    assert kind in work.ARITHMETIC
    affine = (schedule.Vector, schedule.Reduction, schedule.Product)
    assert issubclass(kind, Op) or kind in (*affine, *schedule.Collective.__args__)
    assert not issubclass(kind, Op) or kind in native.LOWERINGS or kind in native.STORED


def test_the_evaluator_executes_every_operation_that_the_compiler_makes() -> None:
    """Operations of a captured layer (`kv.STATEFUL`) become others before anything is executed."""
    assert {name for name in OPERATIONS if name.startswith("kv.")} == kv.SPECS.keys() - kv.STATEFUL


def _is_marked(item: object) -> bool:
    return isinstance(item, FunctionType) and "executes" in vars(item)


@pytest.mark.parametrize("modules", [interpreted.MODULES, native.MODULES, (cache, experts), (work,)])
def test_an_interpreter_has_one_function_of_an_operation(modules: tuple[ModuleType, ...]) -> None:
    marked = {item for module in modules for item in vars(module).values() if _is_marked(item)}
    records = [record for function in marked for record in function.executes]
    assert records
    assert len(records) == len(set(records))


def test_sizes() -> None:
    x, w = sample().tensors
    assert (x.elements, x.nbytes, w.nbytes) == (16, 64, 16)
    (buffer,) = PIPELINE.buffers
    assert (buffer.slot_bytes, buffer.nbytes) == (16, 48)


def test_firings_per_iteration() -> None:
    assert [stage.trips for stage in PIPELINE.stages] == [2, 1]
    assert Stage("s", "b", (3, 4), (), (), ()).trips == 12


def test_entries_are_found_by_name() -> None:
    assert sample().entry("main").outputs == ()
    with raises(ScheduleErrors.NO_ENTRY, entry="decode", entries=["main"]):
        sample().entry("decode")


AT = ("kernels", 0, "body", 0, "body", 0, "body", 0)
"""Place of the sample's pipeline: in a branch in a loop of its kernel."""


def edited(*path: Any, value: Any = None, drop: bool = False) -> str:
    """The sample's file form with the value at `path` replaced or dropped."""
    data = json.loads(sample().to_json())
    target = data
    for key in path[:-1]:
        target = target[key]
    if drop:
        del target[path[-1]]
    else:
        target[path[-1]] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "kind", "fields"),
    [
        ("{", ScheduleErrors.NOT_JSON, {}),
        ("[]", ScheduleErrors.FORMAT_VERSION, {}),
        (edited("version", value=99), ScheduleErrors.FORMAT_VERSION, {"version": 99, "known": 13}),
        (
            edited("arena_bytes", value="64"), RecordErrors.WRONG_VALUE,
            {"place": "program.arena_bytes", "value": "64", "expected": "int"},
        ),
        (
            edited("arena_bytes", value=True), RecordErrors.WRONG_VALUE,
            {"place": "program.arena_bytes", "expected": "int"},
        ),
        (edited("arena_bytes", drop=True), RecordErrors.LACKS, {"place": "program", "missing": ["arena_bytes"]}),
        (
            edited("extra", value=1), RecordErrors.UNKNOWN,
            {"place": "program", "record": "Program", "unknown": ["extra"]},
        ),
        (
            edited("tensors", value={}), RecordErrors.WRONG_VALUE,
            {"place": "program.tensors", "value": "{}", "expected": "a list"},
        ),
        (
            edited("tensors", 0, "dtype", value="f8"), RecordErrors.WRONG_VALUE,
            {"place": "program.tensors[0].dtype", "value": "f8"},
        ),
        (
            edited("tensors", 0, "shape", 1, value=1.5), RecordErrors.WRONG_VALUE,
            {"place": "program.tensors[0].shape[1]", "value": 1.5, "expected": "int"},
        ),
        (
            edited("tensors", 0, value=7), RecordErrors.WRONG_VALUE,
            {"place": "program.tensors[0]", "value": 7, "expected": "Tensor"},
        ),
        (edited("version", value=1), ScheduleErrors.FORMAT_VERSION, {"version": 1, "known": 13}),
        (
            edited("tensors", 1, "sources", value="w"), RecordErrors.WRONG_VALUE,
            {"place": "program.tensors[1].sources", "value": "w", "expected": "a list"},
        ),
        (
            edited("bodies", 0, "steps", 0, "kind", value="vectr"), RecordErrors.WRONG_VALUE,
            {"place": "program.bodies[0].steps[0]"},
        ),
        (edited("bodies", 0, "steps", 0, "dims", drop=True), RecordErrors.LACKS, {"missing": ["dims"]}),
        (edited("bodies", 0, "windows", 0, "view", drop=True), RecordErrors.LACKS, {"missing": ["view"]}),
        (edited("kernels", 0, "params", 0, "access", value="peek"), RecordErrors.WRONG_VALUE, {}),
        (edited(*AT, "stages", 0, "when", value="never"), RecordErrors.WRONG_VALUE, {"value": "never"}),
        (
            edited(*AT, "stages", 1, "ports", 0, "per", value="1"), RecordErrors.WRONG_VALUE,
            {"value": "1", "expected": "int"},
        ),
        (edited(*AT, "buffers", 0, "depth", drop=True), RecordErrors.LACKS, {"missing": ["depth"]}),
        (
            edited(*AT, "kind", value="stage"), RecordErrors.WRONG_VALUE,
            {"expected": "Scalar or Launch or Pipeline or For or If"},
        ),
        (
            edited("entries", 0, "body", 1, "lower", value={}), RecordErrors.WRONG_VALUE,
            {"value": "{}", "expected": "int or str"},
        ),
        (edited("entries", 0, "body", 1, "lower", value=None), RecordErrors.WRONG_VALUE, {"expected": "int or str"}),
        (
            edited("entries", 0, "body", 1, "body", value=[3]), RecordErrors.WRONG_VALUE,
            {"expected": "Scalar or Launch or Pipeline or For or If"},
        ),
    ],
)
def test_malformed_schedules_are_refused_by_name(text: str, kind: ErrorKind, fields: dict[str, Any]) -> None:
    with raises(kind, **fields):
        Program.from_json(text)
