"""Log-probabilities of a prompt's own tokens: transformers' logits of the whole text, whatever the cache keeps."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from sscc.ir.geometry import Geometry
from sscc.runtime.serving.engine import Engine, Request
from sscc.runtime.serving.engine.engine import SubmissionErrors
from sscc.runtime.session.prompt_scores import PromptScoreErrors, PromptScorer, check_scores
from sscc.runtime.session.session import Session
from sscc.runtime.session.session_errors import SessionErrors
from tests.compiler.small_stacks import opened
from tests.compiler.test_sessions import compiled as compiled_for_ranks
from tests.compiler.test_sessions import in_threads
from tests.errors import raises
from tests.families import Compiler, random_tokens
from tests.models.tiny_llama import save_tiny_llama
from tests.native import native_interpreter
from tests.runtime.fake import SIGNATURE, FakeInterpreter
from tests.runtime.signatures import altered

SMALL = Geometry(2, 5, 4, 4, 3, "avg", 64)
PROMPT = random_tokens(40, seed=5)


def scored(session: Session, tokens: list[int], top: int = 1) -> np.ndarray:
    """Return the log-probability [n - 1] of each token but the first, and check those of the likeliest ones."""
    session.prefill(0, random_tokens(9))
    session.prefill(1, tokens)
    scorer = PromptScorer(session, np.array(tokens), top)
    while scorer.steps:
        scorer.step()
        session.decode({0: 3})
    assert [one.token for one in scorer.scores] == tokens[1:]
    assert all(one.top[0][1] >= one.logprob for one in scorer.scores)
    return np.array([one.logprob for one in scorer.scores])


@pytest.mark.parametrize(
    ("family", "opt_level"),
    [
        ("llama3-rope", 0), ("gpt2", 2), ("capped-scores", 2), ("several-hidden-states", 2), ("experts-softmax", 2),
        ("windows-among-others", 0),
    ],
)  # fmt: skip
def test_logprobs_are_those_of_the_whole_text(family: str, opt_level: int, compiled: Compiler) -> None:
    """The cache has 11 rows. Lengths are below, at and above the slots, and end within a chunk and at its end."""
    program = compiled(family, SMALL, opt_level=opt_level)
    session = Session(program.artifact.signature, native_interpreter(program.artifact))
    with torch.no_grad():
        logits = program.model(torch.tensor([PROMPT])).logits[0].double()
    expected = torch.log_softmax(logits, dim=-1)[range(39), PROMPT[1:]].numpy()
    for length in (2, 3, 4, 5, 7, 8, 14, 40):
        ours = scored(session, PROMPT[:length])
        assert np.abs(ours - expected[: length - 1]).max() < 1e-4
    assert np.corrcoef(ours, expected)[0, 1] > 0.999999


def test_ranks_score_together(tmp_path: Path) -> None:
    model = save_tiny_llama(tmp_path / "model", max_position_embeddings=64)
    whole = compiled_for_ranks(model, tmp_path / "whole.rdu", tp=1)
    parts = compiled_for_ranks(model, tmp_path / "parts.rdu")
    alone = scored(Session.from_artifact(whole), PROMPT)
    with closing(in_threads(parts)) as session:
        assert np.abs(scored(session, PROMPT) - alone).max() < 1e-4


def test_bf16(compiled: Compiler) -> None:
    program = compiled("llama3-rope", SMALL, dtype="bf16")
    session = Session(program.artifact.signature, native_interpreter(program.artifact))
    ours = scored(session, PROMPT)
    for length in (1, 20, 39):
        logits = session.prefill(0, PROMPT[:length]).astype(np.float64)
        logprob = logits[PROMPT[length]] - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
        assert abs(ours[length - 1] - logprob) < 0.05


def test_an_engine_scores_between_the_steps_of_others(compiled: Compiler) -> None:
    program = compiled("llama3-rope", SMALL)
    session = Session(program.artifact.signature, native_interpreter(program.artifact))
    alone = scored(session, PROMPT)
    with Engine(session) as engine:
        others = [engine.submit(Request(tuple(PROMPT[: 9 + n]), 30, eos=frozenset())) for n in range(4)]
        asked = [engine.submit(Request(tuple(PROMPT), 2, prompt_logprobs=n)) for n in (0, 3)]
        for handle, top in zip(asked, (0, 3), strict=True):
            done = handle.result(60)
            assert [one.logprob for one in done.prompt_logprobs] == pytest.approx(alone.tolist(), abs=1e-6)
            assert {len(one.top) for one in done.prompt_logprobs} == {top}
            assert [one.prompt_logprobs != () for one in handle.pieces()][:1] == [True]
        assert all(len(handle.result(60).tokens) == 30 for handle in others)
        only = engine.generate(Request(tuple(PROMPT[:1]), 1, prompt_logprobs=0))
        assert (only.prompt_logprobs, len(only.tokens)) == ((), 1)
        with raises(SubmissionErrors.TOO_MANY_LOGPROBS):
            engine.submit(Request(tuple(PROMPT), 1, prompt_logprobs=10**6))


def test_what_has_no_scores(tmp_path: Path) -> None:
    many = altered(SIGNATURE, batch=25)
    session = Session(many, FakeInterpreter(many))
    assert not many.scores_prompts
    with raises(PromptScoreErrors.TOO_MANY_SLOTS, slots=25, tokens=24):
        check_scores(session)
    session = Session(SIGNATURE, FakeInterpreter())
    with raises(SessionErrors.NO_PREFILL_LOGITS):
        session.score(0)
    session.prefill(0, [1, 2])
    session.start_prefill(1, [1])
    with raises(SessionErrors.PREFILL_BEGUN, slot=1):
        session.score(0)


def test_a_program_of_more_slots_than_positions_is_compiled_without(tmp_path: Path) -> None:
    model = save_tiny_llama(tmp_path / "model", max_position_embeddings=64)
    artifact = compiled_for_ranks(model, tmp_path / "m.rdu", tp=1, batch=65, native_code=False)
    assert [entry.name for entry in artifact.program.entries] == ["prefill", "decode"]
    session = opened(tmp_path / "m.rdu")
    session.prefill(64, [1, 2, 3])
    assert np.isfinite(session.decode({64: 5})[64]).all()
