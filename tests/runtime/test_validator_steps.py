"""Steps of the algorithm by themselves: what each takes, needs and moves, and settings just inside and just outside."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sscc.ir import operations as ops
from sscc.ir import schedule as sch
from sscc.ir.errors import ErrorKind
from sscc.ir.geometry import LARGEST_POOL
from sscc.ir.kv_rows import INT4, INT8, RowFormat
from sscc.ir.opspec import Op, spec_of, spec_of_step
from sscc.ir.schedule import Body, Param
from sscc.runtime.validator import Limits
from sscc.runtime.validator.bodies import BodyFacts, BodyProofErrors, prove_body
from sscc.runtime.validator.steps import LARGEST_SCALE, LARGEST_SOFTCAP, StepProofErrors
from tests.errors import raises, refusal
from tests.runtime.broken.build import most_moved
from tests.runtime.schedules import read, update, write

B, V, H, D, W, R, T, C, N, K, J = 2, 3, 6, 4, 5, 7, 11, 8, 9, 2, 5
ENCODED = 4
"""More elements of i8 than numbers in an encoded row."""
E = D // 2
"""Bytes of a quantized key's codes of 4 bits."""

QUERY = read("q", (B, H, 1, D))
NEW = (read("nk", (B, V, 1, D)), read("nv", (B, V, 1, W)))
CACHES = (update("kc", (B, V, R, D)), update("vc", (B, V, R, W)))
SLOTS = (read("p", (B,), "i64"), read("b", (B,), "i64"), read("a", (B,), "i1"))
CHUNK = (read("q", (1, H, C, D)), read("nk", (1, V, C, D)), read("nv", (1, V, C, W)))
SCRATCH = (update("ks", (1, V, T, D)), update("vs", (1, V, T, W)))
PROMPT = (read("k", (1, V, T, D)), read("v", (1, V, T, W)))
SLOT_READS = {"p": (B, 0), "b": (B, 0), "a": (B, 0)}
NEW_READS = {"nk": (B * V * D, 0), "nv": (B * V * W, 0)}

