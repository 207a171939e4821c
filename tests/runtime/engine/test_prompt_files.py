"""Prompts that an engine keeps in a folder: used by a later one of the same program, and by nobody else."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
import pytest

import sscc
from sscc.runtime.serving.engine import Engine, EngineOptions, Request
from sscc.runtime.serving.engine.executor import EngineErrors
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.session.session import Session
from sscc.runtime.session.session_errors import SessionErrors
from tests.errors import raises
from tests.families import random_tokens
from tests.runtime.fake import fake_session

TINY = Path(__file__).parents[2] / "models" / "tiny"
SHAPE = {"kv_sink": 2, "kv_recent": 8, "kv_obs": 8, "max_context": 128, "prefill_chunk": 16, "native_code": False}
FIRST = tuple(random_tokens(70, seed=3))
TURN = (*FIRST, *random_tokens(9, seed=4))
BYTES = 10**8


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A program that compresses, one that keeps all rows, and one with another budget."""
    folder = tmp_path_factory.mktemp("programs")
    kinds = {"compact": {"kv_budget": 32}, "query": {"kv_budget": 32, "kv_policy": "query"}, "other": {"kv_budget": 40}}
    for name, options in kinds.items():
        sscc.compile(TINY, output=folder / name, **SHAPE, **options)
    return {name: folder / name for name in kinds}


def answers(program: Path, folder: Path | None, *prompts: tuple[int, ...], limit: int = BYTES) -> list[tuple[int, ...]]:
    """Return the cached tokens of each prompt in an engine with a folder, and the tokens of the answers behind them."""
    session = Session.from_artifact(Artifact.load(program))
    options = EngineOptions(prompt_cache_bytes=limit, prompt_folder=folder)
    with Engine(session, options=options) as engine:
        done = [engine.generate(Request(prompt, 5, eos=frozenset())) for prompt in prompts]
    return [(one.cached_tokens, *one.tokens) for one in done]


@pytest.mark.parametrize("name", ["compact", "query"])
def test_a_later_engine_goes_on_from_what_is_there(name: str, programs: dict[str, Path], tmp_path: Path) -> None:
    alone = [tokens[1:] for tokens in answers(programs[name], None, FIRST, TURN, limit=0)]
    folder = tmp_path / "new" / "prompts"
    assert answers(programs[name], folder, FIRST) == [(0, *alone[0])]
    written = {path: path.stat().st_ino for path in folder.iterdir()}
    assert len([path for path in written if path.name.endswith(".chunk.safetensors")]) == 4
    assert len(written) == (5 if name == "compact" else 4)
    again = answers(programs[name], folder, FIRST, TURN)
    assert again == [(70 if name == "compact" else 64, *alone[0]), (64, *alone[1])]
    assert written.items() <= {path: path.stat().st_ino for path in folder.iterdir()}.items(), "not written again"


def test_other_programs_use_the_folder_too(
    programs: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answers(programs["compact"], tmp_path, FIRST)
    caplog.set_level(logging.INFO, logger="sscc")
    assert answers(programs["other"], tmp_path, FIRST)[0][0] == 0
    assert "belong to other programs" in caplog.text
    assert [answers(programs[name], tmp_path, FIRST)[0][0] for name in ("compact", "other")] == [70, 70]


def test_what_is_damaged_or_renamed_is_not_used(
    programs: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answers(programs["compact"], tmp_path, FIRST)
    answers(programs["other"], tmp_path / "other", FIRST)
    for number, path in enumerate(sorted(tmp_path.glob("*.safetensors"))):
        data = bytearray(path.read_bytes())
        if number == 0:
            data[-1] ^= 1
        elif number == 1:
            data = data[:100]
        elif number == 2:
            other = next((tmp_path / "other").glob(f"*{''.join(path.suffixes[-2:])}"))
            data = bytearray(other.read_bytes())
        else:
            data[40] ^= 1
        path.write_bytes(data)
    (tmp_path / "empty.chunk.safetensors").touch()
    assert answers(programs["compact"], tmp_path, FIRST)[0][0] == 0
    assert caplog.text.count("skipping a file of cached prompts") == 5


def test_what_was_used_last_is_read_and_the_folder_is_bounded(programs: dict[str, Path], tmp_path: Path) -> None:
    old = tuple(random_tokens(70, seed=9))
    answers(programs["query"], tmp_path, old)
    for path in tmp_path.iterdir():
        os.utime(path, (1, 1))
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    answers(programs["query"], tmp_path, FIRST)
    assert len(list(tmp_path.iterdir())) == 8
    assert answers(programs["query"], tmp_path, FIRST, limit=size)[0][0] == 64
    assert len(list(tmp_path.iterdir())) == 4, "what was used longest ago goes beyond the limit"
    assert [tokens[0] for tokens in answers(programs["query"], tmp_path, old, FIRST)] == [0, 64]


def test_prompts_are_saved_and_loaded_on_demand(programs: dict[str, Path], tmp_path: Path) -> None:
    artifact = Artifact.load(programs["compact"])
    with Engine(Session.from_artifact(artifact)) as engine:
        assert engine.load_prompts(tmp_path / "missing").files == 0
        engine.generate(Request(FIRST, 1))
        count = engine.save_prompts(tmp_path)
        assert (count.files, count.nbytes) == (5, sum(path.stat().st_size for path in tmp_path.iterdir()))
        assert engine.save_prompts(tmp_path).files == 0
    with Engine(Session.from_artifact(artifact)) as engine:
        assert engine.load_prompts(tmp_path).nbytes == count.nbytes
        assert engine.generate(Request(TURN, 1)).cached_tokens == 64
    with raises(EngineErrors.CLOSED):
        engine.save_prompts(tmp_path)


def test_a_program_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    with Engine(fake_session()) as engine:
        with raises(SessionErrors.NO_IDENTITY):
            engine.save_prompts(tmp_path)
        assert np.asarray(engine.generate(Request((1, 2), 1)).tokens).size == 1, "the engine goes on"
