"""What a step may assume about its body: parameters, locals and windows by name, their shapes and dtypes, scalars.

Steps are compiled in three phases, so that a firing does nothing twice: ``compile(step, interface)`` checks
names and shapes once per body and gives a `Bind`; ``bind(views)`` fixes the tensors, once per tile that a stage
meets; ``fire(scalars)`` computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import torch

from sscc.ir.errors import InputError
from sscc.ir.kv_rows import numbers_in
from sscc.ir.opspec import Op, Pattern, spec_of_step
from sscc.ir.schedule import Body, Param
from sscc.runtime.backends.reference.numerics import FLOATS, Numerics

Views = Mapping[str, torch.Tensor]
Scalars = Mapping[str, int]
Fire = Callable[[Scalars], None]
Bind = Callable[[Views], Fire]


@dataclass(frozen=True)
class Interface:
    """What a body's steps see by name, and the numerics that it is compiled for.

    `params` holds the parameters. It also holds the locals and the windows as if they were parameters: a local has the
    access "update", a window the access and dtype of what it looks at.
    """

    body: Body
    numerics: Numerics
    params: Mapping[str, Param]

    @classmethod
    def of(cls, body: Body, numerics: Numerics) -> Interface:
        """Raises InputError where two things share a name, or a window looks at nothing."""
        params = {param.name: param for param in body.params}
        params.update({local.name: Param(local.name, local.shape, local.dtype, "update") for local in body.locals})
        interface = cls(body, numerics, params)
        for window in body.windows:
            if window.view.tensor in (other.name for other in body.windows):
                interface.refuse(f"window {window.name!r} looks at a window")
            target = interface.param(window.view.tensor)
            params[window.name] = Param(window.name, window.view.shape, target.dtype, target.access)
        names = [item.name for group in (body.params, body.locals, body.windows) for item in group]
        if len({*names, *body.scalars}) != len(names) + len(body.scalars):
            interface.refuse("two of its parameters, scalars, locals and windows share a name")
        return interface

    def refuse(self, reason: str) -> NoReturn:
        where = f" ({self.body.location})" if self.body.location else ""
        raise InputError(f"the schedule is malformed: body {self.body.name!r}{where}: {reason}")

    def param(self, name: str) -> Param:
        if name not in self.params:
            self.refuse(f"it has no tensor parameter {name!r}, it has {list(self.params)}")
        return self.params[name]

    def written(self, name: str) -> Param:
        """The parameter, after checking that the body declares that it writes it."""
        param = self.param(name)
        if param.access == "read":
            self.refuse(f"a step writes parameter {name!r}, which is declared read")
        return param

    def scalar(self, name: str) -> str:
        if name not in self.body.scalars:
            self.refuse(f"it has no scalar parameter {name!r}, it has {list(self.body.scalars)}")
        return name

    def match(self, step: Op) -> dict[str, int]:
        """Checks a step's parameters against the patterns of its specification (`sscc.ir.opspec`) and gives the sizes
        of the patterns' letters.

        Raises InputError naming the field and the parameter that does not fit.
        """
        sizes: dict[str, int] = {}
        spec = spec_of_step(step)
        for field, name, pattern in spec.matching(step, lambda region: self.param(region).dtype):
            self._match_one(step.kind, field, self.param(name), pattern, sizes)
            if spec.operands[field].mode != "read":
                self.written(name)
        return sizes

    def _match_one(self, kind: str, field: str, param: Param, pattern: Pattern, sizes: dict[str, int]) -> None:
        dtype, dims = pattern
        fits, shape = len(dims) == len(param.shape), param.shape
        if dtype in ("encoded", "row") and param.dtype == "i8":
            shape = (*shape[:-1], numbers_in(shape[-1], sizes.get(dims[-1]))) if shape else shape
            fits = fits and shape[-1] >= 1
        elif dtype == "any":
            fits = fits and param.dtype in (*FLOATS, "i8")
        elif dtype in ("f", "row"):
            fits = fits and param.dtype in FLOATS
        else:
            fits = fits and param.dtype == dtype
        for letter, size in zip(dims, shape, strict=False):
            fits = fits and size == (int(letter) if letter.isdigit() else sizes.setdefault(letter, size))
        if not fits:
            known = {letter: size for letter, size in sizes.items() if letter in dims}
            self.refuse(
                f"{kind} takes {field} as {_spelled(dtype, dims)} with {known}, "
                f"but parameter {param.name!r} is {param.dtype} {list(param.shape)}"
            )


def _spelled(dtype: str, dims: Sequence[str]) -> str:
    """A pattern in words, for messages."""
    encoded = f"i8 [{', '.join(dims)} + 4]"
    words = {"f": "float", "row": "float", "any": "float or i8"}
    plain = f"{words.get(dtype, dtype)} [{', '.join(dims)}]"
    return encoded if dtype == "encoded" else f"{plain} or {encoded}" if dtype == "row" else plain
