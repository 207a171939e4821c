"""Ranks that meet at an address: impostors become no rank, and keep nobody from joining."""

from __future__ import annotations

import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from sscc.runtime.backends.collectives import handshake
from sscc.runtime.backends.collectives.handshake import (
    MOST_STRANGERS,
    SECRET_VARIABLE,
    HandshakeErrors,
    Identity,
    Seat,
    accept,
    connect,
    required_secret,
    same_user,
    secret_of_environment,
)
from tests.errors import check, raises
from tests.fuzz.rank_messages import Marking

SECRET = b"a secret of sixteen bytes or more"
RANKS = 3
SEATS: list[Seat] = [(channel, rank) for channel in range(2) for rank in (1, 2)]


class Meeting:
    """Rank 0 that listens in a thread."""

    def __init__(self, seconds: float) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()
        self.seated: dict[Seat, socket.socket] = {}
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._listen, args=(seconds,))
        self._thread.start()

    def _listen(self, seconds: float) -> None:
        try:
            self.seated = accept(self.listener, Identity(0, RANKS, SECRET), SEATS, seconds)
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()
        self.listener.close()


@contextmanager
def meeting(seconds: float = 20.0) -> Iterator[Meeting]:
    rank_0 = Meeting(seconds)
    try:
        yield rank_0
    finally:
        rank_0.end()


def join_all(rank_0: Meeting, secret: bytes = SECRET) -> dict[Seat, socket.socket]:
    return {
        (channel, rank): connect(rank_0.address, Identity(rank, RANKS, secret), channel, 0, 10.0)
        for channel, rank in SEATS
    }


def stranger(rank_0: Meeting) -> socket.socket:
    connection = socket.create_connection(rank_0.address, 10.0)
    assert len(connection.recv(32)) == 32
    return connection


def test_ranks_join() -> None:
    with meeting() as rank_0:
        theirs = join_all(rank_0)
    assert rank_0.seated.keys() == theirs.keys()
    for seat, connection in theirs.items():
        connection.sendall(repr(seat).encode())
        rank_0.seated[seat].settimeout(10.0)
        assert rank_0.seated[seat].recv(100) == repr(seat).encode()


def hello(connection: socket.socket, secret: bytes, rank: int = 1, ranks: int = RANKS) -> None:
    challenge = b"c" * 32
    proof = Identity(rank, ranks, secret).proof(b"calling ", (challenge, b"?" * 32), 0, rank, 0)
    connection.sendall(handshake._HELLO.pack(challenge, 0, rank, ranks, proof))


@pytest.mark.parametrize(
    "act",
    [
        lambda one, mark: None,
        lambda one, mark: one.close(),
        lambda one, mark: one.sendall(b"x"),
        lambda one, mark: one.sendall(bytes(100_000)),
        lambda one, mark: one.sendall(b"GET / HTTP/1.1\r\n\r\n"),
        lambda one, mark: one.sendall(pickle.dumps(Marking(mark))),
        lambda one, mark: one.sendall(pickle.dumps(Marking(mark)).ljust(101, b"x")),
        lambda one, mark: hello(one, b"another secret of enough bytes"),
        lambda one, mark: hello(one, SECRET),  # a right proof, of another connection
    ],
    ids=["silent", "closes", "drips", "noise", "http", "pickle", "long pickle", "wrong secret", "replay"],
)
def test_an_impostor(act: Callable[[socket.socket, Path], None], tmp_path: Path) -> None:
    """It is there before, while and after the ranks join; they do at once."""
    mark, start = tmp_path / "mark", time.monotonic()
    with meeting() as rank_0:
        impostors = [stranger(rank_0) for _ in range(3)]
        for impostor in impostors:
            act(impostor, mark)
        join_all(rank_0)
    assert rank_0.error is None
    assert len(rank_0.seated) == len(SEATS)
    assert time.monotonic() - start < 3.0
    assert not mark.exists()