CASES: dict[str, tuple[Any, tuple[Param, ...], dict[str, tuple[int, int]], dict[str, tuple[int, int]]]] = {
    "update": (
        ops.UpdateRows("kc", "nk", "p", "a"),
        (CACHES[0], NEW[0], SLOTS[0], SLOTS[2]),
        {"kc": (0, B * V * D), "nk": (B * V * D, 0), "p": (B, 0), "a": (B, 0)},
        {},
    ),
    "update of encoded rows": (
        ops.UpdateRows("kc", "nk", "p", "a"),
        (update("kc", (B, V, R, D + ENCODED), "i8"), read("nk", (B, V, 1, D + ENCODED), "i8"), *SLOTS),
        {"kc": (0, B * V * (D + ENCODED)), "nk": (B * V * (D + ENCODED), 0), "p": (B, 0), "b": (0, 0), "a": (B, 0)},
        {},
    ),
    "recurrent step": (
        ops.RecurrentStep("q", "k", "v", "d", "s", "a", "o", beta="b"),
        (read("q", (B, 1, 2, D)), read("k", (B, 1, 2, D)), read("v", (B, 1, H, W)), read("d", (B, 1, H, 1)),
         update("s", (B, H, D, W)), SLOTS[2], write("o", (B, 1, H, W)), read("b", (B, 1, H))),
        {"q": (B * 2 * D, 0), "k": (B * 2 * D, 0), "v": (B * H * W, 0), "d": (B * H, 0),
         "s": (B * H * D * W, B * H * D * W), "a": (B, 0), "o": (0, B * H * W), "b": (B * H, 0)},
        {},
    ),
    "recurrent step of several tokens": (
        ops.RecurrentStep("q", "k", "v", "d", "s", "a", "o", pending="w", held="h", position="p"),
        (read("q", (3 * B, 1, 2, D)), read("k", (3 * B, 1, 2, D)), read("v", (3 * B, 1, H, W)),
         read("d", (3 * B, 1, H, 1)), update("s", (B, H, D, W)), read("a", (3 * B,), "i1"),
         write("o", (3 * B, 1, H, W)), update("w", (B, H, 5, D + W + 2)), update("h", (B, H), "i64"),
         read("p", (3 * B,), "i64")),
        {"q": (3 * B * 2 * D, 0), "k": (3 * B * 2 * D, 0), "v": (3 * B * H * W, 0), "d": (3 * B * H, 0),
         "s": (B * H * D * W, B * H * D * W), "a": (3 * B, 0), "o": (0, 3 * B * H * W),
         "w": (2 * B * H * (D + W + 2), 3 * B * H * (D + W + 2)), "h": (B * H, B * H), "p": (3 * B, 0)},
        {},
    ),
    "recurrent chunk": (
        ops.RecurrentChunk("q", "k", "v", "d", "s", "o", "start", "n", rate="r"),
        (read("q", (1, C, 2, D)), read("k", (1, C, 2, D)), read("v", (1, C, H, W)), read("d", (1, C, H, 1)),
         update("s", (1, H, D, W)), write("o", (1, C, H, W)), read("r", (H, D))),
        {"q": (C * 2 * D, 0), "k": (C * 2 * D, 0), "v": (C * H * W, 0), "d": (C * H, 0),
         "s": (H * D * W, H * D * W), "o": (0, C * H * W), "r": (H * D, 0)},
        {},
    ),
    "choose by index": (
        ops.ChooseByIndex("q", "nk", "ks", "p", "i", "start", 2, 1, "w"),
        (read("q", (1, C, 3, D)), read("nk", (1, 1, C, D)), update("ks", (1, 1, T, D)), read("p", (1, C), "i64"),
         write("i", (1, 1, C, 4), "i64"), read("w", (1, C, 3))),
        {"q": (C * 3 * D, 0), "nk": (C * D, 0), "ks": (T * D, C * D), "p": (C, 0), "i": (0, C * 4), "w": (C * 3, 0)},
        {"start": (0, T - C)},
    ),
    "attend to chosen": (
        ops.AttendChosen("q", "nk", "nv", "ks", "vs", "p", "i", "o", 0.5),
        (*CHUNK, *SCRATCH, read("p", (1, C), "i64"), read("i", (1, V, C, K), "i64"), write("o", (1, H, C, W))),
        {"q": (H * C * D, 0), "nk": (V * C * D, 0), "nv": (V * C * W, 0), "ks": (C * K * V * D, C * V * D),
         "vs": (C * K * V * W, C * V * W), "p": (C, 0), "i": (V * C * K, 0), "o": (0, H * C * W)},
        {},
    ),
    "quantize": (
        ops.QuantizeRows("x", "y"),
        (read("x", (B, V, J, D)), write("y", (B, V, J, D + ENCODED), "i8")),
        {"x": (B * V * J * D, 0), "y": (0, B * V * J * (D + ENCODED))},
        {},
    ),
    "cached": (
        ops.CachedAttention("q", (ops.Segment("k", "v", "valid"),), "o", 0.5),
        (QUERY, read("k", (B, V, R, D)), read("v", (B, V, R, W)), read("valid", (B, R), "i1"),
         write("o", (B, H, 1, W))),
        {"q": (B * H * D, 0), "k": (B * V * R * D, 0), "v": (B * V * R * W, 0), "valid": (B * R, 0),
         "o": (0, B * H * W)},
        {},
    ),
    "cached by an index": (
        ops.CachedAttention("q", (ops.Segment("k", "v", "valid", "i"), ops.Segment("k", "v", "all")), "o", 0.5),
        (QUERY, read("k", (B, V, T, D)), read("v", (B, V, T, W)), read("valid", (B, J), "i1"),
         read("i", (B, V, J), "i64"), read("all", (B, T), "i1"), write("o", (B, H, 1, W))),
        {"q": (B * H * D, 0), "k": (B * V * (J + T) * D, 0), "v": (B * V * (J + T) * W, 0), "valid": (B * J, 0),
         "i": (B * V * J, 0), "all": (B * T, 0), "o": (0, B * H * W)},
        {},
    ),
    "causal": (
        ops.CausalAttention("q", "k", "v", "o", "start", "n", 0.5, "l"),
        (CHUNK[0], *PROMPT, write("o", (1, H, C, W)), write("l", (1, H, C))),
        {"q": (H * C * D, 0), "k": (V * T * D, 0), "v": (V * T * W, 0), "o": (0, H * C * W), "l": (0, H * C)},
        {"start": (0, T - C), "n": (1, T)},
    ),
    "observe a chunk": (
        ops.Observe("ob", "q", "start", "n"),
        (update("ob", (1, H, N, D)), CHUNK[0]),
        {"ob": (0, H * C * D), "q": (H * C * D, 0)},  # as many queries as the chunk has
        {},
    ),
    "observe a window": (
        ops.Observe("ob", "q", "start", "n"),
        (update("ob", (1, H, 3, D)), CHUNK[0]),
        {"ob": (0, H * 3 * D), "q": (H * 3 * D, 0)},
        {},
    ),
    "scores": (
        ops.ObservationScores("ob", "k", "s", "n", 0.5, 0, "l"),
        (read("ob", (1, H, N, D)), PROMPT[0], write("s", (V, T)), read("l", (1, H, N))),
        {"ob": (H * N * D, 0), "k": (V * T * D, 0), "s": (0, V * T), "l": (H * N, 0)},
        {"n": (1, T)},
    ),
    "pool": (
        ops.Pool("s", "y", "n", 3, "avg"),
        (read("s", (V, T)), write("y", (V, T))),
        {"s": (V * T, 0), "y": (0, V * T)},
        {"n": (1, T)},
    ),
    "select": (
        ops.Select("s", "i", "n", "top", 0, 0),
        (read("s", (V, T)), write("i", (V, K), "i64")),
        {"s": (V * T, 0), "i": (0, V * K)},
        {"n": (1, T), "top": (0, K)},
    ),
    "gather": (
        ops.GatherRows("x", "i", "y"),
        (read("x", (1, V, T, D)), read("i", (V, J), "i64"), write("y", (1, V, J, D))),
        {"x": (V * J * D, 0), "i": (V * J, 0), "y": (0, V * J * D)},
        {},
    ),
    "decode": (
        ops.DecodeAttention("q", "nk", "nv", "kc", "vc", "kc", "vc", "p", "b", "a", "top", "o", 0.5, 0, 1),
        (QUERY, *NEW, *CACHES, *SLOTS, write("o", (B, H, 1, W))),
        {"q": (B * H * D, 0), **NEW_READS, **SLOT_READS, "o": (0, B * H * W),
         "kc": (B * V * R * D, B * V * D), "vc": (B * V * R * W, B * V * W)},
        {"top": (0, R - 1)},
    ),
    "decode, latent rows": (
        ops.DecodeAttention("q", "nk", "", "kc", "", "kc", "", "p", "b", "a", "top", "o", 0.5, 0, 1),
        (QUERY, NEW[0], CACHES[0], *SLOTS, write("o", (B, H, 1, D - 1))),
        {"q": (B * H * D, 0), "nk": NEW_READS["nk"], **SLOT_READS, "o": (0, B * H * (D - 1)),
         "kc": (B * V * R * D, B * V * D)},
        {"top": (0, R - 1)},
    ),
    "indexed": (
        ops.DecodeAttention("q", "nk", "nv", "kc", "vc", "kc", "vc", "p", "b", "a", "top", "o", 0.5, 1,
                            R - K - 1, (ops.SelectedRows("kp", "vp", "i"),)),
        (QUERY, *NEW, *CACHES, read("kp", (B, V, T, D)), read("vp", (B, V, T, W)), read("i", (B, V, K), "i64"),
         *SLOTS, write("o", (B, H, 1, W))),
        {"q": (B * H * D, 0), **NEW_READS, **SLOT_READS, "o": (0, B * H * W), "i": (B * V * K, 0),
         "kc": (B * V * R * D, B * V * D), "vc": (B * V * R * W, B * V * W),
         "kp": (B * V * K * D, 0), "vp": (B * V * K * W, 0)},
        {"top": (0, K)},
    ),
    "quantized_keys": (
        ops.QuantizeKeys("k", "c", "s", 4),
        (read("k", (B, V, J, D)), write("c", (B, V, J, E), "i8"), write("s", (B, V, J, 1), "bf16")),
        {"k": (B * V * J * D, 0), "c": (0, B * V * J * E), "s": (0, B * V * J)},
        {},
    ),
    "quantized key scores": (
        ops.QuantizedKeyScores("q", "c", "s", "p", "a", "o", 0.5, 1, 2, 4),
        (QUERY, read("c", (B, V, T, E), "i8"), read("s", (B, V, T, 1), "bf16"), SLOTS[0], SLOTS[2],
         write("o", (B, H, T))),
        {"q": (B * H * D, 0), "c": (B * V * (T - 3) * E, 0), "s": (B * V * (T - 3), 0), "p": (B, 0), "a": (B, 0),
         "o": (0, B * H * (T - 3))},
        {},
    ),
    "choose": (
        ops.ChooseRows("q", "k", "s", "p", "a", "i", 0.5, 1, 2),
        (QUERY, read("k", (B, V, 3, D)), read("s", (B, H, T)), SLOTS[0], SLOTS[2], write("i", (B, V, K), "i64")),
        {"q": (B * H * D, 0), "k": (B * V * 3 * D, 0), "s": (B * H * (T - 3), 0), "p": (B, 0), "a": (B, 0),
         "i": (0, B * V * K)},
        {},
    ),
    "fetch": (
        ops.FetchRows("q", "k", "s", "ks", "vs", "p", "a", "r", "l", "kr", "vr", 0.5, 1, 2, 1),
        (QUERY, read("k", (B, V, 3, D)), read("s", (B, H, T)), read("ks", (B, V, T, D)), read("vs", (B, V, T, W)),
         SLOTS[0], SLOTS[2], update("r", (B, V, K), "i64"), update("l", (B, V, K), "i64"), update("kr", (B, V, K, D)),
         update("vr", (B, V, K, W))),
        {"q": (B * H * D, 0), "k": (B * V * 3 * D, 0), "s": (B * H * (T - 3), 0), "p": (B, 0), "a": (B, 0),
         "ks": (B * V * D, 0), "vs": (B * V * W, 0), "r": (B * V * K, B * V * K), "l": (B * V * K, B * V * K),
         "kr": (0, B * V * D), "vr": (0, B * V * W)},
        {},
    ),
    "query, rows that stay": (
        ops.QueryAttention("q", "nk", "nv", "kc", "vc", "kc", "vc", "ks", "vs", "c", "", "p", "a", "o", 0.5, 1, R - 1,
                           K, 16, "r", "l", "kr", "vr", 1),
        (QUERY, *NEW, *CACHES, update("ks", (B, V, T, D)), update("vs", (B, V, T, W)), update("c", (B, V, T, D)),
         SLOTS[0], SLOTS[2], write("o", (B, H, 1, W)), update("r", (B, V, K), "i64"), update("l", (B, V, K), "i64"),
         update("kr", (B, V, K, D)), update("vr", (B, V, K, W))),
        {"q": (B * H * D, 0), **NEW_READS, "p": (B, 0), "a": (B, 0), "o": (0, B * H * W),
         "kc": (B * V * R * D, B * V * D), "vc": (B * V * R * W, B * V * W),
         "ks": (B * V * D, B * V * D), "vs": (B * V * W, B * V * W), "c": (B * V * (T - R) * D, B * V * D),
         "r": (B * V * K, B * V * K), "l": (B * V * K, B * V * K),
         "kr": (B * V * K * D, B * V * D), "vr": (B * V * K * W, B * V * W)},
        {},
    ),
    "query": (
        ops.QueryAttention("q", "nk", "nv", "kc", "vc", "kc", "vc", "ks", "vs", "c", "s", "p", "a", "o", 0.5, 1, R - 1,
                           K, 4),
        (QUERY, *NEW, *CACHES, update("ks", (B, V, T, D)), update("vs", (B, V, T, W)), update("c", (B, V, T, E), "i8"),
         update("s", (B, V, T, 1), "bf16"), SLOTS[0], SLOTS[2], write("o", (B, H, 1, W))),
        {"q": (B * H * D, 0), **NEW_READS, "p": (B, 0), "a": (B, 0), "o": (0, B * H * W),
         "kc": (B * V * R * D, B * V * D), "vc": (B * V * R * W, B * V * W),
         "ks": (B * V * K * D, B * V * D), "vs": (B * V * K * W, B * V * W),
         "c": (B * V * (T - R) * E, B * V * E), "s": (B * V * (T - R), B * V)},
        {},
    ),
    "chunk": (
        ops.ChunkAttention("q", "nk", "nv", "ks", "vs", "o", "start", "n", 0.5, "l"),
        (*CHUNK, *SCRATCH, write("o", (1, H, C, W)), write("l", (1, H, C))),
        {"q": (H * C * D, 0), "nk": (V * C * D, 0), "nv": (V * C * W, 0), "o": (0, H * C * W),
         "ks": (V * T * D, V * C * D), "vs": (V * T * W, V * C * W), "l": (0, H * C)},
        {"start": (0, T - C), "n": (1, T)},
    ),
    "latent chunk": (
        ops.LatentChunkAttention("q", "nr", "rs", "ku", "vu", "o", "start", "n", 0.5, 1, "l"),
        (CHUNK[0], read("nr", (1, 1, C, 9)), update("rs", (1, 1, T, 9)), read("ku", (H, D - 2, 7)),
         read("vu", (H, W, 7)), write("o", (1, H, C, W)), write("l", (1, H, C))),
        {"q": (H * C * D, 0), "nr": (C * 9, 0), "rs": (T * 9, C * 9), "ku": (H * (D - 2) * 7, 0), "vu": (H * W * 7, 0),
         "o": (0, H * C * W), "l": (0, H * C)},
        {"start": (0, T - C), "n": (1, T)},
    ),
    "top k": (
        ops.TopK("s", "i", "v"),
        (read("s", (C, T)), write("i", (C, K), "i64"), write("v", (C, K))),
        {"s": (C * T, 0), "i": (0, C * K), "v": (0, C * K)},
        {},
    ),
    "dequantize": (
        ops.Dequantize((ops.StoredPart("c"), ops.StoredPart("s")), "o", "int4:32"),
        (read("c", (B, R, 32), "i8"), read("s", (B, R, 4), "i8"), write("o", (B, R, 64))),
        {"c": (B * R * 32, 0), "s": (B * R * 4, 0), "o": (0, B * R * 64)},
        {},
    ),
    "look up": (
        ops.LookUp("i", (ops.StoredTable("w"),), "o", "Q8_0"),
        (read("i", (K,), "i64"), read("w", (R, 34), "i8"), write("o", (K, 32))),
        {"i": (K, 0), "w": (K * 34, 0), "o": (0, K * 32)},
        {},
    ),
}  # fmt: skip
"""A step, the parameters of its body, the elements of each that it reads and writes, the scalars that it needs."""


