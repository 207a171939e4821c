"""Errors in tests: compared by kind and fields, never by their words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest

from sscc.compiler.tools.commands import cli
from sscc.ir.errors import ErrorKind, SsccError, plain


@dataclass(frozen=True)
class Like:
    """Error in a field of another, such as `cause` or an item of `reasons`: its kind, and fields that it must have."""

    kind: ErrorKind
    fields: dict[str, Any]


def like(kind: ErrorKind, **fields: Any) -> Like:
    """Return an expected value of a field that holds an error of `kind` whose fields include `fields`."""
    return Like(kind, fields)


def fits(found: Any, expected: Any) -> bool:
    """Return true if a field's value is `expected`: a value as JSON has it, an error (by its kind or `like`), a text
    that has a pattern (for the words of other libraries), or a list of these."""
    if isinstance(expected, ErrorKind):
        expected = like(expected)
    if isinstance(expected, Like):
        if not isinstance(found, dict) or found.get("kind") != expected.kind.code:
            return False
        return all(fits(found["fields"].get(name), value) for name, value in expected.fields.items())
    if isinstance(expected, re.Pattern):
        return isinstance(found, str) and expected.search(found) is not None
    if isinstance(expected, list):
        return isinstance(found, list) and len(found) == len(expected) and all(map(fits, found, expected))
    return bool(found == plain(expected))


@contextmanager
def raises(kind: ErrorKind, /, **fields: Any) -> Iterator[pytest.ExceptionInfo[SsccError]]:
    """Expect an error of `kind` whose fields include `fields`, compared as JSON has them."""
    with pytest.raises(kind.error) as caught:
        yield caught
    check(caught.value, kind, **fields)


def reported(words: Sequence[str]) -> SsccError:
    """Return the error that a command line ends with. Its line goes to stderr as ever, and its exit code is checked."""
    with mock.patch.object(cli, "report", wraps=cli.report) as report:
        code = cli.main(words)
    assert report.call_count == 1, f"sscc {' '.join(words)} ended with exit code {code} and {report.call_count} errors"
    error: SsccError = report.call_args.args[0]
    assert code == error.exit_code
    return error


def one_line(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> SsccError:
    """Return the error that a command line ends with. Fail unless its message is all that the command prints."""
    capsys.readouterr()
    error = reported(words)
    assert capsys.readouterr() == ("", f"sscc: error: {error}\n")
    return error


def refusal(call: Callable[..., Any], *args: Any, **kwargs: Any) -> SsccError | None:
    """Return the error that a call raises, None if it raises none."""
    try:
        call(*args, **kwargs)
    except SsccError as error:
        return error
    return None


def check(error: SsccError | None, kind: ErrorKind, /, **fields: Any) -> None:
    """Fail unless `error` is of `kind` and its fields include `fields`. A field that is another error is expected by
    its kind."""
    assert error is not None, f"no error instead of {kind}"
    assert error.kind is kind, f"{error.kind} instead of {kind}: {error}"
    differ = {name: error.fields.get(name) for name, value in fields.items() if not fits(error.fields.get(name), value)}
    assert not differ, f"{kind.code} has {differ}, expected {fields}: {error}"


def _fits(field: Any, expected: Any) -> bool:
    if isinstance(expected, ErrorKind):
        return isinstance(field, dict) and field.get("kind") == expected.code
    return bool(field == plain(expected))
