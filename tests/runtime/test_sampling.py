"""Sampling against its definition in f64 and against transformers; draws, penalties, logprobs, slots, refusals."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from sscc.ir.errors import ErrorKind, UsageError, plain
from sscc.ir.option import OptionRangeErrors
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.session.samplers import Allowed, BatchSampler, Sampler, SamplerErrors
from sscc.runtime.session.sampling import Sampling, SamplingErrors
from sscc.runtime.support import _native
from sscc.runtime.support.native_errors import NativeErrors
from tests.errors import raises, refusal

LOGITS = np.log([0.1, 0.4, 0.05, 0.25, 0.2])
SLACK = 2e-5  # of a sum: what may fall to either side of a boundary
VOCABULARIES = [1, 2, 3, 5, 15, 16, 17, 63, 64, 65, 127, 200, 1000, 4097]


def draws(sampling: Sampling, count: int = 400, logits: Array = LOGITS) -> list[int]:
    sampler = Sampler(sampling)
    return [sampler.pick(logits) for _ in range(count)]


def uniforms(seed: int, count: int) -> Array:
    return np.random.Generator(np.random.Philox(key=seed)).random(count)


def native(vocab_size: int, sampling: Sampling, prompt: Sequence[int] = ()) -> _native.BatchSampler:
    """One slot."""
    sampler = BatchSampler(1, vocab_size)
    sampler.start(0, sampling, prompt)
    return sampler._native


# ------------------------------------------------------------------------------------------------- the definition


def adjusted(logits: Array, sampling: Sampling, prompt: Sequence[int], picked: Sequence[int]) -> Array:
    """Logits f32 [V] after penalties and bias."""
    x = logits.astype(np.float64)
    with np.errstate(over="ignore"):
        for token in {*prompt, *picked}:
            positive = x[token] > 0
            x[token] = x[token] / sampling.repetition_penalty if positive else x[token] * sampling.repetition_penalty
    for token in set(picked):
        x[token] -= picked.count(token) * sampling.frequency_penalty + sampling.presence_penalty
    x = in_f32(x, logits).astype(np.float64)
    for token, addend in sampling.logit_bias:
        x[token] += addend
    return in_f32(x, logits)


def in_f32(x: Array, logits: Array) -> Array:
    limit = np.finfo(np.float32).max
    return np.where(np.isinf(logits), logits, np.clip(x, -limit, limit)).astype(np.float32)


def defined(x: Array, sampling: Sampling) -> tuple[Array, Array, Array]:
    """Computes from adjusted logits, in f64, each token's weight, whether it is kept, and if rounding decides that."""
    with np.errstate(over="ignore"):
        exponents = (x.astype(np.float64) - float(x.max())) / sampling.temperature
    weights = np.exp(exponents)
    weights[weights < 2.0**-124] = 0
    error = 1e-6 + 3e-7 * np.where(weights > 0, -exponents, 0)
    order = np.argsort(-x, kind="stable")
    kept, close = np.zeros(len(x), bool), np.zeros(len(x), bool)
    if sampling.top_k:
        order = order[: sampling.top_k]
    if sampling.top_p < 1:
        total = weights[order].sum()
        before = np.cumsum(weights[order]) - weights[order]
        before[0] = -1
        close[order] |= abs(before - sampling.top_p * total) <= SLACK * total
        order = order[(before < sampling.top_p * total) | close[order]]
        kept[order] = before[: len(order)] < sampling.top_p * total
    else:
        kept[order] = True
    close |= abs(weights - sampling.min_p) <= error * weights
    close |= (weights > 0) & (weights < 2.0**-123)
    kept &= (weights >= sampling.min_p) & (weights > 0)
    return weights, kept, close


def test_the_native_sampler_does_what_is_defined() -> None:
    random = np.random.default_rng(5)
    kept_something = cut_something = 0
    for case in range(4000):
        logits, sampling, prompt = random_case(random, int(random.choice(VOCABULARIES)))
        kept, total = check_case(logits, sampling, prompt, f"case {case}: {sampling}")
        kept_something += kept > 1
        cut_something += kept < total
    assert min(kept_something, cut_something) > 1000


