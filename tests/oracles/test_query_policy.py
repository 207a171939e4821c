"""Rows that every step's query chooses (docs/algorithm.md): compiled programs against transformers, against SnapStream,
and against the definition, which shares no code with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from sscc.compiler.frontend import algorithm, query_selection
from sscc.compiler.frontend.checkpoint_tensors import to_arrays
from sscc.compiler.frontend.eager import EagerQuerySelection
from sscc.compiler.interpret import kv_cache as evaluator
from sscc.compiler.interpret.module import module_session, stored_layout
from sscc.compiler.interpret.types import Types
from sscc.ir.context import mlir
from sscc.ir.geometry import Geometry
from sscc.ir.operations import CachedAttention, ChooseRows, QueryAttention
from sscc.ir.schedule import Body, Param
from sscc.runtime.artifact.tensor_files import reading, stack_tensors
from sscc.runtime.backends.reference.arrays import to_tensors
from sscc.runtime.backends.reference.encoded_rows import encode
from tests.compiler.interpret.models import weights
from tests.families import random_model, random_tokens
from tests.oracles.lowering import CONTEXT, FAMILY, compiled, lowered
from tests.runtime.programs import DTYPES, run_kernel
from tests.runtime.schedules import one_stage
from tests.runtime.test_operations import same
from tests.torch_session import TorchSession

SNAPSTREAM = Geometry(
    sink=2, recent=5, topk=6, obs=4, pool=3, pool_mode="avg", max_context=CONTEXT, rows="indexed"
)
QUERY = replace(SNAPSTREAM, policy="query", key_bits=2)
INT8, INT4 = replace(QUERY, dtype="int8"), replace(QUERY, dtype="int4")
KINDS = [(1, "model"), (2, "model"), (4, "model"), (16, "model"), (2, "int8"), (16, "int8"), (2, "int4")]
"""Bits of a quantized key's number, and what rows are stored as."""
LOOPED = (2, "int8")
"""Of these -O1 is compiled too: what -O2 loops over it has in common with -O1, whatever the bits."""
EVERYTHING = replace(QUERY, topk=CONTEXT - QUERY.sink_recent)
PROMPT, TOKENS = random_tokens(25), random_tokens(20, 1)
CLOSE = {"rtol": 1e-3, "atol": 1e-4}


def fed(session: TorchSession, prompt: Sequence[int] = PROMPT, tokens: Sequence[int] = TOKENS, slot: int = 0) -> Tensor:
    """The logits of a prompt and of each token after it."""
    session.reset()
    first = session.prefill(slot, prompt).clone()
    return torch.stack([first, *(session.decode({slot: token})[slot].clone() for token in tokens)])


@cache
def eager(g: Geometry) -> Tensor:
    """The same by the definition."""
    model = random_model(FAMILY)
    model.set_attn_implementation("sscc")
    run = EagerQuerySelection(model, g, g.key_bits, g.fetch)
    return torch.stack([run.prefill(PROMPT), *(run.decode(token) for token in TOKENS)])


# --------------------------------------------------------------------------------------------------- whole programs


@pytest.mark.parametrize("opt_level", [0, 2])
def test_where_every_candidate_is_chosen_it_is_the_full_attention_of_transformers(opt_level: int) -> None:
    ids = torch.tensor([PROMPT + TOKENS])
    expected = random_model(FAMILY)(ids, use_cache=False).logits[0, len(PROMPT) - 1 :]
    torch.testing.assert_close(fed(compiled(EVERYTHING, opt_level)[1]), expected, **CLOSE)
    assert not torch.allclose(fed(compiled(QUERY, opt_level)[1])[1:], expected[1:], atol=1e-2), "fewer rows do matter"


@pytest.mark.parametrize("opt_level", [0, 1, 2])
def test_within_sinks_and_ring_it_is_snapstream_bit_for_bit(opt_level: int) -> None:
    first, second = (
        fed(compiled(g, opt_level)[1], PROMPT[:3], TOKENS[:4]) for g in (QUERY, SNAPSTREAM)
    )
    assert torch.equal(first, second)
    longer = [fed(compiled(g, opt_level)[1], PROMPT[:3], TOKENS[:9]) for g in (QUERY, SNAPSTREAM)]
    assert not torch.equal(*longer)


@pytest.mark.parametrize(("bits", "dtype"), KINDS)
def test_every_level_computes_the_definition(bits: int, dtype: str) -> None:
    check_levels(replace(QUERY, key_bits=bits, dtype=dtype), looped=(bits, dtype) == LOOPED)


