"""Quantized keys, scores, the choice and the fused step as native code, against the reference interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

import pytest
import torch
from torch import Tensor

from sscc.ir import kv_rows
from sscc.ir.kv_rows import INT4, INT8, RowFormat
from sscc.ir.operations import ChooseRows, FetchRows, QuantizedKeyScores, QuantizeKeys, QueryAttention
from sscc.runtime.backends.cpu.attention import query_attention
from sscc.runtime.backends.cpu.attention.quantized_keys import lower_quantize_keys
from sscc.runtime.backends.cpu.attention.row_choice import CHUNK
from sscc.runtime.backends.cpu.codegen.features import AVX2, GENERIC, Features
from sscc.runtime.backends.reference import attention, query
from sscc.runtime.backends.reference.attention import SegmentRows
from sscc.runtime.backends.reference.encoded_rows import as_stored, encode, numbers
from sscc.runtime.backends.reference.softmax import Scoring
from tests.runtime.backends.cpu.harness_prefill import CompiledStages, check_pieces, like, run_step, strided

Tensors = dict[str, Tensor]
AnyStep = TypeVar("AnyStep", QuantizedKeyScores, QueryAttention)

F32, BF16 = torch.float32, torch.bfloat16
HOST = Features.of_host()
# Without AVX512_VNNI code grows with the numbers of a key, so that keys are small there.
SINK, RECENT, TOPK = 3, 6, 20
SR = SINK + RECENT
TIE = 1e-5
"""Two probabilities that are relatively so close may change places: sums of f32 in two orders."""

QUANTIZED_KEYS = QuantizeKeys("key", "codes", "scales", 2)
SCORES = QuantizedKeyScores("query", "codes", "scales", "position", "active", "scores", 0.25, SINK, RECENT, 2)
CHOICE = ChooseRows("query", "key", "scores", "position", "active", "selected", 0.25, SINK, RECENT)
FUSED = QueryAttention(
    "query", "new_key", "new_value", "k_cache", "v_cache", "k_cache", "v_cache", "k_store", "v_store",
    "codes", "scales", "position", "active", "out", 0.25, SINK, RECENT, TOPK, 2,
)  # fmt: skip


def quantized_keys_of(key: Tensor, bits: int) -> Tensors:
    if bits == 16:
        return {"codes": key.clone()}
    codes, scales = query.quantized_keys_of(key, bits)
    return {"codes": codes, "scales": scales}


def of_bits(step: AnyStep, bits: int) -> AnyStep:
    return replace(step, bits=bits, scales="" if bits == 16 else "scales")


def scored(step: QuantizedKeyScores | QueryAttention, queries: Tensor, *rows: Tensor) -> Tensor:
    """The scores [H, n] of candidates by their quantized keys."""
    if step.bits == 16:
        return query.exact_scores(queries, rows[0], scoring_of(step), torch.float64).float()
    return query.quantized_key_scores(queries, *rows, step.bits, scoring_of(step))


def scoring_of(step: QuantizedKeyScores | FetchRows | QueryAttention, sinks: Tensor | None = None) -> Scoring:
    return Scoring(step.scale, step.softcap, sinks)


# --------------------------------------------------------------------------------------------------- quantized keys


def awkward_keys(dim: int) -> Tensor:
    """[1, 2, 45, dim], with rows of zeros, of -0, of numbers too small for a scale, and of one number alone."""
    key = torch.randn(1, 2, 45, dim) * torch.logspace(-3, 3, 45)[:, None]
    key[0, 0, :4] = torch.tensor([0.0, -0.0, 1e-39, 1e-30])[:, None]
    key[0, 1, :3] = 0.0
    key[0, 1, 1, dim - 1] = -2.0
    return key


@pytest.mark.parametrize(
    ("dim", "bits", "dtype", "features"),
    [
        *((64, 2, BF16, HOST), (64, 1, F32, HOST), (128, 4, F32, HOST), (80, 2, BF16, HOST), (6, 4, F32, HOST)),
        *((32, 2, F32, AVX2), (24, 4, BF16, AVX2), (8, 1, F32, AVX2)),
    ],
)
def test_keys_are_quantized_as_the_reference_does(dim: int, bits: int, dtype: torch.dtype, features: Features) -> None:
    key = strided(awkward_keys(dim).to(dtype), (0, 2, 1, 3))
    want = quantized_keys_of(key, bits)
    given = {"key": key, **{name: torch.full_like(tensor, 9) for name, tensor in want.items()}}
    got = run_step(replace(QUANTIZED_KEYS, bits=bits), lower_quantize_keys, given, {}, features, list(want))
    for name, tensor in want.items():
        assert torch.equal(got[name], tensor), name


# ------------------------------------------------------------------------------------------------------ scores


def inputs(
    positions: list[int], heads: int, kv_heads: int, dim: int, bits: int, dtype: torch.dtype, rows: int,
    row_format: RowFormat | None = None,
) -> Tensors:  # fmt: skip
    """Operands of the fused step, a slot for each position; what is behind a slot's candidates holds NaN."""
    slots = len(positions)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape).to(dtype)

    tensors = {
        "query": 2 * normal(slots, heads, 1, dim),
        "new_key": normal(slots, kv_heads, 1, dim),
        "new_value": normal(slots, kv_heads, 1, dim),
        "k_cache": normal(slots, kv_heads, SR, dim),
        "v_cache": normal(slots, kv_heads, SR, dim),
        "k_store": normal(slots, kv_heads, rows, dim),
        "v_store": normal(slots, kv_heads, rows, dim),
        "position": torch.tensor(positions),
        "active": torch.tensor([slot != 1 for slot in range(slots)]),
        "out": torch.full((slots, heads, 1, dim), 9.0).to(dtype),
    }
    tensors |= quantized_keys_of(tensors["k_store"], bits)
    for slot, position in enumerate(positions):
        for name in ("k_store", "v_store", "codes", "scales"):
            if name in tensors and tensors[name].is_floating_point():
                tensors[name][slot, :, max(position + 1 - RECENT, 0) :] = torch.nan
    return tensors | {name: encode(tensors[name], row_format) for name in ROWS if row_format}


