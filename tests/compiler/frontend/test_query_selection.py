"""Selection by query: its choice against loops in Python, and whole models against full attention and SnapStream."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from sscc.compiler.frontend import algorithm
from sscc.compiler.frontend.eager import EagerErrors, EagerQuerySelection, EagerSnapStream
from sscc.compiler.frontend.query_selection import (
    QuantizedKeys,
    choose,
    exact_logits,
    fetch_rows,
    masses,
    quantize_keys,
    quantized_key_logits,
    query_attention,
)
from sscc.ir.geometry import Geometry
from sscc.ir.quantized_keys import QuantizedKeyErrors
from tests.compiler.frontend.test_eager import CONFIGS, assert_close, load, random_prompt
from tests.compiler.test_windows import eager_model
from tests.errors import raises

G = Geometry(sink=2, recent=6, topk=8, obs=4, pool=3, pool_mode="avg", max_context=64)
BITS = [1, 2, 4, 16]
MODELS = [("llama", 4), ("llama", 16), ("qwen2", 2), ("gpt-neox", 2)]
"""Their heads are of 10 and of 12 numbers, which fill bytes with 4 and with 2 bits."""
SCALE = 0.3
HEADS, KV_HEADS, WIDTH, ROWS = 6, 2, 16, 40


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def layer(sequences: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """(q [B, H, D], keys [B, Hkv, T, D], values [B, Hkv, T, 12])."""
    return (
        normal(sequences, HEADS, WIDTH, seed=1) * 3,
        normal(sequences, KV_HEADS, ROWS, WIDTH, seed=2),
        normal(sequences, KV_HEADS, ROWS, 12, seed=3),
    )


def by_loops(q: Tensor, keys: Tensor, quantized_keys: QuantizedKeys, n: int, g: Geometry) -> list[list[int]]:
    """Return the positions that one sequence selects per KV head, computed in f64, one position at a time."""
    group, chosen = q.shape[0] // keys.shape[0], []
    batched = QuantizedKeys(quantized_keys.levels[None], quantized_keys.scale[None], quantized_keys.bits)
    approximate = quantized_key_logits(q[None], batched, SCALE)
    for head in range(keys.shape[0]):
        total = [0.0] * n
        for member in range(group):
            query = q[head * group + member].double()
            logits = [
                approximate[0, head, member, t].double()
                if g.sink <= t < n - g.recent
                else query @ keys[head, t].double() * SCALE
                for t in range(n)
            ]
            weights = torch.stack(logits).softmax(0)
            total = [a + float(b) for a, b in zip(total, weights, strict=True)]
        candidates = sorted(range(g.sink, n - g.recent), key=lambda t: (-total[t], t))
        chosen.append(sorted(candidates[: g.topk]))
    return chosen


@pytest.mark.parametrize("bits", BITS)
def test_the_choice_of_every_sequence_is_that_of_loops(bits: int) -> None:
    q, keys, _ = layer()
    live = torch.tensor([ROWS, 21, 9])
    quantized_keys = quantize_keys(keys, bits)
    chosen = choose(masses(q, keys, quantized_keys, live, SCALE, G), G)
    for sequence, n in enumerate(live.tolist()):
        own = QuantizedKeys(quantized_keys.levels[sequence], quantized_keys.scale[sequence], bits)
        for head, positions in enumerate(by_loops(q[sequence], keys[sequence], own, n, G)):
            assert chosen[sequence, head].tolist() == positions + [-1] * (G.topk - len(positions))


def test_with_16_bits_it_is_the_choice_by_exact_products() -> None:
    q, keys, _ = layer()
    live = torch.full((3,), ROWS)
    exact = exact_logits(q, keys, SCALE).softmax(-1).mean(2)
    weights = masses(q, keys, quantize_keys(keys, 16), live, SCALE, G)
    assert torch.equal(weights[..., G.sink : ROWS - G.recent], exact[..., G.sink : ROWS - G.recent])
    assert (weights[..., : G.sink] == -1).all()
    assert (weights[..., ROWS - G.recent :] == -1).all()
    # More bits choose more of what exact products choose.
    best = choose(weights, G)
    shared = {
        bits: sum(
            len({*a} & {*b})
            for a, b in zip(
                choose(masses(q, keys, quantize_keys(keys, bits), live, SCALE, G), G).flatten(0, 1).tolist(),
                best.flatten(0, 1).tolist(),
                strict=True,
            )
        )
        for bits in BITS
    }
    assert shared[16] == 3 * KV_HEADS * G.topk
    assert shared[4] >= 0.85 * shared[16]
    assert shared[2] >= 0.7 * shared[16]


def test_ties_go_to_the_lower_positions_which_ascend() -> None:
    weights = torch.full((1, 2, 12), -1.0)
    weights[0, :, 1:9] = 0.1
    weights[0, 1, 6] = 0.2
    g = replace(G, sink=1, recent=3, topk=4)
    assert choose(weights, g)[0].tolist() == [[1, 2, 3, 4], [1, 2, 3, 6]]


def test_fewer_candidates_than_rows_are_all_taken() -> None:
    weights = torch.full((1, 1, 12), -1.0)
    weights[0, 0, 2:5] = torch.tensor([0.0, 0.3, 0.1])
    assert choose(weights, G)[0].tolist() == [[2, 3, 4, -1, -1, -1, -1, -1]]
    assert choose(weights[..., :3], G)[0].tolist() == [[2, *[-1] * 7]]
    assert choose(weights, replace(G, topk=0)).shape == (1, 1, 0)


def fetched_by_sets(resident: list[int], weights: list[float], limit: int, topk: int) -> list[int]:
    """The resident set of one head after a step, one row at a time."""
    best = sorted((t for t, w in enumerate(weights) if w >= 0), key=lambda t: (-weights[t], t))[:topk]
    now = [t for t in resident if t >= 0]
    for t in [t for t in best if t not in now][:limit]:
        if len(now) == topk:
            now.remove(min((r for r in now if r not in best), key=lambda r: (weights[r], -r)))
        now.append(t)
    return sorted(now) + [-1] * (topk - len(now))


@pytest.mark.parametrize("limit", [1, 2, 5, G.topk])
def test_a_resident_set_changes_by_few_rows(limit: int) -> None:
    resident = torch.stack([torch.arange(8), torch.tensor([2, 3, 5, 7, 11, -1, -1, -1])])[None]
    for step in range(12):
        weights = normal(1, 2, 30, seed=step).abs().mul(4).round() / 40  # many are equal
        weights[:, :, 25:] = -1
        after = fetch_rows(resident, weights, limit, G)
        for head in range(2):
            rows, own = resident[0, head].tolist(), weights[0, head].tolist()
            assert after[0, head].tolist() == fetched_by_sets(rows, own, limit, G.topk)
        if limit == G.topk:
            assert torch.equal(after, choose(weights, G))
        resident = after


def test_keys_of_zeros_are_chosen_by_position() -> None:
    q, keys, _ = layer(1)
    keys[:, :, 2:30] = 0
    chosen = choose(masses(q, keys, quantize_keys(keys, 2), torch.tensor([30]), SCALE, G), G)
    assert chosen[0].tolist() == [list(range(2, 2 + G.topk))] * KV_HEADS


def test_a_head_that_looks_at_a_sink_votes_less() -> None:
    """One of two heads gives nearly all its weight to the sink: the row of the other head is selected, in any case."""
    keys = torch.eye(8)[None, None, [0, 1, 2, 3, 4]]
    q = torch.stack([20 * torch.eye(8)[0] + 3 * torch.eye(8)[1], 2 * torch.eye(8)[2]])[None]
    g = replace(G, sink=1, recent=1, topk=1)
    assert choose(masses(q, keys, quantize_keys(keys, 16), torch.tensor([5]), 1.0, g), g).item() == 2
    alone = exact_logits(q, keys, 1.0)[..., 1:4].softmax(-1).mean(2)
    assert 1 + alone.argmax() == 1


def test_attention_reads_rows_in_the_order_of_snapstreams_cache() -> None:
    """The ring rotates: with 1 sink and 4 recent rows position 12 stands in row 4."""
    g = replace(G, sink=1, recent=4, topk=2)
    _, keys, values = layer(1)
    q = normal(1, HEADS, WIDTH, seed=5)
    chosen = torch.tensor([[[3, 5], [2, 7]]])
    out = query_attention(q, keys, values, chosen, torch.tensor([13]), SCALE, g)
    order = [[0, 9, 10, 11, 12, 3, 5], [0, 9, 10, 11, 12, 2, 7]]
    k, v = (torch.stack([x[0, head, rows] for head, rows in enumerate(order)]) for x in (keys, values))
    assert torch.equal(out[0], algorithm.cached_attention(q[0], k, v, torch.ones(7, dtype=torch.bool), SCALE))


# ------------------------------------------------------------------------------------------------------ whole models


@pytest.mark.parametrize(("family", "bits"), MODELS)
def test_with_room_for_every_candidate_it_is_full_attention(family: str, bits: int) -> None:
    model, prompt = load(family, "sscc"), random_prompt(20)
    ours = EagerQuerySelection(model, replace(G, topk=50), bits)
    full = EagerSnapStream(model, Geometry(0, 64, 0, 4, 3, "avg", 64))
    assert torch.equal(ours.prefill(prompt), full.prefill(prompt))
    for token in random_prompt(30):
        assert_close(ours.decode(token), full.decode(token))


@pytest.mark.parametrize("dtype", ["model", "int8"])
@pytest.mark.parametrize("family", CONFIGS)
def test_while_sinks_and_ring_hold_everything_it_is_snapstream(family: str, dtype: str) -> None:
    """With encoded rows only prefill differs, because it attends to the dequantized rows; so the first token is fed
    again."""
    g = replace(G, recent=20, dtype=dtype)
    model, start = load(family, "sscc"), random_prompt(1)
    ours, snapstream = EagerQuerySelection(model, g, 4), EagerSnapStream(model, g)
    assert torch.equal(ours.prefill(start), snapstream.prefill(start)) == (dtype == "model")
    assert torch.equal(ours.decode(start[0], position=0), snapstream.decode(start[0], position=0))
    for token in random_prompt(g.sink_recent - 1):
        assert torch.equal(ours.decode(token), snapstream.decode(token))


@pytest.mark.parametrize("dtype", ["model", "int8"])
@pytest.mark.parametrize(("family", "bits"), MODELS)
def test_rows_that_are_not_chosen_change_nothing(family: str, dtype: str, bits: int) -> None:
    model, prompt = load(family, "sscc"), random_prompt(40)
    run = EagerQuerySelection(model, replace(G, dtype=dtype), bits)
    run.prefill(prompt)
    logits = run.decode(3)
    n = len(prompt) + 1
    for keys, values, chosen in zip(run.k_cache, run.v_cache, run.selected, strict=True):
        assert chosen.shape == (keys.shape[0], G.topk)
        assert (chosen >= G.sink).all()
        assert (chosen < n - G.recent).all()
        assert (chosen.diff() > 0).all()
        for head, positions in enumerate(chosen.tolist()):
            others = sorted({*range(G.sink, n - G.recent)} - {*positions})
            assert len(others) == n - G.budget
            keys[head, others] = values[head, others] = float("nan")
    assert torch.equal(run.decode(3, position=n - 1), logits)


@pytest.mark.parametrize("family", CONFIGS)
def test_nobody_can_tell_who_wrote_a_row(family: str) -> None:
    """Prefill, and decode if it selects every row, attend to the same encoded rows. SnapStream's prefill uses the rows
    before they are encoded, and differs."""
    model, prompt = load(family, "sscc"), random_prompt(30)
    g = replace(G, topk=50, dtype="int8")

    def apart(run: EagerSnapStream) -> float:
        """Return the distance of the last token's logits from those of a run that was fed the second half in steps."""
        whole = run.prefill(prompt)
        run.prefill(prompt[:15])
        return float(([run.decode(token) for token in prompt[15:]][-1] - whole).norm() / whole.norm())

    by_query = apart(EagerQuerySelection(model, g, 4))
    assert by_query < 1e-3
    assert apart(EagerSnapStream(model, g)) > 3 * by_query


