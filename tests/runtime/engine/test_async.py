"""The engine from asyncio: many tasks of one loop, several loops, cancelled tasks and abandoned generators."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest

from sscc.ir.errors import InputError
from sscc.runtime.serving.engine import Engine, Piece, request_handle
from sscc.runtime.serving.engine.transcript import Transcript
from tests.runtime.engine.gated import LIMIT, LONG, gated, request, serving


async def settled(engine: Engine, finished: int) -> None:
    """Wait until `finished` requests have ended."""
    for _ in range(int(LIMIT * 1000)):
        if sum(engine.metrics().finished.values()) == finished:
            return
        await asyncio.sleep(0.001)
    raise AssertionError("they did not end")


def test_many_tasks_at_once() -> None:
    async def main(engine: Engine) -> list[Any]:
        results = [engine.agenerate(request(i % 7, new=5)) for i in range(20)]
        streams = [read(engine, i % 7) for i in range(20)]
        return await asyncio.gather(*results, *streams)

    async def read(engine: Engine, token: int) -> list[Piece]:
        return [piece async for piece in engine.astream(request(token, new=5))]

    with serving() as engine:
        done = asyncio.run(main(engine))
        expected = [tuple((i % 7 + 1 + n) % 11 for n in range(5)) for i in range(20)]
        assert [each.tokens for each in done[:20]] == expected
        assert [tuple(token for piece in each for token in piece.tokens) for each in done[20:]] == expected
        assert [each[-1].finish for each in done[20:]] == ["length"] * 20


def test_a_piece_comes_with_every_step() -> None:
    async def main() -> None:
        with gated() as (engine, interpreter):
            stream = engine.astream(request(1, new=3))
            waiting = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0.01)  # it waits before the first token is there
            assert not waiting.done()
            interpreter.wait()
            interpreter.let(1)
            assert await asyncio.wait_for(waiting, LIMIT) == Piece((2,), "")
            interpreter.let(1)
            assert await asyncio.wait_for(anext(stream), LIMIT) == Piece((3,), "")
            interpreter.open()
            assert [piece async for piece in stream] == [Piece((4,), "", (), "length")]

    asyncio.run(main())


def test_what_is_made_within_an_interval_is_one_piece() -> None:
    async def main(engine: Engine, interval: float) -> list[tuple[int, ...]]:
        pieces = [piece async for piece in engine.submit(request(1, new=6)).apieces(interval)]
        assert [piece.finish for piece in pieces] == [None] * (len(pieces) - 1) + ["length"]
        return [piece.tokens for piece in pieces]

    with serving() as engine:
        for interval in (1e-9, 1e-3):
            assert sum(asyncio.run(main(engine, interval)), ()) == (2, 3, 4, 5, 6, 7)

    async def gate_by_gate() -> None:
        with gated() as (engine, interpreter):
            reading = asyncio.ensure_future(main(engine, 3600.0))
            await asyncio.to_thread(interpreter.wait)
            for _ in range(5):  # what is read between two steps could be a piece of its own
                await asyncio.to_thread(interpreter.let, 1)
                await asyncio.sleep(0.01)
            interpreter.open()
            # The first token waits for nothing, and the last one does not either.
            assert await asyncio.wait_for(reading, LIMIT) == [(2,), (3, 4, 5, 6, 7)]
            assert not engine._executor._wakeups._tasks

    asyncio.run(gate_by_gate())


def test_every_loop_is_called_once_a_step() -> None:
    calls: list[int] = []

    async def main() -> None:
        with gated(signature=LONG) as (engine, interpreter):
            interpreter_ready = [asyncio.ensure_future(collect(engine, t)) for t in (1, 2)]
            await asyncio.sleep(0.01)
            interpreter.wait()
            interpreter.let(3)  # both prompts are there
            await asyncio.sleep(0.01)
            loop = asyncio.get_running_loop()
            plain = loop.call_soon_threadsafe
            loop.call_soon_threadsafe = lambda *args: calls.append(1) or plain(*args)  # type: ignore[method-assign,func-returns-value,assignment]
            for steps in range(1, 6):
                interpreter.let(1)
                await asyncio.sleep(0.01)
                assert len(calls) == steps
            interpreter.open()
            await asyncio.gather(*interpreter_ready)

    async def collect(engine: Engine, token: int) -> None:
        assert sum([len(piece.tokens) async for piece in engine.astream(request(token, new=40))]) == 40

    asyncio.run(main())


def test_a_cancelled_task_cancels_its_request() -> None:
    async def main() -> None:
        with gated(signature=LONG) as (engine, interpreter):
            tasks = [
                asyncio.ensure_future(engine.agenerate(request(1, new=4000))),
                asyncio.ensure_future(all_of(engine)),
                asyncio.ensure_future(engine.agenerate(request(3, new=4000))),
            ]
            await asyncio.sleep(0.01)
            interpreter.wait()
            interpreter.let(4)
            for task in tasks:
                task.cancel()
            assert await asyncio.gather(*tasks, return_exceptions=True) == [*map(type_of_cancelled, tasks)]
            interpreter.open()
            await settled(engine, 3)
            assert engine.metrics().finished["cancelled"] == 3
            assert (await engine.agenerate(request(3, new=2))).tokens == (4, 5)

    async def all_of(engine: Engine) -> None:
        async for _ in engine.astream(request(2, new=4000)):
            pass

    def type_of_cancelled(task: asyncio.Future[Any]) -> Any:
        return Same(asyncio.CancelledError)

    asyncio.run(main())


class Same:
    """Equal to any instance of a type."""

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def __eq__(self, other: object) -> bool:
        return isinstance(other, self._kind)


def test_abandoned_generators_cancel_their_requests() -> None:
    async def main() -> None:
        with serving(LONG, pause=0.001, max_queue=100) as engine:
            for i in range(30):
                stream = engine.astream(request(1, new=4000))
                if i % 3 == 0:
                    await asyncio.wait_for(anext(stream), LIMIT)
                elif i % 3 == 1:
                    await stream.aclose()  # type: ignore[attr-defined]
                del stream
            gc.collect()
            await settled(engine, 30)
            assert engine.metrics().finished["cancelled"] == 30
            assert (await engine.agenerate(request(3, new=2))).tokens == (4, 5)

    asyncio.run(main())


def test_waiting_for_a_result_with_a_limit_leaves_the_request() -> None:
    async def main() -> None:
        with gated() as (engine, interpreter):
            handle = engine.submit(request(1))
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(handle.aresult(), 0.01)
            interpreter.open()
            assert (await handle.aresult()).finish == "length"

    asyncio.run(main())


def test_a_failure_reaches_every_task() -> None:
    async def main() -> None:
        with gated() as (engine, interpreter):
            interpreter.error = InputError("broken")
            tasks = [asyncio.ensure_future(engine.agenerate(request(i))) for i in range(3)]
            tasks.append(asyncio.ensure_future(anext(engine.astream(request(5)))))
            await asyncio.sleep(0)
            interpreter.open()
            failed = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), LIMIT)
            assert failed == [interpreter.error] * 4

    asyncio.run(main())


def test_loops_of_several_threads_and_one_that_was_closed() -> None:
    with serving() as engine:

        def leave() -> None:
            """A loop that ends while its task waits."""
            loop = asyncio.new_event_loop()
            waiting = loop.create_task(engine.agenerate(request(1, new=15)))
            loop.call_soon(loop.stop)
            loop.run_forever()
            waiting.cancel()
            loop.run_until_complete(asyncio.gather(waiting, return_exceptions=True))
            loop.close()

        def use(answers: list[Any]) -> None:
            answers.append(asyncio.run(engine.agenerate(request(2, new=10))).tokens)

        answers: list[Any] = []
        threads = [threading.Thread(target=leave) for _ in range(4)]
        threads += [threading.Thread(target=use, args=(answers,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)
        assert answers == [(3, 4, 5, 6, 7, 8, 9, 10, 0, 1)] * 4


@pytest.mark.parametrize(
    ("new", "in_the_loop"), [(request_handle.READ_AT_ONCE, True), (request_handle.READ_AT_ONCE + 1, False)]
)
def test_many_tokens_at_once_are_read_beside_the_event_loop(
    new: int, in_the_loop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[bool] = []
    take = Transcript.take

    def noting(self: Transcript, *args: Any) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return take(self, *args)

    monkeypatch.setattr(Transcript, "take", noting)
    with serving(LONG) as engine:
        done = asyncio.run(engine.agenerate(request(1, new=new)))
        assert done.tokens == tuple(token % 11 for token in range(2, 2 + new))
    assert threads == [in_the_loop]
