"""A server that tests share where they change nothing about it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.runtime.server.fake import Running, running


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
