"""Take the screenshots of docs/images with Chromium: sections of a report, and the server's page.

    python docs/screenshots.py PAGE.html [--server OUT.rdu] [--folder FOLDER]

PAGE.html is the report of small.rdu in docs/tour.md, written with --ir-dir and --prompt-file. OUT.rdu is served.rdu of
the same page, which the script serves on a free port. Needs playwright (the extra `test`), matplotlib's Pillow
(the extra `eval`), and Debian's chromium.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WIDTH, HEIGHT = 1180, 900
PICTURES = (
    ("overview-light", "light", WIDTH, "#overview", 720),
    ("kernels-dark", "dark", WIDTH, "#kernels details.kernel[open] .scroll", None),
    ("roofline-dark", "dark", WIDTH, "#roofline", None),
    ("timeline-light", "light", WIDTH, "#timeline", None),
    ("kept-light", "light", WIDTH, "#kept", 520),
)
"""Name, color scheme, window width, CSS selector, and the largest height in pixels."""
QUESTION = "What is the capital of Italy?"
LONG_QUESTION = "Tell me a story about the sea."
ANSWER_SECONDS = 60
WATCHED_SECONDS = 3
"""Delay before the screenshot of the long answer."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Take the screenshots of docs/images.")
    parser.add_argument("page", type=Path)
    parser.add_argument("--server", type=Path, metavar="OUT.rdu", help="also take the server's page with this artifact")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent / "images")
    args = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("chromium is not on the PATH")
    from playwright.sync_api import sync_playwright

    args.folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--disable-gpu"], chromium_sandbox=False)
        for picture in PICTURES:
            _section(browser, args.page, args.folder, *picture)
        if args.server is not None:
            with _served(args.server) as url:
                _server(browser, url, args.folder / "server-dark.png")
        browser.close()
    return 0


def _section(
    browser: Any, page: Path, folder: Path, name: str, scheme: str, width: int, selector: str, most: int | None
) -> None:
    tab = browser.new_page(viewport={"width": width, "height": HEIGHT}, color_scheme=scheme)
    tab.goto(page.resolve().as_uri())
    tab.add_style_tag(content=".top, nav { position: static !important }")
    box = tab.locator(selector).first.bounding_box()
    assert box is not None, selector
    clip = {**box, "height": min(box["height"], most or box["height"])}
    _taken(tab, folder / f"report-{name}.png", clip=clip, full_page=True)


def _server(browser: Any, url: str, path: Path) -> None:
    """Take a screenshot of the page during its second answer."""
    tab = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="dark")
    tab.goto(url)
    tab.wait_for_selector("#state.ok")
    tab.fill("#temperature", "0")
    tab.fill("#text", QUESTION)
    tab.press("#text", "Enter")
    tab.wait_for_selector(".figures-of", timeout=1000 * ANSWER_SECONDS)
    tab.fill("#text", LONG_QUESTION)
    tab.press("#text", "Enter")
    tab.wait_for_timeout(1000 * WATCHED_SECONDS)
    _taken(tab, path)


def _taken(tab: Any, path: Path, **options: Any) -> None:
    """Save a screenshot with 256 colors, which makes it smaller. Small areas, as in legends, keep their colors."""
    from PIL import Image

    tab.screenshot(path=path, **options)
    with Image.open(path) as picture:
        few = picture.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(path, optimize=True)
    print(f"{path}: {path.stat().st_size} bytes")
    tab.close()


@contextmanager
def _served(artifact: Path) -> Iterator[str]:
    """Serve an artifact for the duration of the block and yield its address."""
    command = [sys.executable, "-m", "sscc.compiler.tools.commands.cli", "serve", str(artifact), "--port", "0", "-q"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = re.search(r"http://\S+", server.stdout.readline())
            assert address is not None
            yield address[0]
        finally:
            server.send_signal(signal.SIGINT)


if __name__ == "__main__":
    sys.exit(main())