def test_strangers_are_closed_after_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that says nothing, and one that says a byte now and then."""
    monkeypatch.setattr(handshake, "HELLO_SECONDS", 0.5)
    with meeting() as rank_0:
        silent, drips = stranger(rank_0), stranger(rank_0)
        start, ended = time.monotonic(), 0.0
        drips.settimeout(0.1)
        while not ended:
            assert time.monotonic() - start < 10
            try:
                drips.sendall(b"x")
                ended = time.monotonic() - start if drips.recv(1) == b"" else 0.0
            except TimeoutError:
                continue
            except OSError:
                ended = time.monotonic() - start
        assert ended < 5
        assert silent.recv(1) == b""
        join_all(rank_0)
    assert rank_0.error is None


def test_many_strangers() -> None:
    with meeting() as rank_0, ExitStack() as stack:
        for _ in range(MOST_STRANGERS + 20):
            stack.enter_context(stranger(rank_0))
        join_all(rank_0)
    assert rank_0.error is None


def test_ranks_that_do_not_come_are_named() -> None:
    with meeting(seconds=0.6) as rank_0:
        connect(rank_0.address, Identity(1, RANKS, SECRET), 0, 0, 10.0)
        stranger(rank_0).close()
    check(rank_0.error, HandshakeErrors.NOT_ALL_CAME, missing=[1, 2], refused=1)  # type: ignore[arg-type]


def test_a_rank_with_another_secret_is_told() -> None:
    with meeting(seconds=2.0) as rank_0:
        with raises(HandshakeErrors.REFUSED, peer=0, rank=1, variable=SECRET_VARIABLE):
            connect(rank_0.address, Identity(1, RANKS, b"another secret of enough bytes"), 0, 0, 10.0)
        with raises(HandshakeErrors.REFUSED):
            connect(rank_0.address, Identity(1, RANKS + 1, SECRET), 0, 0, 10.0)
        with raises(HandshakeErrors.REFUSED):
            connect(rank_0.address, Identity(1, RANKS, SECRET), 7, 0, 10.0)


@pytest.mark.parametrize("says", [b"", b"x" * 32, b"x" * 64, b"x" * 200])
def test_a_listener_that_is_not_rank_0(says: bytes) -> None:
    """The listener learns no secret, and its message is not decoded."""
    heard: list[bytes] = []

    def listen() -> None:
        connection, _ = listener.accept()
        with connection, suppress(ConnectionError):
            connection.sendall(says)
            connection.settimeout(5.0)
            while data := connection.recv(1000):
                heard.append(data)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=listen)
        thread.start()
        kind = HandshakeErrors.IMPOSTOR if len(says) >= 64 else HandshakeErrors.NOT_FOUND
        with raises(kind, peer=0):
            connect(listener.getsockname(), Identity(1, RANKS, SECRET), 0, 0, 0.5)
        thread.join(10)
    assert SECRET not in b"".join(heard)


def test_rank_0_that_listens_later(tmp_path: Path) -> None:
    """Sockets in the file system, as ranks of one machine have them."""
    path = str(tmp_path / "socket")
    found: list[socket.socket] = []
    thread = threading.Thread(target=lambda: found.append(connect(path, Identity(1, 2, b""), 0, 0, 10.0)))
    thread.start()
    time.sleep(0.3)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        seated = accept(listener, Identity(0, 2, b""), [(0, 1)], 10.0, same_user)
    thread.join(10)
    assert [*seated] == [(0, 1)]
    assert found
    with raises(HandshakeErrors.NOT_FOUND, address=path):
        connect(path, Identity(1, 2, b""), 0, 0, 0.3)


def test_a_process_of_another_user(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as other:
        listener.bind(path)
        listener.listen()
        other.connect(path)
        with raises(HandshakeErrors.NOT_ALL_CAME, refused=1):
            accept(listener, Identity(0, 2, b""), [(0, 1)], 0.3, lambda _: False)
        assert other.recv(1) == b""


def test_secrets_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    assert secret_of_environment() is None
    with raises(HandshakeErrors.NO_SECRET, variable=SECRET_VARIABLE):
        required_secret()
    monkeypatch.setenv(SECRET_VARIABLE, "short")
    with raises(HandshakeErrors.SHORT_SECRET, length=5):
        secret_of_environment()
    monkeypatch.setenv(SECRET_VARIABLE, "f" * 16)
    assert required_secret() == b"f" * 16
    assert "f" * 16 not in repr(Identity(0, 2, required_secret()))