ROWS = ("k_cache", "v_cache", "k_store", "v_store")
POSITIONS = [700, 300, SR - 1, SR, SR + TOPK, SR + TOPK + 1, 0, 2 * CHUNK + SR - 1, 2 * CHUNK + SR]


def scores_case(heads: int, kv_heads: int, dim: int, bits: int, dtype: torch.dtype) -> Tensors:
    tensors = inputs(POSITIONS[:5], heads, kv_heads, dim, bits, dtype, 720)
    made = {name: tensors[name] for name in ("query", "codes", "scales", "position", "active") if name in tensors}
    return made | {"scores": torch.full((5, heads, 720), 9.0)}


def reference_scores(case: Tensors, step: QuantizedKeyScores) -> Tensor:
    scores = case["scores"].clone()
    for slot, position in enumerate(case["position"].tolist()):
        end = position + 1 - RECENT
        if case["active"][slot] and end > SINK:
            rows = (case[name][slot, :, SINK:end] for name in (step.codes, step.scales) if name)
            scores[slot, :, SINK:end] = scored(step, case["query"][slot], *rows)
    return scores


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "bits", "dtype", "features"),
    [
        (6, 2, 64, 2, BF16, HOST),
        (6, 2, 64, 1, F32, HOST),
        (6, 2, 64, 4, F32, HOST),
        (9, 1, 128, 2, BF16, HOST),  # two tiles of heads
        (2, 2, 96, 2, F32, HOST),  # six columns
        (2, 1, 80, 2, BF16, HOST),  # five
        (2, 1, 80, 1, F32, HOST),  # rows that do not fill columns
        (3, 1, 6, 4, F32, HOST),
        (6, 2, 16, 2, BF16, AVX2),
        (9, 1, 8, 1, F32, AVX2),
        (2, 1, 24, 4, F32, GENERIC),
    ],
)
def test_scores_are_the_references_to_the_bit(
    heads: int, kv_heads: int, dim: int, bits: int, dtype: torch.dtype, features: Features
) -> None:
    case, step = scores_case(heads, kv_heads, dim, bits, dtype), replace(SCORES, bits=bits)
    got = run_step(step, query_attention.lower_quantized_key_scores, case, {}, features, ["scores"])
    assert torch.equal(got["scores"], reference_scores(case, step))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "dtype", "features"),
    [(6, 2, 64, BF16, HOST), (9, 1, 40, F32, HOST), (6, 2, 24, BF16, AVX2), (3, 1, 6, F32, GENERIC)],
)
def test_keys_are_scored_by_their_exact_products(
    heads: int, kv_heads: int, dim: int, dtype: torch.dtype, features: Features
) -> None:
    """The sum of a key's score has a fixed order, whatever other keys are scored with it, and by whichever thread."""
    case, step = scores_case(heads, kv_heads, dim, 16, dtype), of_bits(SCORES, 16)
    got = run_step(step, query_attention.lower_quantized_key_scores, case, {}, features, ["scores"])["scores"]
    torch.testing.assert_close(got, reference_scores(case, step), rtol=1e-5, atol=1e-4)
    later = {name: tensor.clone() for name, tensor in case.items()}
    later["position"] = case["position"] - 7
    shorter = run_step(step, query_attention.lower_quantized_key_scores, later, {}, features, ["scores"])["scores"]
    end = POSITIONS[0] + 1 - RECENT - 7
    assert torch.equal(shorter[0, :, SINK:end], got[0, :, SINK:end])
    moved = dict(case)
    moved["codes"] = torch.cat([torch.full_like(case["codes"][:, :, :5], 3), case["codes"][:, :, :-5]], 2)
    shifted = run_step(step, query_attention.lower_quantized_key_scores, moved, {}, features, ["scores"])["scores"]
    assert torch.equal(shifted[0, :, SINK + 5 : end], got[0, :, SINK : end - 5])


