"""Speculative prefill: a draft's scores are those of eager attention, what is kept keeps its positions, and the engine
makes of shortened prompts what a session makes of them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedModel

from sscc.ir.errors import UsageError
from sscc.ir.geometry import Geometry
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.serving.engine import Engine, EngineOptions, Request
from sscc.runtime.serving.engine.engine import SubmissionErrors
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.session.excerpt import Excerpt
from sscc.runtime.session.sampling import Sampling
from sscc.runtime.session.session import Session
from sscc.runtime.session.session_errors import SessionErrors
from sscc.runtime.session.shortening import Shortener, ShorteningErrors, joined
from sscc.runtime.session.speculative_prefill import CHUNK, Draft, DraftErrors, kept_chunks, kept_positions
from tests import tiny_configs
from tests.errors import raises
from tests.families import Compiler, random_tokens
from tests.native import native_interpreter

CONTEXT = tiny_configs.CONTEXT
COMPACT = Geometry(sink=4, recent=40, topk=CONTEXT - 44, obs=12, pool=3, pool_mode="avg", max_context=CONTEXT)
SMALL = replace(COMPACT, recent=24, topk=20)
LENGTH = 150
LOOK_AHEAD, POOL = 8, 13


def session_of(artifact: Artifact) -> Session:
    """One that runs native code, of one thread."""
    return Session(artifact.signature, native_interpreter(artifact, threads=1))


def eager_scores(model: PreTrainedModel, prompt: list[int], ahead: list[int], without: set[int]) -> Array:
    """The definition, on the weights that transformers' eager attention gives of a prompt and what follows it, without
    some layers."""
    n = len(prompt)
    with torch.no_grad():
        attentions = model(torch.tensor([prompt + ahead]), output_attentions=True).attentions
    pooled = []
    for layer, weights in enumerate(attentions):
        if layer not in without:
            of_prompt = weights[0, :, n - 1 :, :n].double()
            of_prompt = of_prompt / of_prompt.sum(-1, keepdim=True)
            pooled.append(torch.nn.functional.avg_pool1d(of_prompt, POOL, 1, POOL // 2))
    scores: Array = torch.cat(pooled).amax(0).mean(0).numpy()
    return scores


def eager(model: PreTrainedModel) -> PreTrainedModel:
    model.set_attn_implementation("eager")
    model.generation_config.eos_token_id = None
    return model.eval()


DRAFTS = {
    "compact": ("llama3-rope", COMPACT),
    "small-compact": ("llama3-rope", SMALL),
    "indexed": ("llama3-rope", replace(COMPACT, rows="indexed")),
    "few-queries": ("llama3-rope", replace(COMPACT, obs=3)),
    "few-queries-indexed": ("llama3-rope", replace(COMPACT, obs=3, rows="indexed")),
    "encoded-rows": ("llama3-rope", replace(COMPACT, dtype="int8")),
    "capped-scores": ("capped-scores", COMPACT),
}


@pytest.mark.parametrize("name", DRAFTS)
def test_scores_are_those_of_eager_attention(name: str, compiled: Compiler) -> None:
    family, geometry = DRAFTS[name]
    program = compiled(family, geometry)
    prompt = random_tokens(LENGTH, seed=3)
    draft = Draft(session_of(program.artifact))
    ahead = list(draft.session.generate(prompt, LOOK_AHEAD - 1, eos=()))
    scores = draft.scores(np.array(prompt, np.int64))
    again = draft.scores(np.array(prompt, np.int64))
    windowed = {layer for group in program.artifact.signature.plan if group.geometry.window for layer in group.layers}
    expected = eager_scores(eager(program.model), prompt, ahead, windowed)
    assert np.array_equal(scores, again)
    assert np.abs(scores - expected).max() < 1e-5 * expected.max()
    assert np.corrcoef(scores, expected)[0, 1] > 0.999999


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=300), st.floats(0.01, 1))
def test_the_best_chunks_are_kept_and_always_the_last(scores: list[float], keep: float) -> None:
    array = np.array(scores, np.float32)
    chunks = [array[begin : begin + CHUNK] for begin in range(0, len(array), CHUNK)]
    kept = kept_chunks(array, keep).tolist()
    assert len(kept) == math.ceil(keep * len(chunks))
    assert kept == sorted(set(kept))
    assert kept[-1] == len(chunks) - 1
    means = [float(chunk.astype(np.float64).mean()) for chunk in chunks]
    left_out = [number for number in range(len(chunks)) if number not in kept]
    for number in kept[:-1]:
        assert all((means[number], -number) > (means[other], -other) for other in left_out)
    positions = kept_positions(array, keep)
    assert positions.tolist() == [p for p in range(len(array)) if p // CHUNK in kept]


def test_no_excerpt_lacks_the_last_token() -> None:
    excerpt = Excerpt.of(range(10, 20), [0, 3, 9])
    assert (len(excerpt), excerpt.text_length, excerpt.left_out) == (3, 10, 7)
    assert excerpt.tokens.tolist() == [10, 13, 19]
    for positions in ([0, 3], [], [-1, 9], [3, 3, 9], [0, 12]):
        with pytest.raises(UsageError):
            Excerpt.of(range(10), positions)
    whole = Excerpt.whole(np.arange(4))
    assert whole.key == np.arange(4).tobytes()
    assert len({whole.key, Excerpt(np.arange(4), np.arange(1, 5)).key, Excerpt(np.arange(4), np.arange(2, 6)).key}) == 3


# Position encodings: rotary embeddings, a table, or none in some layers.
POSITIONS = ("llama3-rope", "gpt2", "taking-turns", "yarn-rope")


@pytest.mark.parametrize("opt_level", [0, 2])
@pytest.mark.parametrize("family", POSITIONS)
def test_tokens_that_are_kept_keep_their_positions(family: str, opt_level: int, compiled: Compiler) -> None:
    """Beside eager attention over the kept tokens, with their positions in the text."""
    everything = replace(COMPACT, recent=CONTEXT - 4, topk=0)
    program = compiled(family, everything, opt_level=opt_level)
    prompt = random_tokens(LENGTH, seed=5)
    excerpt = Excerpt.of(prompt, [*range(20), *range(64, 96), 140, 147, 148, 149])
    model = eager(program.model)
    session = session_of(program.artifact)
    rows = [session.prefill(1, excerpt)]
    assert session.position(1) == LENGTH
    fed = random_tokens(5, seed=6)
    rows += [session.decode({1: token})[1].copy() for token in fed]
    assert session.position(1) == LENGTH + 5
    tokens = torch.tensor([[*excerpt.tokens.tolist(), *fed]])
    positions = torch.tensor([[*excerpt.positions.tolist(), *range(LENGTH, LENGTH + 5)]])
    with torch.no_grad():
        expected = model(tokens, position_ids=positions).logits[0, len(excerpt) - 1 :].numpy()
    assert np.abs(np.stack(rows) - expected).max() < 1e-4 * np.abs(expected).max()


def test_an_excerpt_of_everything_is_the_prompt(compiled: Compiler) -> None:
    program = compiled("llama3-rope", SMALL)
    prompt = random_tokens(LENGTH, seed=7)
    session = session_of(program.artifact)
    whole = list(session.generate(prompt, 8, eos=()))
    assert list(session.generate(Excerpt.of(prompt, range(LENGTH)), 8, eos=())) == whole
    with raises(SessionErrors.PROMPT_TOO_LONG, tokens=CONTEXT + 1):
        session.prefill(0, Excerpt(np.array([1, 2]), np.array([0, CONTEXT])))
    with raises(SessionErrors.REQUEST_TOO_LONG, tokens=CONTEXT):
        session.generate(Excerpt(np.array([1, 2]), np.array([0, CONTEXT - 1])), 1)


# ------------------------------------------------------------------------------------------------------ the engine


@pytest.mark.parametrize("rows", ["compact", "indexed"])
def test_an_engine_shortens_prompts_between_its_steps(rows: str, compiled: Compiler) -> None:
    """In company, and with an engine that remembers prompts, tokens are those of a session by itself."""
    target, drafted = compiled("llama3-rope", replace(SMALL, rows=rows)), compiled("llama3-rope", COMPACT)
    prompts = [tuple(random_tokens(LENGTH, seed=seed)) for seed in (11, 12, 11)]
    sampling = Sampling(temperature=1.0, seed=4)
    session = session_of(target.artifact)
    shortener = Shortener(Draft(session_of(drafted.artifact)), target.artifact.signature, None)
    expected = []
    for prompt in prompts:
        left = shortener.shorten(np.array(prompt), 0.4)
        assert isinstance(left, Excerpt)
        assert len(left) == 2 * CHUNK - (-LENGTH % CHUNK)
        expected.append(list(session.generate(left, 6, sampling, eos=())))
    plain = list(session.generate(prompts[0], 6, sampling, eos=()))
    with Engine(session, options=EngineOptions(prompt_cache_bytes=1 << 24), shortener=shortener) as engine:
        asked = [Request(prompt, 6, sampling, eos=frozenset(), keep=0.4) for prompt in prompts]
        whole = Request(prompts[0], 6, sampling, eos=frozenset())
        done = [handle.result() for handle in engine.submit_all([*asked, whole])]
        metrics = engine.metrics()
    assert [list(one.tokens) for one in done] == [*expected, plain]
    assert [one.prompt_tokens for one in done] == [LENGTH] * 4
    assert [one.left_out_tokens for one in done] == [LENGTH - 2 * CHUNK + (-LENGTH % CHUNK)] * 3 + [0]
    assert metrics.shortened_prompts == 3
    assert metrics.left_out_prompt_tokens == sum(one.left_out_tokens for one in done)
    assert metrics.draft_seconds > 0


def test_a_prompt_that_the_draft_cannot_read_ends_alone(compiled: Compiler) -> None:
    target = compiled("llama3-rope", SMALL)
    drafted = compiled("llama3-rope", Geometry(4, 24, 20, 12, 3, "avg", 128))
    shortener = Shortener(Draft(session_of(drafted.artifact)), target.artifact.signature, None)
    with Engine(session_of(target.artifact), shortener=shortener) as engine:
        long, short = (Request(tuple(random_tokens(n)), 2, keep=0.5, eos=frozenset()) for n in (LENGTH, 100))
        bad, good = engine.submit_all([long, short])
        with raises(ShorteningErrors.PROMPT_TOO_LONG, length=150, longest=128):
            bad.result()
        assert good.result().left_out_tokens == 100 - (CHUNK + 4)
        cancelled = engine.submit(short)
        cancelled.cancel()
        assert cancelled.result().finish in ("cancelled", "length")
        assert engine.generate(replace(short, keep=None)).left_out_tokens == 0
    with Engine(session_of(target.artifact)) as engine, raises(SubmissionErrors.NO_DRAFT):
        engine.submit(short)
    for keep in (0.0, -1.0, 1.5, math.nan):
        with raises(DraftErrors.NOT_A_SHARE, keep=keep):
            Request((1,), 1, keep=keep)


def test_a_deadline_and_a_cancel_while_a_draft_reads_leave_others_alone(compiled: Compiler) -> None:
    """If a request is cancelled, in the middle of the draft's work or after it, the others' answers stay the same."""
    target, drafted = compiled("llama3-rope", SMALL), compiled("llama3-rope", COMPACT)
    prompts = [tuple(random_tokens(LENGTH, seed=seed)) for seed in (21, 22, 23, 24)]
    session = session_of(target.artifact)
    shortener = Shortener(Draft(session_of(drafted.artifact)), target.artifact.signature, None)
    expected = [list(session.generate(shortener.shorten(np.array(prompt), 0.4), 6, eos=())) for prompt in prompts]
    asked = [Request(prompt, 6, eos=frozenset(), keep=0.4) for prompt in prompts]
    shortener = Shortener(Draft(session_of(drafted.artifact)), target.artifact.signature, None)
    with Engine(session, shortener=shortener) as engine:
        for late in (asked[0], asked[1]):
            handles = engine.submit_all([replace(late, timeout=1e-9), *asked[2:]])
            handles[1].cancel()
            done = [handle.result() for handle in handles]
            assert done[0].finish == "timeout"
            assert done[0].tokens == ()
            assert done[1].finish in ("cancelled", "length")
            assert list(done[2].tokens) == expected[3]
        again = [engine.submit(each).result() for each in asked]
        metrics = engine.metrics()
    assert [list(each.tokens) for each in again] == expected
    assert (metrics.running, metrics.queued) == (0, 0)


def test_drafts_that_cannot_score(compiled: Compiler) -> None:
    by_query = replace(COMPACT, rows="indexed", policy="query", key_bits=2)
    for family, geometry, kind in (
        ("llama3-rope", by_query, DraftErrors.SELECTS_NO_ROWS),
        ("llama3-rope", replace(COMPACT, topk=0), DraftErrors.SELECTS_NO_ROWS),
        ("latent-whole-query", COMPACT, DraftErrors.LATENT_ROWS),
    ):
        with raises(kind):
            Draft(session_of(compiled(family, geometry).artifact))


# ------------------------------------------------------------------------------------------------ other tokenizers


def words_tokenizer(words: list[str]) -> Tokenizer:
    """A token for each word, with the space before it."""
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_next")
    return tokenizer


def test_text_is_left_out_between_whole_tokens() -> None:
    text = "".join(f" {number}" for number in range(100))
    begins = [text.index(f" {number}") for number in range(100)]
    assert joined(text, begins, np.array([0, 1, 2, 3]), "|") == text
    left = joined(text, begins, np.array([1, 3]), "|")
    assert left == "".join(f" {n}" for n in range(32, 64)) + "|" + "".join(f" {n}" for n in range(96, 100))
    assert joined(text, begins, np.array([0, 1, 3]), "|").count("|") == 1


def test_a_draft_with_another_tokenizer_reads_text(compiled: Compiler, tmp_path: Path) -> None:
    """The draft's scores choose words; the remaining text is tokenised by the program's tokenizer."""
    words = [f" w{number}" for number in range(40)]
    drafts, reads = words_tokenizer(words), words_tokenizer(["[x]", "|", *reversed(words)])
    drafts.save(str(tmp_path / "drafts.json"))
    program = compiled("llama3-rope", COMPACT)
    interpreter = native_interpreter(program.artifact, threads=1)
    session = Session(program.artifact.signature, interpreter, tmp_path / "drafts.json")
    chosen = [token % 40 for token in random_tokens(LENGTH, seed=9)]
    text = "".join(words[token] for token in chosen)
    shortener = Shortener(Draft(session), program.artifact.signature, reads, "|")
    assert not shortener.same_tokens
    prompt = np.array(reads.encode(text).ids)
    scores = shortener.draft.scores(np.array(chosen))
    left = shortener.shorten(prompt, 0.5, text)
    assert np.array_equal(left, shortener.shorten(prompt, 0.5)), "text is made of tokens where there is none"
    whole = shortener.shorten(prompt, 1.0, text)
    assert isinstance(whole, Excerpt)
    assert whole.tokens.tolist() == prompt.tolist()
    assert not isinstance(left, Excerpt)
    kept = kept_chunks(scores, 0.5).tolist()
    expected = ""
    for before, number in zip([kept[0] - 1, *kept], kept, strict=False):
        expected += "" if number == before + 1 else "|"
        expected += "".join(words[token] for token in chosen[number * CHUNK : (number + 1) * CHUNK])
    assert left.tolist() == reads.encode(expected).ids
    with raises(ShorteningErrors.NO_TOKENIZER, without="the program"):
        Shortener(Draft(session), program.artifact.signature, None)
