"""Chromium for tests of pages, if the machine has one: errors in a page, and its requests."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

FLAGS = (
    "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
PHONE, LAPTOP = (360, 800), (1280, 800)


@contextmanager
def chromium() -> Iterator[Any]:
    """Playwright's browser. Skips the test where there is no Chromium, or no Playwright."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("there is no Chromium on this machine (Debian's package chromium)")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=program, args=list(FLAGS), chromium_sandbox=False)
        try:
            yield opened
        finally:
            opened.close()


@dataclass
class Tab:
    """A page that is open.

    Attributes:
        page: Playwright's.
        problems: what scripts threw, and what the console was told as an error or a warning.
        requests: addresses that were asked for.
    """

    page: Any
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def overflow(self) -> int:
        """CSS pixels that the page is wider than its window."""
        width: int = self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        return max(width, 0)

    def wait_until(self, condition: str, seconds: float = 30) -> None:
        """Evaluate a JavaScript expression until it is true. The page's content security policy forbids
        `page.wait_for_function`, which evaluates a string in the page after its first attempt."""
        end = time.monotonic() + seconds
        while not self.page.evaluate(f"Boolean({condition})"):
            assert time.monotonic() < end, condition
            self.page.wait_for_timeout(20)


@contextmanager
def opened_tab(browser: Any, url: str, size: tuple[int, int] = LAPTOP, *, dark: bool = False) -> Iterator[Tab]:
    """Loads a page in a window of this many CSS pixels."""
    width, height = size
    scheme = "dark" if dark else "light"
    tab = Tab(browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme))
    tab.page.on("pageerror", lambda error: tab.problems.append(str(error)))
    tab.page.on(
        "console", lambda said: tab.problems.append(said.text) if said.type in ("error", "warning") else None
    )
    tab.page.on("request", lambda request: tab.requests.append(request.url))
    tab.page.goto(url)
    try:
        yield tab
    finally:
        tab.page.close()