def test_rows_of_quantized_keys_may_lie_anywhere() -> None:
    case = scores_case(6, 2, 64, 2, F32)
    for name in ("query", "codes", "scales", "scores"):
        case[name] = strided(case[name], (0, 2, 1, 3) if case[name].ndim == 4 else (1, 0, 2))
    got = run_step(SCORES, query_attention.lower_quantized_key_scores, case, {}, HOST, ["scores"])
    assert torch.equal(got["scores"], reference_scores(case, SCORES))


# -------------------------------------------------------------------------------------------------- the choice


def masses(queries: Tensor, key: Tensor, scores: Tensor, scale: float) -> Tensor:
    """[Hkv, n]: mean probabilities of candidates in f64; operands as those of `query.choose`."""
    kv_heads = key.shape[0]
    grouped = queries.double().reshape(kv_heads, -1, queries.shape[2])
    exact = (grouped @ key.double().transpose(-1, -2)) * scale
    logits = torch.cat([exact, scores.double().reshape(kv_heads, -1, scores.shape[1])], 2)
    return logits.softmax(2)[..., exact.shape[2] :].mean(1)


def check_choice(selected: Tensor, mass: Tensor, topk: int) -> int:
    """Positions of candidates (from 0 on) must be those of the largest masses, near ties aside; how many these are."""
    count = min(topk, mass.shape[1])
    ties = 0
    for head in range(mass.shape[0]):
        got = selected[head, :count]
        assert (selected[head, count:] == -1).all()
        assert (got[1:] > got[:-1]).all()
        assert 0 <= got[0] <= got[-1] < mass.shape[1]
        want = set(torch.sort(mass[head], descending=True, stable=True).indices[:count].tolist())
        threshold = mass[head].topk(count).values[-1]
        for position in want ^ set(got.tolist()):
            assert abs(mass[head, position] - threshold) <= TIE * threshold
            ties += 1
    return ties


@pytest.mark.parametrize(("heads", "dtype", "features"), [(10, BF16, HOST), (6, F32, AVX2)])
def test_the_choice_is_of_the_largest_masses(heads: int, dtype: torch.dtype, features: Features) -> None:
    case = inputs(POSITIONS, heads, 2, 64, 2, dtype, 720)
    case = {"key": case["k_cache"], **{name: case[name] for name in ("query", "position", "active")}}
    case["scores"] = 3 * torch.randn(len(POSITIONS), heads, 720)
    case["selected"] = torch.full((len(POSITIONS), 2, TOPK), 9)
    got = run_step(CHOICE, query_attention.lower_choose_rows, case, {}, features, ["selected"])["selected"]
    ties = 0
    for slot, position in enumerate(POSITIONS):
        candidates = max(position + 1 - SR, 0) if case["active"][slot] else 0
        if not candidates:
            assert (got[slot] == -1).all()
            continue
        scores = case["scores"][slot, :, SINK : SINK + candidates]
        mass = masses(case["query"][slot], case["key"][slot], scores, CHOICE.scale)
        ties += check_choice(got[slot] - SINK * (got[slot] >= 0), mass, TOPK)
    assert ties <= 2