def facts(step: Any, params: tuple[Param, ...], scalars: tuple[str, ...] = ("start", "n", "top")) -> BodyFacts:
    return prove_body(Body("b", params, scalars, (), (), (step,)), Limits())


def changed(name: str, **fields: Any) -> BodyFacts:
    """The facts of a case with other settings of its step."""
    step, params, _, _ = CASES[name]
    return facts(replace(step, **fields), params)


def test_parts_of_weights_fit_their_format() -> None:
    for width, columns in ((34, 64), (33, 32), (68, 32)):
        params = (read("i", (K,), "i64"), read("w", (R, width), "i8"), write("o", (K, columns)))
        with raises(StepProofErrors.PARTS, format="Q8_0", columns=columns):
            facts(CASES["look up"][0], params)
    with raises(StepProofErrors.PARTS, format="Q8_0"):
        facts(replace(CASES["dequantize"][0], format="Q8_0"), CASES["dequantize"][1])
    with raises(StepProofErrors.FORMAT, format="Q9_0"):
        changed("look up", format="Q9_0")


def test_every_step_is_here() -> None:
    assert {type(step) for step, *_ in CASES.values()} == {kind for kind in sch.STEPS if issubclass(kind, Op)}


@pytest.mark.parametrize("name", CASES)
def test_what_a_step_moves_and_needs(name: str) -> None:
    step, params, moved, needs = CASES[name]
    found = facts(step, params)
    assert most_moved(step, params) == moved
    assert {name: use.stored for name, use in found.uses.items()} == {name: some[1] > 0 for name, some in moved.items()}
    assert {scalar: (low, high) for scalar, low, high, _ in found.needs} == needs
    rows = {"indexed": ["kp", "vp"], "cached by an index": ["k", "v"], "quantized key scores": ["c", "s"]}.get(name, [])
    rows = {"choose": ["s"], "query": ["ks", "vs", "c", "s"], "fetch": ["s", "ks", "vs", "kr", "vr"]}.get(name, rows)
    rows = ["ks", "vs", "c", "kr", "vr"] if name == "query, rows that stay" else rows
    rows = {"UpdateRows": ["kc"], "GatherRows": ["x"]}.get(type(step).__name__, rows)
    rows = {"ChooseByIndex": ["ks"], "AttendChosen": ["ks", "vs"]}.get(type(step).__name__, rows)
    assert found.data == tuple(f"body 'b', step 0 ({step.kind}): rows of {param!r}" for param in rows)
    partly = {field for field, operand in spec_of(type(step)).operands.items() if operand.mode == "part"}
    for param in params:
        use = found.uses[param.name]
        assert use.bounded is (param.name in {getattr(step, field) for field in partly})
        assert use.complete is (param.access == "write" and not use.bounded)


