"""What a stage may assume about its kernel: parameters, their shapes and dtypes, scalar parameters.

Stages are compiled in three steps, so that a launch does nothing twice: ``compile(stage, interface)`` checks
names and shapes once per kernel and gives a `Bind`; ``bind(views)`` fixes the tensors, once per launch site
where all views are static; ``fire(scalars)`` computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

import torch

from sscc.ir.errors import InputError
from sscc.runtime.reference.numerics import FLOATS, Numerics
from sscc.runtime.schedule import Kernel, Param, Stage

Views = Mapping[str, torch.Tensor]
Scalars = Mapping[str, int]
Fire = Callable[[Scalars], None]
Bind = Callable[[Views], Fire]


@dataclass(frozen=True)
class Interface:
    """A kernel's parameters by name, and the numerics that it is compiled for."""

    kernel: Kernel
    numerics: Numerics
    params: Mapping[str, Param]

    @classmethod
    def of(cls, kernel: Kernel, numerics: Numerics) -> Interface:
        """Raises InputError where two parameters share a name."""
        params = {param.name: param for param in kernel.params}
        interface = cls(kernel, numerics, params)
        if len(params) + len(set(kernel.scalars)) != len(kernel.params) + len(kernel.scalars):
            interface.refuse("two of its parameters share a name")
        return interface

    def refuse(self, reason: str) -> NoReturn:
        where = f" ({self.kernel.location})" if self.kernel.location else ""
        raise InputError(f"the schedule is malformed: kernel {self.kernel.name!r}{where}: {reason}")

    def param(self, name: str) -> Param:
        if name not in self.params:
            self.refuse(f"it has no tensor parameter {name!r}, it has {list(self.params)}")
        return self.params[name]

    def written(self, name: str) -> Param:
        """The parameter, after checking that the kernel declares that it writes it."""
        param = self.param(name)
        if param.access == "read":
            self.refuse(f"a stage writes parameter {name!r}, which is declared read")
        return param

    def scalar(self, name: str) -> str:
        if name not in self.kernel.scalars:
            self.refuse(f"it has no scalar parameter {name!r}, it has {list(self.kernel.scalars)}")
        return name

    def match(self, stage: Stage, writes: str, **patterns: str) -> dict[str, int]:
        """Checks the shapes and dtypes of a stage's parameters and gives the sizes of the pattern's letters.

        A pattern is a dtype (or "float" for any floating one) and a size per dimension, each a number or a
        letter that stands for the same size everywhere: ``match(stage, "out", out="float B H 1 D", row="i64 B")``.
        """
        sizes: dict[str, int] = {}
        for field, pattern in patterns.items():
            self._match_one(stage.kind, field, self.param(getattr(stage, field)), pattern, sizes)
        self.written(getattr(stage, writes))
        return sizes

    def _match_one(self, kind: str, field: str, param: Param, pattern: str, sizes: dict[str, int]) -> None:
        dtype, *dims = pattern.split()
        fits = param.dtype in FLOATS if dtype == "float" else param.dtype == dtype
        fits = fits and len(dims) == len(param.shape)
        for letter, size in zip(dims, param.shape, strict=False):
            fits = fits and size == (int(letter) if letter.isdigit() else sizes.setdefault(letter, size))
        if not fits:
            known = {letter: size for letter, size in sizes.items() if letter in dims}
            self.refuse(
                f"{kind} takes {field} as {dtype} [{', '.join(dims)}] with {known}, "
                f"but parameter {param.name!r} is {param.dtype} {list(param.shape)}"
            )