def test_ties_go_to_the_lower_position_and_encoded_keys_are_taken() -> None:
    case = inputs([700], 4, 2, 64, 2, F32, 720)
    case = {"key": case["k_cache"], **{name: case[name] for name in ("query", "position", "active")}}
    scores = torch.zeros(1, 4, 720)
    scores[:, :, 600:605] = 1.0
    case |= {"scores": scores, "selected": torch.full((1, 2, TOPK), 9)}
    case["key"] = torch.from_numpy(kv_rows.encode(case["key"].numpy()))
    got = run_step(CHOICE, query_attention.lower_choose_rows, case, {}, HOST, ["selected"])["selected"]
    assert got[0, 0].tolist() == got[0, 1].tolist() == [*range(SINK, SINK + TOPK - 5), *range(600, 605)]


def test_what_is_not_a_number_chooses_rows_that_exist() -> None:
    case = inputs([700], 4, 2, 64, 2, F32, 720)
    case["query"][0, 0] = torch.nan
    case["query"][0, 2] = torch.inf
    compiled = CompiledStages(FUSED, query_attention.lower_query_attention, case, (), HOST)
    compiled.run(case, {})
    assert not compiled.reported
    assert case["out"][0, 0].isnan().all()


# ---------------------------------------------------------------------------------------------- rows that stay near

RESIDENTS = ("resident", "places", "k_resident", "v_resident")
FETCH = FetchRows(
    "query", "k_cache", "scores", "k_store", "v_store", "position", "active", *RESIDENTS, 0.25, SINK, RECENT, 4
)  # fmt: skip
FETCHES = {**dict(zip(RESIDENTS, RESIDENTS, strict=True)), "fetch": 4}


def with_residents(case: Tensors) -> Tensors:
    """Resident sets of a few candidates, at random places; of a slot of few candidates, all but the last one."""
    (slots, _, _, dim), kv_heads = case["query"].shape, case["k_cache"].shape[1]
    resident, places = torch.full((slots, kv_heads, TOPK), -1), torch.empty(slots, kv_heads, TOPK, dtype=torch.int64)
    for slot, position in enumerate(case["position"].tolist()):
        candidates = max(position + 1 - SR, 0)
        for head in range(kv_heads):
            count = min(max(candidates - 1, 0), TOPK)
            resident[slot, head, :count] = (torch.randperm(candidates)[:count] + SINK).sort().values
            places[slot, head] = torch.randperm(TOPK)
    rows = {name: as_stored(torch.randn(slots, kv_heads, TOPK, dim), case["k_store"]) for name in RESIDENTS[2:]}
    return case | {"resident": resident, "places": places} | rows


def fetch_rows(case: Tensors, step: FetchRows | QueryAttention, slot: int, ring: Tensor, scores: Tensor) -> None:
    """Update a slot's resident set in place as the reference does, in f64."""
    mass = query.masses(case["query"][slot], ring, scores, scoring_of(step, case.get("sinks")), torch.float64)
    query.update_residents(mass, SINK, step.fetch, [case[name][slot] for name in (*RESIDENTS, "k_store", "v_store")])


@pytest.mark.parametrize(
    ("heads", "dtype", "features", "row_format"),
    [(10, BF16, HOST, None), (6, F32, AVX2, None), (6, F32, HOST, INT8), (6, F32, HOST, INT4)],
)
@pytest.mark.parametrize("fetch", [1, 4, TOPK])
def test_resident_rows_give_way_to_few_better_ones(
    fetch: int, heads: int, dtype: torch.dtype, features: Features, row_format: RowFormat | None
) -> None:
    names = ("query", "k_cache", "k_store", "v_store", "position", "active")
    given = inputs(POSITIONS, heads, 2, 64, 2, dtype, 720, row_format)
    case = with_residents({name: given[name] for name in names})
    case["scores"] = 3 * torch.randn(len(POSITIONS), heads, 720)
    step, want = replace(FETCH, fetch=fetch), {name: tensor.clone() for name, tensor in case.items()}
    got = run_step(step, query_attention.lower_fetch_rows, case, {}, features, [*RESIDENTS])
    for slot, position in enumerate(POSITIONS):
        if case["active"][slot] and position + 1 > SR:
            scores = case["scores"][slot, :, SINK : position + 1 - RECENT]
            fetch_rows(want, step, slot, numbers(case["k_cache"][slot], case["query"].shape[3]), scores)
    for name in RESIDENTS:
        assert torch.equal(got[name], want[name]), name
    assert not torch.equal(want["resident"], case["resident"])