@pytest.mark.parametrize("name", CASES)
def test_operands_of_another_rank_or_dtype_are_refused(name: str) -> None:
    step, params, _, _ = CASES[name]
    used = set(spec_of_step(step).regions(step).values())
    for number, param in enumerate(params):
        if param.name not in used:
            continue
        width = ENCODED if param.dtype == "i8" and param.shape[-1] > ENCODED else 0
        others = [
            replace(param, shape=param.shape[:-1]),
            replace(param, shape=(*param.shape, 1)),
            replace(param, shape=(*param.shape[:-1], param.shape[-1] - width, ENCODED + 1)),
            replace(param, dtype="f32" if param.dtype != "f32" else "i64"),
        ]
        for other in others:
            error = refusal(facts, step, (*params[:number], other, *params[number + 1 :]))
            assert error is not None
            assert error.kind in (BodyProofErrors.OPERAND, BodyProofErrors.MIXED_ROWS), error


@pytest.mark.parametrize("of_values", [INT8, INT4])
@pytest.mark.parametrize("of_chosen", [INT8, INT4])
def test_rows_of_all_segments_are_encoded_alike(of_chosen: RowFormat, of_values: RowFormat) -> None:
    step, params, _, _ = CASES["indexed"]
    formats = {"kc": INT4, "vc": of_values, "kp": of_chosen, "vp": of_values}
    even = [replace(param, shape=(*param.shape[:-1], D)) if param.shape[-1] == W else param for param in params]
    encoded = [
        replace(param, shape=(*param.shape[:-1], formats[param.name].width(D)), dtype="i8")
        if param.name in formats
        else param
        for param in even
    ]
    if of_chosen is of_values is INT4:
        facts(step, tuple(encoded))
        return
    with raises(BodyProofErrors.ROW_FORMATS):
        facts(step, tuple(encoded))


