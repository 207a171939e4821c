"""An artifact of several ranks as processes: what they compute, and that nothing is left of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sscc.compiler.driver.driver import compile_model
from sscc.compiler.driver.loading import open_interpreter
from sscc.compiler.driver.sessions import open_session
from sscc.compiler.options.compile_options import CompileOptions
from sscc.compiler.tools.commands.bench import step_bytes
from sscc.compiler.tools.commands.cli import main
from sscc.compiler.tools.inspection.inspection import inspect_artifact
from sscc.ir.errors import SsccError
from sscc.runtime.backends.collectives.group import thread_groups
from sscc.runtime.backends.collectives.links import LinkErrors
from sscc.runtime.serving.engine import Engine, EngineOptions, Request
from sscc.runtime.serving.ranks import starting as ranks
from sscc.runtime.serving.ranks.crew import CrewErrors, simulated
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.session.kept_rows import KeptRows
from sscc.runtime.session.prompt import Snapshot
from sscc.runtime.session.session import Session
from tests.compiler.test_joining import listeners
from tests.errors import check, raises
from tests.models.tiny_llama import save_tiny_llama

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
RANKS = 2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("model"), 0, hidden_size=32, intermediate_size=64,
                           num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2,
                           max_position_embeddings=64, vocab_size=38, eos_token_id=37)  # fmt: skip


def compiled(model: Path, out: Path, **options: object) -> Artifact:
    shape = {"max_context": 64, "batch": 2, "tp": RANKS, "native_code": True, **options}
    return Artifact.load(compile_model(CompileOptions(model, out, **shape)).path)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def artifact(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return compiled(model, tmp_path_factory.mktemp("out") / "m.rdu")


def logits(session: Session) -> np.ndarray:
    first = session.prefill(1, PROMPT)
    return np.stack([first, *(session.decode({1: token})[1] for token in (7, 8, 9))])


def in_threads(artifact: Artifact, checkpoint: Path | None = None) -> Session:
    leading = simulated(
        thread_groups(RANKS), lambda group: open_interpreter(artifact, checkpoint, threads=1, group=group)
    )
    return Session(artifact.signature, leading, identity=lambda: artifact.identity)


def children(of: int | str = "self") -> list[int]:
    """Return the processes that any thread of a process has started."""
    lists = Path(f"/proc/{of}/task").glob("*/children")
    return sorted(int(pid) for path in lists for pid in path.read_text().split())


def test_processes_compute_what_threads_do(model: Path, artifact: Artifact, tmp_path: Path) -> None:
    """Bit for bit; and one rank what several do, to rounding. Weights may be embedded, referred to or another's."""
    before = children()
    session = open_session(artifact)
    assert len(children()) == len(before) + RANKS - 1
    expected = logits(session)
    session.reset()
    assert np.array_equal(logits(session), expected)
    session.close()
    assert children() == before
    alone = open_session(compiled(model, tmp_path / "one.rdu", tp=None))
    np.testing.assert_allclose(logits(alone), expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
    referring = compiled(model, tmp_path / "reference.rdu", weights="reference")
    for other in (in_threads(artifact), in_threads(referring), in_threads(artifact, model)):
        assert np.array_equal(logits(other), expected)
        other.close()


@pytest.mark.parametrize("transport", ["memory", "sockets"])
def test_ranks_that_are_started_here_listen_nowhere(transport: str, artifact: Artifact) -> None:
    """All their sockets are inherited, so another user of the machine has nothing to connect to."""
    before = set(children())
    own = listeners(os.getpid())
    with closing(open_session(artifact, transport=transport)) as session:
        assert logits(session).any()
        (rank,) = set(children()) - before
        assert listeners(rank) == []
        assert listeners(os.getpid()) == own


@pytest.mark.parametrize("transport", [None, "sockets"])
def test_a_rank_that_is_suspended_while_it_opens_the_program(
    transport: str | None, artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Imports may keep a rank from answering for long; one that does not run at all is another matter."""
    started = ranks._started

    def suspended(*args: Any) -> Any:
        process = started(*args)
        os.kill(process.pid, signal.SIGSTOP)
        return process

    monkeypatch.setattr(ranks, "_started", suspended)
    before, start = children(), time.monotonic()
    with raises(CrewErrors.SILENT, rank=1):
        open_session(artifact, transport=transport)
    assert time.monotonic() - start < 10
    assert children() == before


@pytest.mark.parametrize("transport", ["memory", "sockets"])
def test_a_rank_that_cannot_open_the_program(
    transport: str, artifact: Artifact, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its error is the cause of rank 0's error."""
    begin, missing = ranks._started, str(tmp_path / "missing.rdu")

    def started(module: str, task: Any, opening: ranks.Opening, descriptors: Any) -> Any:
        return begin(module, task, replace(opening, artifact=missing), descriptors)

    monkeypatch.setattr(ranks, "_started", started)
    before = children()
    with raises(CrewErrors.RANK_FAILED, rank=1) as caught:
        open_session(artifact, transport=transport)
    cause = caught.value.fields["cause"]
    assert missing in cause["message"]
    assert cause["message"] in str(caught.value)
    assert cause.keys() == {"kind", "message", "fields"}
    assert children() == before


def test_a_rank_that_is_killed(artifact: Artifact) -> None:
    """The engine knows at once, without a request, and then takes none."""
    before = set(children())
    session = open_session(artifact)
    (rank,) = set(children()) - before
    with Engine(session) as engine:
        assert engine.failure is None
        os.kill(rank, signal.SIGKILL)
        until = time.monotonic() + 10
        while engine.failure is None:
            assert time.monotonic() < until
            time.sleep(0.01)
        check(engine.failure, LinkErrors.ENDED, rank=1)
    with raises(LinkErrors.ENDED, rank=1):
        session.prefill(0, PROMPT)
    session.close()
    assert set(children()) == before


def test_a_rank_that_is_killed_before_it_joins(artifact: Artifact) -> None:
    before = set(children())
    errors: list[SsccError] = []

    def opening() -> None:
        with raises(LinkErrors.ENDED, rank=1) as caught:
            open_session(artifact, transport="sockets")
        errors.append(caught.value)

    thread = threading.Thread(target=opening)
    thread.start()
    while not (started := set(children()) - before):
        time.sleep(0.001)
    os.kill(started.pop(), signal.SIGKILL)
    thread.join(10)
    assert len(errors) == 1
    assert set(children()) == before


def test_an_interruption_is_for_rank_0(artifact: Artifact, capfd: pytest.CaptureFixture[str]) -> None:
    """Others say nothing of it, not even where it comes before their first line; and they outlive the thread that has
    asked for them."""
    before = set(children())
    started = threading.Thread(target=lambda: sessions.append(open_session(artifact)))
    sessions: list[Session] = []
    started.start()
    while started.is_alive():
        for rank in set(children()) - before:
            os.kill(rank, signal.SIGINT)
        time.sleep(0.001)
    with closing(sessions.pop()) as session:
        assert logits(session).any()
    assert capfd.readouterr().err == ""


def test_when_rank_0_is_killed_the_others_end(artifact: Artifact) -> None:
    code = "import sys, sscc; session = sscc.load(sys.argv[1]); print(1, flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(artifact.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"1\n"
        (other,) = children(first.pid)
        first.kill()
    until = time.monotonic() + 10
    while Path(f"/proc/{other}/stat").exists() and Path(f"/proc/{other}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < until
        time.sleep(0.01)


def test_ranks_that_torchrun_starts(artifact: Artifact, capfd: pytest.CaptureFixture[str]) -> None:
    """They meet at a socket of the user's."""
    line = ["run", str(artifact.path), "--token-ids", ",".join(map(str, PROMPT)), "--max-new-tokens", "5", "--json",
            "--ignore-eos", "--transport", "sockets"]  # fmt: skip
    program = ["-m", "sscc.compiler.tools.commands.cli", *line]
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), *program]
    done = subprocess.run([sys.executable, *launcher], capture_output=True, text=True, timeout=120, check=True)
    assert main(line[:-2]) == 0
    assert json.loads(done.stdout)["tokens"] == json.loads(capfd.readouterr().out)["tokens"]


def test_ranks_are_measured(artifact: Artifact, capfd: pytest.CaptureFixture[str]) -> None:
    """All of them read from one memory: each its weights, and its rows of two layers, one KV head of two."""
    line = ["bench", str(artifact.path), "-p", "9", "-n", "2", "-d", "10", "-b", "2", "-r", "1", "--threads", "2"]
    assert main([*line, "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["ranks"], told["ranks_of_this_machine"], told["threads"]) == (2, 2, 2)
    _, decode = told["results"]
    weights = step_bytes(artifact, 0, 1)
    rows = 2 * 10 * artifact.signature.rows(artifact.signature.plan.main).row_bytes
    assert decode["bytes_per_step"] == RANKS * (weights + 2 * rows)
    assert main([*line, "-p", "0"]) == 0
    assert "native interpreter, 2 ranks, 2 threads\n" in capfd.readouterr().out
    assert main(["inspect", str(artifact.path)]) == 0
    assert "2 layers, 2/1 heads of 8 on each of 2 ranks, 38 tokens\n" in capfd.readouterr().out


@pytest.mark.parametrize("kv", [{}, {"kv_policy": "query"}], ids=str)
def test_what_ranks_keep_of_prompts(model: Path, tmp_path: Path, kv: dict[str, object]) -> None:
    """The answers of ranks that are processes and keep prompts are those that they give without, whatever was given up
    meanwhile; what is kept counts on all ranks, and what is given up the others give up too."""
    rows = {"kv_sink": 1, "kv_recent": 4, "kv_topk": 4, "kv_obs": 2, **kv}
    artifact = compiled(model, tmp_path / "kept.rdu", prefill_chunk=4, **rows)
    first = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9]
    prompts = [first, first, [*first[:9], 7, 7, 7], [7, *first], first]
    requests = [Request(tuple(prompt), 6, logprobs=0, eos=frozenset()) for prompt in prompts]
    with closing(in_threads(artifact)) as session, Engine(session) as engine:
        expected = [engine.generate(request) for request in requests]
    with closing(open_session(artifact)) as session:
        session.prefill(1, first)
        session.save_slot(1, tmp_path / "slot")
        assert inspect_artifact(artifact, context=len(first)).slot_message_bytes == (tmp_path / "slot").stat().st_size
        assert session.rows.chunk_bytes == 2 * session.signature.chunk_bytes
        limit = (5 if kv else 8) * session.rows.chunk_bytes
        with Engine(session, options=EngineOptions(prompt_cache_bytes=limit)) as engine:
            done = [engine.generate(request) for request in requests]
    assert [answer.logprobs for answer in done] == [answer.logprobs for answer in expected]
    with closing(in_threads(artifact)) as session:
        logits = session.prefill(0, first)
        assert np.array_equal(session.load_slot(1, tmp_path / "slot"), logits), "of ranks that are other processes"
        of_slots = session.decode({0: 5, 1: 5})
        assert np.array_equal(of_slots[0], of_slots[1])
    again = 13 if not kv else 12 if "kv_policy" in kv else 8
    assert [answer.cached_tokens for answer in done] == [0, again, 8, 0, 8]


def test_ranks_give_up_what_rank_0_does(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[KeptRows] = []
    begin = KeptRows.__init__

    def noted(self: KeptRows, *args: Any) -> None:
        begin(self, *args)
        made.append(self)

    monkeypatch.setattr(KeptRows, "__init__", noted)
    with closing(in_threads(artifact)) as session:
        session.prefill(0, PROMPT)
        kept = [session.snapshot(0) for _ in range(3)]
        session.prefill(0, PROMPT)  # when it is over, all ranks have done what was to be done before
        parts = [sum(part.nbytes for part in rows.copies[kept[2].rows.number].values()) for rows in made]
        assert [session.rows] == made[:1]
        assert kept[2].nbytes == session.snapshot_bytes(0) == sum(parts) == RANKS * parts[0]
        del kept[:2]
        assert len(session.rows.copies) == 1
        session.restore(1, kept[0])
        session.prefill(0, PROMPT)
        assert [list(rows.copies) for rows in made] == [[2]] * RANKS


def restore_for_ever(session: Session, snapshot: Snapshot) -> None:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        session.restore(1, snapshot)


def test_a_rank_that_is_killed_while_it_copies(artifact: Artifact) -> None:
    before = set(children())
    with closing(open_session(artifact)) as session:
        session.prefill(0, PROMPT)
        snapshot = session.snapshot(0)
        (rank,) = set(children()) - before
        os.kill(rank, signal.SIGKILL)
        with raises(LinkErrors.ENDED, rank=1):
            restore_for_ever(session, snapshot)
    assert set(children()) == before