def check_levels(g: Geometry, *, looped: bool) -> None:
    """Check that every level computes the definition; with `looped`, also that -O1 and -O2 have the same bits."""
    by_level = {opt_level: fed(compiled(g, opt_level)[1]) for opt_level in (0, 2, *([1] if looped else []))}
    assert torch.equal(by_level.get(1, by_level[2]), by_level[2])
    for logits in by_level.values():
        torch.testing.assert_close(logits, eager(g), **CLOSE)


@pytest.mark.parametrize(("fetch", "bits", "dtype"), [(1, 2, "model"), (2, 16, "model"), (2, 2, "int8")])
def test_with_few_rows_fetched_every_level_computes_the_definition(fetch: int, bits: int, dtype: str) -> None:
    g = replace(QUERY, fetch=fetch, key_bits=bits, dtype=dtype)
    assert not torch.allclose(eager(g)[1:], eager(replace(g, fetch=None))[1:], atol=1e-2), "the limit does matter"
    check_levels(g, looped=(bits, dtype) == LOOPED)


@pytest.mark.parametrize("opt_level", [0, 2])
def test_where_all_chosen_rows_may_be_fetched_there_is_no_limit(opt_level: int) -> None:
    free = replace(QUERY, fetch=QUERY.topk)
    assert torch.equal(fed(compiled(free, opt_level)[1]), fed(compiled(QUERY, opt_level)[1]))


def test_a_slot_begins_with_resident_rows_of_its_own_prompt() -> None:
    """Resident rows do not depend on the slot, its earlier prompt or other slots; a copied slot has the same ones."""
    _, session = compiled(replace(QUERY, fetch=1))
    alone = fed(session)
    fed(session, random_tokens(40, 7), random_tokens(6, 8), slot=2)
    first = [session.prefill(2, PROMPT).clone()]
    snapshot = session.snapshot(2)
    session.prefill(0, random_tokens(9))
    first += [session.decode({2: token, 0: number})[2].clone() for number, token in enumerate(TOKENS)]
    assert torch.equal(torch.stack(first), alone)
    session.restore(0, snapshot)
    assert torch.equal(torch.stack([session.decode({0: token})[0].clone() for token in TOKENS]), alone[1:])


def test_other_bits_choose_other_rows() -> None:
    one, two, four = (eager(replace(QUERY, key_bits=bits)) for bits in (1, 2, 4))
    assert not torch.allclose(one[1:], two[1:], atol=1e-3)
    assert not torch.allclose(two[1:], four[1:], atol=1e-3)


def test_encoded_rows_differ_from_the_first_logits_on() -> None:
    """Prefill attends to encoded rows. The differences are those of rounding: no row is lost."""
    plain, *encoded = (eager(g)[0] for g in (QUERY, INT8, INT4))
    apart = [float((logits - plain).norm() / plain.norm()) for logits in encoded]
    assert 1e-4 < apart[0] < 0.05 < 5 * apart[0] < apart[1] < 0.5


def test_with_encoded_rows_full_attention_is_over_what_prefill_would_attend_to() -> None:
    """If every candidate is selected, the logits of each step are those of a prefill of all tokens so far."""
    _, session = compiled(replace(EVERYTHING, dtype="int8"))
    stepped = fed(session, PROMPT, TOKENS[:9])
    for fed_tokens in (3, 9):
        session.reset()
        torch.testing.assert_close(session.prefill(1, PROMPT + TOKENS[:fed_tokens]), stepped[fed_tokens], **CLOSE)


def test_without_sinks_and_in_bf16() -> None:
    g = replace(QUERY, sink=0, recent=3, topk=9)
    torch.testing.assert_close(fed(compiled(g)[1]), eager(g), **CLOSE)
    assert torch.equal(fed(compiled(QUERY, 1, "bf16")[1]), fed(compiled(QUERY, 2, "bf16")[1]))


@pytest.mark.parametrize("g", [QUERY, INT8, INT4, replace(INT8, fetch=2)], ids=["model", "int8", "int4", "int8 fetch"])
def test_the_ir_itself_computes_the_same(g: Geometry) -> None:
    """Level graph computes the same by the definition of every operation."""
    with mlir():
        module = lowered(g, "f32", "graph", 0)
        layout = {**stored_layout(module, "weight"), **stored_layout(module, "constant")}
        tensors = stack_tensors(layout, reading(to_arrays(weights(FAMILY)), "the model"))
        session = TorchSession(module_session(module, to_tensors(tensors)))
    torch.testing.assert_close(fed(session, tokens=TOKENS[:8]), eager(g)[:9], **CLOSE)


