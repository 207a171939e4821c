"""Every kind of error: its code, its fields where it is raised, and its message as a golden text.

Tests compare kinds and fields, so that a better sentence changes none of them. Each message is rendered here once: the
difference of tests/goldens/errors.txt shows what people will read.
"""

from __future__ import annotations

import ast
import functools
import runpy
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from string import Formatter
from typing import Any

import pytest

from sscc.ir.errors import ErrorKind, SsccError
from sscc.runtime.support.native_errors import NativeErrors
from sscc.runtime.support.scalars import ScalarArithmeticErrors

ROOT = Path(__file__).parents[1]
GOLDEN = Path(__file__).parent / "goldens" / "errors.txt"
PRODUCTION = ("compiler", "ir", "passes", "runtime")
UPDATE = f"pytest {Path(__file__).relative_to(ROOT)} --update-goldens"
WITHOUT_A_KIND = ("ir/errors.py", "runtime/serving/ranks/crew.py", "runtime/serving/server/api_errors.py")
"""Modules that make errors of kinds that others declare: each kind's call, an error that another rank reports, and an
error of the engine as an answer."""
NUMERIC = "bcdeEfFgGoxX%"


@functools.cache
def enums() -> list[type[ErrorKind]]:
    listed: list[type[ErrorKind]] = runpy.run_path(str(ROOT / "docs" / "generate.py"))["error_enums"]()
    return listed


def kinds() -> list[ErrorKind]:
    return sorted((kind for enum in enums() for kind in enum), key=lambda kind: kind.code)


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Return every production module as a syntax tree, by its path."""
    paths = sorted(path for folder in PRODUCTION for path in (ROOT / folder).rglob("*.py"))
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


# ------------------------------------------------------------------------------------------------------- the enums


def test_codes_are_unique() -> None:
    counts = Counter(kind.code for kind in kinds())
    assert [code for code, count in counts.items() if count > 1] == []


def test_a_module_has_one_enum_of_errors_and_one_of_warnings() -> None:
    """A second enum of errors has another base, whose messages begin in another way."""
    names = [enum.__name__ for enum in enums()]
    assert [name for name in names if not name.endswith(("Errors", "Warnings"))] == []
    assert [name for name, count in Counter(names).items() if count > 1] == []
    counts = Counter((enum.__module__, enum.__bases__, enum.__name__.endswith("Errors")) for enum in enums())
    assert [module for (module, _, _), count in counts.items() if count > 1] == []


def test_no_two_members_are_one() -> None:
    """Members of an enum with equal values are one member under two names."""
    aliases = [
        f"{enum.__name__}.{name} is {member.name}"
        for enum in enums()
        for name, member in enum.__members__.items()
        if name != member.name
    ]
    assert aliases == []


def test_a_message_is_one_line_of_plain_fields() -> None:
    for kind in kinds():
        assert kind.template.isprintable(), kind
        assert all(name is None or name.isidentifier() for _, name, _, _ in Formatter().parse(kind.template)), kind


# ------------------------------------------------------------------------------------------------ where they are raised


def _references() -> Iterator[tuple[str, ast.Attribute]]:
    """Yield (path, `Enum.MEMBER`) for every mention of a kind in production code."""
    names = {enum.__name__ for enum in enums()}
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value).rpartition(".")[2] in names:
                yield path, node


def _kind_of(node: ast.Attribute) -> ErrorKind | None:
    enum = next(e for e in enums() if e.__name__ == ast.unparse(node.value).rpartition(".")[2])
    return enum.__members__.get(node.attr)


def test_every_kind_is_raised() -> None:
    mentioned = {_kind_of(node) for _, node in _references()}
    mentioned |= {*NativeErrors, *ScalarArithmeticErrors}  # raised in C++ (tests/runtime/test_native_errors.py)
    assert [kind.code for kind in kinds() if kind not in mentioned] == []


def test_fields_are_those_of_the_message_wherever_a_kind_is_raised() -> None:
    wrong = []
    for path, tree in trees().items():
        for call in ast.walk(tree):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            if ast.unparse(call.func.value).rpartition(".")[2] not in {enum.__name__ for enum in enums()}:
                continue
            kind = _kind_of(call.func)
            named = {keyword.arg for keyword in call.keywords} - {"excerpt", None}
            splat = any(keyword.arg is None for keyword in call.keywords)
            fields = set() if kind is None else set(kind.field_names)
            fits = named <= fields if splat else fields in (named, named - {"param"})  # `param`: the server's errors
            if kind is None or call.args or not fits:
                has = f"{ast.unparse(call.func)} has {sorted(named)}, not {sorted(fields)}"
                wrong.append(f"{path}:{call.lineno}: {has}")
    assert wrong == [], "\n".join(wrong)


def test_no_error_is_raised_without_a_kind() -> None:
    offenders = list(without_a_kind())
    assert offenders == [], f"{len(offenders)} errors without a kind:\n" + "\n".join(offenders)


def without_a_kind() -> Iterator[str]:
    """Yield the place of every call of an error class in production code: kinds make errors."""
    classes = {error.__name__ for error in _subclasses(SsccError)} | {"SsccError"}
    for path, tree in trees().items():
        if path in WITHOUT_A_KIND:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in classes:
                yield f"{path}:{node.lineno}: {ast.unparse(node)[:100]}"


def _subclasses(cls: type[SsccError]) -> Iterator[type[SsccError]]:
    for inner in cls.__subclasses__():
        if inner.__module__.startswith("sscc."):
            yield inner
            yield from _subclasses(inner)


# ---------------------------------------------------------------------------------------------------- the messages


def sample(kind: ErrorKind) -> SsccError:
    """Return an error of a kind whose fields are their names, or numbers where the message formats them as such."""
    fields: dict[str, Any] = {}
    for _, name, spec, _ in Formatter().parse(kind.template):
        if name is not None:
            numeric = bool(spec) and spec[-1] in NUMERIC
            fields[name] = "" if name.endswith("hint") else (3 if numeric else fields.get(name, f"<{name}>"))
    return kind(**fields)


def rendered() -> str:
    lines = []
    for kind in kinds():
        error = sample(kind)
        assert type(error) is kind.error, kind
        lines.append(f"{kind.code} ({kind.error.__name__}, exit code {kind.error.exit_code})\n    {error}\n")
    return "\n".join(lines)


def test_messages_are_those_on_record(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-goldens"):
        GOLDEN.write_text(rendered(), encoding="utf-8")
    assert GOLDEN.is_file(), f"{GOLDEN.relative_to(ROOT)} is missing: write it with {UPDATE}"
    recorded, now = GOLDEN.read_text(encoding="utf-8"), rendered()
    assert now == recorded, f"messages have changed: write them with {UPDATE}, and read the difference"
