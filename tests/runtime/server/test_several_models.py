"""Tests of a server with several models, which opens a model for a request and closes idle ones for room."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx2
import openai
import pytest

from sscc.ir.errors import UsageError
from sscc.runtime.serving.server.app import card_of
from sscc.runtime.serving.server.model_pool import ModelSource, Shelf
from tests.runtime.server.fake import CONTEXT, NAME, Running, open_app, reply, running

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 5}
SHIFTS = {"b": 1, "c": 2, "broken": 0, "large": 0}


class Models:
    """Models whose opening a test controls, with a record of events."""

    def __init__(self, most: int) -> None:
        self.events: list[str] = []
        self.open: dict[str, Running] = {}
        sizes = {"b": 10, "c": 10, "broken": 1, "large": most + 1}
        self.shelf = Shelf(
            {name: ModelSource(size, self._opening(name), card_of(name, 1, CONTEXT)) for name, size in sizes.items()},
            most,
        )

    def _opening(self, name: str) -> Any:
        @contextmanager
        def opening() -> Iterator[Running]:
            if name == "broken":
                raise UsageError("it is broken")
            time.sleep(0.05)
            with open_app(name=name) as opened:
                self.events.append(f"+{name}")
                self.open[name] = opened
                yield opened
            self.events.append(f"-{name}")

        return opening


@contextmanager
def serving(most: int) -> Iterator[tuple[Models, openai.OpenAI]]:
    models = Models(most)
    try:
        with running(shelf=models.shelf) as server, openai.OpenAI(
            base_url=server.v1, api_key="any", max_retries=0
        ) as client:
            yield models, client
    finally:
        models.shelf.end()


def test_requests_go_to_the_model_that_they_name() -> None:
    with serving(20) as (models, client):
        assert models.events == []
        for name in (NAME, "b", "c", "b", NAME):
            answer = client.completions.create(model=name, prompt="hello", **GREEDY)
            assert (answer.model, answer.choices[0].text) == (name, reply("hello", 5))
        assert models.events == ["+b", "+c"]
        chunks = list(client.completions.create(model="c", prompt="hello", stream=True, **GREEDY))
        assert {chunk.model for chunk in chunks} == {"c"}
        assert models.open["c"].engine.metrics().submitted == 2
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="d", prompt="hello", **GREEDY)
    assert sorted(models.events[2:]) == ["-b", "-c"]


def test_clients_are_told_of_all_models() -> None:
    with serving(20) as (_, client):
        assert [model.id for model in client.models.list()] == [NAME, "b", "c", "broken", "large"]
        assert client.models.retrieve("c").id == "c"
        url = str(client.base_url)
        client.completions.create(model="b", prompt="hello", **GREEDY)
        cards = httpx2.get(f"{url}models").json()["data"]
        assert [card.get("loaded") for card in cards] == [None, True, False, False, False]
        assert httpx2.get(f"{url}status", params={"model": "b"}).json()["model"] == "b"
        assert httpx2.get(f"{url}status").json()["model"] == NAME
        for body in (b"{", b"[]", b'{"model": 5}', b"[" * 100_000):
            answer = httpx2.post(f"{url}completions", content=body, headers={"content-type": "application/json"})
            assert answer.status_code == 400
        large = json.dumps({"model": "b", "prompt": "hello", "user": "x" * 100_000} | GREEDY)
        answer = httpx2.post(f"{url}completions", content=large, headers={"content-type": "application/json"})
        assert answer.json()["model"] == "b"


def test_what_nobody_uses_is_closed_for_another() -> None:
    with serving(15) as (models, client):
        for name in ("b", "c", "b"):
            client.completions.create(model=name, prompt="hello", **GREEDY)
        assert models.events == ["+b", "-b", "+c", "-c", "+b"]
        models.open["b"].interpreter.go.clear()
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(client.completions.create, model="b", prompt="hello", **GREEDY)
            while not models.open["b"].engine.metrics().running:
                time.sleep(0.005)
            with pytest.raises(openai.InternalServerError) as caught:
                client.completions.create(model="c", prompt="hello", **GREEDY)
            assert (caught.value.status_code, caught.value.code) == (503, "busy")
            models.open["b"].interpreter.go.set()
            assert waiting.result(30).choices[0].text == reply("hello", 5)
        assert client.completions.create(model="c", prompt="hello", **GREEDY).model == "c"
        assert models.events[-2:] == ["-b", "+c"]


def test_many_at_once_open_a_model_once() -> None:
    with serving(20) as (models, client), ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(client.completions.create, model="b", prompt="hello", **GREEDY) for _ in range(8)]
        assert {answer.result(30).choices[0].text for answer in answers} == {reply("hello", 5)}
        assert models.events == ["+b"]


@pytest.mark.parametrize(("name", "status"), [("broken", 500), ("large", 503)])
def test_what_cannot_be_opened_is_told(name: str, status: int) -> None:
    with serving(20) as (models, client):
        for _ in range(2):
            with pytest.raises(openai.InternalServerError) as caught:
                client.completions.create(model=name, prompt="hello", **GREEDY)
            assert caught.value.status_code == status
            assert repr(name) in str(caught.value)
        assert client.completions.create(model="b", prompt="hello", **GREEDY).model == "b"
        assert models.events == ["+b"]


def test_a_client_that_leaves_while_a_model_is_opened_takes_nothing_along() -> None:
    with serving(20) as (models, client):
        with pytest.raises(openai.APITimeoutError):
            client.with_options(timeout=0.02).completions.create(model="b", prompt="hello", **GREEDY)
        assert client.completions.create(model="b", prompt="hello", **GREEDY).model == "b"
        assert models.events == ["+b"]