@pytest.mark.parametrize("family", CONFIGS)
def test_without_a_limit_a_resident_set_is_the_same_and_with_one_it_changes_slowly(family: str) -> None:
    model, prompt = load(family, "sscc"), random_prompt(40)
    free, same, few = (EagerQuerySelection(model, G, 4, fetch) for fetch in (None, G.topk, 1))
    starts = [run.prefill(prompt) for run in (free, same, few)]
    assert torch.equal(starts[0], starts[1])
    free.decode(prompt[-1], position=39)
    assert torch.equal(free.selected[0], few.selected[0]), "what the last query of the prompt chooses"
    free.prefill(prompt)
    for token in random_prompt(12):
        before = [rows.tolist() for rows in few.selected]
        assert torch.equal(free.decode(token), same.decode(token))
        few.decode(token)
        for rows, old in zip(few.selected, before, strict=True):
            assert all(len({*new} - {*of}) <= 1 for new, of in zip(rows.tolist(), old, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(free.selected, few.selected, strict=True))


def test_layers_within_a_window_keep_their_ring() -> None:
    run = EagerQuerySelection(eager_model("gemma3"), replace(G, max_context=40), 4)
    run.prefill(list(range(30)))
    run.decode(3)
    windows = [g.window for g in run.geometries]
    assert any(windows)
    assert not all(windows)
    for window, quantized_keys, keys in zip(windows, run.quantized_keys, run.k_cache, strict=True):
        assert keys.shape[1] == (window or 40)
        assert (quantized_keys is None) == bool(window)


def test_refusals() -> None:
    with raises(QuantizedKeyErrors.BITS, bits=3):
        EagerQuerySelection(load("qwen2", "sscc"), G, 3).prefill([1])
    with raises(QuantizedKeyErrors.PARTIAL_BYTE, dim=10):
        EagerQuerySelection(load("llama", "sscc"), G, 1).prefill([1])
    with raises(EagerErrors.NO_FETCH, rows=0):
        EagerQuerySelection(load("qwen2", "sscc"), G, 4, fetch=0)
    with raises(EagerErrors.OTHER_IMPLEMENTATION):
        EagerQuerySelection(load("llama", "sdpa"), G, 2)
