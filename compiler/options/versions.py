"""The versions that an artifact and a reproducer record."""

from __future__ import annotations

import importlib.metadata

import sscc.compiler
import sscc.ir
import sscc.passes
import sscc.runtime
from sscc.ir.files import sources_digest

TOOLS = ("torch", "torch-mlir", "transformers")


def tool_versions() -> dict[str, str]:
    """Return the versions of the installed packages on which a compilation depends, by name."""
    versions = {name: version_of(name) for name in TOOLS}
    return {name: version for name, version in versions.items() if version is not None}


def version_of(package: str) -> str | None:
    """Return the installed version of a package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def own_version() -> str:
    """Return the version of sscc."""
    return importlib.metadata.version("sscc")


_NOT_COMPILING = ("tools",)
"""Folders of the compiler that do not affect artifacts."""


def compiler_digest() -> str:
    """Return digests of the sources that affect compiled programs."""
    others = (sources_digest(package) for package in (sscc.ir, sscc.passes, sscc.runtime))
    return " ".join([sources_digest(sscc.compiler, _NOT_COMPILING), *others])
