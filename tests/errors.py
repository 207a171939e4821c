"""Errors in tests: compared by kind and fields, never by their words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest

from sscc.compiler import cli
from sscc.ir.errors import ErrorKind, SsccError, plain


@contextmanager
def raises(kind: ErrorKind, **fields: Any) -> Iterator[pytest.ExceptionInfo[SsccError]]:
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


def refusal(call: Callable[..., Any], *args: Any, **kwargs: Any) -> SsccError | None:
    """Return the error that a call raises, None if it raises none."""
    try:
        call(*args, **kwargs)
    except SsccError as error:
        return error
    return None


def check(error: SsccError | None, kind: ErrorKind, **fields: Any) -> None:
    """Fail unless `error` is of `kind` and its fields include `fields`."""
    assert error is not None, f"no error instead of {kind}"
    assert error.kind is kind, f"{error.kind} instead of {kind}: {error}"
    differ = {name: error.fields.get(name) for name, value in fields.items() if error.fields.get(name) != plain(value)}
    assert not differ, f"{kind.code} has {differ}, expected {fields}: {error}"
