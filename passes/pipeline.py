"""The passes: in the order in which a compilation runs them, and by name."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import get_type_hints

from sscc.ir.errors import UsageError
from sscc.ir.levels import LEVELS
from sscc.passes.base import Pass
from sscc.passes.build_entries import BuildEntries
from sscc.passes.lower_torch import LowerTorch
from sscc.passes.merge_equal_kernels import MergeEqualKernels
from sscc.passes.outline_kernels import OutlineKernels
from sscc.passes.repeat_layers import RepeatLayers
from sscc.passes.split_layers import SplitLayers
from sscc.passes.thread_cache import ThreadCache

PIPELINE: tuple[Pass, ...] = (
    LowerTorch(),
    SplitLayers(),
    RepeatLayers(),
    ThreadCache(),
    BuildEntries(),
    OutlineKernels(),
    MergeEqualKernels(),
)

REGISTRY: dict[str, type[Pass]] = {type(item).name: type(item) for item in PIPELINE}
"""Every pass by the name that the command line, dumps and tests use."""


def pass_by_name(name: str) -> type[Pass]:
    """The class of the pass `name`. Raises UsageError for a name that no pass has."""
    if name not in REGISTRY:
        raise UsageError(f"there is no pass {name!r}, there are {', '.join(sorted(REGISTRY))}")
    return REGISTRY[name]


def passes_between(done: tuple[str, ...], level: str) -> tuple[Pass, ...]:
    """The passes still to run for a module that has been through `done`, up to and including `level`."""
    wanted = LEVELS.index(level)
    return tuple(item for item in PIPELINE if item.name not in done and LEVELS.index(item.level) <= wanted)


_STEP = re.compile(r"\s*([a-z0-9-]+)\s*(?:\{([^{}]*)\})?\s*(?:,|$)")


def parse_pipeline(text: str) -> tuple[Pass, ...]:
    """The passes of ``name,name{option=value other=value},..``, as MLIR writes pipelines.

    Raises:
        UsageError: a pass or an option that does not exist, or a value of the wrong type.
    """
    passes: list[Pass] = []
    position = 0
    while position < len(text):
        match = _STEP.match(text, position)
        if match is None:
            raise UsageError(f"the pass pipeline cannot be read from {text[position:]!r} on")
        kind = pass_by_name(match.group(1))
        passes.append(kind(**_options(kind, match.group(2) or "")))
        position = match.end()
    return tuple(passes)


def options_of(kind: type[Pass]) -> dict[str, tuple[type, object]]:
    """Option name (with dashes) -> type and default, of a pass: the fields of its dataclass."""
    hints = get_type_hints(kind)
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]  # every pass is a dataclass
    return {field.name.replace("_", "-"): (hints[field.name], field.default) for field in fields}


def _options(kind: type[Pass], text: str) -> dict[str, object]:
    known = options_of(kind)
    values: dict[str, object] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if name not in known or not equals:
            listed = ", ".join(known) or "none"
            raise UsageError(f"the pass {kind.name} has no option {word!r} (options: {listed})")
        values[name.replace("-", "_")] = _value(f"{kind.name}{{{name}}}", known[name][0], value)
    return values


def _value(where: str, kind: type, text: str) -> object:
    if kind is bool and text in ("true", "false"):
        return text == "true"
    if kind is int and text.lstrip("-").isdigit():
        return int(text)
    if kind is str:
        return text
    raise UsageError(f"{where} is {text!r}, expected {kind.__name__}")


def pipeline_text(passes: Sequence[Pass]) -> str:
    """What `parse_pipeline` reads back, options at their default left out."""
    return ",".join(map(_step_text, passes))


def _step_text(item: Pass) -> str:
    changed = []
    for name, (_, default) in options_of(type(item)).items():
        value = getattr(item, name.replace("-", "_"))
        if value != default:
            changed.append(f"{name}={str(value).lower() if isinstance(value, bool) else value}")
    return item.name + (f"{{{' '.join(changed)}}}" if changed else "")
