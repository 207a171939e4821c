"""A server that tests share where they change nothing about it."""

from __future__ import annotations

import gc
import ssl
from collections.abc import Iterator
from functools import cache
from unittest import mock

import pytest

from tests.runtime.server.fake import Running, running


@pytest.fixture(autouse=True, scope="package")
def _light() -> Iterator[None]:
    """What these tests would otherwise spend most of their time on: a server that is idle collects garbage, which in a
    process that has captured models means seconds in which it answers nobody; and every client reads all certificates,
    though nothing here is encrypted."""
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
