"""Streams between processes, here between two ends in one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from sscc.runtime.serving.fleet import channel
from sscc.runtime.serving.fleet.channel import Address, ChannelLost, Inbox, Outbox
from sscc.runtime.serving.fleet.forwarded_requests import Start

START = Start(200, ((b"content-type", b"text/event-stream"), (b"x", b"\xff")))


def run(test: Callable[[Inbox, Outbox], Awaitable[None]]) -> None:
    async def whole() -> None:
        inbox = Inbox("127.0.0.1")
        async with asyncio.timeout(30):
            await test(inbox, Outbox())

    asyncio.run(whole())


def test_parts_come_in_order_each_to_its_answer() -> None:
    async def test(inbox: Inbox, outbox: Outbox) -> None:
        ports: set[int] = set()

        async def one(number: int) -> None:
            async with inbox.incoming() as incoming:
                ports.add(incoming.address.port)
                parts = [START, *(b"%d %d" % (number, index) * (1 + 9999 * (index == 3)) for index in range(9)), b""]
                for part in parts[:5]:
                    await outbox.send(incoming.address, part)
                assert [await incoming.next() for _ in range(3)] == parts[:3]
                for part in parts[5:]:
                    await outbox.send(incoming.address, part)
                incoming.wake()
                assert await incoming.rest(len(parts)) == parts[3:]

        await asyncio.gather(*map(one, range(20)))
        assert len(ports) == 1

    run(test)


def test_what_comes_for_nobody_is_dropped() -> None:
    async def test(inbox: Inbox, outbox: Outbox) -> None:
        async with inbox.incoming() as left:
            pass
        async with inbox.incoming() as incoming:
            await outbox.send(left.address, b"late")
            await outbox.send(incoming.address, b"mine")
            assert await incoming.next() == b"mine"

    run(test)


def test_a_replica_sends_to_several_gateways() -> None:
    async def test(inbox: Inbox, outbox: Outbox) -> None:
        other = Inbox("127.0.0.1")
        async with inbox.incoming() as here, other.incoming() as there:
            for part in (b"1", b"2"):
                await outbox.send(here.address, part)
                await outbox.send(there.address, part * 2)
            assert await here.rest(2) == [b"1", b"2"]
            assert await there.rest(2) == [b"11", b"22"]

    run(test)


@pytest.mark.parametrize("sent", [b"", b"x" * 5, b"x" * 99])
def test_who_does_not_have_the_key_is_heard_by_nobody(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "AUTHENTICATE_SECONDS", 0.2)

    async def test(inbox: Inbox, outbox: Outbox) -> None:
        async with inbox.incoming() as incoming:
            reader, writer = await asyncio.open_connection("127.0.0.1", incoming.address.port)
            writer.write(sent)
            assert await reader.read() == b""
            writer.close()

    run(test)


def test_a_part_that_is_too_large_ends_the_connection_and_the_next_one_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "MOST_BYTES", 1000)
    monkeypatch.setattr(channel, "_ARRIVE_SECONDS", 0.2)

    async def test(inbox: Inbox, outbox: Outbox) -> None:
        async with inbox.incoming() as incoming:
            await outbox.send(incoming.address, b"x" * 1001)
            with pytest.raises(ChannelLost):
                await incoming.rest(1)
            lost = 0
            for _ in range(50):  # the sender notices it at its next message
                await asyncio.sleep(0.02)
                try:
                    await outbox.send(incoming.address, b"again")
                except ChannelLost:
                    lost += 1
            assert lost <= 1
            assert await incoming.next() == b"again"

    run(test)


def test_a_gateway_that_is_not_there() -> None:
    async def test(inbox: Inbox, outbox: Outbox) -> None:
        free = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        nobody = Address("127.0.0.1", free.sockets[0].getsockname()[1], b"k" * 32, 0)
        free.close()
        await free.wait_closed()
        async with inbox.incoming() as incoming:
            with pytest.raises(ChannelLost):
                await outbox.send(nobody, b"x")
            await outbox.send(incoming.address, b"others go on")
            assert await incoming.next() == b"others go on"

    run(test)


def test_an_address_that_this_machine_has_by_translation() -> None:
    async def test() -> None:
        inbox = Inbox("198.51.100.77")  # of documentation: nobody has it
        async with inbox.incoming() as incoming:
            assert incoming.address.host == "198.51.100.77"
            await Outbox().send(replace(incoming.address, host="127.0.0.1"), b"x")
            assert await incoming.next() == b"x"

    asyncio.run(test())


def test_strangers_leave_room_for_those_with_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """More connections without the key than may be open at a time, which stay silent; parts arrive meanwhile."""
    monkeypatch.setattr(channel, "MOST_STRANGERS", 40)

    async def test(inbox: Inbox, outbox: Outbox) -> None:
        async with inbox.incoming() as incoming:
            strangers = []
            for _ in range(300):
                strangers.append(await asyncio.open_connection("127.0.0.1", incoming.address.port))
            begin = asyncio.get_running_loop().time()
            await outbox.send(incoming.address, b"mine")
            assert await incoming.next() == b"mine"
            assert asyncio.get_running_loop().time() - begin < 1
            assert len(inbox._strangers) <= 40
            first, _ = strangers[0]
            with contextlib.suppress(ConnectionError):
                assert await first.read() == b"", "the oldest ones are closed"
            await outbox.send(incoming.address, b"again")
            assert await incoming.next() == b"again"
            for _, writer in strangers:
                writer.close()

    run(test)


def test_strangers_are_closed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "AUTHENTICATE_SECONDS", 0.2)

    async def test(inbox: Inbox, outbox: Outbox) -> None:
        async with inbox.incoming() as incoming:
            reader, writer = await asyncio.open_connection("127.0.0.1", incoming.address.port)
            for byte in b"drip":
                writer.write(bytes([byte]))
                await asyncio.sleep(0.06)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            assert not inbox._strangers

    run(test)


def test_strangers_leave_most_descriptors() -> None:
    assert 1 <= channel.most_strangers() <= channel.MOST_STRANGERS
