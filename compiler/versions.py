"""The versions that an artifact and a reproducer record."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
from collections.abc import Iterable
from pathlib import Path

import sscc.compiler
import sscc.ir
import sscc.passes
import sscc.runtime
from sscc.ir.files import file_digest

TOOLS = ("torch", "torch-mlir", "transformers")


def tool_versions() -> dict[str, str]:
    """Name -> version, of what a compilation depends on, as far as it is installed."""
    versions = {name: version_of(name) for name in TOOLS}
    return {name: version for name, version in versions.items() if version is not None}


def version_of(package: str) -> str | None:
    """The version that is installed; None where none is."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def own_version() -> str:
    return importlib.metadata.version("sscc")


_NOT_COMPILING = ("quality", "commands")
"""Folders of the compiler that do not affect artifacts."""


@functools.cache
def sources_digest() -> str:
    """Return the sha256 of the sources that decide what a program looks like."""
    files: list[Path] = []
    for package in (sscc.compiler, sscc.ir, sscc.passes, sscc.runtime):
        for root in map(Path, package.__path__):
            skipped = [root / name for name in _NOT_COMPILING]
            sources = (p for p in root.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
            files += [p for p in sources if not any(p.is_relative_to(folder) for folder in skipped)]
    return files_digest(sorted(files))


def files_digest(files: Iterable[Path]) -> str:
    """Return the sha256 over the names and the bytes of files, in their order."""
    lines = "".join(f"{path.name} {file_digest(path)}\n" for path in files)
    return hashlib.sha256(lines.encode()).hexdigest()
