"""Streams between processes, here between two ends in one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from sscc.runtime.fleet.channel import Inbox, Outbox
from sscc.runtime.fleet.messages import Start

START = Start(200, ((b"content-type", b"text/event-stream"), (b"x", b"\xff")))


def run(test: Callable[[Inbox, Outbox, int], Awaitable[None]]) -> None:
    async def whole() -> None:
        inbox = Inbox("127.0.0.1")
        async with asyncio.timeout(20):
            await test(inbox, Outbox(), await inbox.start())

    asyncio.run(whole())


def test_parts_come_in_order_each_to_its_answer() -> None:
    async def test(inbox: Inbox, outbox: Outbox, port: int) -> None:
        async def one(number: int) -> None:
            with inbox.incoming(port) as incoming:
                parts = [START, *(b"%d %d" % (number, index) * (1 + 9999 * (index == 3)) for index in range(9)), b""]
                for part in parts[:5]:
                    await outbox.send(incoming.address, part)
                assert [await incoming.next() for _ in range(3)] == parts[:3]
                for part in parts[5:]:
                    await outbox.send(incoming.address, part)
                incoming.wake()
                assert await incoming.rest(len(parts)) == parts[3:]

        await asyncio.gather(*map(one, range(20)))

    run(test)
