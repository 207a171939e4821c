"""The load on servers: its requests and its counts."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from benchmarks import load
from benchmarks.load import Answer, LoadRequest


@pytest.fixture
def server() -> Iterator[tuple[str, list[dict[str, object]]]]:
    """A server that answers every prompt with as many events as tokens were asked for, but for prompts of one token. It
    says that it had all of a prompt but its last token."""
    app, bodies = FastAPI(), list[dict[str, object]]()

    async def events(count: int, cached: int) -> AsyncIterator[str]:
        for _ in range(count):
            yield f"data: {json.dumps({'choices': [{'text': 'x'}]})}\n\n"
            await asyncio.sleep(0)
        usage = {"completion_tokens": count, "prompt_tokens_details": {"cached_tokens": cached}}
        yield f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n"

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        body = await request.json()
        bodies.append(body)
        if len(body["prompt"]) == 1:
            return Response("too short", 400)
        made = events(body["max_tokens"], len(body["prompt"]) - 1)
        return StreamingResponse(made, media_type="text/event-stream")

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()  # before uvicorn's thread accepts; earlier clients wait
        running = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=running.run, args=([listening],))
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", bodies
        running.should_exit = True
        thread.join()


def test_jobs_are_the_same_for_the_same_seed_and_stay_within_their_lengths() -> None:
    requests = load.make_requests(50, (64, 512), 9, 1000, 1)
    assert requests == load.make_requests(50, (64, 512), 9, 1000, 1) != load.make_requests(50, (64, 512), 9, 1000, 2)
    lengths = [len(request.prompt) for request in requests]
    assert 64 <= min(lengths) < 100 < 400 < max(lengths) <= 512
    assert all(load.FIRST_TOKEN <= token < 1000 for request in requests for token in request.prompt)


def test_answers_are_counted_and_timed(server: tuple[str, list[dict[str, object]]]) -> None:
    url, bodies = server
    work = [LoadRequest((11, 12), count) for count in (1, 3, 5)]
    done = asyncio.run(load.closed(url, work, 2, 30))
    assert sorted(answer.tokens for answer in done) == [1, 3, 5]
    for answer in done:
        assert not answer.error
        assert 0 < answer.first <= answer.ended - answer.sent
        assert len(answer.gaps) == answer.tokens - 1
    assert all(body["prompt"] == [11, 12] and body["ignore_eos"] and body["stream"] for body in bodies)
    summary = load.summary(done)
    assert (summary.requests, summary.failed) == (3, 0)
    assert summary.new_tokens_per_second == pytest.approx(9 / summary.seconds)
    assert summary.prompt_tokens_per_second == pytest.approx(6 / summary.seconds)


def test_failures_are_counted_and_named(server: tuple[str, list[dict[str, object]]]) -> None:
    done = asyncio.run(load.poisson(server[0], [LoadRequest((11,), 4), LoadRequest((11, 12), 4)], 1000.0, 0, 30))
    assert [bool(answer.error) for answer in done] == [True, False]
    summary = load.summary(done)
    assert (summary.requests, summary.failed, summary.failure) == (2, 1, "status 400: too short")


def test_a_load_that_fails_as_a_whole_says_why() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        done = asyncio.run(load.closed(f"http://127.0.0.1:{free.getsockname()[1]}", [LoadRequest((1, 2), 3)], 1, 5))
    with pytest.raises(ValueError, match="ConnectError"):
        load.summary(done)


def test_percentiles() -> None:
    assert load.percentiles(list(range(101))) == (50, 90, 99)
    assert load.percentiles([3.0]) == (3.0, 3.0, 3.0)
    assert all(map(math.isnan, load.percentiles([])))


def test_an_outcome_that_was_never_answered_has_no_first_token() -> None:
    assert math.isnan(Answer(LoadRequest((1,), 1)).first)


def test_a_conversation_grows_by_its_answers_and_shares_its_beginning() -> None:
    shape = (3, 2, 20, 5, 4, 1000)
    conversations = load.make_conversations(*shape, 1)
    assert conversations == load.make_conversations(*shape, 1) != load.make_conversations(*shape, 2)
    assert len({request.prompt[:20] for requests in conversations for request in requests}) == 1
    assert len({requests[0].prompt for requests in conversations}) == 3
    for first, second in conversations:
        assert (len(first.prompt), len(second.prompt), first.new_tokens) == (25, 34, 4)
        assert second.prompt[:29] == (*first.prompt, *[first.answer] * 4)


def test_a_client_sends_its_next_message_once_it_has_its_answer(server: tuple[str, list[dict[str, object]]]) -> None:
    url, asked = server
    conversations = load.make_conversations(3, 4, 20, 5, 6, 1000, 1)
    answers = asyncio.run(load.converse(url, conversations, 30))
    assert [[answer.request for answer in each] for each in answers] == conversations
    for each in answers:
        assert [answer.tokens for answer in each] == [6] * 4
        assert [answer.cached for answer in each] == [len(answer.request.prompt) - 1 for answer in each]
        assert all(before.ended <= after.sent for before, after in pairwise(each))
    bodies: list[Any] = list(asked)
    biases = {(tuple(body["prompt"]), *body["logit_bias"].items()) for body in bodies}
    assert biases == {(request.prompt, (str(request.answer), 100)) for each in conversations for request in each}