@pytest.mark.parametrize(("g", "opt_level"), [(QUERY, 0), (QUERY, 2), (INT8, 2)], ids=["O0", "O2", "int8"])
def test_a_sequence_does_not_notice_its_slot_or_the_others(g: Geometry, opt_level: int) -> None:
    _, session = compiled(g, opt_level)
    alone = fed(session)
    assert torch.equal(alone, fed(session, slot=2))
    session.reset()
    session.prefill(0, random_tokens(5))
    session.start_prefill(1, PROMPT)
    step = 0
    while not session.step_prefill(3):  # another slot goes on meanwhile
        session.decode({0: step})
        step += 1
    mixed = [session.prefill_logits.clone()]
    session.prefill(2, random_tokens(40))
    for number, token in enumerate(TOKENS):
        others = {0: number, 2: number} if number < CONTEXT - 40 else {0: number}
        mixed.append(session.decode({1: token, **others})[1].clone())
    assert torch.equal(alone, torch.stack(mixed))


@pytest.mark.parametrize("g", [QUERY, INT8], ids=["model", "int8"])
def test_another_chunk_size_changes_nothing_but_rounding(g: Geometry) -> None:
    torch.testing.assert_close(fed(compiled(g)[1]), fed(compiled(g, chunk=12)[1]), rtol=1e-3, atol=1e-5)


def test_a_copied_slot_goes_on_as_the_first() -> None:
    _, session = compiled(QUERY)
    expected = fed(session)
    session.reset()
    session.prefill(0, PROMPT)
    snapshot = session.snapshot(0)
    session.prefill(2, random_tokens(40))
    session.restore(2, snapshot)
    got = [session.decode({2: token})[2].clone() for token in TOKENS]
    assert torch.equal(torch.stack(got), expected[1:])


@pytest.mark.parametrize("g", [QUERY, INT8, INT4], ids=["model", "int8", "int4"])
def test_a_step_writes_one_row_of_each_state(g: Geometry) -> None:
    _, session = compiled(g)
    session.reset()
    session.prefill(1, PROMPT)
    names = ("k_store", "v_store", "quantized_keys", "quantized_key_scales", "k_cache", "v_cache")
    before = {name: session.interpreter.tensor(name).clone() for name in names}
    session.decode({1: 7})
    for name in names:
        changed = (~same(session.interpreter.tensor(name), before[name])).any(-1).nonzero()
        ring_row = g.sink + (len(PROMPT) - g.sink) % g.recent
        row = ring_row if name.endswith("cache") else len(PROMPT)
        assert {(slot, place) for _, slot, _, place in changed.tolist()} == {(1, row)}, name


def test_a_kernel_of_a_layer_has_one_operation_for_all_of_it() -> None:
    def kinds(opt_level: int) -> set[type]:
        return {type(step) for body in compiled(QUERY, opt_level)[0].bodies for step in body.steps}

    assert {CachedAttention, ChooseRows} <= kinds(0)
    assert QueryAttention not in kinds(0)
    for opt_level in (1, 2):
        assert QueryAttention in kinds(opt_level)
        assert not {CachedAttention, ChooseRows} & kinds(opt_level)


def test_with_few_rows_fetched_only_the_end_of_a_prompt_is_not_fused() -> None:
    program, _ = compiled(replace(QUERY, fetch=2))
    names = [kernel.name.partition(".")[0] for kernel in program.kernels]
    assert {"prefill", "quantized_key_scores", "choose", "gather"} <= set(names)
    assert not {"matmul", "chunk_attention", "causal_attention"} & set(names), "the chunks are one kernel"
    assert not [tensor.name for tensor in program.tensors if tensor.name == "log_sum_exp"], "nothing would read it"


# ---------------------------------------------------------------------------------------------------- one operation


class Trial:
    """A step of three slots whose contents are random: fewer candidates than are chosen, more, and none at all."""

    def __init__(self, bits: int, dim: int = 8, seed: int = 0, dtype: str = "model") -> None:
        generator = torch.Generator().manual_seed(seed)

        def random(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator)

        self.g, self.scale, rows = replace(QUERY, key_bits=bits, dtype=dtype), 0.35, CONTEXT
        self.live = torch.tensor([11, 40, 6])
        self.query, self.keys, self.values = random(3, 4, dim), random(3, 2, rows, dim) * 2, random(3, 2, rows, 6)
        self.quantized_keys = query_selection.quantize_keys(self.keys, bits)
        self.new_rows = [x.gather(2, self._last(x)) for x in (self.keys, self.values)]
        self.keys, self.values = (algorithm.stored(x, self.g) for x in (self.keys, self.values))
        weights = query_selection.masses(self.query, self.keys, self.quantized_keys, self.live, self.scale, self.g)
        self.chosen = query_selection.choose(weights, self.g)
        levels, scale = self.quantized_keys.levels, self.quantized_keys.scale
        exact = bits == 16
        self.codes = levels.clone() if exact else query_selection.pack(levels, bits).view(torch.int8)
        self.scales = {} if exact else {"s": scale.to(torch.bfloat16)[..., None]}

    def _last(self, rows: Tensor) -> Tensor:
        """The index of each slot's newest row."""
        return (self.live - 1)[:, None, None, None].expand(-1, rows.shape[1], 1, rows.shape[3])

    def held(self, rows: Tensor) -> Tensor:
        """Return rows in the form in which a cache stores them: encoded, if the cache is."""
        return encode(rows, self.g.row_format) if self.g.encoded else rows

    def ring(self, rows: Tensor) -> Tensor:
        """Sinks and ring of each slot, of a store [B, Hkv, T, D]."""
        pairs = zip(rows, self.live.tolist(), strict=True)
        near = [(slot[:, :n], query_selection.near_positions(n, rows.shape[1], self.g)) for slot, n in pairs]
        return torch.stack([algorithm.assemble(slot, positions) for slot, positions in near])