def test_a_place_that_does_not_exist_is_reported() -> None:
    names = ("query", "k_cache", "k_store", "v_store", "position", "active")
    given = inputs([700], 4, 2, 16, 2, F32, 720)
    case = with_residents({name: given[name] for name in names}) | {"scores": torch.randn(1, 4, 720)}
    case["places"][0, 1, 3] = TOPK
    compiled = CompiledStages(FETCH, query_attention.lower_fetch_rows, case, (), HOST, checked=True)
    compiled.run(case, {})
    assert compiled.reported


# -------------------------------------------------------------------------------------------------- all in one

WRITES = ["k_cache", "v_cache", "k_store", "v_store", "codes", "scales", "out"]


def reference(case: Tensors, step: QueryAttention, selected: Tensor) -> Tensors:
    """Return the tensors after the step with these selected rows, with attention in f64."""
    t = {name: like(tensor) for name, tensor in case.items()}
    for name, rows in (("k_store", "new_key"), ("v_store", "new_value")):
        for slot in t["active"].nonzero()[:, 0].tolist():
            t[name][slot, :, t["position"][slot]] = as_stored(t[rows][slot, :, 0], t[name])
    for slot in t["active"].nonzero()[:, 0].tolist():
        for name, rows in quantized_keys_of(t["new_key"], step.bits).items():
            t[name][slot, :, t["position"][slot]] = rows[slot, :, 0]
    chosen_rows = SegmentRows(t["k_store"], t["v_store"], selected)
    if step.fetch:
        for slot, ring, scores in scored_slots(case, step):
            fetch_rows(t, step, slot, ring, scores)
        chosen_rows = SegmentRows(t["k_resident"], t["v_resident"], t["places"])
    position, active = t["position"], t["active"]
    row = torch.where(position < SINK, position, SINK + (position - SINK) % RECENT)
    ring_rows, far_rows = torch.arange(SR), torch.arange(chosen_rows.count)
    masks = [
        active[:, None] & (ring_rows <= position[:, None]),
        active[:, None] & (far_rows < position[:, None] + 1 - SR),
    ]
    attention.decode_attention(
        *(t[name] for name in ("query", "new_key", "new_value", step.key, step.value, "k_cache", "v_cache")),
        position, active, t["out"], t.get("sinks"), row=row, masks=masks, behind=[chosen_rows], scale=step.scale,
        softcap=step.softcap, wide=torch.float64,
    )  # fmt: skip
    return t


def chosen(case: Tensors, step: QueryAttention) -> Tensor:
    """[B, Hkv, topk]: by the reference's definition, in f64."""
    slots, kv_heads = case["k_cache"].shape[:2]
    selected = torch.full((slots, kv_heads, step.topk), -1)
    scoring = scoring_of(step, case.get("sinks"))
    for slot, ring, scores in scored_slots(case, step):
        picks = query.choose(case["query"][slot], ring, scores, step.topk, scoring, torch.float64)
        selected[slot, :, : picks.shape[1]] = picks + SINK
    return selected


