"""A headless Chromium for tests of pages: what a script says, what goes wrong in it, how it looks.

It speaks the DevTools protocol over a pipe, so that no port and no package is needed. Nothing but the pages that a test
names is fetched.
"""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
SECONDS = 60.0
PHONE, LAPTOP = (390, 844), (1280, 900)


class Browser:
    """One page in a browser.

    Attributes:
        errors: what scripts threw, what the console was told as an error, and requests that failed or were refused,
            since the last `open`.
        requests: addresses that were asked for since then.
    """

    def __init__(self, program: str, folder: Path) -> None:
        (their_in, self._out), (self._in, their_out) = os.pipe(), os.pipe()
        command = [program, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
        # Above what they become, so that neither is overwritten by the other.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (their_in, their_out)]
        quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
        actions = [*quiet, (os.POSIX_SPAWN_DUP2, ends[0], 3), (os.POSIX_SPAWN_DUP2, ends[1], 4)]
        self._process = os.posix_spawn(program, command, os.environ, file_actions=actions)
        for end in (their_in, their_out, *ends):
            os.close(end)
        self._numbers = itertools.count(1)
        self._buffer = b""
        self._session: str | None = None
        self._loaded = False
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def open(self, url: str, size: tuple[int, int] = LAPTOP, *, dark: bool = False) -> None:
        """Loads a page in a window of this many CSS pixels."""
        width, height = size
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self.errors, self.requests, self._loaded = [], [], False
        self._call("Page.navigate", url=url)
        self._wait(lambda: self._loaded, "the page has not loaded")

    def run(self, script: str) -> Any:
        """The value of an expression, of a promise what it becomes."""
        result = self._call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait_for(self, script: str, seconds: float = SECONDS) -> None:
        """Waits until an expression is true."""
        until = time.monotonic() + seconds
        while not self.run(f"Boolean({script})"):
            assert time.monotonic() < until, f"{script} does not become true; errors: {self.errors}"
            time.sleep(0.05)

    def overflow(self) -> int:
        """CSS pixels that the page is wider than its window."""
        width: int = self.run("document.documentElement.scrollWidth - window.innerWidth")
        return max(width, 0)

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """A PNG file of the window, or of the whole page."""
        image = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(image["data"]))

    def close(self) -> None:
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        os.close(self._out)
        os.close(self._in)

    # -- the protocol

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + SECONDS
        while True:
            answer = self._receive(until, method)
            if answer.get("id") == number:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result

    def _wait(self, holds: Any, complaint: str) -> None:
        until = time.monotonic() + SECONDS
        while not holds():
            self._receive(until, complaint)

    def _receive(self, until: float, complaint: str) -> dict[str, Any]:
        """The next message; what it says of the page is noted."""
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(until - time.monotonic(), 0))
            assert ready, f"the browser does not answer: {complaint}"
            data = os.read(self._in, 1 << 20)
            assert data, "the browser has ended"
            self._buffer += data
        first, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] == "error":
            self.errors.append(str([one.get("value") for one in params["args"]]))


@contextmanager
def browser() -> Iterator[Browser]:
    """Skips the test where there is no Chromium."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("there is no Chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        opened = Browser(program, Path(folder))
        try:
            yield opened
        finally:
            opened.close()
