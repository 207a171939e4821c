"""Log-likelihoods over the compressed cache: transformers' own with room for all rows, others with few."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import sscc
from sscc.compiler.tools.quality.harness import CacheScorer, HarnessErrors, rolling_windows
from sscc.compiler.tools.quality.harness_model import HarnessModelErrors, harness_model, model_class
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.session.session import Session
from tests.errors import raises
from tests.families import random_tokens
from tests.models.tiny_llama import byte_tokenizer, save_tiny_llama

TINY = Path(__file__).parents[2] / "models" / "tiny"
CONTEXT = 128
SHAPE: dict[str, Any] = {"max_context": CONTEXT, "prefill_chunk": 16, "batch": 3, "native_code": False}


def tokens_of(count: int, seed: int) -> list[int]:
    return [8 + token for token in random_tokens(count, seed)]


CONTEXTS = [tokens_of(90, 1), tokens_of(90, 1)[:70] + tokens_of(9, 2), tokens_of(3, 3), tokens_of(100, 4)]
PAIRS = [
    *((CONTEXTS[0], tokens_of(count, seed)) for count, seed in ((1, 5), (4, 6), (9, 7), (1, 8))),
    *((context, tokens_of(20, seed)) for seed, context in enumerate(CONTEXTS)),
]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the tiny model compiled with all rows, and with 32."""
    folder = tmp_path_factory.mktemp("programs")
    kinds = {"all": {"kv_budget": CONTEXT}, "few": {"kv_budget": 32, "kv_sink": 2, "kv_recent": 8, "kv_obs": 8}}
    for name, options in kinds.items():
        sscc.compile(TINY, output=folder / name, **SHAPE, **options)
    return {name: folder / name for name in kinds}


def expected(context: list[int], tokens: list[int]) -> tuple[float, bool]:
    """Return transformers' log-likelihood of a continuation."""
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([[*context, *tokens]])).logits[0, len(context) - 1 : -1].double()
    logprobs = torch.log_softmax(logits, dim=-1)[range(len(tokens)), tokens]
    return float(logprobs.sum()), logits.argmax(-1).tolist() == tokens


def test_with_all_rows_they_are_transformers_and_with_few_they_are_not(programs: dict[str, Path]) -> None:
    theirs = [expected(*pair) for pair in PAIRS]
    ours = CacheScorer(Session.from_artifact(Artifact.load(programs["all"]))).score(PAIRS)
    for (logprob, greedy), one in zip(theirs, ours, strict=True):
        assert one.logprob == pytest.approx(logprob, abs=1e-3)
        assert one.greedy == greedy
    few = CacheScorer(Session.from_artifact(Artifact.load(programs["few"]))).score(PAIRS)
    differences = [abs(one.logprob - logprob) for (logprob, _), one in zip(theirs, few, strict=True)]
    assert sum(difference > 1e-2 for difference in differences) >= 6
    assert max(differences) > 0.1
    assert differences[PAIRS.index((CONTEXTS[2], PAIRS[6][1]))] < 1e-3, "a text that fits the rows loses none"


def test_the_likeliest_tokens_are_greedy(programs: dict[str, Path]) -> None:
    """A continuation that the program has made over its own cache."""
    session = Session.from_artifact(Artifact.load(programs["few"]))
    session.prefill(0, CONTEXTS[0])
    made = [int(session.replay(0).argmax())]
    for _ in range(6):
        made.append(int(session.decode({0: made[-1]})[0].argmax()))
    found = CacheScorer(session).score([(CONTEXTS[0], made), (CONTEXTS[0], [*made[:-1], (made[-1] + 1) % 200])])
    assert [one.greedy for one in found] == [True, False]
    assert found[0].logprob > found[1].logprob


def test_a_context_that_does_not_fit_keeps_its_end(programs: dict[str, Path]) -> None:
    scorer = CacheScorer(Session.from_artifact(Artifact.load(programs["all"])))
    long, tokens = tokens_of(300, 1), tokens_of(11, 2)
    (one, other) = scorer.score([(long, tokens), (long[-(CONTEXT - 10) :], tokens)])
    assert one == other
    for pair, kind in (
        (([1], []), HarnessErrors.NO_CONTINUATION),
        (([], [1]), HarnessErrors.NO_CONTEXT),
        (([1], tokens_of(CONTEXT + 1, 1)), HarnessErrors.TOO_LONG),
    ):
        with raises(kind):
            scorer.score([pair])
    (whole,) = scorer.score([([9], tokens_of(CONTEXT, 1))])
    assert math.isfinite(whole.logprob)


def test_windows_cover_a_text_once() -> None:
    for length in (1, 9, 10, 11, 25):
        text = list(range(100, 100 + length))
        windows = list(rolling_windows(text, 7, 10))
        assert [token for _, tokens in windows for token in tokens] == text
        assert all(len(context) + len(tokens) - 1 <= 10 for context, tokens in windows)
        assert windows[0][0] == [7]
        at = 0
        for context, tokens in windows[1:]:
            at = text.index(tokens[0])
            assert context == text[at - len(context) : at]
    assert list(rolling_windows([], 7, 10)) == []


class Base:
    """The part of the harness's class that subclasses use."""

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        pairs = [(each.args, *self._pair(*each.args)) for each in requests]
        return self._loglikelihood_tokens(pairs)  # type: ignore[attr-defined,no-any-return]

    def _pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        whole, front = self.tok_encode(context + continuation), self.tok_encode(context)  # type: ignore[attr-defined]
        return front, whole[len(front) :]


def test_the_model_of_the_harness(tmp_path: Path) -> None:
    checkpoint = save_tiny_llama(tmp_path / "model", tokenizer=byte_tokenizer(), max_position_embeddings=CONTEXT)
    sscc.compile(checkpoint, output=tmp_path / "m.rdu", **SHAPE)
    model = model_class(Base)(Artifact.load(tmp_path / "m.rdu"), 1, False, 7)
    ask = [SimpleNamespace(args=("what is", " this")), SimpleNamespace(args=("what is", " not"))]
    found = model.loglikelihood(ask)
    eager = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    ids = byte_tokenizer().encode("what is this").ids
    with torch.no_grad():
        logprobs = torch.log_softmax(eager(torch.tensor([ids])).logits[0].double(), dim=-1)
    assert found[0][0] == pytest.approx(float(logprobs[range(6, 11), ids[7:]].sum()), abs=1e-3)
    (rolled,) = model.loglikelihood_rolling([SimpleNamespace(args=("what is this",))])
    (whole,) = model.loglikelihood([SimpleNamespace(args=("w", "hat is this"))])
    before = CacheScorer(Session.from_artifact(Artifact.load(tmp_path / "m.rdu")))
    (first,) = before.score([([model.prefix_token_id], ids)])
    assert rolled == pytest.approx(first.logprob, abs=1e-4)
    assert rolled != pytest.approx(whole[0], abs=1e-2)
    long, until = model.generate_until(
        [SimpleNamespace(args=("what", {"until": [], "do_sample": False})), SimpleNamespace(args=("what", {}))]
    )
    assert long == until
    (cut,) = model.generate_until([SimpleNamespace(args=("what", {"until": [long[3:5]], "max_gen_toks": 7}))])
    assert cut == long[: long.index(long[3:5])]
    with raises(HarnessModelErrors.UNKNOWN_ARGUMENT, name="beams"):
        model.generate_until([SimpleNamespace(args=("what", {"beams": 4}))])
    assert np.isfinite(found[1][0])


def test_without_the_harness_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "lm_eval.api.model", None)
    with raises(HarnessModelErrors.NOT_INSTALLED):
        harness_model(tmp_path)