def scored_slots(case: Tensors, step: QueryAttention) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Each slot that has candidates, its ring [Hkv, SR, D] with the new key, and the scores [H, n]."""
    for slot in case["active"].nonzero()[:, 0].tolist():
        position = int(case["position"][slot])
        if position + 1 <= SR:
            continue
        dim = case["query"].shape[3]
        ring = numbers(case["k_cache"][slot], dim).double()
        new = as_stored(case["new_key"][slot, :, 0], case["k_cache"])
        ring[:, SINK + (position - SINK) % RECENT] = numbers(new, dim).double()
        names = [name for name in (step.codes, step.scales) if name]
        rows = (case[name][slot, :, SINK : position + 1 - RECENT] for name in names)
        yield slot, ring, scored(step, case["query"][slot], *rows)


def check_fused(case: Tensors, step: QueryAttention, features: Features) -> Tensors:
    compiled = CompiledStages(step, query_attention.lower_query_attention, case, (), features)
    writes = [name for name in (*RESIDENTS, *WRITES) if name in case]
    got = check_pieces(compiled, case, {}, writes)
    assert not compiled.reported
    want = reference(case, step, chosen(case, step))
    for name in writes[:-1]:
        assert torch.equal(got[name].nan_to_num(7.0), want[name].nan_to_num(7.0)), name
    tolerance = 1e-5 if case["out"].dtype == F32 else 1e-2
    out, expected = got["out"].double(), want["out"].double()
    assert not out.isnan().any(), "a row that is not chosen was read"
    assert (out - expected).norm() <= tolerance * expected.norm()
    return got


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "bits", "dtype", "features", "row_format"),
    [
        (6, 2, 64, 2, F32, HOST, None),
        (6, 6, 40, 4, F32, HOST, None),  # one phase scores and chooses
        (10, 1, 128, 1, BF16, HOST, None),
        (6, 2, 16, 2, BF16, AVX2, None),
        (4, 2, 8, 4, F32, GENERIC, None),
        (6, 2, 64, 2, F32, HOST, INT8),
        (6, 6, 40, 4, BF16, HOST, INT8),
        (4, 2, 8, 1, F32, AVX2, INT8),
        (6, 2, 64, 2, F32, HOST, INT4),
        (6, 6, 40, 4, BF16, HOST, INT4),
        (4, 2, 8, 1, F32, AVX2, INT4),
        (6, 2, 64, 16, BF16, HOST, None),
        (6, 6, 40, 16, F32, HOST, None),
        (6, 2, 16, 16, F32, AVX2, INT8),
        (6, 2, 16, 16, F32, AVX2, INT4),
    ],
)
def test_the_fused_step_is_the_references(
    heads: int, kv_heads: int, dim: int, bits: int, dtype: torch.dtype, features: Features, row_format: RowFormat | None
) -> None:
    case = inputs(POSITIONS, heads, kv_heads, dim, bits, dtype, 720, row_format)
    check_fused(case, of_bits(FUSED, bits), features)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "bits", "dtype", "features", "row_format"),
    [
        *((6, 2, 64, 2, BF16, HOST, None), (6, 6, 40, 16, F32, HOST, None), (6, 2, 16, 2, F32, AVX2, None)),
        *((6, 2, 64, 2, BF16, HOST, INT8), (6, 6, 40, 16, F32, AVX2, INT4)),
    ],
)
def test_the_fused_step_attends_to_resident_rows(
    heads: int, kv_heads: int, dim: int, bits: int, dtype: torch.dtype, features: Features, row_format: RowFormat | None
) -> None:
    case = with_residents(inputs(POSITIONS, heads, kv_heads, dim, bits, dtype, 720, row_format))
    check_fused(case, replace(of_bits(FUSED, bits), **FETCHES), features)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "bits", "dtype", "features"),
    [(6, 2, 64, 2, F32, HOST), (10, 1, 64, 16, BF16, HOST), (6, 6, 40, 4, F32, HOST), (4, 2, 8, 1, F32, AVX2)],
)
@pytest.mark.parametrize("resident", [False, True])
def test_the_fused_step_caps_scores_and_counts_learned_sinks(
    heads: int, kv_heads: int, dim: int, bits: int, dtype: torch.dtype, features: Features, resident: bool
) -> None:
    """Caps apply to scores by quantized keys, to those of the ring, and to attention; each head has a learned sink,
    from small to large. Sinks change the selection if heads vote together, but not the order of one head's rows."""
    case = inputs(POSITIONS, heads, kv_heads, dim, bits, dtype, 720)
    step = replace(of_bits(FUSED, bits), softcap=1.5, sink_logits="sinks")
    if resident:
        case, step = with_residents(case), replace(step, **FETCHES)  # type: ignore[arg-type]
    plain = chosen(case, replace(step, softcap=None))
    case["sinks"] = torch.linspace(-2, 9, heads).to(dtype)
    assert torch.equal(plain, chosen(case, step)) == (heads == kv_heads)
    check_fused(case, step, features)


def test_where_all_rows_may_be_fetched_resident_rows_are_the_chosen_ones() -> None:
    case = inputs(POSITIONS, 6, 2, 64, 2, F32, 720)
    near = with_residents(case)
    near["resident"].fill_(-1)
    step = replace(FUSED, **{**FETCHES, "fetch": TOPK})  # type: ignore[arg-type]
    results: list[Tensors] = []
    for given, of_step in ((case, FUSED), (near, step)):
        results.append({name: tensor.clone() for name, tensor in given.items()})
        CompiledStages(of_step, query_attention.lower_query_attention, results[-1], (), HOST).run(results[-1], {})
    assert torch.equal(results[0]["out"], results[1]["out"])


