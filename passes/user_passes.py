"""Passes of the user: loaded from a Python file, or from an installed package.

A file defines subclasses of `sscc.passes.base.Pass`, as the modules of this folder do. A package declares an entry
point in the group `sscc.passes`, whose value is a class or a module with classes. `sscc opt` runs a loaded pass where
the pipeline names it. A compilation runs it after the last of the passes that it names in `follows`.

The file is executed with the rights of the user.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from sscc.ir.choices import LEVELS
from sscc.ir.errors import ErrorKind, InputError, SsccError, UsageError, quoted
from sscc.ir.suggestions import did_you_mean
from sscc.passes.base import Pass

GROUP = "sscc.passes"
"""Group of entry points."""
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


class UserPassErrors(ErrorKind):
    NO_SOURCE = (
        UsageError,
        "--load-pass is {source!r}, which is neither a Python file nor a pass of a package: {known}{hint}",
    )
    NOT_READ = InputError, "{source} cannot be loaded: {reason}"
    NO_PASS = InputError, "{source} defines no pass: no concrete subclass of sscc.passes.base.Pass"
    BAD_NAME = InputError, "{source}: the pass {cls} has the name {name!r}, but it must be small letters and dashes"
    BAD_LEVEL = InputError, "{source}: the pass {name} has {field} = {levels}, but the levels are {known}"
    NOT_A_DATACLASS = InputError, "{source}: the pass {name} must be a dataclass whose fields have defaults"
    NAME_TAKEN = InputError, "{source}: a pass {name} already exists"
    NO_PLACE = (
        UsageError,
        "the pass {name} does not specify its place in a compilation: name the passes before it in `follows`",
    )
    NOT_REACHED = (
        UsageError,
        "the pass {name} follows {follows}, but this compilation runs only {passes}",
    )


def load_passes(source: str) -> tuple[type[Pass], ...]:
    """Return the passes that a file or an entry point defines.

    Args:
        source: path of a Python file, or name of an entry point in the group `sscc.passes`.

    Raises:
        UsageError: there is no such file and no such entry point.
        InputError: it cannot be executed, or a pass in it is malformed.
    """
    path = Path(source)
    is_file = path.suffix == ".py" or path.exists()
    found: Any = _module(path) if is_file else _of_package(source)
    kinds = [cast(type[Pass], found)] if inspect.isclass(found) else _defined(found)
    if not kinds:
        raise UserPassErrors.NO_PASS(source=source)
    for kind in kinds:
        _check(source, kind)
    return tuple(kinds)


def placed(steps: Sequence[Pass], loaded: Iterable[Pass]) -> tuple[Pass, ...]:
    """Return the passes of a compilation with loaded ones inserted, each behind the last of those that it follows.

    Raises:
        UsageError: a loaded pass does not name the passes that it follows, or none of them is among `steps`.
    """
    result = list(steps)
    for item in loaded:
        if not item.follows:
            raise UserPassErrors.NO_PLACE(name=item.name)
        places = [place for place, step in enumerate(result) if step.name in item.follows]
        if not places:
            names = [step.name for step in steps]
            raise UserPassErrors.NOT_REACHED(name=item.name, follows=item.follows, passes=names)
        result.insert(places[-1] + 1, item)
    return tuple(result)


def _module(path: Path) -> ModuleType:
    name = f"sscc_user_passes_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    try:
        if spec is None or spec.loader is None:
            raise ImportError("it is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses look up their module by name
        spec.loader.exec_module(module)
    except SsccError:
        raise
    except Exception as error:
        raise UserPassErrors.NOT_READ(source=str(path), reason=f"{type(error).__name__}: {quoted(error)}") from error
    return module


def _of_package(name: str) -> Any:
    points = {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}
    if name not in points:
        hint = did_you_mean(name, points)
        raise UserPassErrors.NO_SOURCE(source=name, known=sorted(points) or "no package declares any", hint=hint)
    try:
        return points[name].load()
    except Exception as error:
        raise UserPassErrors.NOT_READ(source=name, reason=f"{type(error).__name__}: {quoted(error)}") from error


def _defined(module: ModuleType) -> list[type[Pass]]:
    """Return the concrete passes that a module defines, in their order."""
    members = [member for member in vars(module).values() if inspect.isclass(member)]
    return [
        member
        for member in members
        if issubclass(member, Pass) and member.__module__ == module.__name__ and not inspect.isabstract(member)
    ]


def _check(source: str, kind: type[Pass]) -> None:
    name = getattr(kind, "name", "")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UserPassErrors.BAD_NAME(source=source, cls=kind.__name__, name=name)
    stated = {"takes": tuple(getattr(kind, "takes", ())), "level": (getattr(kind, "level", ""),)}
    for field, levels in stated.items():
        if not {*levels} <= {*LEVELS, *([""] if field == "level" else [])}:
            raise UserPassErrors.BAD_LEVEL(source=source, name=name, field=field, levels=levels, known=LEVELS)
    try:
        dataclasses.fields(kind)  # type: ignore[arg-type]  # every pass is a dataclass
        kind()
    except TypeError:
        raise UserPassErrors.NOT_A_DATACLASS(source=source, name=name) from None
