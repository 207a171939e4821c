"""Work of a step whose query selects its rows, compared with counts made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from sscc.ir.operations import ChooseRows, QuantizedKeyScores, QuantizeKeys, QueryAttention
from sscc.ir.schedule import Body, Param
from sscc.runtime.timing.work import DOT_OPS, ENCODE_OPS, KEY_SCORE_OPS, ROTATE_OPS, SOFTMAX_OPS, Work, measure

B, H, G, SR, D, T, K, E = 2, 8, 4, 10, 8, 64, 6, 2
SINK, RECENT = 2, 8
DTYPES = {"p": "i64", "i": "i64", "a": "i1", "c": "i8", "s": "bf16", "f": "f32"}
SHAPES = {
    **{"q": (B, H, 1, D), "y": (B, H, 1, D), "nk": (B, G, 1, D), "nv": (B, G, 1, D), "p": (B,), "a": (B,)},
    **dict.fromkeys(("k", "v", "kc", "vc"), (B, G, SR, D)),
    **dict.fromkeys(("ks", "vs"), (B, G, T, D)),
    **{"c": (B, G, T, E), "s": (B, G, T, 1), "f": (B, H, T), "i": (B, G, K)},
}
ROTATED = ROTATE_OPS * 3 + ENCODE_OPS  # of a number, in blocks of 8
FUSED = QueryAttention(
    *("q", "nk", "nv", "k", "v", "kc", "vc", "ks", "vs", "c", "s", "p", "a", "y", 1.0, SINK, RECENT, K, 2)
)


def counted(step: Any, names: str, live: int | None) -> Work:
    """Measures one step over these parameters, which are bf16 unless listed above."""
    params = tuple(Param(name, SHAPES[name], DTYPES.get(name, "bf16"), "update") for name in names.split())  # type: ignore[arg-type]
    return measure(Body("b", params, (), (), (), (step,)), {}, live)


LIVE = [(None, T - SR), (T, T - SR), (40, 30), (13, 3), (SR, 0), (4, 0)]
"""Tokens of a slot, all rows if None, and the candidates among them."""


@pytest.mark.parametrize(("live", "candidates"), LIVE)
def test_quantized_keys_of_candidates_are_scored(live: int | None, candidates: int) -> None:
    work = counted(QuantizedKeyScores("q", "c", "s", "p", "a", "f", 1.0, SINK, RECENT, 2), "q c s p a f", live)
    assert work.read.get("c", 0) == B * G * candidates * E
    assert work.read.get("s", 0) == B * G * candidates * 2
    assert work.written.get("f", 0) == B * H * candidates * 4
    scores = B * H * candidates
    rest = [(scores * D // 4, DOT_OPS), (scores, KEY_SCORE_OPS)] if scores else []
    assert work.vectors == ((B * H * D, ROTATED), *rest)


@pytest.mark.parametrize(("live", "candidates"), LIVE)
def test_candidates_are_chosen_among(live: int | None, candidates: int) -> None:
    work = counted(ChooseRows("q", "k", "f", "p", "a", "i", 1.0, SINK, RECENT), "q k f p a i", live)
    assert work.read.get("f", 0) == B * H * candidates * 4
    assert work.read["k"] == B * G * SR * D * 2
    assert work.products == {"bf16": 2 * B * H * SR * D}
    top = [(B * G * candidates, 4)] if candidates else []  # log2(6) is 3 when rounded up
    assert work.vectors == ((B * H * (SR + candidates), SOFTMAX_OPS), *top)


@pytest.mark.parametrize(("live", "candidates"), LIVE)
def test_a_step_reads_quantized_keys_of_all_and_rows_of_some(live: int | None, candidates: int) -> None:
    work = counted(FUSED, "q nk nv k v kc vc ks vs c s p a y", live)
    row, chosen = D * 2, min(K, candidates)
    assert work.read.get("ks", 0) == work.read.get("vs", 0) == B * G * chosen * row
    assert work.written["ks"] == work.written["vs"] == work.written["kc"] == B * G * row
    assert work.read.get("c", 0) == B * G * candidates * E
    assert (work.written["c"], work.written["s"]) == (B * G * E, B * G * 2)
    attended = min(T if live is None else live, SR + K)
    assert work.products == {"bf16": 2 * B * H * SR * D + 2 * B * H * attended * 2 * D}
    assert work.vectors[0] == (B * G * D, ROTATED)
    assert work.vectors[-1] == (B * H * attended, SOFTMAX_OPS)


def test_keys_are_quantized() -> None:
    work = counted(QuantizeKeys("ks", "c", "s", 2), "ks c s", None)
    assert work.vectors == ((B * G * T * D, ROTATED),)
    assert work.written == {"c": B * G * T * E, "s": B * G * T * 2}
