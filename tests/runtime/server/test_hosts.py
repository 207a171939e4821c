"""Names that a server answers to, and pages that may ask it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import pytest

from sscc.compiler.tools.commands.cli import main
from sscc.ir.errors import UsageError
from sscc.runtime.serving.fleet.forwarded_requests import Start, answered
from sscc.runtime.serving.fleet.gateway import Gateway
from sscc.runtime.serving.server.hosts import Hosts
from sscc.runtime.serving.server.pages import PAGES
from sscc.runtime.support.host_names import AllowedHostErrors, HostName, parse_hosts
from tests.errors import raises
from tests.runtime.server.fake import NAME, Running, open_app, running

LOOPBACK, LAN = ("127.0.0.1", 8000), ("192.0.2.7", 8000)

HOSTS: list[tuple[str, Any, tuple[str, ...], bool]] = [
    ("localhost:8000", LOOPBACK, (), True),
    ("LocalHost.", LOOPBACK, (), True),
    ("127.0.0.1:8000", LOOPBACK, (), True),
    ("127.1.2.3", LOOPBACK, (), True),
    ("[::1]:8000", ("::1", 8000), (), True),
    ("[::ffff:127.0.0.1]", ("::ffff:127.0.0.1", 8000), (), True),
    ("evil.example:8000", LOOPBACK, (), False),
    ("evil.example", ("::ffff:127.0.0.1", 8000), (), False),
    ("localhost.evil.example", LOOPBACK, (), False),
    ("127.0.0.1.evil.example", LOOPBACK, (), False),
    ("192.0.2.7", LOOPBACK, (), False),
    ("localhost@evil.example", LOOPBACK, (), False),
    ("", LOOPBACK, (), False),
    ("model.example", LOOPBACK, ("model.example",), True),
    ("model.example:81", LOOPBACK, ("model.example",), True),
    ("model.example:81", LOOPBACK, ("model.example:80",), False),
    ("localhost", LOOPBACK, ("model.example",), True),
    ("evil.example", LOOPBACK, ("*",), True),
    ("whoever.example", LAN, (), True),
    ("whoever.example", None, (), True),
    ("whoever.example", LAN, ("model.example",), False),
    ("192.0.2.7:8000", LAN, ("model.example",), True),
    ("localhost", LAN, ("model.example",), True),
]


@pytest.mark.parametrize(("host", "arrived", "allowed", "passes"), HOSTS)
def test_names(host: str, arrived: Any, allowed: tuple[str, ...], passes: bool) -> None:
    refusal = Hosts((), allowed).refusal([host], [], arrived)
    assert (refusal is None) == passes
    if refusal is not None:
        assert (refusal.status_code, refusal.code) == (421, "host_not_allowed")
        assert "--allowed-hosts" in str(refusal)


def test_the_name_of_the_option_host_is_one() -> None:
    assert Hosts(("my-machine",)).refusal(["my-machine:8000"], [], ("127.0.1.1", 8000)) is None
    assert Hosts(("fe80::1",)).refusal(["[fe80::1]:8000"], [], LOOPBACK) is None
    assert Hosts().refusal([], [], LOOPBACK) is None, "HTTP/1.0 has no Host, and no browser"


ORIGINS: list[tuple[str, str, tuple[str, ...], bool]] = [
    ("http://localhost:8000", "localhost:8000", (), True),
    ("http://127.0.0.1:8000", "127.0.0.1:8000", (), True),
    ("http://[::1]:8000", "[::1]:8000", (), True),
    ("http://localhost", "localhost", (), True),
    ("http://localhost", "localhost:80", (), True),
    ("https://model.example", "model.example", (), True),
    ("http://localhost:3000", "localhost:8000", (), False),
    ("http://localhost", "localhost:8000", (), False),
    ("http://127.0.0.1:8000", "localhost:8000", (), False),
    ("https://evil.example", "localhost:8000", (), False),
    ("https://evil.example", "localhost:8000", ("*",), False),
    ("https://chat.example", "localhost:8000", ("chat.example",), True),
    ("https://chat.example", "localhost:8000", ("chat.example:443",), True),
    ("https://chat.example:444", "localhost:8000", ("chat.example:443",), False),
    ("null", "localhost:8000", (), False),
    ("", "localhost:8000", (), False),
    ("file://", "localhost:8000", (), False),
    ("http://localhost:8000/", "localhost:8000", (), False),
    ("http://evil@localhost:8000", "localhost:8000", (), False),
]


@pytest.mark.parametrize(("origin", "host", "allowed", "passes"), ORIGINS)
def test_pages(origin: str, host: str, allowed: tuple[str, ...], passes: bool) -> None:
    refusal = Hosts((), allowed).refusal([host], [origin], LAN if not allowed else None)
    assert (refusal is None) == passes
    if refusal is not None:
        assert (refusal.status_code, refusal.code) == (403, "origin_not_allowed")


def test_two_origins_are_both_looked_at() -> None:
    good, evil = "http://localhost:8000", "http://evil.example"
    assert Hosts().refusal(["localhost:8000"], [good, evil], LOOPBACK) is not None


PATHS = ("/", "/docs", "/health", "/metrics", "/openapi.json", "/v1/models", "/v1/status", "/nowhere")


def test_every_path_asks(server: Running) -> None:
    for path in PATHS:
        for headers, status in (({"host": "evil.example"}, 421), ({"origin": "https://evil.example"}, 403)):
            response = httpx2.get(f"{server.url}{path}", headers=headers)
            assert response.status_code == status
            assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    body = {"model": NAME, "prompt": "a"}
    before = server.engine.metrics().submitted
    for headers in ({"host": "evil.example"}, {"origin": "null"}):
        assert httpx2.post(f"{server.v1}/completions", json=body, headers=headers).status_code in (421, 403)
    response = httpx2.request("OPTIONS", f"{server.v1}/completions", headers={"origin": "https://evil.example"})
    assert response.status_code == 403
    assert server.engine.metrics().submitted == before


def test_the_own_pages_work(server: Running) -> None:
    """A browser sends Origin with what its page posts; pages without one, and programs, send none."""
    for path in PAGES:
        assert httpx2.get(f"{server.url}{path}").status_code == 200
    body = {"model": NAME, "prompt": "a", "max_tokens": 1}
    for name in ("127.0.0.1", "localhost"):
        url = server.url.replace("127.0.0.1", name)
        response = httpx2.post(f"{server.v1}/completions", json=body, headers={"origin": url, "host": url[7:]})
        assert response.status_code == 200


def test_named_hosts_may_ask() -> None:
    with running(hosts=Hosts(("127.0.0.1",), ("model.example",))) as server:
        for headers in ({"host": "model.example"}, {"origin": "https://model.example"}, {}):
            assert httpx2.get(f"{server.url}/health", headers=headers).status_code == 200
        assert httpx2.get(f"{server.url}/health", headers={"host": "evil.example"}).status_code == 421


def test_a_gateway_asks_too() -> None:
    class NoPool:
        async def states(self) -> dict[str, Any]:
            return {}

    gateway = Gateway(NoPool(), by_prompt=False, attempts=1, max_body=1000, api_keys=())  # type: ignore[arg-type]

    async def ask(*headers: tuple[bytes, bytes]) -> tuple[int, Any]:
        sent: list[Any] = []
        asked: list[bool] = []

        async def receive() -> Any:
            if not sent and not asked:
                asked.append(True)
                return {"type": "http.request", "body": b"", "more_body": False}
            return await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/health", "headers": headers, "server": LOOPBACK}
        await gateway(scope, receive, send)
        return sent[0]["status"], json.loads(sent[1]["body"])

    assert asyncio.run(ask((b"host", b"evil.example")))[1]["error"]["code"] == "host_not_allowed"
    own = (b"host", b"localhost")
    assert asyncio.run(ask(own, (b"origin", b"http://evil.example")))[1]["error"]["code"] == "origin_not_allowed"
    assert asyncio.run(ask(own, (b"origin", b"http://localhost")))[0] == 503


def test_a_replica_takes_what_its_gateway_has_let_in() -> None:
    """The gateway has looked at the name, which is not the replica's."""
    from sscc.runtime.serving.fleet.forwarded_requests import Call

    call = Call("GET", "/health", b"", ((b"host", b"fleet.example"), (b"origin", b"https://fleet.example")))

    async def status(app: Any) -> int:
        parts = [part async for part in answered(app, call)]
        assert isinstance(parts[0], Start)
        return parts[0].status

    with open_app() as opened:
        assert asyncio.run(status(opened.app)) == 200


def test_names_in_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_hosts("a, b:80,*,[::1]:8000") == ("a", "b:80", "*", "[::1]:8000")
    assert HostName.parse("::1") == HostName("::1")
    for text in ("", "a,,b", "http://a", "a b", "a:b", "a/b", "*.example"):
        with raises(AllowedHostErrors.NOT_A_HOST):
            parse_hosts(text)
    assert main(["serve", "nothing.rdu", "--allowed-hosts", "a/b"]) == UsageError.exit_code
    assert "'a/b'" in capsys.readouterr().err
