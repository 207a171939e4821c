"""Sampling: greedy, restrictions, reproducibility, and the distribution itself."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from sscc.ir.errors import InputError, UsageError
from sscc.runtime.sampling import Sampler, Sampling
from sscc.runtime.tensor_files import Array

LOGITS = np.log([0.1, 0.4, 0.05, 0.25, 0.2])


def draws(sampling: Sampling, count: int = 400, logits: Array = LOGITS) -> list[int]:
    sampler = Sampler(sampling)
    return [sampler.pick(logits) for _ in range(count)]


def test_greedy_takes_the_first_of_the_largest() -> None:
    assert draws(Sampling(), 1, np.array([0.0, 2.0, 2.0])) == [1]
    assert draws(Sampling(), 1, np.array([0.0, 2.0, 3.0], ml_dtypes.bfloat16)) == [2]


def test_equal_seeds_give_equal_tokens() -> None:
    assert draws(Sampling(1.0, seed=3)) == draws(Sampling(1.0, seed=3))
    assert draws(Sampling(1.0, seed=3)) != draws(Sampling(1.0, seed=4))


def test_frequencies_follow_the_probabilities() -> None:
    shares = np.bincount(draws(Sampling(1.0), 4000), minlength=5) / 4000
    np.testing.assert_allclose(shares, np.exp(LOGITS), atol=0.03)


def test_top_k_and_top_p_keep_the_most_likely() -> None:
    assert set(draws(Sampling(1.0, top_k=2))) == {1, 3}
    assert set(draws(Sampling(1.0, top_p=0.6))) == {1, 3}
    assert set(draws(Sampling(1.0, top_p=0.7))) == {1, 3, 4}
    assert set(draws(Sampling(1.0, top_p=1e-9))) == {1}
    assert set(draws(Sampling(5.0, top_k=99))) == {0, 1, 2, 3, 4}


def test_a_tiny_temperature_is_greedy_and_finite() -> None:
    for temperature in (1e-30, 5e-324):
        assert set(draws(Sampling(temperature))) == {1}
        assert set(draws(Sampling(temperature, top_k=3, top_p=0.5))) == {1}


def test_of_equal_logits_the_first_are_kept() -> None:
    equal = np.ones(50)
    assert set(draws(Sampling(1.0, top_k=3), logits=equal)) == {0, 1, 2}
    assert set(draws(Sampling(1.0, top_p=0.06), logits=equal)) == {0, 1, 2}


def test_restrictions_keep_what_a_full_sort_would() -> None:
    logits = np.random.default_rng(0).standard_normal(1000) * 3
    order = np.argsort(-logits)
    probabilities = np.exp(logits[order]) / np.exp(logits).sum()
    for top_p in (0.1, 0.5, 0.9):
        count = int(np.searchsorted(np.cumsum(probabilities), top_p)) + 1
        found = set(draws(Sampling(1.0, top_p=top_p), 3000, logits))
        assert found <= set(order[:count].tolist())
        assert set(order[: count // 4].tolist()) <= found


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0), Sampling(1.0, top_k=2)])
def test_logits_that_are_not_finite_are_refused(value: float, sampling: Sampling) -> None:
    with pytest.raises(InputError, match=f"the largest logit is {value}"):
        draws(sampling, 1, np.array([1.0, value, 2.0]))
    with pytest.raises(InputError, match="the largest logit is -inf"):
        draws(sampling, 1, np.full(4, -np.inf))


def test_tokens_of_no_probability_are_never_drawn() -> None:
    assert set(draws(Sampling(1.0), logits=np.array([-np.inf, 0.0, -np.inf, 0.0]))) == {1, 3}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": -1}, "top-k is -1"),
        ({"top_p": 0.0}, "top-p is 0.0"),
        ({"top_p": 1.5}, "top-p is 1.5"),
        ({"seed": -5}, "seed is -5"),
    ],
)
def test_bad_values_are_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Sampling(**values)  # type: ignore[arg-type]
