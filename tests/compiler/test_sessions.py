"""An artifact of several ranks as processes: what they compute, and that nothing is left of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from sscc.compiler.cli import main
from sscc.compiler.driver import compile_model
from sscc.compiler.loading import open_interpreter
from sscc.compiler.options import CompileOptions
from sscc.compiler.sessions import open_session
from sscc.ir.errors import RankError, UsageError
from sscc.runtime.artifact.reading import Artifact
from sscc.runtime.collectives.crew import simulated
from sscc.runtime.collectives.group import thread_groups
from sscc.runtime.engine import Engine, EngineOptions
from sscc.runtime.session import Session
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
    return Session(artifact.signature, leading)


def children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


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
        assert str(engine.failure) == "rank 1 has ended"
    with pytest.raises(RankError, match="rank 1 has ended"):
        session.prefill(0, PROMPT)
    session.close()
    assert set(children()) == before


def test_when_rank_0_is_killed_the_others_end(artifact: Artifact) -> None:
    code = "import sys, sscc; session = sscc.load(sys.argv[1]); print(1, flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(artifact.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"1\n"
        (other,) = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
        first.kill()
    until = time.monotonic() + 10
    while Path(f"/proc/{other}/stat").exists() and Path(f"/proc/{other}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < until
        time.sleep(0.01)


def test_ranks_that_torchrun_starts(artifact: Artifact, capfd: pytest.CaptureFixture[str]) -> None:
    """Through torch.distributed, as ranks of different machines do."""
    line = ["run", str(artifact.path), "--token-ids", ",".join(map(str, PROMPT)), "--max-new-tokens", "5", "--json",
            "--ignore-eos", "--transport", "gloo"]  # fmt: skip
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), "-m", "sscc.compiler.cli", *line]
    done = subprocess.run([sys.executable, *launcher], capture_output=True, text=True, timeout=120, check=True)
    assert main(line[:-2]) == 0
    assert json.loads(done.stdout)["tokens"] == json.loads(capfd.readouterr().out)["tokens"]


def test_what_does_not_fit(artifact: Artifact, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(artifact.path), "--token-ids", "1", "--tp", "4"]) == UsageError.exit_code
    assert f"--tp is 4, and {artifact.path} is compiled for 2 ranks" in capfd.readouterr().err
    session = in_threads(artifact)
    with pytest.raises(UsageError, match="where 2 ranks hold their rows"):
        Engine(session, None, EngineOptions(prompt_cache_bytes=1 << 20))
    session.prefill(0, PROMPT)
    with pytest.raises(UsageError, match="2 ranks hold it"):
        session.snapshot(0)
    session.close()
