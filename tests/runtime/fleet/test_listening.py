"""A gateway's own port, in an event loop that others use too."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import httpx2
import pytest

from sscc.runtime.serving.fleet import listening
from sscc.runtime.serving.fleet.listening import Listening
from sscc.runtime.serving.server.service import ListeningErrors
from tests.errors import raises
from tests.runtime.server.fake import NAME, open_app, reply


async def port_of(app: Any, seconds: float = 5.0) -> tuple[Listening, str]:
    """It listens on a port that was free just before."""
    probe = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = probe.sockets[0].getsockname()[1]
    probe.close()
    await probe.wait_closed()
    return await Listening.start(app, "127.0.0.1", port, seconds), f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_what_was_begun_is_finished_when_it_stops(loop: str) -> None:
    """uvloop is what Ray runs applications in; its connections read as much as they like."""
    factory = asyncio.new_event_loop if loop == "asyncio" else pytest.importorskip("uvloop").new_event_loop

    async def test() -> None:
        with open_app() as server:
            port, url = await port_of(server.app)
            body = {"model": NAME, "prompt": "one", "max_tokens": 9, "temperature": 0, "stream": False}
            async with httpx2.AsyncClient(timeout=20) as client:
                assert (await client.post(f"{url}/v1/completions", json=body)).json()["choices"][0]["text"] == reply(
                    "one", 9
                )
                server.interpreter.go.clear()
                begun = asyncio.ensure_future(client.post(f"{url}/v1/completions", json=body))
                while server.engine.metrics().running == 0:
                    await asyncio.sleep(0.01)
                stopped = asyncio.ensure_future(port.stop())
                await asyncio.sleep(0.2)
                assert not stopped.done()
                server.interpreter.go.set()
                assert (await begun).json()["choices"][0]["text"] == reply("one", 9)
                await stopped
                assert port.ended
                with pytest.raises(httpx2.ConnectError):
                    await httpx2.AsyncClient().get(f"{url}/health")

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(test())


def test_a_port_that_somebody_has_is_waited_for_and_then_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "FREE_SECONDS", 0.5)

    async def test() -> None:
        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        with open_app() as server:
            first, url = await port_of(server.app)
            port = int(url.rpartition(":")[2])
            with raises(ListeningErrors.PORT_IN_USE, port=port):
                await Listening.start(server.app, "127.0.0.1", port, 5)
            monkeypatch.setattr(listening, "FREE_SECONDS", 30.0)
            second = asyncio.ensure_future(Listening.start(server.app, "127.0.0.1", port, 5))
            await asyncio.sleep(0.2)
            await first.stop()
            async with httpx2.AsyncClient(timeout=20) as client:
                opened = await second
                assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
                assert (await client.get(f"{url}/health")).status_code == 200
            await opened.stop()

    asyncio.run(test())
