"""A request's tokens do not depend on its company: bit for bit those of `Session.generate` alone, on compiled programs.

Schedules are random: requests come and are cancelled at any call of the interpreter, in mixed lengths below and beyond
the cache's budget, greedy and sampled, with any share of prefill between steps, with and without kept prompts. They are
carried out from within the interpreter's calls, so that each can be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from sscc.ir.geometry import Geometry
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.backends.cpu.interpreter import NativeInterpreter
from sscc.runtime.backends.interpreter import Interpreter
from sscc.runtime.serving.engine import Engine, EngineOptions, Request, RequestHandle
from sscc.runtime.serving.engine.prompt_store import PromptStore
from sscc.runtime.session.excerpt import Excerpt
from sscc.runtime.session.sampling import Sampling
from sscc.runtime.session.session import Session
from sscc.runtime.session.session_errors import SessionErrors
from tests.errors import raises
from tests.families import CompiledModel, Compiler, random_tokens
from tests.native import native_code
from tests.runtime.engine.other_engine import split

CONTEXT = 64
PLAIN = Geometry(sink=2, recent=9, topk=7, obs=4, pool=3, pool_mode="avg", max_context=CONTEXT)
BY_QUERY = replace(PLAIN, rows="indexed", policy="query", key_bits=2)
CACHES = {
    "f32": ("llama3-rope", PLAIN, "f32"),
    "bf16": ("llama", PLAIN, "bf16"),
    "int8-rows": ("llama3-rope", Geometry(2, 9, 7, 4, 3, "avg", CONTEXT, dtype="int8"), "f32"),
    "int4-rows": ("llama3-rope", replace(PLAIN, dtype="int4"), "f32"),
    "indexed": ("llama3-rope", Geometry(2, 9, 7, 4, 3, "avg", CONTEXT, rows="indexed"), "f32"),
    "windows": ("windows-alone", PLAIN, "f32"),
    "query-windows": ("windows-among-others", BY_QUERY, "f32"),
    "query-int8": (
        "llama3-rope",
        Geometry(2, 9, 7, 4, 3, "avg", CONTEXT, rows="indexed", dtype="int8", policy="query", key_bits=2),
        "f32",
    ),
    "query-int4-fetch": ("llama3-rope", replace(BY_QUERY, dtype="int4", fetch=2), "f32"),
}
THREADS = 2
BATCH = 3
LIMIT = 60.0

SAMPLINGS = (
    Sampling(),
    Sampling(temperature=1.0, seed=5),
    Sampling(temperature=0.8, top_k=7, seed=1),
    Sampling(temperature=1.3, top_p=0.9, min_p=0.01, seed=2),
    Sampling(repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=-0.5),
    Sampling(temperature=1.0, seed=9, repetition_penalty=1.1, logit_bias=((3, 4.0), (7, -100.0))),
)
LENGTHS = (1, 3, 7, 11, 12, 18, 19, 23, 41, 50)  # of prompts: SR is 11, the budget 18, a chunk 7


@dataclass(frozen=True)
class Planned:
    """A request, at which call of the interpreter it comes, and how many calls later it is cancelled, if it is."""

    request: Request
    at: int
    cancelled: int | None


@st.composite
def plans(draw: st.DrawFn) -> list[Planned]:
    planned_requests = []
    for _ in range(draw(st.integers(3, 12))):
        prompt = tuple(random_tokens(draw(st.sampled_from(LENGTHS)), seed=draw(st.integers(0, 1))))
        request = Request(
            prompt,
            draw(st.integers(1, CONTEXT - len(prompt))),
            draw(st.sampled_from(SAMPLINGS)),
            eos=draw(st.sampled_from([frozenset(), frozenset({1, 2, 3, 4})])),
            logprobs=draw(st.sampled_from([None, 3])),
        )
        cancelled = draw(st.none() | st.none() | st.integers(0, 40))
        planned_requests.append(Planned(request, draw(st.integers(0, 120)), cancelled))
    return sorted(planned_requests, key=lambda planned: planned.at)


@dataclass
class Director:
    """An interpreter that submits and cancels the planned requests before its calls."""

    interpreter: Interpreter
    plan: list[Planned] = field(default_factory=list)
    engine: Engine | None = None
    handles: list[RequestHandle] = field(default_factory=list)
    calls: int = 0
    cancels: dict[int, list[RequestHandle]] = field(default_factory=dict)

    def run(
        self,
        entry: str,
        inputs: Mapping[str, Array],
        scalars: Mapping[str, int] | None = None,
        *,
        copy: bool = True,
    ) -> tuple[dict[str, Array], tuple[int, ...]]:
        self.calls += 1
        for handle in self.cancels.pop(self.calls, []):
            handle.cancel()
        while len(self.handles) < len(self.plan) and self.plan[len(self.handles)].at <= self.calls:
            self.submit_next()
        return self.interpreter.run(entry, inputs, scalars, copy=copy)

    def submit_next(self) -> None:
        assert self.engine is not None
        planned = self.plan[len(self.handles)]
        handle = self.engine.submit(planned.request)
        if planned.cancelled is not None:
            self.cancels.setdefault(self.calls + 1 + planned.cancelled, []).append(handle)
        self.handles.append(handle)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.interpreter, name)


@dataclass
class ServedProgram:
    """A compiled program, an interpreter for engines and one for sessions of one sequence."""

    name: str
    compiled: CompiledModel
    ours: NativeInterpreter
    alone: Session

    @cache  # noqa: B019
    def expected(self, request: Request) -> tuple[int, ...]:
        """Return the tokens that `Session.generate` gives for the request."""
        return tuple(self.alone.generate(request.prompt, request.max_new_tokens, request.sampling, request.eos, slot=1))

    __hash__ = object.__hash__


_PROGRAMS: dict[str, ServedProgram] = {}


@pytest.fixture(params=CACHES)
def program(request: pytest.FixtureRequest, compiled: Compiler) -> ServedProgram:
    name = request.param
    if name not in _PROGRAMS:
        family, geometry, dtype = CACHES[name]
        artifact = compiled(family, geometry, batch=BATCH, chunk=7, dtype=dtype)
        code = native_code(artifact.artifact)
        ours, alone = (
            NativeInterpreter(artifact.artifact.program, artifact.artifact.weights(), code=code, threads=THREADS)
            for _ in range(2)
        )
        _PROGRAMS[name] = ServedProgram(name, artifact, ours, Session(artifact.artifact.signature, alone))
    return _PROGRAMS[name]


@seed(1)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=plans(), steps=st.sampled_from([None, 1, 3, 50]), kept=st.sampled_from([0, 10**7]))
def test_no_schedule_changes_a_token(program: ServedProgram, plan: list[Planned], steps: int | None, kept: int) -> None:
    director = Director(program.ours, plan)
    session = Session(program.compiled.artifact.signature, director)
    options = EngineOptions(max_queue=100, prefill_steps=steps, prompt_cache_bytes=kept)
    with Engine(session, options=options) as engine:
        director.engine = engine
        done = []
        while len(done) < len(plan):
            if len(director.handles) == len(done):
                director.submit_next()  # the engine is idle: nothing comes from its calls
            done.append(director.handles[len(done)].result(LIMIT))
        metrics = engine.metrics()
    for planned, completion in zip(plan, done, strict=True):
        expected = program.expected(planned.request)
        if completion.finish == "cancelled":
            assert planned.cancelled is not None
            assert completion.tokens == expected[: len(completion.tokens)]
        else:
            assert completion.tokens == expected
            assert completion.finish == ("eos" if expected[-1] in (planned.request.eos or ()) else "length")
        logprob_count = 0 if planned.request.logprobs is None else len(completion.tokens)
        assert [each.token for each in completion.logprobs] == list(completion.tokens[:logprob_count])
    assert (metrics.queued, metrics.running, metrics.prefilling) == (0, 0, 0)
    assert sum(metrics.finished.values()) == len(plan)


def test_tokens_differ_where_requests_do(program: ServedProgram) -> None:
    """Otherwise the test above would say nothing."""
    answers = {
        program.expected(Request(tuple(random_tokens(23)), 12, sampling, eos=frozenset())) for sampling in SAMPLINGS
    }
    assert len(answers) == len(SAMPLINGS)
    prompts = {program.expected(Request(tuple(random_tokens(n)), 12, eos=frozenset())) for n in LENGTHS}
    assert len(prompts) == len(LENGTHS)


@pytest.mark.parametrize("length", [3, 11, 14, 18, 19, 41])
def test_a_kept_prompt_is_the_prefilled_one_bit_for_bit(program: ServedProgram, length: int) -> None:
    """The logits of every step are the same in another slot, over rows of another sequence, while the first
    continues."""
    session = Session(program.compiled.artifact.signature, program.ours)
    prompt = random_tokens(length, seed=3)
    session.prefill(2, random_tokens(50, seed=4))
    for _ in range(9):
        session.decode({2: 5})
    session.prefill(0, prompt)
    snapshot = session.snapshot(0)
    assert snapshot.nbytes == session.snapshot_bytes(0)
    first = [session.decode({0: token})[0] for token in random_tokens(11)]
    session.restore(2, snapshot)
    assert session.kept(2).length == length
    again = [session.decode({0: 3, 2: token})[2] for token in random_tokens(11)]
    assert np.array_equal(np.stack(first), np.stack(again))


def test_a_prompt_that_another_engine_prefills_changes_no_token(program: ServedProgram) -> None:
    """Prompts of all lengths run at once, and the next turn of one of them continues from kept rows."""
    artifact = program.compiled.artifact
    requests = [
        Request(tuple(random_tokens(length, seed=3)), 12, sampling, eos=frozenset(), logprobs=2)
        for length, sampling in zip((*LENGTHS, 23), (*SAMPLINGS, *SAMPLINGS[1:]), strict=True)
    ]
    expected = [program.expected(request) for request in requests]
    turn = replace(requests[8], prompt=(*requests[8].prompt, *expected[8][:5]))
    expected_turn = program.expected(turn)
    there, here = (
        Session(artifact.signature, interpreter, identity=lambda: artifact.identity)
        for interpreter in (program.ours, program.alone.interpreter)
    )
    with split(there, here, EngineOptions(prompt_cache_bytes=10**7)) as (engine, other):
        done = [handle.result(LIMIT) for handle in engine.submit_all(requests)]
        assert [each.tokens for each in done] == expected
        assert [[one.token for one in each.logprobs] for each in done] == [list(tokens) for tokens in expected]
        assert engine.generate(turn).tokens == expected_turn
        reused = engine.metrics().cached_prompt_tokens
        assert reused > 23, "prompts of one beginning share its chunks there"
        assert other.engine.metrics().prompt_tokens == sum(len(set_) for set_ in other.prompts)
        assert engine.metrics().prefill_steps == 0
        assert len(other.prompts) == len(requests), "two requests have one prompt, which is prefilled once"


def test_a_replayed_token_sees_the_compressed_cache(program: ServedProgram) -> None:
    session = Session(program.compiled.artifact.signature, program.ours)
    short, long = random_tokens(9, seed=3), random_tokens(41, seed=3)
    for prompt, alike in ((short, True), (long, program.name == "windows")):  # which compress nothing
        logits = session.prefill(1, prompt)
        snapshot = session.snapshot(1)
        replayed = session.replay(1)
        distance = np.linalg.norm(replayed - logits) / np.linalg.norm(logits)
        # A short prompt is whole in the cache; what remains is rounding, and that of rows of 8 or 4 bits.
        tolerance = 3e-2 if session.signature.geometry.encoded or session.signature.dtype == "bf16" else 1e-5
        tolerance = 0.38 if program.name == "int4-rows" else tolerance
        assert (distance < tolerance) == alike
        assert session.position(1) == len(prompt)
        if session.signature.geometry.fetch is not None:  # resident rows have changed
            session.restore(1, snapshot)
        assert np.array_equal(session.replay(1), replayed)


def test_the_next_turn_of_a_conversation_continues_the_one_before(program: ServedProgram) -> None:
    session = Session(program.compiled.artifact.signature, program.ours)
    with Engine(session, options=EngineOptions(prompt_cache_bytes=10**7)) as engine:
        first = tuple(random_tokens(23, seed=3))
        answer = engine.generate(Request(first, 9, eos=frozenset())).tokens
        turn = Request((*first, *answer, *random_tokens(4)), 12, eos=frozenset())
        assert engine.generate(turn).tokens == program.expected(turn)
        assert engine.metrics().cached_prompt_tokens == 21


@pytest.mark.parametrize("rows", [7, 21, 35, 41])
def test_a_prompt_continues_another_bit_for_bit(program: ServedProgram, rows: int) -> None:
    """In another slot, from the whole chunks that two prompts have in common, and from those that the second left."""
    session = Session(program.compiled.artifact.signature, program.ours)
    store = PromptStore(session, 10**7)
    first = random_tokens(50, seed=3)
    prompt = [*first[:rows], *random_tokens(50 - rows, seed=6)]
    expected = [session.prefill(0, prompt), *(session.decode({0: token})[0] for token in range(9))]
    session.prefill(1, random_tokens(5))

    def prefilled(tokens: list[int], reused: int) -> None:
        """In slot 2, over another prompt's rows, while slot 1 decodes."""
        session.prefill(2, random_tokens(50, seed=8))
        prefix, fill = store.begin(Excerpt.whole(np.array(tokens)))
        assert len(prefix) == min(reused, session.reusable_chunks(50))
        session.start_prefill(2, tokens, prefix, fill)
        while not session.step_prefill(10):
            session.decode({1: 3})
        store.finish(2)

    for tokens, reused in ((first, 0), (prompt, rows // 7), (prompt, 7)):
        prefilled(tokens, reused)
        continued = [session.prefill_logits, *(session.decode({2: token})[2] for token in range(9))]
        assert np.array_equal(np.stack(expected), np.stack(continued)) == (tokens is prompt)
    prefix, _ = store.begin(Excerpt.whole(np.array(first)))
    rows = session.rows.copies[prefix[0].number]
    assert sum(part.nbytes for part in rows.values()) == prefix[0].nbytes == session.signature.chunk_bytes
    with raises(SessionErrors.REUSED_CHUNKS, chunks=8, tokens=50):
        session.start_prefill(2, prompt, [*prefix, *prefix][:8])
    with raises(SessionErrors.KEPT_CHUNK, chunk=7, tokens=50):
        session.start_prefill(2, prompt, fill={7: session.empty_chunk()})
