"""Requirements of a session: a schedule that does not fit its manifest is refused, even if it is valid."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from sscc.ir.errors import ErrorKind
from sscc.ir.geometry import Geometry
from sscc.ir.operations import CausalAttention, DecodeAttention, Pool, Select
from sscc.ir.schedule import Body, Entry, For, Kernel, Launch, Param, Pipeline, Program, Scalar, Stage, Tensor
from sscc.runtime.artifact.contract import ContractErrors, Protocol, prove
from sscc.runtime.artifact.signature import Signature
from sscc.runtime.validator.kernels import KernelProofErrors
from tests.errors import raises
from tests.runtime.broken.build import change, port, setting
from tests.runtime.fake import GEOMETRY, LAYERED, SIGNATURE
from tests.runtime.schedules import read, update, write
from tests.runtime.session_program import session_program
from tests.runtime.signatures import altered, row_bytes

BY_QUERY = altered(
    SIGNATURE,
    geometry=Geometry(2, 4, 3, 2, 3, "avg", 20, rows="indexed", policy="query", key_bits=2),
)
INDEXED = altered(SIGNATURE, geometry=Geometry(2, 4, 3, 2, 3, "avg", 20, rows="indexed"))
ENCODED = altered(SIGNATURE, geometry=Geometry(2, 4, 3, 2, 3, "avg", 20, dtype="int8"))
WIDE = altered(SIGNATURE, value_dim=6)
SHORT = altered(SIGNATURE, geometry=Geometry(1, 2, 0, 1, 1, "max", 3))


@pytest.mark.parametrize("signature", [SIGNATURE, WIDE, altered(SIGNATURE, layers=1, batch=1), LAYERED])
def test_a_program_that_fits_is_proved(signature: Signature) -> None:
    report = prove(session_program(signature), signature)
    assert report.entry("decode").runs[0].written == {"logits"}
    assert all("prefill_logits" in run.written for run in report.entry("prefill").runs)


def _tensor(of: str, **fields: Any) -> Callable[[Program], Program]:
    return lambda program: change(program, Tensor, of, setting(**fields))


def _entry(of: str, **fields: Any) -> Callable[[Program], Program]:
    return lambda program: change(program, Entry, of, setting(**fields))


def _scalar(name: str, **fields: Any) -> Callable[[Program], Program]:
    return lambda program: change(program, Scalar, name, setting(**fields))


def _without_launch(kernel: str) -> Callable[[Program], Program]:
    def broken(program: Program) -> Program:
        entries = []
        for entry in program.entries:
            body = tuple(item for item in entry.body if not (isinstance(item, Launch) and item.kernel == kernel))
            entries.append(dataclasses.replace(entry, body=body))
        return dataclasses.replace(program, entries=tuple(entries))

    return broken


def _unfilled(entry: str, tensor: str) -> Callable[[Program], Program]:
    """One entry without the launch that fills a tensor."""
    without = _without_launch(f"fill.{tensor}")

    def broken(program: Program) -> Program:
        entries = tuple(e if e.name != entry else without(program).entry(entry) for e in program.entries)
        return dataclasses.replace(program, entries=entries)

    return broken


def _read_only(tensor: str) -> Callable[[Program], Program]:
    """The kernel takes a tensor to update it, and has no pipeline that does."""

    def updating(kernel: Kernel) -> Kernel:
        params = tuple(dataclasses.replace(param, access="update") for param in kernel.params)
        return dataclasses.replace(kernel, params=params, body=())

    return lambda program: change(program, Kernel, f"fill.{tensor}", updating)


def _half_filled(name: str) -> Callable[[Program], Program]:
    """The kernel that fills a tensor fills the first row of it."""

    def broken(program: Program) -> Program:
        def first(param: Param) -> Param:
            return dataclasses.replace(param, shape=(1, *param.shape[1:]))

        tensors = {tensor.name: tensor for tensor in program.tensors}
        shape = (1, *tensors[name].shape[1:])
        fill = f"fill.{name}"
        program = change(program, Kernel, fill, lambda k: dataclasses.replace(k, params=tuple(map(first, k.params))))
        steps = lambda b: tuple(dataclasses.replace(s, dims=shape) for s in b.steps)  # noqa: E731
        program = change(
            program, Body, fill, lambda b: dataclasses.replace(b, params=tuple(map(first, b.params)), steps=steps(b))
        )
        view = lambda v: dataclasses.replace(v, shape=shape)  # noqa: E731
        port = lambda p: dataclasses.replace(p, view=view(p.view))  # noqa: E731

        def stage(s: Stage) -> Stage:
            return dataclasses.replace(s, ports=tuple(map(port, s.ports))) if s.body == fill else s

        program = change(program, Stage, "fill", stage)
        return change(program, Launch, fill, lambda ln: dataclasses.replace(ln, args=tuple(map(view, ln.args))))

    return broken


def _looping(upper: Any) -> Callable[[Program], Program]:
    def broken(program: Program) -> Program:
        entry = program.entry("decode")
        loop = For("again", 0, upper, entry.body[:1])
        body = (loop, *entry.body)
        rest = tuple(e for e in program.entries if e.name != "decode")
        return dataclasses.replace(program, entries=(*rest, dataclasses.replace(entry, body=body)))

    return broken


BROKEN: dict[str, tuple[Callable[[Program], Program], ErrorKind, dict[str, Any]]] = {
    "vocabulary": (
        _tensor("logits", shape=(2, 12)), ContractErrors.TENSOR_DIFFERS,
        {"actual": "output f32 [2, 12]", "expected": "output f32 [2, 11]", "tensor": "logits"},
    ),
    "dtype": (
        _tensor("logits", dtype="bf16"), ContractErrors.TENSOR_DIFFERS,
        {"tensor": "logits", "actual": "output bf16 [2, 11]"},
    ),
    "batch": (
        _tensor("position", shape=(3,)), ContractErrors.TENSOR_DIFFERS,
        {"tensor": "position", "actual": "input i64 [3]", "expected": "input i64 [2]"},
    ),
    "prompt": (
        _tensor("tokens", shape=(1, 20)), ContractErrors.TENSOR_DIFFERS,
        {"tensor": "tokens", "actual": "input i64 [1, 20]", "expected": "input i64 [1, 24]"},
    ),
    "rows of the cache": (
        _tensor("k_cache", shape=(2, 2, 2, 8, 4)), ContractErrors.TENSOR_DIFFERS,
        {"tensor": "k_cache", "actual": "state f32 [2, 2, 2, 8, 4]"},
    ),
    "layers of the cache": (
        _tensor("v_cache", shape=(1, 2, 2, 9, 4)), ContractErrors.TENSOR_DIFFERS,
        {"tensor": "v_cache", "actual": "state f32 [1, 2, 2, 9, 4]"},
    ),
    "role of the cache": (
        _tensor("v_cache", role="temporary"), ContractErrors.TENSOR_DIFFERS,
        {"tensor": "v_cache", "actual": "temporary f32 [2, 2, 2, 9, 4]"},
    ),
    "scratch": (
        _tensor("k_scratch", shape=(1, 2, 20, 4)), ContractErrors.TENSOR_DIFFERS,
        {"tensor": "k_scratch", "actual": "state f32 [1, 2, 20, 4]"},
    ),
    "heads": (
        _tensor("observed", shape=(1, 3, 2, 4)), ContractErrors.TENSOR_DIFFERS,
        {"tensor": "observed", "actual": "state f32 [1, 3, 2, 4]"},
    ),
    "selection": (
        _tensor("selected", shape=(2, 2, 4)), ContractErrors.TENSOR_DIFFERS,
        {"tensor": "selected", "actual": "state i64 [2, 2, 4]"},
    ),
    "tensor missing": (_tensor("selected", name="chosen"), ContractErrors.TENSOR_MISSING, {"tensor": "selected"}),
    "entry missing": (
        lambda program: dataclasses.replace(program, entries=program.entries[:1]),
        ContractErrors.ENTRIES, {"entries": ["score"], "expected": ["score", "prefill", "decode"]},
    ),
    "entry of another name": (_entry("decode", name="generate"), ContractErrors.ENTRIES, {}),
    "input missing": (
        _entry("decode", inputs=("token", "position", "base")), ContractErrors.INPUTS,
        {"entry": "decode", "actual": ["token", "position", "base"]},
    ),
    "inputs swapped": (
        _entry("decode", inputs=("position", "token", "base", "active")), ContractErrors.INPUTS,
        {"actual": ["position", "token", "base", "active"]},
    ),
    "output missing": (_entry("decode", outputs=()), ContractErrors.OUTPUTS, {"entry": "decode", "actual": []}),
    "another output": (
        _entry("prefill", outputs=("logits",)), ContractErrors.OUTPUTS, {"entry": "prefill", "actual": ["logits"]}
    ),
    "scalar inputs swapped": (
        _entry("prefill", scalar_inputs=("slot", "length", "phase", "chunk", "steps")),
        ContractErrors.SCALAR_INPUTS, {"entry": "prefill", "actual": ["slot", "length", "phase", "chunk", "steps"]},
    ),
    "scalar input missing": (
        _entry("prefill", scalar_inputs=("length", "slot", "phase", "chunk")), ContractErrors.SCALAR_INPUTS,
        {"actual": ["length", "slot", "phase", "chunk"]},
    ),
    "scalar outputs swapped": (
        _entry("prefill", scalar_outputs=("chunk_after", "phase_after")), ContractErrors.CURSOR, {"results": [0, 1]}
    ),
    "scalar output missing": (
        _entry("prefill", scalar_outputs=("phase_after",)), ContractErrors.SCALAR_OUTPUTS, {"actual": 1}
    ),
    "scalar output of decode": (_entry("decode", scalar_outputs=(1,)), ContractErrors.SCALAR_OUTPUTS, {"actual": 1}),
    "cursor that stays": (
        _entry("prefill", scalar_outputs=("phase", "chunk")), ContractErrors.CURSOR, {"results": [0, 0]}
    ),
    "cursor without an end": (
        _scalar("phase_after", args=("finished", 3, "reached")), ContractErrors.CURSOR, {"results": [3, 0]}
    ),
    "a phase too few": (
        _scalar("before_head", args=("chunks", SIGNATURE.layers)), ContractErrors.CURSOR, {"results": [4, 0]}
    ),
    "chunks of another size": (_scalar("all_chunks", args=("length", 4)), ContractErrors.CURSOR, {"results": [0, 1]}),
    "no head in decode": (_without_launch("fill.logits"), ContractErrors.OUTPUT_UNWRITTEN, {"entry": "decode"}),
    "no head in prefill": (
        _without_launch("fill.prefill_logits"), ContractErrors.OUTPUT_UNWRITTEN, {"entry": "prefill"}
    ),
    "no cache in prefill": (
        _unfilled("prefill", "k_cache"), ContractErrors.STATE_UNWRITTEN, {"entry": "prefill", "state": "k_cache"}
    ),
    "no cache in decode": (
        _unfilled("decode", "v_cache"), ContractErrors.STATE_UNWRITTEN, {"entry": "decode", "state": "v_cache"}
    ),
    "no keys of the prompt": (
        _unfilled("prefill", "k_scratch"), ContractErrors.STATE_UNWRITTEN, {"entry": "prefill", "state": "k_scratch"}
    ),
    "no values of the prompt": (
        _unfilled("prefill", "v_scratch"), ContractErrors.STATE_UNWRITTEN, {"entry": "prefill", "state": "v_scratch"}
    ),
    "nothing observed": (
        _unfilled("prefill", "observed"), ContractErrors.STATE_UNWRITTEN, {"entry": "prefill", "state": "observed"}
    ),
    "nothing selected": (
        _unfilled("prefill", "selected"), ContractErrors.STATE_UNWRITTEN, {"entry": "prefill", "state": "selected"}
    ),
    "cache that is read only": (
        _read_only("k_cache"), ContractErrors.STATE_UNWRITTEN, {"entry": "prefill", "state": "k_cache"}
    ),
    "half of the logits": (_half_filled("logits"), ContractErrors.OUTPUT_UNWRITTEN, {"entry": "decode"}),
    "loop without an end": (
        _looping(1 << 40), KernelProofErrors.TOO_MANY_ITERATIONS, {"iterations": 1099511627776, "most": 3}
    ),
    "loop without an iteration": (
        _looping(0), KernelProofErrors.NO_ITERATION, {"where": "entry 'decode', loop 'again'"}
    ),
    "more than a layer or a chunk": (_looping(4), KernelProofErrors.TOO_MANY_ITERATIONS, {"iterations": 4}),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_schedule_that_does_not_fit_is_refused(name: str) -> None:
    broken, kind, fields = BROKEN[name]
    with raises(kind, **fields):
        prove(broken(session_program(SIGNATURE)), SIGNATURE)


def test_as_many_iterations_as_there_are_chunks_are_right() -> None:
    prove(_looping(3)(session_program(SIGNATURE)), SIGNATURE)


def test_inputs_that_no_session_gives_are_refused() -> None:
    program = session_program(SIGNATURE)
    more = dataclasses.replace(program.tensors[0], name="mask", address=program.arena_bytes)
    with raises(ContractErrors.TENSOR_UNKNOWN, role="input", tensor="mask"):
        prove(dataclasses.replace(program, tensors=(*program.tensors, more)), SIGNATURE)


@pytest.mark.parametrize(
    ("signature", "expected"),
    [(ENCODED, "state i8 [2, 2, 2, 9, 8]"), (BY_QUERY, "state f32 [2, 2, 2, 6, 4]")],
    ids=["encoded", "by query"],
)
def test_rows_of_another_kind_are_refused(signature: Signature, expected: str) -> None:
    with raises(ContractErrors.TENSOR_DIFFERS, tensor="k_cache", actual="state f32 [2, 2, 2, 9, 4]", expected=expected):
        prove(session_program(SIGNATURE), signature)


def test_indexed_rows_are_those_of_prompts_that_stay() -> None:
    """The caches are as large as those of copied rows."""
    with raises(ContractErrors.TENSOR_MISSING, tensor="k_store", expected="state f32 [2, 2, 2, 24, 4]"):
        prove(session_program(SIGNATURE), INDEXED)


def test_layers_that_keep_different_numbers_of_rows_have_one_cache() -> None:
    """9 rows of the first layer and 7 of the second one, of which a program sees 9."""
    with raises(ContractErrors.TENSOR_DIFFERS, tensor="k_cache", expected="state f32 [2, 2, 18, 4]"):
        prove(session_program(SIGNATURE), LAYERED)
    with raises(ContractErrors.TENSOR_DIFFERS, tensor="k_cache", expected="state f32 [2, 2, 2, 9, 4]"):
        prove(session_program(LAYERED), SIGNATURE)
    other = altered(SIGNATURE, geometry=GEOMETRY.with_layers([1, 3]))
    with raises(ContractErrors.TENSOR_DIFFERS, tensor="k_cache", expected="state f32 [2, 2, 16, 4]"):
        prove(session_program(LAYERED), other)


def test_indexed_caches_of_layers_that_select_different_numbers_are_stacked() -> None:
    signature = altered(INDEXED, geometry=INDEXED.geometry.with_layers([3, 1]))
    with raises(ContractErrors.TENSOR_DIFFERS, tensor="k_cache", expected="state f32 [2, 2, 2, 9, 4]"):
        prove(session_program(LAYERED), signature)


def test_what_layers_of_different_numbers_of_rows_hold_and_read() -> None:
    row = LAYERED.rows(LAYERED.plan.main).row_bytes
    assert (LAYERED.read_bytes, LAYERED.held_bytes) == ((9 + 7) * row, 18 * row)
    assert LAYERED.full_kv_bytes(20) == SIGNATURE.full_kv_bytes(20) == 20 * 2 * row
    assert LAYERED.kv_in_words() == "1.125 KiB a sequence, of which a step reads 1 KiB, 2.5 KiB uncompressed (2.5x)"
    assert LAYERED.groups_in_words() == [
        "all layers: 4/2 heads of 4, 7 to 9 rows: sink 2, recent 4, top-K by layer 3 1"
    ]
    indexed = altered(INDEXED, geometry=INDEXED.geometry.with_layers([3, 1]))
    assert (indexed.read_bytes, indexed.held_bytes) == ((9 + 7) * row, 2 * (9 + 24) * row)


@pytest.mark.parametrize(
    ("step", "kind", "fields"),
    [
        (
            Pool("s", "p", "n", 5, "avg"), ContractErrors.GEOMETRY,
            {"step": "pool", "setting": "width", "actual": 5, "expected": 3},
        ),
        (
            Pool("s", "p", "n", 3, "max"), ContractErrors.GEOMETRY,
            {"step": "pool", "setting": "mode", "actual": "max", "expected": "avg"},
        ),
        (
            Select("s", "i", "n", "top", 1, 4), ContractErrors.GEOMETRY,
            {"step": "select", "setting": "sink", "actual": 1, "expected": 2},
        ),
        (
            Select("s", "i", "n", "top", 2, 5), ContractErrors.GEOMETRY,
            {"step": "select", "setting": "recent", "actual": 5, "expected": 4},
        ),
        (
            CausalAttention("q", "k", "k", "o", "n", "n", 1.0, "", 0, None, None, 3),
            ContractErrors.GEOMETRY, {"step": "causal_attention", "setting": "window_stride", "actual": 3},
        ),
    ],
)
def test_steps_of_another_geometry_are_refused(step: Any, kind: ErrorKind, fields: dict[str, Any]) -> None:
    params = (read("s", (2, 24)), write("p", (2, 24)), write("i", (2, 3), "i64"))
    body = Body("other", params, ("n",), (), (), (step,))
    with raises(kind, **fields):
        prove(session_program(SIGNATURE, bodies=(body,)), SIGNATURE)


@pytest.mark.parametrize(
    ("signature", "topk", "kind", "fields"),
    [
        (SIGNATURE, 2, ContractErrors.SELECTION, {"selected": [2], "budgets": [3]}),
        (SIGNATURE, 0, ContractErrors.SELECTION, {"selected": [0], "budgets": [3]}),
        (LAYERED, 2, ContractErrors.SELECTION, {"selected": [2], "budgets": [1, 3]}),
        (SIGNATURE, "some", ContractErrors.SELECTION_VARIES, {}),
    ],
)
def test_decode_attention_of_another_number_of_selected_rows_is_refused(
    signature: Signature, topk: int | str, kind: ErrorKind, fields: dict[str, Any]
) -> None:
    names = ("q", "nk", "nv", "k", "v", "k", "v", "p", "b", "a", "top", "o")
    new, cache = (2, 2, 1, 4), (2, 2, 9, 4)
    params = (
        read("q", (2, 4, 1, 4)), read("nk", new), read("nv", new), update("k", cache), update("v", cache),
        read("p", (2,), "i64"), read("b", (2,), "i64"), read("a", (2,), "i1"), write("o", (2, 4, 1, 4)),
    )  # fmt: skip
    body = Body("attend", params, ("top",), (), (), (DecodeAttention(*names, 0.5, 2, 4),))
    ports = tuple(port(param.name, param.shape) for param in params)

    def program(count: int | str) -> Program:
        stage = Stage("attention", "attend", (), ports, (count,), ())
        before = (Scalar("some", "add", (1, 1)),)
        kernel = Kernel("attend_all", params, (), (*before, Pipeline("p", "i", 0, 1, (), (), (stage,))))
        return session_program(signature, bodies=(body,), kernels=(kernel,))

    prove(program(3), signature)
    with raises(kind, kernel="attend_all", stage="attention", **fields):
        prove(program(topk), signature)


@pytest.mark.parametrize("signature", [SIGNATURE, SHORT, altered(SIGNATURE, prefill_chunk=1)])
def test_the_protocol_ends_after_its_steps_whatever_a_call_does(signature: Signature) -> None:
    protocol = Protocol(signature)
    ranges = protocol.ranges()
    for length in range(1, signature.geometry.max_context + 1):
        for steps in {min(n, signature.prefill_steps(length)) for n in (1, 2, 5, 1 << 20)}:
            cursor, calls = (0, 0), 0
            while cursor[0] < signature.layers + 2:
                call = {"length": length, "slot": 0, "phase": cursor[0], "chunk": cursor[1], "steps": steps}
                assert all(ranges[name][0] <= value <= ranges[name][1] for name, value in call.items())
                cursor, calls = protocol.after(call), calls + 1
            assert cursor == (signature.layers + 2, 0)
            assert calls == -(-signature.prefill_steps(length) // steps)


def test_the_calls_that_are_played_are_calls_that_are_made() -> None:
    for signature in (SIGNATURE, SHORT):
        protocol = Protocol(signature)
        ranges, samples = protocol.ranges(), list(protocol.samples())
        assert all(ranges[n][0] <= value <= ranges[n][1] for sample in samples for n, value in sample.items())
        assert {sample["length"] for sample in samples} >= {1, signature.geometry.max_context}
        assert any(protocol.after(sample)[0] == signature.layers + 2 for sample in samples)


def test_bytes_of_keys_and_values_of_different_widths() -> None:
    assert row_bytes(WIDE) == 2 * 2 * (4 + 6) * 4
    assert WIDE.full_kv_bytes(5) == 5 * row_bytes(WIDE)
    encoded = altered(ENCODED, value_dim=6)
    assert row_bytes(encoded) == 2 * 2 * ((4 + 4) + (6 + 4))
