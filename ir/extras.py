"""Packages that only some commands need, grouped by the extra that installs them, and the message for a missing one.

An installation without extras executes and inspects artifacts, and works on dumps. It has neither torch nor
transformers: code that imports one of them calls `require` first.
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
"""Package of each module, by extra. pyproject.toml has the other packages of an extra, and the versions."""


def require(extra: str, purpose: str) -> None:
    """Check that the modules of an extra are installed, without importing them.

    Args:
        purpose: the feature that needs them, as the subject of the message.

    Raises:
        UsageError: a module is missing; the message names the packages and the extra.
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
    except ValueError:  # an imported module without a specification
        return True
