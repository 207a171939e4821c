"""Sampling: greedy, restrictions, reproducibility, and the distribution itself."""

from __future__ import annotations

import pytest
import torch

from sscc.ir.errors import UsageError
from sscc.runtime.sampling import Sampler, Sampling

LOGITS = torch.log(torch.tensor([0.1, 0.4, 0.05, 0.25, 0.2]))


def draws(sampling: Sampling, count: int = 400, logits: torch.Tensor = LOGITS) -> list[int]:
    sampler = Sampler(sampling)
    return [sampler.pick(logits) for _ in range(count)]


def test_greedy_takes_the_first_of_the_largest() -> None:
    assert draws(Sampling(), 1, torch.tensor([0.0, 2.0, 2.0])) == [1]
    assert draws(Sampling(), 1, torch.tensor([0.0, 2.0, 3.0]).bfloat16()) == [2]


def test_equal_seeds_give_equal_tokens() -> None:
    assert draws(Sampling(1.0, seed=3)) == draws(Sampling(1.0, seed=3))
    assert draws(Sampling(1.0, seed=3)) != draws(Sampling(1.0, seed=4))


def test_frequencies_follow_the_probabilities() -> None:
    counts = torch.bincount(torch.tensor(draws(Sampling(1.0), 4000)), minlength=5) / 4000
    torch.testing.assert_close(counts, LOGITS.exp(), atol=0.03, rtol=0)


def test_top_k_and_top_p_keep_the_most_likely() -> None:
    assert set(draws(Sampling(1.0, top_k=2))) == {1, 3}
    assert set(draws(Sampling(1.0, top_p=0.6))) == {1, 3}
    assert set(draws(Sampling(1.0, top_p=0.7))) == {1, 3, 4}
    assert set(draws(Sampling(1.0, top_p=1e-9))) == {1}
    assert set(draws(Sampling(5.0, top_k=99))) == {0, 1, 2, 3, 4}


def test_a_tiny_temperature_is_greedy_and_finite() -> None:
    assert set(draws(Sampling(1e-30))) == {1}


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