# ---------------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize("name", [name for name, (step, *_) in CASES.items() if hasattr(step, "scale")])
def test_a_scale_is_above_nothing_and_not_large(name: str) -> None:
    for scale in (1e-30, 0.5, 1.0, 1.5, LARGEST_SCALE):
        changed(name, scale=scale)
    for scale in (0.0, -0.5, 1024.5, float("nan")):
        with raises(StepProofErrors.SCALE, most=1024.0, scale=scale):
            changed(name, scale=scale)


@pytest.mark.parametrize("name", [name for name, (step, *_) in CASES.items() if hasattr(step, "softcap")])
def test_a_cap_is_above_nothing_and_not_large(name: str) -> None:
    for softcap in (None, 1 / LARGEST_SOFTCAP, 50.0, LARGEST_SOFTCAP):
        changed(name, softcap=softcap)
    for softcap in (0.0, -50.0, 2 * LARGEST_SOFTCAP, float("nan")):
        with raises(StepProofErrors.SOFTCAP, least=1e-06, softcap=softcap):
            changed(name, softcap=softcap)


@pytest.mark.parametrize(
    ("name", "sink", "recent"),
    [
        ("decode", 0, 1), ("decode", 0, R), ("decode", R - 1, 1), ("indexed", 0, R - K),
        ("indexed", R - K - 1, 1),
        ("query", 0, R), ("query", R - 1, 1), ("choose", 0, 3), ("quantized key scores", 5, 9), ("select", 0, 0),
        ("select", 5, 0), ("select", 0, 5),
    ],
)  # fmt: skip
def test_the_rows_that_are_kept(name: str, sink: int, recent: int) -> None:
    changed(name, sink=sink, recent=recent)


