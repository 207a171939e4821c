"""Tests of sscc for your own repository: `pytest_plugins = ["sscc.pytest_plugin"]` in conftest.py (docs/python.md)."""

from sscc.compiler.tools.testing.plugin import (
    pytest_addoption,
    pytest_collect_file,
    pytest_configure,
    pytest_unconfigure,
)

__all__ = ["pytest_addoption", "pytest_collect_file", "pytest_configure", "pytest_unconfigure"]
