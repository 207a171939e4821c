"""The server's own web pages: files of this package, which load nothing from other sites.

The pages contain no data. They request it from the server as any client does, so that the API key protects it. Texts
are inserted as text, never as markup, and the content security policy allows no scripts but these files.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path

from fastapi import FastAPI, Response

FOLDER = Path(__file__).parent / "static"
PAGES = {
    "/": "index.html",
    "/docs": "docs.html",
    "/static/page.css": "page.css",
    "/static/page.js": "page.js",
    "/static/markdown.js": "markdown.js",
    "/static/docs.js": "docs.js",
    "/static/icon.svg": "icon.svg",
}
"""File of each path. There are no other paths."""
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def add_pages(app: FastAPI) -> None:
    """Add `PAGES` to the application. The files are read once."""
    for path, name in PAGES.items():
        kind = f"{_TYPES[Path(name).suffix]}; charset=utf-8"
        answer = partial(Response, (FOLDER / name).read_bytes(), 200, HEADERS, kind)
        app.get(path, include_in_schema=False)(_endpoint(answer))


def _endpoint(answer: Callable[[], Response]) -> Callable[[], Coroutine[None, None, Response]]:
    async def page() -> Response:
        return answer()

    return page