@pytest.mark.parametrize(
    ("name", "sink", "recent", "kind", "fields"),
    [
        ("decode", -1, 1, StepProofErrors.RING, {}), ("decode", 0, 0, StepProofErrors.RING, {}),
        ("decode", 1, R, StepProofErrors.RING_TOO_LARGE, {"last": R, "rows": R}),
        ("indexed", -1, R + 1, StepProofErrors.RING, {}), ("indexed", R, 0, StepProofErrors.RING, {}),
        ("indexed", 1, R, StepProofErrors.RING_TOO_LARGE, {"last": R}),
        ("query", 0, R - 1, StepProofErrors.RING, {"rows": R}),
        ("query", -1, R + 1, StepProofErrors.RING, {}), ("query", R, 0, StepProofErrors.RING, {}),
        ("choose", 1, 3, StepProofErrors.RING, {"rows": 3}), ("choose", 3, 0, StepProofErrors.RING, {}),
        ("quantized key scores", -1, 2, StepProofErrors.RING, {}),
        ("quantized key scores", 1, 0, StepProofErrors.RING, {}),
        ("select", -1, 0, StepProofErrors.NEGATIVE_SELECTION, {}),
        ("select", 0, -1, StepProofErrors.NEGATIVE_SELECTION, {}),
    ],
)  # fmt: skip
def test_the_rows_that_cannot_be_kept(
    name: str, sink: int, recent: int, kind: ErrorKind, fields: dict[str, Any]
) -> None:
    with raises(kind, sink=sink, recent=recent, **fields):
        changed(name, sink=sink, recent=recent)


