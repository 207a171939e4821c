"""Everything above a backend works on a device that shares no memory with the session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sscc
from sscc.runtime.serving.engine import Engine, EngineOptions, Request
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.session.golden_replay import replay
from sscc.runtime.session.sampling import Sampling
from sscc.runtime.session.session import Session
from sscc.runtime.session.speculative_prefill import Draft
from tests.compiler.small_stacks import check_company, check_continued, check_copied, check_in_pieces, random_tokens
from tests.runtime.backends.elsewhere import NAME, RemoteInterpreter, registered

MODELS = Path(__file__).parents[2] / "models"
SHAPE: dict[str, Any] = {
    "kv_budget": 24, "kv_recent": 8, "kv_obs": 8, "max_context": 128, "prefill_chunk": 16,
}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "snapstream": ("tiny", {"kv_sink": 2}),
    "query": ("tiny", {"kv_policy": "query", "kv_key_bits": 2, "kv_fetch": 6}),
    "recurrent states": ("tiny_hybrid", {"kv_dtype": "int8"}),
}


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    with registered():
        yield


@pytest.fixture(scope="module", params=CASES)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model, options = CASES[request.param]
    out = tmp_path_factory.mktemp("elsewhere") / "model.rdu"
    sscc.compile(
        MODELS / model, output=out, pack_for=NAME, native_code=False, save_golden=True, batch=2, **SHAPE, **options
    )
    return out


def session(path: Path, interpreter: str = NAME) -> Session:
    return Session.from_artifact(Artifact.load(path), interpreter=interpreter, threads=1)


def test_the_artifact_is_packed_for_the_device(path: Path) -> None:
    weights = Artifact.load(path).manifest.weights
    assert (weights.packer, weights.packed) == (NAME, ())


def test_slots_prompts_and_prefixes(path: Path, tmp_path: Path) -> None:
    first, second = session(path), session(path)
    check_company(first)
    check_copied(first, second, tmp_path / "slot")
    check_in_pieces(first)
    check_continued(first, (1, 3), 9)
    for each in (first, second):
        each.close()


def test_goldens_and_kept_positions(path: Path) -> None:
    remote, local = session(path), session(path, "native")
    golden = Artifact.load(path).golden()
    assert golden is not None
    for each in (remote, local):
        assert replay(each, golden).passed
        each.prefill(0, random_tokens(70))
    reasons = [[layer.reasons for layer in each.kept(0).layers] for each in (remote, local)]
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(*reasons, strict=True))


def answers(path: Path, interpreter: str, folder: Path) -> list[tuple[list[int], int]]:
    """The tokens of requests that share beginnings, and how many of their prompts' tokens were not read again."""
    shared = random_tokens(50)
    prompts = [shared, [*shared, 3, 5], random_tokens(20, seed=2), [*shared[:40], *random_tokens(30, seed=3)]]
    options = EngineOptions(prompt_cache_bytes=10**8, prefill_steps=2)
    drawn, done = Sampling(temperature=0.7, seed=1), []
    with Engine(session(path, interpreter), options=options) as engine:
        for prompt in prompts:  # one after another, so that each finds the rows of those before
            done.append(engine.submit(Request(prompt, max_new_tokens=20)).result())
        handles = [engine.submit(Request(prompt, max_new_tokens=20, sampling=drawn)) for prompt in prompts]
        done += [handle.result() for handle in handles]
    return [(list(each.tokens), each.cached_tokens) for each in done]


def test_an_engine_answers_as_on_a_device_in_this_process(path: Path, tmp_path: Path) -> None:
    ours, theirs = (answers(path, name, tmp_path / name) for name in (NAME, "native"))
    assert ours == theirs
    assert any(cached for _, cached in ours)


def test_a_draft_scores_prompts(tmp_path: Path) -> None:
    out = tmp_path / "draft.rdu"
    sscc.compile(MODELS / "tiny", output=out, pack_for=NAME, native_code=False, batch=1, **SHAPE)
    prompt = random_tokens(60)
    scores = [Draft(session(out, name)).scores(np.array(prompt)) for name in (NAME, "native")]
    assert np.array_equal(*scores)


def test_memory_is_reached_by_messages_alone(path: Path) -> None:
    each = session(path)
    assert isinstance(each.interpreter, RemoteInterpreter)
    each.prefill(0, random_tokens(40))
    each.interpreter.calls.clear()
    each.decode({0: 5})
    assert each.interpreter.calls == ["run"], "a step is one message"
    assert each.host_threads is None
    assert each.interpreter.memory() is not None
    each.reset()
    name = "k_cache" if "k_cache" in {t.name for t in Artifact.load(path).program.tensors} else "k_store"
    assert not each.interpreter.device_tensor(name).read().any()
