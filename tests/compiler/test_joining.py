"""Ranks that torchrun has started: they join at a socket of the user's on one machine, by a secret across several."""

from __future__ import annotations

import json
import os
import pickle
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest

from sscc.ir.errors import RankError, UsageError
from sscc.runtime.backends.collectives.handshake import SECRET_VARIABLE, HandshakeErrors
from sscc.runtime.backends.collectives.processes import TransportErrors
from sscc.runtime.serving.ranks import joining
from sscc.runtime.serving.ranks.joining import JoiningErrors, join, launched
from sscc.runtime.support.user_cache import CacheErrors, cache_folder
from tests.errors import raises
from tests.fuzz.rank_messages import Marking

RANKS = 3
SECRET = "0123456789abcdef0123456789abcdef"
WORK = """
import json, sys, time
from sscc.runtime.serving.ranks.joining import join
from sscc.ir.errors import SsccError

try:
    joined = join(sys.argv[1] or None, 4, float(sys.argv[2]))
    group = joined.group
    told = {"values": group.exchange(group.rank * 10), "transport": type(group._transport).__name__}
    if told["transport"] == "Sockets":
        parts = []
        for nbytes in (64, 1 << 20):
            windows = group.windows(nbytes)
            memory = windows.owner.reshape(2, group.ranks, nbytes)
            for turn in (0, 1, 0):
                memory[turn, group.rank, :] = group.rank + 1 + turn
                windows.meeting(nbytes, turn)
                parts.append([sorted({*part.tolist()}) for part in memory[turn]])
        told["parts"] = parts
    print(json.dumps(told))
    group.exchange(None)
except SsccError as error:
    print(json.dumps(error.as_json()))
    sys.exit(error.exit_code)
"""


def address_of_this_machine() -> str:
    """An address that is not loopback; the test is skipped if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            pytest.skip("this machine has no network")
        return str(probe.getsockname()[0])


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def started(
    variables: Mapping[str, str], transport: str = "", seconds: float = 60.0, ranks: range = range(RANKS)
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that have the variables of ranks."""
    environment = {name: value for name, value in os.environ.items() if name != SECRET_VARIABLE}
    common = {**environment, "WORLD_SIZE": str(RANKS), **variables}
    with ExitStack() as stack:
        processes = []
        for rank in ranks:
            command = [sys.executable, "-c", WORK, transport, str(seconds)]
            output = stack.enter_context(TemporaryFile())
            process = subprocess.Popen(command, env={**common, "RANK": str(rank)}, stdout=output)
            process.stdout = output  # type: ignore[assignment]
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        yield processes


def answers(processes: list[subprocess.Popen[bytes]]) -> list[dict[str, Any]]:
    told = []
    for process in processes:
        process.wait(90)
        assert process.stdout is not None
        process.stdout.seek(0)
        told.append(json.loads(process.stdout.read()))
    return told


def check_parts(told: list[dict[str, Any]]) -> None:
    for each in told:
        assert each["values"] == [0, 10, 20]
        assert each["transport"] == "Sockets"
        assert each["parts"] == [[[1 + turn], [2 + turn], [3 + turn]] for turn in (0, 1, 0)] * 2


def listeners(process: int) -> list[str]:
    """The sockets of the network at which a process listens."""
    inodes = set()
    with suppress(OSError):  # it has ended
        for path in Path(f"/proc/{process}/fd").iterdir():
            with suppress(FileNotFoundError):
                inodes.add(os.readlink(path).removeprefix("socket:[").removesuffix("]"))
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return [row[1] for row in rows if row[3] == "0A" and row[9] in inodes]


@pytest.mark.parametrize("transport", ["", "sockets"])
def test_ranks_of_one_machine(transport: str) -> None:
    """They need neither a secret nor a port. Strangers cannot even reach them."""
    variables = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "LOCAL_WORLD_SIZE": str(RANKS)}
    with started(variables, transport) as processes:
        heard: set[str] = set()
        while processes[0].poll() is None:
            heard.update(listeners(processes[0].pid))
            time.sleep(0.02)
        told = answers(processes)
    assert not heard
    assert list((cache_folder() / "ranks").iterdir()) == []
    if transport:
        check_parts(told)
    else:
        assert {each["transport"] for each in told} == {"SharedMemory"}


def test_a_rank_0_that_waits_in_vain() -> None:
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with started(variables, seconds=1.0, ranks=range(1)) as processes:
        (told,) = answers(processes)
    assert told["kind"] == HandshakeErrors.NOT_ALL_CAME.code
    assert list((cache_folder() / "ranks").iterdir()) == []


