"""How the steps of the algorithm are compiled: each is a function of what its specification says that it takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from sscc.ir.opspec import Op, group_operands, spec_of
from sscc.runtime.backends.reference.interface import Bind, Fire, Interface, Views

Members = list[dict[str, Tensor]]
"""The members of a step's group: each the operands that it has, by name."""


def step_of(
    function: Callable[..., None], check: Callable[[Any, Interface], None] = lambda step, interface: None
) -> Callable[[Op, Interface], Bind]:
    """What compiles the steps that `function` computes.

    The function is given by keyword, named as in `sscc.ir.operations`: a step's operands as tensors, None for one that
    it goes without; the members of its group (`Members`); its scalars and attributes; and if it takes `wide`, the dtype
    to accumulate in.

    Args:
        check: raises InputError for what the validator does not refuse.
    """
    accumulates = "wide" in inspect.signature(function).parameters

    def compile_step(step: Op, interface: Interface) -> Bind:
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
