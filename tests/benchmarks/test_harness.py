"""The harness of the benchmarks, on peers that only pretend."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import command as benchmark
from benchmarks import harness, models
from benchmarks.harness import PeerResult, Runner, RunnerError, Workload
from benchmarks.peers.protocol import Stepper
from benchmarks.peers.registry import PEERS, Peer, Precision

DECODE = Workload("decode", 2, 8, 4)
PREFILL = Workload("prefill", 1, 16, 1)
BANDWIDTH = 40e9


def fake(*behaviours: str, name: str = "fake") -> Peer:
    return Peer(name, "", "tests.benchmarks.fake_peer", tuple(Precision(word, 16, 16) for word in behaviours))


def options(*only: str, repeats: int = 2) -> Namespace:
    words = {"models": ["m125"], "threads": 1, "together": 0, "passive": False, "json": True, "write": None}
    return Namespace(only=list(only), repeats=repeats, **words)


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(models, "checkpoint", lambda name: tmp_path)


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    with (tmp_path / "log").open("w+") as log, started("talks", log) as runner:
        yield runner


def started(behaviour: str, log: object) -> Runner:
    peer = fake(behaviour)
    words = harness.command(peer, peer.precisions[0], Path("model"), 1)
    return Runner(words, harness.environment(1, passive=True), log)  # type: ignore[arg-type]


def state(runner: Runner) -> str:
    return Path(f"/proc/{runner.process.pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.usefixtures("no_model")
def test_every_peer_gets_every_task_or_says_why_not() -> None:
    peers = (fake("decodes", "broken", "dies"), fake("talks", name="other"))
    done = benchmark.run(options(), [DECODE, PREFILL], peers=peers, bandwidth=lambda: BANDWIDTH)
    cells = {(result.peer, result.dtype, result.workload.kind): result for result in done.results}
    assert len(cells) == len(done.results) == 8
    good = cells["other", "talks", "decode"]
    assert good.seconds == [4e-3, 4e-3]
    assert good.rate == pytest.approx(2 * 4 / 4e-3)
    assert good.version == "1.0"
    assert cells["other", "talks", "prefill"].rate == pytest.approx(1e4)
    assert cells["fake", "decodes", "decode"].rate == good.rate
    assert cells["fake", "decodes", "prefill"].error == "Unsupported: it only decodes"
    assert cells["fake", "broken", "decode"].error == "RuntimeError: the model is too large"
    assert cells["fake", "dies", "decode"].error == "it ended with 3"
    assert "ended with 3" in cells["fake", "dies", "prefill"].error


@pytest.mark.usefixtures("no_model")
def test_groups_of_peers_and_models_that_a_peer_cannot_load() -> None:
    peers = (fake("decodes", "talks"), replace(fake("decodes", name="small"), models=("m1b",)), fake("talks", name="c"))
    words = options(repeats=1)
    words.together = 2
    done = benchmark.run(words, [DECODE], peers=peers, bandwidth=lambda: BANDWIDTH)
    assert [f"{result.peer} {result.dtype}" for result in done.results] == ["fake decodes", "fake talks", "c talks"]
    assert all(result.seconds == [4e-3] for result in done.results)


@pytest.mark.usefixtures("no_model")
def test_words_choose_peers_by_name_and_type() -> None:
    peers = (fake("decodes"), fake("talks", "decodes", name="other"))
    done = benchmark.run(options("OTHER T", repeats=1), [DECODE], peers=peers, bandwidth=lambda: BANDWIDTH)
    assert [(result.peer, result.dtype) for result in done.results] == [("other", "talks")]


@pytest.mark.usefixtures("no_model")
def test_a_peer_that_is_not_installed_is_skipped_with_its_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.peers.registry.FOLDER", tmp_path)
    absent = [peer for peer in PEERS if peer.environment]
    assert absent
    for peer in absent:
        done = benchmark.run(options(), [DECODE], peers=[peer], bandwidth=lambda: BANDWIDTH)
        assert done.results == []
        assert done.skipped == [f"{peer.name} is not installed: python benchmarks/peers/install.py {peer.environment}"]
    benchmark.report(done, options(), "block")
    captured = capsys.readouterr()
    assert json.loads(captured.out)["skipped"] == done.skipped
    assert "install.py" in captured.err


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_runner_sleeps_except_while_it_is_asked(runner: Runner) -> None:
    def asleep() -> bool:
        return any(state(runner) == "T" for _ in range(10_000))

    assert asleep()
    assert runner.ask(DECODE.request(), 60) == 4e-3  # what it prints is not taken for the answer
    assert asleep()


def test_a_runner_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+") as log, started("hangs", log) as runner:
        with pytest.raises(RunnerError, match="no answer within 0 s"):
            runner.ask(DECODE.request(), 0.1)
        assert runner.process.wait(10) != 0
        with pytest.raises(RunnerError, match="has ended"):
            runner.ask(DECODE.request(), 60)


class _Recorder:
    """A substitute for a Runner that records its calls. If requested, its second call fails."""

    def __init__(self, name: str, order: list[str], fails: bool = False) -> None:
        self.name, self.order, self.fails = name, order, fails

    def ask(self, request: dict[str, object], limit: float) -> float:
        self.order.append(self.name)
        if self.fails and self.order.count(self.name) == 2:
            raise RunnerError("out of memory")
        return 0.5


def result(name: str, workload: Workload = DECODE) -> PeerResult:
    return PeerResult(name, "bf16", "", "m125", workload, 1e9)


def test_repeats_interleave_and_calibrations_lie_beside_them() -> None:
    order: list[str] = []
    reads = iter(range(1, 100))
    rows = [(result(name), _Recorder(name, order, fails=name == "b")) for name in "abc"]
    harness.interleave(rows, DECODE, 3, lambda: float(next(reads)), 1.0)  # type: ignore[arg-type]
    assert "".join(order) == "abcabcac"
    a, b, _ = (row[0] for row in rows)
    assert a.bandwidth[0] == 1.5
    assert len(a.bandwidth) == len(a.seconds) == 3
    assert (b.seconds, b.bandwidth, b.error) == ([], [], "out of memory")


def test_figures_of_a_result() -> None:
    one = result("a")
    one.seconds, one.bandwidth = [0.4, 0.1, 0.2], [20e9, 80e9, 40e9]
    assert one.rate == pytest.approx(2 * 4 / 0.2)
    assert one.best == pytest.approx(2 * 4 / 0.1)
    assert one.calibration == 40e9
    assert one.share == pytest.approx(0.5)  # 4 GB in 0.4 s at 20, in 0.1 at 80, in 0.2 at 40 GB/s
    assert json.loads(json.dumps(one.record()))["share"] == pytest.approx(0.5)


def test_bytes_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = models.LlamaShape(hidden=8, layers=2, heads=2, kv_heads=1, ffn=16, vocab=32)
    weights = 2 * (2 * 8 * 8 + 2 * 8 * 4 + 3 * 8 * 16) + 8 * 32
    assert shape.weights_per_step(3) == weights
    assert shape.kv_per_row == 2 * 2 * 4
    workload = Workload("decode", 3, 100, 1)
    monkeypatch.setitem(models.MODELS, "small", shape)
    subject = models.RandomModel("small")
    assert subject.step_bytes(workload, Precision("bf16", 16, 16)) == 2 * weights + 3 * 100 * 16 * 2
    assert subject.step_bytes(workload, Precision("int8", 8, 16), budget=10) == weights + 3 * 10 * 16 * 2
    assert models.MODELS["m125"].weights_per_step(1) * 2 == pytest.approx(200e6, rel=0.01)
    assert models.MODELS["m1b"].weights_per_step(8) * 2 == pytest.approx(2077e6, rel=0.01)


def test_experts_are_read_as_far_as_they_are_chosen() -> None:
    shape = models.ExpertShape(hidden=8, layers=2, heads=2, kv_heads=1, ffn=16, vocab=32, experts=4, chosen=2)
    others = 2 * (2 * 8 * 8 + 2 * 8 * 4 + 8 * 4) + 8 * 32
    assert shape.weights_per_step(1) == others + 2 * 2 * 3 * 8 * 16
    assert shape.weights_per_step(2) == others + 2 * 3 * 3 * 8 * 16  # a second token chooses one of the two left
    assert models.MODELS["moe1b"].weights_per_step(10_000) == pytest.approx(972e6, rel=0.01)


class _Counter(Stepper):
    def __init__(self) -> None:
        super().__init__()
        self.starts: list[tuple[int, int, int]] = []
        self.steps = 0

    def start(self, batch: int, context: int, room: int) -> None:
        self.starts.append((batch, context, room))
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        assert self.steps <= self.starts[-1][2], "more steps than there is room for"

    def prompt(self, tokens: int) -> None:
        self.start(1, tokens, 0)


def test_a_cache_is_filled_once_and_anew_before_it_is_full() -> None:
    peer = _Counter()
    for _ in range(3):
        peer.decode(1, 128, 32)
    assert peer.starts == [(1, 128, 128)]
    peer.decode(1, 128, 32)
    assert len(peer.starts) == 2
    peer.decode(2, 128, 300)
    assert peer.starts[-1] == (2, 128, 302)
    peer.prefill(64)
    peer.decode(2, 128, 300)
    assert peer.starts[-2:] == [(1, 64, 0), (2, 128, 302)]
    peer.decode(1, 4096, 32)
    assert peer.starts[-1] == (1, 4096, 512)