def test_the_folder_is_the_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSCC_CACHE", str(tmp_path / ("deep" * 30) / "cache"))
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(joining, "accept", lambda listener, *rest: seen.append(modes()) or {}[0])
    seen: list[list[int]] = []
    folder = Path(os.environ["SSCC_CACHE"]) / "ranks"

    def modes() -> list[int]:
        return [stat.S_IMODE(path.stat().st_mode) for path in (folder.parent, folder)]

    with pytest.raises(KeyError):
        join(None, 1)
    assert seen == [[0o700, 0o700]]
    folder.chmod(0o777)
    with raises(CacheErrors.FOREIGN_WRITERS, path=folder, mode=0o777):
        join(None, 1)


def test_ranks_of_several_machines(tmp_path: Path) -> None:
    """By a secret. Meanwhile strangers say nothing, noise and pickles, and rank 0 is there last."""
    port = free_port()
    variables = {"MASTER_ADDR": address_of_this_machine(), "MASTER_PORT": str(port), "LOCAL_WORLD_SIZE": "1",
                 SECRET_VARIABLE: SECRET}  # fmt: skip
    mark = tmp_path / "mark"
    with started(variables, "sockets", ranks=range(1, RANKS)) as others, ExitStack() as stack:
        (rank_0,) = stack.enter_context(started(variables, "sockets", ranks=range(1)))
        while rank_0.poll() is None:
            try:
                stranger = socket.create_connection((variables["MASTER_ADDR"], port), 0.5)
            except OSError:
                time.sleep(0.02)
                continue
            stack.callback(stranger.close)
            try:
                stranger.sendall(pickle.dumps(Marking(mark)))
                stack.callback(socket.create_connection((variables["MASTER_ADDR"], port), 0.5).close)
                time.sleep(0.02)
            except OSError:
                continue
        check_parts(answers([rank_0, *others]))
    assert not mark.exists()


@pytest.mark.parametrize("rank", [0, 1])
def test_several_machines_without_a_secret(rank: int) -> None:
    """Refused at once, and nothing listens."""
    variables = {"MASTER_ADDR": address_of_this_machine(), "MASTER_PORT": str(free_port())}
    with started(variables, ranks=range(rank, rank + 1)) as processes:
        (told,) = answers(processes)
        assert processes[0].returncode == UsageError.exit_code
    assert told["kind"] == HandshakeErrors.NO_SECRET.code


def test_a_rank_with_another_secret(tmp_path: Path) -> None:
    variables = {"MASTER_ADDR": address_of_this_machine(), "MASTER_PORT": str(free_port()), SECRET_VARIABLE: SECRET}
    other = {**variables, SECRET_VARIABLE: SECRET[::-1]}
    with started(variables, seconds=6.0, ranks=range(1)) as (rank_0,), started(other, ranks=range(1, 2)) as (rank_1,):
        told = answers([rank_1, rank_0])
    assert [each["kind"] for each in told] == [HandshakeErrors.REFUSED.code, HandshakeErrors.NOT_ALL_CAME.code]
    assert told[1]["fields"]["missing"] == [1, 2]
    assert rank_0.returncode == rank_1.returncode == RankError.exit_code


@pytest.mark.slow
def test_torchrun_on_two_machines(tmp_path: Path) -> None:
    """Its store has the port of rank 0."""
    address, port = address_of_this_machine(), str(free_port())
    (tmp_path / "work.py").write_text(WORK)
    environment = {**os.environ, SECRET_VARIABLE: SECRET}
    with ExitStack() as stack:
        nodes = []
        for node, ranks in ((0, "1"), (1, "1")):
            command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(node),
                       "--nproc-per-node", ranks, "--master-addr", address, "--master-port", port,
                       str(tmp_path / "work.py"), "sockets", "60"]  # fmt: skip
            output = stack.enter_context(TemporaryFile())
            process = subprocess.Popen(command, env=environment, stdout=output)
            process.stdout = output  # type: ignore[assignment]
            stack.callback(process.wait)
            stack.callback(process.terminate)
            nodes.append(process)
        told = answers(nodes)
    assert [(each["values"], each["transport"]) for each in told] == [([0, 10], "Sockets")] * 2


def test_what_is_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with raises(JoiningErrors.NO_RANK, rank="2", ranks="2"):
        launched()
    with raises(TransportErrors.NO_GLOO, name="gloo"):
        join("gloo", 1)
    with raises(TransportErrors.UNKNOWN, name="pigeon", known=["memory", "sockets"]):
        join("pigeon", 1)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("MASTER_ADDR", "192.0.2.1")
    monkeypatch.setenv("MASTER_PORT", "99999")
    monkeypatch.setenv(SECRET_VARIABLE, SECRET)
    with raises(JoiningErrors.NO_PORT, port="99999"):
        join(None, 1)
