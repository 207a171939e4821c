"""Which prompts are kept: those used last, within the bytes allowed."""

from __future__ import annotations

import numpy as np
import pytest

from sscc.runtime.engine import Engine, EngineOptions
from sscc.runtime.engine.prompt_cache import PromptCache
from sscc.runtime.excerpt import Excerpt
from sscc.runtime.session import Session
from tests.runtime.engine.gated import gated, request
from tests.runtime.fake import SIGNATURE, FakeInterpreter, fake_session
from tests.runtime.signatures import row_bytes

ROW = row_bytes(SIGNATURE)


def keep(cache: PromptCache, session: Session, *tokens: int) -> Excerpt:
    prompt = Excerpt.whole(np.array(tokens, np.int64))
    session.prefill(0, prompt)
    cache.keep(session, 0)
    return prompt


def entry(tokens: int) -> int:
    """Bytes of a kept prompt: its rows, its tokens and where they stand, its logits."""
    return ROW * tokens + 16 * tokens + 4 * SIGNATURE.vocab_size


def test_the_prompt_that_was_not_used_for_longest_goes() -> None:
    session, cache = fake_session(), PromptCache(2 * entry(2))  # exactly two
    a, b = keep(cache, session, 1, 2), keep(cache, session, 2, 1)
    assert cache.nbytes == 2 * entry(2)
    assert cache.find(a) is not None
    c = keep(cache, session, 3, 1)
    assert [cache.find(prompt) is not None for prompt in (a, b, c)] == [True, False, True]
    assert cache.nbytes == 2 * entry(2)
    keep(cache, session, 1, 2)
    assert cache.nbytes == 2 * entry(2)


def test_only_the_whole_prompt_is_found() -> None:
    session, cache = fake_session(), PromptCache(10**6)
    for _ in range(2):
        keep(cache, session, 1, 2, 3)
        assert cache.nbytes == entry(3)
    for other in ([1, 2], [1, 2, 3, 4], [2, 3], [1, 2, 4]):
        assert cache.find(Excerpt.whole(np.array(other, np.int64))) is None


@pytest.mark.parametrize("limit", [0, entry(3) - 1])
def test_what_is_larger_than_everything_is_not_kept(limit: int) -> None:
    session, cache = fake_session(), PromptCache(limit)
    if limit:
        keep(cache, session, 1)
    small = cache.nbytes
    assert cache.find(keep(cache, session, 1, 2, 3)) is None
    assert cache.nbytes == small


def test_a_kept_prompt_takes_no_prefill() -> None:
    options = EngineOptions(prompt_cache_bytes=10**6)
    interpreter = FakeInterpreter()
    with Engine(Session(SIGNATURE, interpreter), options=options) as engine:
        first = engine.generate(request(1, 2, 3, new=8))
        again = engine.generate(request(1, 2, 3, new=8))
        other = engine.generate(request(1, 2, 3, 4, new=5))
        assert (first.cached_tokens, again.cached_tokens, other.cached_tokens) == (0, 3, 0)
        assert again.tokens == first.tokens == (4, 5, 6, 7, 8, 9, 10, 0)
        assert (again.kept_rows, again.evicted_rows, again.prompt_tokens) == (9, 1, 3)
        assert [entry for entry, _, _ in interpreter.calls].count("prefill") == 2
        metrics = engine.metrics()
        assert (metrics.cached_prompts, metrics.cached_prompt_tokens, metrics.prompt_tokens) == (1, 3, 10)


def test_a_reused_prompt_counts_as_a_chunk_between_decode_steps() -> None:
    with gated(prompt_cache_bytes=10**6) as (engine, interpreter):
        kept = [engine.submit(request(2, new=1))]
        interpreter.wait()
        interpreter.let(0)
        kept.append(engine.submit(request(1, new=15)))
        kept += [engine.submit(request(2, new=2)) for _ in range(3)]
        interpreter.open()
        assert [ticket.result(30).cached_tokens for ticket in kept] == [0, 0, 1, 1, 1]
        active = [inputs["active"].count(True) for entry, inputs, _ in interpreter.calls if entry == "decode"]
        assert active == [1, 2, 2, 2, *[1] * 10]
