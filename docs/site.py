"""Pages that the site adds to docs/: those of the repository's root, and sources that pages link to.

mkdocs calls the functions that start with `on_` (mkdocs.yml, `hooks`). Pages are written to be read in the repository
as well, so their links are those of the repository; here they become links of the site.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
MARKDOWN = {"README.md": "index.md"} | {
    name: f"project/{name}" for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
}
"""Pages of the repository's root and their names in the site."""

_CODE = re.compile(r"^( *)```.*?^\1```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
_LANGUAGES = {".py": "python", ".cpp": "cpp", ".h": "cpp", ".json": "json", ".toml": "toml", ".sh": "bash"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of the root, and a page for every source that a page links to."""
    for name, page in MARKDOWN.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    for file in list(files.documentation_pages()):
        origin = _origin(file.src_uri)
        for path in _linked(file.content_string, origin):
            if (added := _source_page(path)) not in files.src_uris and _is_source(path):
                files.append(File.generated(config, added, content=_listing(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with links of the site."""
    here, origin = page.file.src_uri, _origin(page.file.src_uri)
    if here.startswith("source/"):
        return markdown
    markdown = _with_wide_lists(markdown)

    def to_site(path: str) -> str:
        target = _in_repository(path, origin)
        if target is None:
            return path
        place = _source_page(target) if _is_source(target) else MARKDOWN.get(target, target.removeprefix("docs/"))
        return posixpath.relpath(place, posixpath.dirname(here) or ".")

    return _with_links(markdown, to_site)


def _origin(src_uri: str) -> str:
    """Return the path in the repository of a page of the site."""
    return next((name for name, page in MARKDOWN.items() if page == src_uri), f"docs/{src_uri}")


def _linked(markdown: str, origin: str) -> list[str]:
    paths: list[str] = []

    def note(path: str) -> str:
        if (target := _in_repository(path, origin)) is not None:
            paths.append(target)
        return path

    _with_links(markdown, note)
    return paths


def _in_repository(path: str, origin: str) -> str | None:
    """The file that a link on page `origin` leads to, relative to the root; None for an address."""
    if re.match(r"[a-z]+:", path):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(origin), path))


def _with_links(markdown: str, change: Callable[[str], str]) -> str:
    """`markdown` with the path of every link changed; code is left alone."""

    def prose(text: str) -> str:
        return _LINK.sub(lambda m: f"{m[1]}{change(m[2])}{m[3] or ''}{m[4]}", text)

    parts, end = [], 0
    for code in _CODE.finditer(markdown):
        parts += [markdown[end : code.start()], code[0]]
        end = code.end()
    parts.append(markdown[end:])
    return "".join(part if index % 2 else prose(part) for index, part in enumerate(parts))


def _with_wide_lists(markdown: str) -> str:
    """`markdown` with lists as mkdocs reads them: what belongs to an item stands behind four spaces, and an item after
    one of several paragraphs has an empty line before it. The pages are written in CommonMark, which asks for neither.
    """
    lines: list[str] = []
    width, several, fenced = 0, False, False
    for line in markdown.splitlines():
        fenced ^= line.startswith("```")
        item = None if fenced else re.match(r"([*-]|\d+\.) ", line)
        if item:
            lines += [""] * several
            width, several = item.end(), False
        elif not line:
            several = width > 0
        elif not line.startswith(" " * width):
            width, several = 0, False
        lines.append(" " * (4 - width) + line if width and line and not item else line)
    return "\n".join(lines) + "\n"


def _is_source(path: str) -> bool:
    return path not in MARKDOWN and not (path.startswith("docs/") and path.endswith((".md", ".png", ".svg")))


def _source_page(path: str) -> str:
    return f"source/{path}.md"


def _listing(path: str) -> str:
    """A page that shows a file, or what a folder holds."""
    source = ROOT / path
    if source.is_dir():
        children = [child for child in source.iterdir() if not child.name.startswith("_")]
        names = sorted(child.name + "/" * child.is_dir() for child in children)
        return f"# {path}/\n\n" + "\n".join(f"* `{name}`" for name in names) + "\n"
    try:
        text = source.read_text()
    except UnicodeDecodeError:
        return f"# {path}\n\n{source.stat().st_size:,} bytes of data.\n"
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", text)), 3)
    return f"# {path}\n\n{fence}{_LANGUAGES.get(source.suffix, 'text')}\n{text.rstrip()}\n{fence}\n"
