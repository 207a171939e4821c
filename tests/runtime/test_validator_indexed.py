"""The validator on attention over indexed rows: what it proves, counts and refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sscc.ir.errors import ErrorKind
from sscc.ir.operations import DecodeAttention, GatherRows, SelectedRows
from sscc.ir.schedule import Body, Entry, Kernel, Pipeline, Program, Stage
from sscc.runtime.validator import Report, validate
from sscc.runtime.validator.bodies import BodyProofErrors
from sscc.runtime.validator.steps import StepProofErrors
from tests.errors import raises
from tests.runtime.broken.build import launch_of, place, port
from tests.runtime.schedules import read, update, write

B, H, V, D, R, T, K = 2, 4, 2, 4, 9, 20, 3
ROWS = SelectedRows("kp", "vp", "i")
STEP = DecodeAttention("q", "nk", "nv", "kc", "vc", "kc", "vc", "p", "b", "a", "top", "o", 0.5, 2, 4, (ROWS,))
CACHE, PROMPT = (B, V, R, D), (B, V, T, D)
PARAMS = {
    "q": read("q", (B, H, 1, D)),
    "nk": read("nk", (B, V, 1, D)),
    "nv": read("nv", (B, V, 1, D)),
    "kc": update("kc", CACHE),
    "vc": update("vc", CACHE),
    "kp": read("kp", PROMPT),
    "vp": read("vp", PROMPT),
    "i": read("i", (B, V, K), dtype="i64"),
    "p": read("p", (B,), dtype="i64"),
    "b": read("b", (B,), dtype="i64"),
    "a": read("a", (B,), dtype="i1"),
    "o": write("o", (B, H, 1, D)),
}


def check(step: Any, params: dict[str, Any], most: int = K) -> Report:
    """Validates a program of one stage that fires one step, which selects `most` rows at most."""
    scalars = ("top",)
    roles = {"read": "input", "update": "state", "write": "output"}
    tensors, arena = place(*((p.name, p.shape, p.dtype, roles[p.access]) for p in params.values()))
    body = Body("b", tuple(params.values()), scalars, (), (), (step,))
    stage = Stage("s", "b", (), tuple(port(p.name, p.shape) for p in params.values()), scalars, ())
    kernel = Kernel("k", tuple(params.values()), scalars, (Pipeline("p0", "i0", 0, 1, (), (), (stage,)),))
    names = tuple(p.name for p in params.values() if p.access == "read")
    results = tuple(p.name for p in params.values() if p.access == "write")
    launch = replace(launch_of(tensors, "k", *params), scalars=scalars)
    entry = Entry("main", names, results, scalars, (), (launch,))
    return validate(Program(tensors, (body,), (kernel,), (entry,), arena), ranges={"top": (0, most)})


def test_rows_that_the_index_decides_are_listed() -> None:
    report = check(STEP, PARAMS)
    assert [line.rpartition(" (")[2] for line in report.data] == [
        "decode_attention): rows of 'kp'",
        "decode_attention): rows of 'vp'",
    ]


@pytest.mark.parametrize(
    ("step", "params", "kind", "fields"),
    [
        ({"sink": 3}, {}, StepProofErrors.SELECTED_ROWS, {"segments": 1, "selected": K, "rows": R, "ring": 7}),
        (
            {}, {"i": read("i", (B, V, K + 1), dtype="i64")}, StepProofErrors.SELECTED_ROWS,
            {"segments": 1, "selected": K + 1, "rows": R, "ring": 6},
        ),
        (
            {"segments": (ROWS, ROWS)}, {}, StepProofErrors.SELECTED_ROWS,
            {"segments": 2, "selected": K, "rows": R, "ring": 6},
        ),
        ({"segments": (), "recent": 8}, {}, StepProofErrors.RING_TOO_LARGE, {"last": 9, "sink": 2, "rows": R}),
        ({"segments": (replace(ROWS, index=""),)}, {}, BodyProofErrors.UNKNOWN_NAME, {"name": ""}),
        ({"topk": "other"}, {}, BodyProofErrors.UNKNOWN_SCALAR, {"scalar": "other"}),
        ({"recent": 0}, {}, StepProofErrors.RING, {"sink": 2, "recent": 0}),
        ({"segments": (replace(ROWS, key="missing"),)}, {}, BodyProofErrors.UNKNOWN_NAME, {"name": "missing"}),
        ({}, {"vp": read("vp", (B, V, T - 1, D))}, BodyProofErrors.OPERAND, {"operand": "segments[0].value"}),
        ({}, {"kp": read("kp", (B + 1, V, T, D))}, BodyProofErrors.OPERAND, {"operand": "segments[0].key"}),
        (
            {}, {"i": read("i", (V, K), dtype="i64")}, BodyProofErrors.OPERAND,
            {"operand": "segments[0].index", "pattern": "i64 [B, Hkv, R0]"},
        ),
        (
            {}, {"i": read("i", (B, V, K))}, BodyProofErrors.OPERAND,
            {"operand": "segments[0].index", "pattern": "i64 [B, Hkv, R0]"},
        ),
        ({}, {"kc": read("kc", CACHE)}, BodyProofErrors.WRITES_READ_ONLY, {"name": "kc"}),
        (
            {}, {"q": read("q", (B, 3, 1, D)), "o": write("o", (B, 3, 1, D))}, StepProofErrors.HEADS,
            {"heads": 3, "kv_heads": 2},
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    step: Any, params: dict[str, Any], kind: ErrorKind, fields: dict[str, Any]
) -> None:
    with raises(kind, **fields):
        check(replace(STEP, **step), {**PARAMS, **params})


@pytest.mark.parametrize("shape", [(K,), (1, V, K), (V + 1, K)])
def test_an_index_is_for_each_kv_head(shape: tuple[int, ...]) -> None:
    step, index = GatherRows("x", "i", "y"), read("i", (V, K), dtype="i64")
    params = {"x": read("x", (1, V, T, D)), "i": index, "y": write("y", (1, V, K, D))}
    report = check(step, params)
    assert len(report.data) == 1
    with raises(BodyProofErrors.OPERAND):
        check(step, {**params, "i": read("i", shape, dtype="i64")})
    with raises(BodyProofErrors.OPERAND):
        check(step, {**params, "x": read("x", (B, V, T, D)), "y": write("y", (B, V, K, D))})
