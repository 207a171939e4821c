"""The versions that an artifact and a reproducer record."""

from __future__ import annotations

import importlib.metadata

TOOLS = ("torch", "torch-mlir", "transformers")


def tool_versions() -> dict[str, str]:
    """Name -> installed version, of what a compilation depends on."""
    return {name: importlib.metadata.version(name) for name in TOOLS}


def own_version() -> str:
    return importlib.metadata.version("sscc")