@pytest.mark.parametrize("dim", [8, 24])
@pytest.mark.parametrize("bits", [1, 2, 4, 16])
def test_the_evaluator_chooses_the_rows_of_the_definition(bits: int, dim: int) -> None:
    for seed in range(20):
        t = Trial(bits, dim, seed)
        position, active = t.live - 1, torch.ones(3, dtype=torch.bool)
        query, scoring = t.query[:, :, None], evaluator.Scoring(t.scale)
        if bits == 16:
            scores = evaluator.key_scores(query, t.codes, position, active, scoring, t.g, Types())
        else:
            scores = evaluator.quantized_key_scores(query, t.codes, t.scales["s"], position, active, scoring, t.g)
        chosen = evaluator.choose(query, t.ring(t.keys), scores, position, active, scoring, t.g, Types())
        assert torch.equal(chosen, t.chosen)
    assert (t.chosen[0] >= 0).sum(1).tolist() == [4, 4]
    assert (t.chosen[2] < 0).all()


@pytest.mark.parametrize(("bits", "dtype"), KINDS)
def test_rows_that_are_not_chosen_may_be_anything(bits: int, dtype: str) -> None:
    """Rows that are not selected hold NaN: if attention read one, its result would be NaN."""
    t, g = Trial(bits, dtype=dtype), QUERY
    new_key, new_value = t.new_rows
    expected = query_selection.query_attention(t.query, t.keys, t.values, t.chosen, t.live, t.scale, g)
    keep = torch.zeros(t.keys.shape[:3], dtype=torch.bool)
    for slot, head in [(slot, head) for slot in range(3) for head in range(2)]:
        picks = t.chosen[slot, head]
        keep[slot, head, picks[picks >= 0]] = True
    stores = {
        name: t.held(torch.where(keep[..., None], x, torch.nan)) for name, x in (("ks", t.keys), ("vs", t.values))
    }
    step = QueryAttention(
        "q", "nk", "nv", "kc", "vc", "kc", "vc", "ks", "vs", "c", "".join(t.scales), "p", "a", "o", t.scale, g.sink,
        g.recent, g.topk, bits,
    )  # fmt: skip
    reads = {"q": t.query[:, :, None], "nk": new_key, "nv": new_value, "p": t.live - 1,
             "a": torch.ones(3, dtype=torch.bool)}  # fmt: skip
    quantized_keys = {"c": t.codes.clone(), **{name: scales.clone() for name, scales in t.scales.items()}}
    for slot, n in enumerate(t.live.tolist()):  # no quantized key behind the last candidate is read
        for rows in quantized_keys.values():
            rows[slot, :, max(n - g.recent, 0) :] = torch.nan if rows.is_floating_point() else 113
    rings = {"kc": t.held(t.ring(t.keys)), "vc": t.held(t.ring(t.values))}
    writes = {**rings, **stores, **quantized_keys,
              "o": torch.zeros(3, 4, 1, 6)}  # fmt: skip
    params = [Param(name, tuple(x.shape), DTYPES[x.dtype], "read") for name, x in reads.items()]  # type: ignore[arg-type]
    params += [Param(name, tuple(x.shape), DTYPES[x.dtype], "update") for name, x in writes.items()]  # type: ignore[arg-type]
    body = Body("k", tuple(params), (), (), (), (step,))
    after = run_kernel(one_stage(body), (body,), reads, writes)
    torch.testing.assert_close(after["o"][:, :, 0], expected, rtol=1e-4, atol=1e-5)
    after |= {name: evaluator.decoded(after[name], t.g.row_format) for name in stores if t.g.encoded}
    for name, x in (("ks", t.keys), ("vs", t.values), ("c", t.codes), *t.scales.items()):
        for slot, n in enumerate(t.live.tolist()):
            assert torch.equal(after[name][slot, :, n - 1], x[slot, :, n - 1]), "the step's own row is written"