def test_an_index_chooses_whole_blocks() -> None:
    for block, local in ((1, 0), (1, 4), (2, 2), (4, 1)):
        changed("choose by index", block=block, local=local)
    for block, local in ((0, 0), (3, 0), (8, 0), (2, 3), (2, -1)):
        with raises(StepProofErrors.CHOICE, topk=4, block=block, local=local):
            changed("choose by index", block=block, local=local)
    with raises(StepProofErrors.CHOICE):
        changed("choose by index", weight=None)  # three heads would make three choices


def test_selected_rows_have_room_between_sinks_and_ring() -> None:
    for sink, recent in ((1, R - K), (R - K, 1)):
        with raises(StepProofErrors.SELECTED_ROWS, segments=1, selected=K, rows=R, ring=R - K + 1):
            changed("indexed", sink=sink, recent=recent)
    segment = CASES["indexed"][0].segments[0]
    with raises(StepProofErrors.SELECTED_ROWS, segments=2, selected=K, rows=R, ring=R - K):
        changed("indexed", segments=(segment, segment))


@pytest.mark.parametrize("name", ["causal", "decode", "chunk"])
def test_a_window_slides_or_moves_by_all_of_itself(name: str) -> None:
    def window(size: int, stride: int | None) -> dict[str, int | None]:
        size_of = {"sink": 0, "recent": size} if name == "decode" else {"window": size}
        return {**size_of, "window_stride": stride}

    for stride in (None, 2):
        changed(name, **window(2, stride))
    for size, stride in ((2, 1), (2, 3), (2, 0), (2, -2)):
        with raises(StepProofErrors.WINDOW_STRIDE, window=size, stride=stride):
            changed(name, **window(size, stride))
    if name == "decode":
        with raises(StepProofErrors.WINDOW_STRIDE, window=2, stride=2, sink=1):
            changed(name, sink=1, recent=2, window_stride=2)