@pytest.mark.parametrize("vocab_size", [32000, 50257, 128256])
def test_large_vocabularies_do_what_is_defined(vocab_size: int) -> None:
    random = np.random.default_rng(vocab_size)
    for case in range(1_280_000 // vocab_size):
        logits, sampling, prompt = random_case(random, vocab_size)
        check_case(logits, sampling, prompt, f"case {case}: {sampling}")


def random_case(random: np.random.Generator, vocab_size: int) -> tuple[Array, Sampling, list[int]]:
    kind = random.integers(8)
    logits = random.standard_normal(vocab_size) * random.choice([0.01, 1, 4, 30])
    if kind == 0:
        logits = np.round(logits)  # many ties, zeros of either sign among them
    elif kind == 1:
        logits[:] = random.choice([0.0, -0.0, 7.25])
    elif kind == 2:
        logits[random.random(vocab_size) < 0.7] = -np.inf
    elif kind == 3:
        logits = logits.astype(ml_dtypes.bfloat16).astype(np.float64)
    elif kind == 4:
        logits *= 1e30
    elif kind == 5:
        logits = np.sort(logits)[:: random.choice([-1, 1])]  # the sample that guides the cut is as bad as can be
    if not np.isfinite(logits.max()):
        logits[random.integers(vocab_size)] = 1.5
    few = lambda most: random.integers(vocab_size, size=random.integers(most)).tolist()  # noqa: E731
    biased = sorted(set(few(5))) if random.random() < 0.3 else []
    penalised = random.random() < 0.3
    sampling = Sampling(
        temperature=float(random.choice([0, 1e-300, 1e-3, 0.3, 0.7, 1, 1, 1, 1.7, 50, 1e6, 1e300])),
        top_k=int(random.choice([0, 0, 1, 2, 5, 40, vocab_size // 2, vocab_size - 1, vocab_size, 10**9])),
        top_p=float(random.choice([1, 1, 1e-9, 0.1, 0.5, 0.9, 0.95, 0.999, random.uniform(0.01, 1)])),
        seed=int(random.integers(2**63)),
        min_p=float(random.choice([0, 0, 0, 1e-30, 0.01, 0.1, 0.5, 1])),
        repetition_penalty=float(random.choice([1, 0.5, 1.1, 3, 1e-300, 1e300])) if penalised else 1.0,
        presence_penalty=float(random.uniform(-2, 2)) if penalised else 0.0,
        frequency_penalty=float(random.uniform(-2, 2)) if penalised else 0.0,
        logit_bias=tuple((token, float(random.choice([-100, 100, 1.25]))) for token in biased),
    )
    return logits.astype(np.float32), sampling, few(30)


def check_case(logits: Array, sampling: Sampling, prompt: list[int], name: str) -> tuple[int, int]:
    """A few picks against the definition. How many of how many tokens were kept at first."""
    sampler = native(len(logits), sampling, prompt)
    active, token = np.ones(1, bool), np.empty(1, np.int64)
    picked: list[int] = []
    counts = []
    for uniform in uniforms(sampling.seed, 3):
        x = adjusted(logits, sampling, prompt, picked)
        kept = sampler.kept(0, logits[None])
        assert sampler.pick(logits[None], active, token) is None
        check_pick(x, sampling, kept, int(token[0]), float(uniform), name)
        picked.append(int(token[0]))
        counts.append(len(kept))
    return counts[0], len(logits)


def check_pick(
    x: Array, sampling: Sampling, kept: list[tuple[int, float]], token: int, uniform: float, name: str
) -> None:
    if sampling.temperature == 0:
        assert token == np.argmax(x), name
        assert kept == [(token, 1.0)], name
        return
    expected, keep, close = defined(x, sampling)
    pairs = np.array(kept, [("token", np.int64), ("weight", np.float64)])
    tokens, weights = pairs["token"], pairs["weight"]
    picked = np.zeros(len(x), bool)
    picked[tokens] = True
    assert not ((picked != keep) & ~close).any(), name
    assert (np.diff(tokens) > 0).all(), name
    error = 1e-6 + 3e-7 * -np.log(weights)
    np.testing.assert_array_less(abs(weights - expected[tokens]), error * weights, name)
    sums = np.cumsum(weights)
    at = int(np.searchsorted(tokens, token))
    assert tokens[at] == token, name
    slack = 2e-6 * sums[-1]
    assert sums[at] - weights[at] - slack <= uniform * sums[-1] <= sums[at] + slack, name


# --------------------------------------------------------------------------------------------------- transformers


@pytest.mark.parametrize("vocab_size", [7, 300, 5000])
def test_transformers_keeps_the_same_tokens(vocab_size: int) -> None:
    random = np.random.default_rng(vocab_size)
    for case in range(150):
        logits = (random.standard_normal(vocab_size) * random.choice([0.5, 2, 8])).astype(np.float32)
        prompt = random.integers(vocab_size, size=9).tolist()
        sampling = Sampling(
            temperature=float(random.choice([0.2, 0.7, 1.0, 3.0])),
            top_k=int(random.choice([0, 1, 3, 50, vocab_size])),
            top_p=float(random.choice([1.0, 1e-6, 0.3, 0.9, 0.99])),
            min_p=float(random.choice([0.0, 0.001, 0.2, 1.0])),
            repetition_penalty=float(random.choice([1.0, 1.3, 0.7])),
        )
        scores = warpers(sampling)(torch.tensor([prompt]), torch.from_numpy(logits)[None])[0]
        theirs = torch.isfinite(scores).numpy()
        kept = native(vocab_size, sampling, prompt).kept(0, logits[None])
        ours = np.zeros(vocab_size, bool)
        ours[[token for token, _ in kept]] = True
        close = defined(adjusted(logits, sampling, prompt, []), sampling)[2]
        assert not ((ours != theirs) & ~close).any(), f"case {case}: {sampling}"
        probabilities = torch.softmax(scores.double(), 0).numpy()
        if (ours == theirs).all():
            weights = np.array([weight for _, weight in kept], np.float64)
            np.testing.assert_allclose(weights / weights.sum(), probabilities[ours], rtol=3e-5)


def warpers(sampling: Sampling) -> Any:
    """Return the logits processors of transformers' generate, in its order."""
    steps: list[Any] = [
        RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty),
        TemperatureLogitsWarper(sampling.temperature),
    ]
    if sampling.top_k:
        steps.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        steps.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p > 0:
        steps.append(MinPLogitsWarper(sampling.min_p))
    return LogitsProcessorList(steps)


# ---------------------------------------------------------------------------------------------------------- draws


def test_draws_are_numpys_philox() -> None:
    """If all logits are equal, the token is u * V rounded down."""
    for seed in (0, 1, 2**63 - 1, 0x0123456789ABCDEF):
        expected = (uniforms(seed, 50) * 4096).astype(int)
        assert draws(Sampling(1.0, seed=seed), 50, np.zeros(4096)) == expected.tolist()


def test_greedy_takes_the_first_of_the_largest() -> None:
    assert draws(Sampling(), 3, np.array([1.0, 7.0, 7.0, 2.0])) == [1, 1, 1]
    assert draws(Sampling(), 1, np.array([1, 7, 7], ml_dtypes.bfloat16)) == [1]
    assert draws(Sampling(), 1, np.array([-0.0, 0.0])) == draws(Sampling(), 1, np.array([0.0, -0.0])) == [0]


def test_a_seed_decides_the_draws() -> None:
    assert draws(Sampling(1.0, seed=5)) == draws(Sampling(1.0, seed=5))
    assert draws(Sampling(1.0, seed=5)) != draws(Sampling(1.0, seed=6))


def test_the_distribution_is_the_softmax() -> None:
    shares = np.bincount(draws(Sampling(1.0), 20000), minlength=5) / 20000
    np.testing.assert_allclose(shares, np.exp(LOGITS), atol=0.015)
    hot = np.exp(LOGITS) ** 0.5
    shares = np.bincount(draws(Sampling(2.0, seed=1), 20000), minlength=5) / 20000
    np.testing.assert_allclose(shares, hot / hot.sum(), atol=0.015)


def test_restrictions_keep_the_most_likely() -> None:
    assert set(draws(Sampling(1.0, top_k=2))) == {1, 3}
    assert set(draws(Sampling(1.0, top_p=0.6))) == {1, 3}
    assert set(draws(Sampling(1.0, top_p=0.7))) == {1, 3, 4}
    assert set(draws(Sampling(1.0, top_p=1e-9))) == {1}
    assert set(draws(Sampling(5.0, top_k=99))) == {0, 1, 2, 3, 4}
    assert set(draws(Sampling(1.0, min_p=0.4))) == {1, 3, 4}
    assert set(draws(Sampling(1.0, min_p=1.0))) == {1}


def test_restrictions_come_one_after_the_other() -> None:
    """top_p applies to the result of top_k (0.4 and 0.25: 0.62 of it), and min_p to the result of top_p."""
    assert set(draws(Sampling(1.0, top_k=2, top_p=0.61))) == {1}
    assert set(draws(Sampling(1.0, top_k=2, top_p=0.62))) == {1, 3}
    assert set(draws(Sampling(1.0, top_p=0.9, min_p=0.3))) == {1, 3, 4}
    assert set(draws(Sampling(1.0, top_p=0.8, min_p=0.6))) == {1, 3}


def test_the_order_is_that_of_logits_however_hot_it_is() -> None:
    assert set(draws(Sampling(1e30, top_k=2))) == {1, 3}
    assert set(draws(Sampling(1e300, top_p=0.4))) == {1, 3}


def test_a_tiny_temperature_is_greedy_and_finite() -> None:
    for temperature in (1e-30, 5e-324):
        assert set(draws(Sampling(temperature))) == {1}
        assert set(draws(Sampling(temperature, top_k=3, top_p=0.5))) == {1}


def test_of_equal_logits_the_first_are_kept() -> None:
    for equal in (np.ones(50), np.ones(3000)):
        assert set(draws(Sampling(1.0, top_k=3), logits=equal)) == {0, 1, 2}
        assert set(draws(Sampling(1.0, top_p=2.9 / len(equal)), logits=equal)) == {0, 1, 2}
    assert set(draws(Sampling(1.0, min_p=1.0), logits=np.array([0.0, 1.0, 0.5, 1.0]))) == {1, 3}


def test_tokens_of_no_probability_are_never_drawn() -> None:
    assert set(draws(Sampling(1.0), logits=np.array([-np.inf, 0.0, -np.inf, 0.0]))) == {1, 3}


# ------------------------------------------------------------------------------------------------------ penalties


def test_a_presence_penalty_counts_once_and_a_frequency_penalty_each_time() -> None:
    logits = np.array([3.0, 2.0, 0.0])
    assert draws(Sampling(presence_penalty=0.9), 4, logits) == [0, 0, 0, 0]
    assert draws(Sampling(presence_penalty=1.5), 4, logits) == [0, 1, 0, 0]
    assert draws(Sampling(frequency_penalty=0.9), 6, logits) == [0, 0, 1, 0, 1, 0]
    assert draws(Sampling(frequency_penalty=-0.5, presence_penalty=1.5), 6, logits) == [0, 0, 0, 0, 0, 0]


def test_presence_and_frequency_are_of_new_tokens_and_repetition_of_the_prompt_too() -> None:
    logits = np.array([3.0, 2.0, -1.0])
    assert Sampler(Sampling(presence_penalty=2.0, frequency_penalty=2.0), [0, 0]).pick(logits) == 0
    repeated = Sampler(Sampling(repetition_penalty=2.0), [0, 0])
    assert [repeated.pick(logits) for _ in range(3)] == [1, 0, 0]
    negative = np.array([-1.0, -1.5])
    assert Sampler(Sampling(repetition_penalty=2.0), [0]).pick(negative) == 1


def test_a_bias_bans_and_forces_tokens() -> None:
    assert draws(Sampling(logit_bias=((1, -100.0),)), 1) == [3]
    assert set(draws(Sampling(1.0, logit_bias=((1, -100.0), (3, -100.0))))) == {0, 2, 4}
    assert set(draws(Sampling(1.0, logit_bias=((2, 100.0),)))) == {2}


def test_many_tokens_are_remembered() -> None:
    """More than there is room for at first; each token is taken once, in falling order, then all of them again."""
    logits = -np.arange(3000) / 3000
    sampling = Sampling(frequency_penalty=1.5)
    assert draws(sampling, 6000, logits) == [*range(3000), *range(3000)]


def test_a_new_start_forgets() -> None:
    batch = BatchSampler(1, 5)
    sampling = Sampling(1.0, repetition_penalty=5.0, frequency_penalty=2.0)
    logits, active = LOGITS.astype(np.float32)[None], np.ones(1, bool)
    runs = []
    for _ in range(2):
        batch.start(0, sampling, [1, 2])
        runs.append([int(batch.pick(logits, active)[0]) for _ in range(40)])
    assert runs[0] == runs[1]


# ------------------------------------------------------------------------------------------------------- logprobs


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("vocab_size", [70, 4096])
def test_logprobs_are_those_of_the_model(dtype: Any, vocab_size: int) -> None:
    random = np.random.default_rng(1)
    logits = (random.standard_normal((3, vocab_size)) * 5).astype(dtype)
    batch = BatchSampler(3, vocab_size)
    batch.start(0, Sampling(), [], 0)
    batch.start(1, Sampling(0.7, top_k=5, seed=3, repetition_penalty=1.5, logit_bias=((7, 20.0),)), [4], 20)
    batch.start(2, Sampling(), [])
    assert batch.logprobs(0) is batch.logprobs(1) is None
    tokens = batch.pick(logits, np.ones(3, bool))
    expected = torch.log_softmax(torch.from_numpy(logits.astype(np.float64)), 1).numpy()
    for slot, count in ((0, 0), (1, 20)):
        told = batch.logprobs(slot)
        assert told is not None
        assert told.token == tokens[slot]
        assert told.logprob == pytest.approx(expected[slot, told.token], abs=2e-6)
        order = np.lexsort((np.arange(vocab_size), -logits[slot].astype(np.float64)))[:count]
        assert [token for token, _ in told.top] == order.tolist()
        np.testing.assert_allclose([logprob for _, logprob in told.top], expected[slot, order], atol=2e-6)
    assert batch.logprobs(2) is None
    batch.stop(1)
    assert batch.logprobs(1) is None


def test_logprobs_leave_out_what_cannot_be() -> None:
    batch = BatchSampler(1, 4)
    batch.start(0, Sampling(), (), 4)
    assert batch.logprobs(0) is None
    batch.pick(np.array([[0.0, -np.inf, 0.0, -np.inf]], np.float32), np.ones(1, bool))
    told = batch.logprobs(0)
    assert told is not None
    assert [token for token, _ in told.top] == [0, 2]
    assert told.logprob == pytest.approx(-np.log(2), abs=1e-12)


# ---------------------------------------------------------------------------------------------------------- slots


SAMPLINGS = [
    Sampling(),
    Sampling(1.0, seed=1),
    Sampling(0.8, 40, 0.9, seed=2, repetition_penalty=1.2),
    Sampling(1.2, 0, 0.95, seed=3, min_p=0.02),
    Sampling(1.0, 300, seed=4, frequency_penalty=0.7, logit_bias=((5, 3.0),)),
]


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("vocab_size", [320, 1001])
def test_slot_and_company_change_nothing(dtype: Any, vocab_size: int) -> None:
    """Five sequences alone, and in other slots, begun and ended at other times, with rows of rubbish between them."""
    steps = 12
    rows = (np.random.default_rng(0).standard_normal((len(SAMPLINGS), steps, vocab_size)) * 3).astype(dtype)
    alone = []
    for sequence, sampling in enumerate(SAMPLINGS):
        sampler = Sampler(sampling, [1, 2, 3])
        alone.append([sampler.pick(row) for row in rows[sequence]])
    batch = BatchSampler(3, vocab_size)
    waiting = list(range(len(SAMPLINGS)))
    running: dict[int, int] = {}
    picked: list[list[int]] = [[] for _ in SAMPLINGS]
    while waiting or running:
        for slot in (2, 0, 1):
            if slot not in running and waiting:
                running[slot] = waiting.pop(0)
                batch.start(slot, SAMPLINGS[running[slot]], [1, 2, 3])
                break
        logits = np.full((3, vocab_size), np.nan, dtype)
        active = np.zeros(3, bool)
        for slot, sequence in running.items():
            logits[slot], active[slot] = rows[sequence, len(picked[sequence])], True
        tokens = batch.pick(logits, active)
        assert (tokens[~active] == -1).all()
        for slot, sequence in list(running.items()):
            picked[sequence].append(int(tokens[slot]))
            if len(picked[sequence]) == steps:
                batch.stop(slot)
                del running[slot]
    assert picked == alone


# ------------------------------------------------------------------------------------------------- constraints


def allowed_rows(masks: Array, constrained: Sequence[bool]) -> Allowed:
    """The bits of masks [B, V] bool."""
    slots, vocab_size = masks.shape
    padded = np.zeros((slots, (vocab_size + 31) // 32 * 32), np.bool_)
    padded[:, :vocab_size] = masks
    bits = np.packbits(padded, axis=1, bitorder="little").view("<u4")
    return Allowed(np.ascontiguousarray(bits, np.uint32), np.array(constrained, np.bool_))


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 200, 4097])
def test_a_constraint_is_minus_infinity_for_what_it_forbids(dtype: Any, vocab_size: int) -> None:
    """Penalties and bias do not change this, and the logprobs stay those of the model."""
    random = np.random.default_rng(vocab_size)
    for _ in range(40):
        logits, sampling, prompt = random_case(random, vocab_size)
        logits = logits.astype(dtype)
        mask = random.random(vocab_size) < random.choice([0.01, 0.5, 0.99])
        mask[random.choice(np.flatnonzero(np.isfinite(logits)))] = True
        if not np.isfinite(logits.astype(np.float32).max()):
            continue  # an infinity that bf16 has made
        constrained, plain, free = (BatchSampler(2, vocab_size) for _ in range(3))
        for sampler in (constrained, plain, free):
            for slot in range(2):
                sampler.start(slot, sampling, prompt, logprobs=min(3, vocab_size))
        both, active = np.stack([logits, logits]), np.ones(2, np.bool_)
        forbidden = both.copy()
        forbidden[0, ~mask] = -np.inf
        allowed = allowed_rows(np.stack([mask, np.zeros(vocab_size, np.bool_)]), [True, False])
        free.pick(both, active)
        for _ in range(3):
            tokens = constrained.pick(both, active, allowed)
            assert tokens.tolist() == plain.pick(forbidden, active).tolist()
            assert mask[tokens[0]]
        told, model = constrained.logprobs(0), free.logprobs(0)
        assert told is not None
        assert model is not None
        assert told.top == model.top


def test_tokens_that_the_model_rules_out_are_picked_where_nothing_else_is_allowed() -> None:
    logits = np.full((1, 70), 1.0, np.float32)
    logits[0, 40:] = -np.inf
    mask = np.zeros((1, 70), np.bool_)
    mask[0, [50, 69]] = True
    sampler = BatchSampler(1, 70)
    for temperature in (0.0, 1.0):
        sampler.start(0, Sampling(temperature=temperature), ())
        assert sampler.pick(logits, np.ones(1, np.bool_), allowed_rows(mask, [True])).tolist() == [50]


def test_a_constraint_that_allows_nothing_is_refused_and_nothing_is_picked() -> None:
    sampler = BatchSampler(2, 70)
    for slot in range(2):
        sampler.start(slot, Sampling(temperature=1.0, seed=4), ())
    logits, active = np.random.default_rng(3).standard_normal((2, 70)).astype(np.float32), np.ones(2, np.bool_)
    nothing = Allowed.none(2, 70)
    nothing.constrained[1] = True
    with raises(NativeErrors.NOTHING_ALLOWED, slot=1):
        sampler.pick(logits, active, nothing)
    assert sampler.pick(logits, active)[0] == Sampler(Sampling(temperature=1.0, seed=4)).pick(logits[0])


def test_constraints_of_another_shape_are_refused() -> None:
    sampler = BatchSampler(2, 70)
    for slot in range(2):
        sampler.start(slot, Sampling(), ())
    logits, active = np.zeros((2, 70), np.float32), np.ones(2, np.bool_)
    for allowed in (Allowed.none(2, 64), Allowed.none(3, 70)):
        allowed.constrained[:] = True
        with raises(NativeErrors.SAMPLER_SHAPES, slots=2, vocabulary=70):
            sampler.pick(logits, active, allowed)


def test_logits_are_not_written_to() -> None:
    logits = np.zeros((2, 100), np.float32)
    logits.flags.writeable = False
    batch = BatchSampler(2, 100)
    for slot in range(2):
        batch.start(slot, replace(SAMPLINGS[4], top_p=0.5, logit_bias=((1, -1.0),)), [1], 3)
    batch.pick(logits, np.ones(2, bool))


# ------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0), Sampling(1.0, top_k=2)])
def test_logits_that_are_not_finite_are_refused(value: float, sampling: Sampling) -> None:
    with raises(SamplerErrors.LOGITS, value=value):
        draws(sampling, 1, np.array([1.0, value, 2.0]))
    with raises(SamplerErrors.LOGITS, value="-inf"):
        draws(sampling, 1, np.full(4, -np.inf))


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("vocab_size", [64, 100])
def test_a_damaged_row_is_named_and_nothing_is_picked(dtype: Any, vocab_size: int) -> None:
    batch = BatchSampler(3, vocab_size)
    for slot in range(3):
        batch.start(slot, Sampling(1.0, seed=9), [])
    good = np.zeros((3, vocab_size), dtype)
    for at in range(vocab_size):
        bad = good.copy()
        bad[2, at] = np.nan
        with raises(SamplerErrors.SLOT_LOGITS, slot=2, value="nan"):
            batch.pick(bad, np.ones(3, bool))
    tokens = batch.pick(bad, np.array([True, True, False]))
    assert tokens.tolist() == [int(uniforms(9, 1)[0] * vocab_size)] * 2 + [-1]


@pytest.mark.parametrize(
    ("values", "kind", "fields"),
    [
        ({"temperature": -1.0}, OptionRangeErrors.TOO_SMALL, {"value": -1.0}),
        ({"temperature": float("nan")}, OptionRangeErrors.OUT_OF_RANGE, {"value": "nan"}),
        ({"temperature": float("inf")}, OptionRangeErrors.OUT_OF_RANGE, {"value": "inf"}),
        ({"top_k": -1}, OptionRangeErrors.OUT_OF_RANGE, {"value": -1}),
        ({"top_p": 0.0}, OptionRangeErrors.NOT_ABOVE, {"value": 0.0}),
        ({"top_p": 1.5}, OptionRangeErrors.NOT_ABOVE, {"value": 1.5}),
        ({"seed": -5}, OptionRangeErrors.OUT_OF_RANGE, {"value": -5}),
        ({"seed": 2**63}, OptionRangeErrors.OUT_OF_RANGE, {"value": 9223372036854775808}),
        ({"min_p": -0.1}, OptionRangeErrors.OUT_OF_RANGE, {"value": -0.1}),
        ({"min_p": 1.1}, OptionRangeErrors.OUT_OF_RANGE, {"value": 1.1}),
        ({"repetition_penalty": 0.0}, OptionRangeErrors.NOT_ABOVE, {"value": 0.0}),
        ({"repetition_penalty": float("inf")}, OptionRangeErrors.NOT_ABOVE, {"value": "inf"}),
        ({"presence_penalty": 2.5}, OptionRangeErrors.OUT_OF_RANGE, {"value": 2.5}),
        ({"frequency_penalty": float("nan")}, OptionRangeErrors.OUT_OF_RANGE, {"value": "nan"}),
        ({"logit_bias": ((3, 101.0),)}, SamplingErrors.BIAS, {"token": 3, "value": 101.0}),
        ({"logit_bias": ((-3, 1.0),)}, SamplingErrors.BIAS_TOKEN, {"token": -3}),
        ({"logit_bias": ((3, 1.0), (3, 2.0))}, SamplingErrors.BIAS_TWICE, {}),
    ],
)
def test_bad_values_are_refused(values: dict[str, Any], kind: ErrorKind, fields: dict[str, Any]) -> None:
    with raises(kind, **fields):
        Sampling(**values)


@pytest.mark.parametrize(
    ("slot", "sampling", "prompt", "logprobs", "kind", "fields"),
    [
        (2, Sampling(), [], None, NativeErrors.SAMPLER_NO_SLOT, {"slot": 2, "last": 1}),
        (-1, Sampling(), [], None, NativeErrors.SAMPLER_NO_SLOT, {"slot": -1, "last": 1}),
        (0, Sampling(), [3, 5], None, NativeErrors.PROMPT_TOKEN, {"token": 5, "last": 4}),
        (0, Sampling(), [-1], None, NativeErrors.PROMPT_TOKEN, {"token": -1}),
        (0, Sampling(), [0.5], None, SamplerErrors.PROMPT, {"dtype": "float64"}),
        (0, Sampling(), [[1, 2]], None, SamplerErrors.PROMPT, {"shape": [1, 2]}),
        (0, Sampling(logit_bias=((5, 1.0),)), [], None, NativeErrors.BIAS_TOKEN, {"token": 5}),
        (0, Sampling(), [], -1, NativeErrors.LOGPROBS, {"logprobs": -1}),
        (0, Sampling(), [], 6, NativeErrors.LOGPROBS, {"logprobs": 6, "vocabulary": 5}),
    ],
)
def test_a_start_out_of_range_is_refused(
    slot: int, sampling: Sampling, prompt: Any, logprobs: int | None, kind: ErrorKind, fields: dict[str, Any]
) -> None:
    with raises(kind, **fields):
        BatchSampler(2, 5).start(slot, sampling, prompt, logprobs)


def test_other_arrays_are_refused() -> None:
    batch = BatchSampler(2, 8)
    batch.start(0, Sampling(), [])
    logits, active = np.zeros((2, 8), np.float32), np.array([True, False])
    for bad in (logits[0], logits[:, :7], logits.astype(np.float64), logits.view(np.int32), logits.T.copy().T):
        with raises(SamplerErrors.BATCH_LOGITS, wanted=[2, 8], dtype=bad.dtype, shape=bad.shape):
            batch.pick(bad, active)
    for bad in (active[:1], active.astype(np.int8), active[:, None], np.ones(4, bool)[::2]):
        with raises(SamplerErrors.ACTIVE_SLOTS):
            batch.pick(logits, bad)
    with raises(NativeErrors.SAMPLER_NOT_STARTED, slot=1):
        batch.pick(logits, np.ones(2, bool))
    batch.stop(0)
    with raises(NativeErrors.SAMPLER_NOT_STARTED, slot=0):
        batch.pick(logits, active)
    for call in (batch.stop, batch.logprobs):
        with raises(NativeErrors.SAMPLER_NO_SLOT, slot=2):
            call(2)
    with raises(NativeErrors.SAMPLER_SLOTS, slots=0):
        BatchSampler(0, 5)
    for slots, vocab_size in ((5, 0), (1, 2**31)):
        with raises(NativeErrors.SAMPLER_VOCABULARY, vocabulary=vocab_size):
            BatchSampler(slots, vocab_size)
    with raises(SamplerErrors.LOGITS_SHAPE, shape=[1, 5]):
        Sampler(Sampling()).pick(LOGITS[None])
    sampler = Sampler(Sampling())
    sampler.pick(LOGITS)
    with raises(SamplerErrors.BATCH_LOGITS, shape=[1, 4]):
        sampler.pick(LOGITS[:4])


def test_two_threads_at_once_are_refused_or_come_one_after_the_other() -> None:
    batch = BatchSampler(4, 100000)
    for slot in range(4):
        batch.start(slot, Sampling(1.0, 0, 0.9, seed=slot), [])
    logits = np.random.default_rng(0).standard_normal((4, 100000)).astype(np.float32)
    refused: list[UsageError] = []
    picked: list[int] = []

    def pick() -> None:
        for _ in range(20):
            try:
                picked.extend(batch.pick(logits, np.ones(4, bool)).tolist())
            except UsageError as error:
                refused.append(error)

    threads = [threading.Thread(target=pick) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(picked) // 4 + len(refused) == 60
    assert {error.kind for error in refused} <= {NativeErrors.SAMPLER_BUSY}
    again = BatchSampler(4, 100000)
    for slot in range(4):
        again.start(slot, Sampling(1.0, 0, 0.9, seed=slot), [])
    expected = [int(t) for _ in range(len(picked) // 4) for t in again.pick(logits, np.ones(4, bool))]
    assert sorted(picked) == sorted(expected)


@pytest.mark.parametrize("bf16", [True, False])
@pytest.mark.parametrize("spread", [0.0, 0.1, 4.0, 1e37])
def test_vectors_of_every_width_give_the_same_bits(bf16: bool, spread: float) -> None:
    logits = (np.random.default_rng(3).standard_normal((1, 5003)) * spread).astype(np.float32)
    logits[:, ::7] = -np.inf
    rows = (logits.view(np.uint32) >> 16).astype(np.uint16) if bf16 else logits
    options = {"temperature": 0.8, "top_k": 0, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.1, "seed": 5}
    found = []
    for width in (4, 8, 16):
        sampler = _native.BatchSampler(1, logits.shape[1], width=width)
        sampler.start(
            0, np.arange(9), **options, presence_penalty=0.0, frequency_penalty=0.0, logit_bias=[], logprobs=5
        )
        token = np.zeros(1, np.int64)
        assert sampler.pick(rows, np.ones(1, bool), token) is None
        found.append((token[0], sampler.logprobs(0), sampler.kept(0, rows)))
    assert found[0] == found[1] == found[2]


NOT_FINITE = (math.nan, math.inf, -math.inf)
BOUNDED: dict[str, tuple[float, ...]] = {
    "temperature": (*NOT_FINITE, -1e-9),
    "top_k": (*NOT_FINITE, -1, 2**63),
    "top_p": (*NOT_FINITE, 0.0, -0.1, 1.0000001),
    "seed": (*NOT_FINITE, -1, 2**63, 2**200),
    "min_p": (*NOT_FINITE, -0.1, 1.1),
    "repetition_penalty": (*NOT_FINITE, 0.0, -1.0),
    "presence_penalty": (*NOT_FINITE, -2.1, 2.1),
    "frequency_penalty": (*NOT_FINITE, -2.1, 2.1),
}


@pytest.mark.parametrize(("name", "value"), [(name, each) for name, values in BOUNDED.items() for each in values])
def test_every_number_is_bounded_at_the_door(name: str, value: float) -> None:
    error = refusal(Sampling, **{name: value})
    assert error is not None
    assert isinstance(error.kind, OptionRangeErrors)
    assert (error.fields["option"], error.fields["value"]) == (name, plain(value))


def test_every_field_of_sampling_is_bounded() -> None:
    assert {field.name for field in fields(Sampling)} == {*BOUNDED, "logit_bias"}


@pytest.mark.parametrize("value", [*NOT_FINITE, 100.1, -101])
def test_a_logit_bias_is_bounded(value: float) -> None:
    with raises(SamplingErrors.BIAS, token=3, value=value):
        Sampling(logit_bias=((2, 100.0), (3, value)))


@pytest.mark.parametrize("token", [-1, 2**63, 2**200])
def test_a_token_with_a_bias_is_bounded(token: int) -> None:
    with raises(SamplingErrors.BIAS_TOKEN, token=token):
        Sampling(logit_bias=((token, 1.0),))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_refused_with_their_slot(value: float) -> None:
    logits = np.zeros((3, 5), np.float32)
    logits[1, 2] = value
    batch = BatchSampler(3, 5)
    for slot in range(3):
        batch.start(slot, Sampling(temperature=0.5 * slot), [])
    with raises(SamplerErrors.SLOT_LOGITS, slot=1, value=value):
        batch.pick(logits, np.ones(3, bool))
    with raises(SamplerErrors.LOGITS, value=value):
        Sampler(Sampling()).pick(logits[1])
    assert batch.pick(logits, np.array([True, False, True]))[1] == -1


@pytest.mark.parametrize("token", [5, -1, 2**62])
def test_tokens_beyond_the_vocabulary_are_named_by_the_sampler(token: int) -> None:
    batch = BatchSampler(1, 5)
    with raises(NativeErrors.PROMPT_TOKEN, token=token, position=1, last=4):
        batch.start(0, Sampling(), [4, token])
    if token > 0:
        with raises(NativeErrors.BIAS_TOKEN, token=token, last=4):
            batch.start(0, Sampling(logit_bias=((token, 1.0),)), [])
