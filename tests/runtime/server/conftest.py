"""A server that tests share where they change nothing about it."""

from __future__ import annotations

import gc
import ssl
from collections.abc import Callable, Iterator
from functools import cache
from unittest import mock

import openai
import pytest

from sscc.runtime.text.chat_formats import CALL_FORMATS, ChatFormats, thought_format
from sscc.runtime.text.chat_template import ChatTemplate
from tests.runtime.server.fake import AGENT_TEMPLATE, Running, ScriptedInterpreter, running


@pytest.fixture(autouse=True, scope="package")
def _light() -> Iterator[None]:
    """Skip two things that would take most of the time of these tests: an idle server collects garbage, which blocks it
    for seconds in a process that has captured models; and every client reads all certificates, although nothing is
    encrypted here."""
    gc.collect()
    gc.freeze()
    with mock.patch.object(ssl, "create_default_context", cache(ssl.create_default_context)):
        yield


@pytest.fixture(scope="package")
def server() -> Iterator[Running]:
    """Three slots, a context of 128 tokens, a chat template, no key."""
    with running() as server:
        yield server


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every request of a test has left the shared engine when the test ends."""
    yield
    if "server" in request.fixturenames:
        assert request.getfixturevalue("server").idle()


@pytest.fixture(scope="module")
def scripted() -> Iterator[Running]:
    """A server whose model says what a test gives it (`says`), thinks and calls tools."""
    formats = ChatFormats(thought_format("think"), CALL_FORMATS["hermes"])
    with running(scripted=True, context=2048, formats=formats, chat_template=ChatTemplate(AGENT_TEMPLATE)) as server:
        yield server


@pytest.fixture(scope="module")
def client(scripted: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=scripted.v1, api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
def says(scripted: Running) -> Callable[[str], None]:
    """Sets what the model says."""
    interpreter = scripted.interpreter
    assert isinstance(interpreter, ScriptedInterpreter)

    def say(text: str) -> None:
        interpreter.script = text

    return say