@pytest.mark.parametrize("name", ["quantized_keys", "quantized key scores", "query"])
def test_quantized_keys_have_as_many_bits_as_their_bytes(name: str) -> None:
    for bits in (0, 1, 2, 3, 8, 16):
        if bits == 16 and name != "quantized_keys":
            with raises(BodyProofErrors.OPERAND, operand="codes", dtype="i8"):
                changed(name, bits=bits)
            continue
        with raises(StepProofErrors.QUANTIZED_KEY_WIDTH, key=D, bits=bits, width=E):
            changed(name, bits=bits)


def test_a_step_chooses_no_row_or_more() -> None:
    step, params, _, _ = CASES["query"]
    assert [most_moved(replace(step, topk=topk), params)["ks"][0] for topk in (0, T)] == [0, B * V * (T - R) * D]
    with raises(StepProofErrors.NEGATIVE_CHOICE, topk=-1):
        changed("query", topk=-1)


def test_scores_of_the_recent_rows_may_be_of_none() -> None:
    changed("scores", recent=0)
    with raises(StepProofErrors.NEGATIVE_RECENT, recent=-1):
        changed("scores", recent=-1)


def test_pooling_is_over_an_odd_number_of_rows() -> None:
    for width in (1, 3, LARGEST_POOL - 1):
        changed("pool", width=width, mode="max")
    for width, mode in ((-1, "avg"), (0, "avg"), (2, "max"), (LARGEST_POOL, "max"), (LARGEST_POOL + 1, "max"), (3, "")):
        with raises(StepProofErrors.POOL, width=width):
            changed("pool", width=width, mode=mode)


@pytest.mark.parametrize("heads", [1, 2, 4, 5, 7])
def test_query_heads_are_whole_groups(heads: int) -> None:
    step, params, _, _ = CASES["cached"]
    fewer = {"q": read("q", (B, heads, 1, D)), "o": write("o", (B, heads, 1, W))}
    with raises(StepProofErrors.HEADS, kv_heads=V, heads=heads):
        facts(step, tuple(fewer.get(param.name, param) for param in params))
    once = {name: replace(param, shape=(B, V, *param.shape[2:])) for name, param in fewer.items()}
    facts(step, tuple(once.get(param.name, param) for param in params))


@pytest.mark.parametrize("name", CASES)
def test_scalars_that_a_step_names_exist(name: str) -> None:
    step, params, _, _ = CASES[name]
    for field, scalar in (("start", "start"), ("length", "n"), ("topk", "top")):
        if field in spec_of(type(step)).numbers:
            with raises(BodyProofErrors.UNKNOWN_SCALAR, scalar=scalar):
                facts(step, params, tuple({"start", "n", "top"} - {scalar}))