def test_caches_behind_copies_get_the_new_row_only() -> None:
    case = inputs(POSITIONS, 6, 2, 64, 2, BF16, 720)
    case |= {"key": case["k_cache"].clone(), "value": case["v_cache"].clone()}
    case["k_cache"].fill_(9)
    case["v_cache"].fill_(9)
    step = replace(FUSED, key="key", value="value")
    compiled = CompiledStages(step, query_attention.lower_query_attention, case, (), HOST)
    got = check_pieces(compiled, case, {}, WRITES)
    plain = case | {"k_cache": case["key"], "v_cache": case["value"]}
    want = check_pieces(
        CompiledStages(FUSED, query_attention.lower_query_attention, plain, (), HOST), plain, {}, WRITES
    )
    assert torch.equal(got["out"], want["out"])
    changed = (got["k_cache"] != 9).any(-1).sum(-1)
    assert torch.equal(changed, case["active"].long()[:, None].expand(-1, 2))


def test_without_chosen_rows_there_are_sinks_and_ring() -> None:
    case = inputs([700, 3], 4, 2, 16, 2, F32, 720)
    check_fused(case, replace(FUSED, topk=0), HOST)


def test_a_slot_does_not_depend_on_its_number_nor_on_its_company_nor_on_rows_that_are_not_chosen() -> None:
    """The same slot alone, and as the third of three with other neighbours, and with every row that it did not choose
    poisoned in the store."""
    case = inputs([700, 40, 710], 6, 2, 64, 2, BF16, 720)
    case["active"][:] = True
    alone = {name: tensor[2:].clone() for name, tensor in case.items()}
    moved = {name: tensor[[2, 0, 1]].clone() for name, tensor in case.items()}
    selected = chosen(case, FUSED)[2]
    for head in range(2):
        others = torch.ones(720, dtype=torch.bool)
        others[selected[head]] = False
        for name in ("k_store", "v_store"):
            moved[name][0, head, others] = torch.nan
    three, one = (
        CompiledStages(FUSED, query_attention.lower_query_attention, tensors, (), HOST) for tensors in (case, alone)
    )
    results = [case, alone, moved]
    for compiled, tensors in zip((three, one, three), results, strict=True):
        compiled.run(tensors, {})
    for name in ("out", "codes", "scales", "k_cache", "v_cache"):
        assert torch.equal(results[0][name][2].nan_to_num(7.0), results[2][name][0].nan_to_num(7.0)), name
    # A program of one slot cuts its rows into more splits, so that sums have another order.
    assert torch.allclose(results[0]["out"][2].float(), results[1]["out"][0].float(), rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    ("kv_heads", "dim", "bits", "features"),
    [(2, 32, 2, HOST), (2, 20, 2, HOST), (6, 6, 4, HOST), (2, 8, 1, AVX2), (2, 20, 16, HOST)],
)
@pytest.mark.parametrize("resident", [False, True])
def test_code_stays_within_its_operands(
    resident: bool, kv_heads: int, dim: int, bits: int, features: Features
) -> None:
    """Every format of rows, with and without resident ones; not with every shape, whose scores know neither."""
    rows = POSITIONS[0] + 1  # no row behind the last one
    for row_format in (None, INT8, INT4) if dim == 32 else (INT8,) if resident else (None, INT4):
        case, step = inputs(POSITIONS[::-1], 6, kv_heads, dim, bits, F32, rows, row_format), of_bits(FUSED, bits)
        if resident:
            case, step = with_residents(case), replace(step, **FETCHES)  # type: ignore[arg-type]
        CompiledStages(step, query_attention.lower_query_attention, case, (), features, checked=True).run(case, {})


@pytest.mark.parametrize("position", [-1, 720])
def test_a_position_that_the_store_does_not_have_is_reported_and_nothing_is_written(position: int) -> None:
    case = inputs([700, 40, 700], 4, 2, 16, 2, F32, 720)
    case["position"][2] = position
    before = {name: like(tensor) for name, tensor in case.items()}
    compiled = CompiledStages(FUSED, query_attention.lower_query_attention, case, (), HOST)
    compiled.run(case, {})
    assert compiled.reported
    for name in ("k_store", "v_store", "codes", "scales"):
        assert torch.equal(case[name][2].nan_to_num(7.0), before[name][2].nan_to_num(7.0)), name
