"""Bodies: the computation of one firing, as steps over parameters, locals and windows."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from sscc.ir.schedule import Body, Window
from sscc.runtime.backends.collectives.group import Ranks
from sscc.runtime.backends.reference.interface import Bind, Fire, Interface, Scalars
from sscc.runtime.backends.reference.memory import poison
from sscc.runtime.backends.reference.numerics import Numerics
from sscc.runtime.backends.reference.steps import STEPS
from sscc.runtime.backends.reference.views import MalformedKind, StridedView


class ReferenceBodyErrors(MalformedKind):
    NOT_DENSE = "the window {window!r} shows the parameter {param!r}, whose argument is not dense row-major"


class BodyCode:
    """A body, compiled once for all stages that fire it. Its locals exist once, because nothing in them outlives a
    firing.

    Args:
        body: body to compile.
        numerics: dtypes for the computation.
        ranks: ranks of the program, with the number of this one.
        checked: fill locals with NaN at the start of every firing.

    Raises:
        InputError: a window leaves the tensor that it shows, or an access map leaves its parameter.
    """

    def __init__(self, body: Body, numerics: Numerics, ranks: Ranks, *, checked: bool = False) -> None:
        self.body = body
        self._interface = Interface.of(body, numerics, ranks)
        self._checked = checked
        self._fixed = {local.name: torch.zeros(local.shape, dtype=self._dtype(local.dtype)) for local in body.locals}
        self._locals = list(self._fixed.values())
        self._windows: list[tuple[str, str, StridedView, int]] = []
        for window in body.windows:
            self._window(window)
        self._binds: list[Bind] = [STEPS[type(step)](step, self._interface) for step in body.steps]

    def bind(self, arguments: Sequence[torch.Tensor]) -> list[Fire]:
        """Fix a tensor for each parameter, in order; one firing calls all returned functions.

        Raises InputError if a window shows a parameter whose tensor is not dense row-major.
        """
        views = dict(self._fixed)
        views.update(zip((param.name for param in self.body.params), arguments, strict=True))
        for name, target, view, offset in self._windows:
            if not views[target].is_contiguous():
                raise ReferenceBodyErrors.NOT_DENSE(where=self._interface.where, window=name, param=target)
            views[name] = view.at(views[target], offset)
        fires = [bind(views) for bind in self._binds]
        return [self._poison, *fires] if self._checked and self._locals else fires

    def _dtype(self, name: str) -> torch.dtype:
        return self._interface.numerics.dtype(name)

    def _window(self, window: Window) -> None:
        view, target = window.view, self._interface.params[window.view.tensor]

        where = f"{self._interface.where}: window {window.name!r}"
        strided = StridedView(view, prod(target.shape), target.access, where)
        if view.tensor in self._fixed:
            self._fixed[window.name] = strided.at(self._fixed[view.tensor], view.offset)
        else:
            self._windows.append((window.name, view.tensor, strided, view.offset))

    def _poison(self, _: Scalars) -> None:
        for local in self._locals:
            poison(local)
