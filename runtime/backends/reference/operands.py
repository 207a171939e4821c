"""Steps of the algorithm as functions of the operands, scalars and attributes that their specifications declare."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from sscc.ir.opspec import Marked, Op, group_operands, spec_of
from sscc.runtime.backends.reference.interface import Bind, Fire, Interface, Views

Members = list[dict[str, Tensor]]
"""The members of a step's group: for each, its operands by name."""


Check = Callable[[Any, Interface], None]
"""Raises InputError for a step that the validator accepts but the interpreter cannot execute."""


def checked_by(check: Check) -> Callable[[Marked], Marked]:
    """Mark a function of steps: `check` runs before its steps are compiled."""

    def mark(function: Marked) -> Marked:
        vars(function)["check"] = check
        return function

    return mark


def step_of(function: Callable[..., None]) -> Callable[[Op, Interface], Bind]:
    """Return the compiler of the steps that `function` computes.

    The function receives keyword arguments named as in `sscc.ir.operations`: the step's operands as tensors, None for
    an omitted one; the members of its group (`Members`); its scalars and attributes; and the dtype to accumulate in, if
    it has the parameter `wide`.
    """
    check: Check | None = vars(function).get("check")
    accumulates = "wide" in inspect.signature(function).parameters

    def compile_step(step: Op, interface: Interface) -> Bind:
        if check is not None:
            check(step, interface)
        spec = spec_of(type(step))
        fixed: dict[str, Any] = {name: getattr(step, name) for name in spec.attributes}
        if accumulates:
            fixed["wide"] = interface.numerics.accumulate
        numbers = {name: getattr(step, name) for name in spec.numbers}

        def bind(views: Views) -> Fire:
            operands = {name: views.get(getattr(step, name)) for name in spec.operands}
            groups = {group: [_member(member, views) for member in getattr(step, group)] for group in spec.several}
            call = partial(function, **operands, **groups, **fixed)
            return lambda scalars: call(**{name: scalars[scalar] for name, scalar in numbers.items()})

        return bind

    return compile_step


def _member(member: Any, views: Views) -> dict[str, Tensor]:
    names = {name: getattr(member, name) for name in group_operands(type(member))}
    return {name: views[region] for name, region in names.items() if region}
