"""What a step may assume about its body: parameters, locals and windows by name, their shapes and dtypes, scalars.

Steps are compiled in three phases, so that a firing does nothing twice: ``compile(step, interface)`` resolves names
once per body and gives a `Bind`; ``bind(views)`` fixes the tensors, once per tile that a stage meets;
``fire(scalars)`` computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from sscc.ir.schedule import Body, Param
from sscc.runtime.backends.collectives.group import Ranks
from sscc.runtime.backends.reference.numerics import Numerics

Views = Mapping[str, torch.Tensor]
Scalars = Mapping[str, int]
Fire = Callable[[Scalars], None]
Bind = Callable[[Views], Fire]


@dataclass(frozen=True)
class Interface:
    """What a body's steps see by name, the numerics that it is compiled for, and the ranks among which this is one.
    That names, shapes and dtypes fit each other is the validator's to prove.

    `params` holds the parameters. It also holds the locals and the windows as if they were parameters: a local has the
    access "update", a window the access and dtype of what it looks at.
    """

    body: Body
    numerics: Numerics
    params: Mapping[str, Param]
    ranks: Ranks

    @classmethod
    def of(cls, body: Body, numerics: Numerics, ranks: Ranks) -> Interface:
        params = {param.name: param for param in body.params}
        params.update({local.name: Param(local.name, local.shape, local.dtype, "update") for local in body.locals})
        for window in body.windows:
            target = params[window.view.tensor]
            params[window.name] = Param(window.name, window.view.shape, target.dtype, target.access)
        return cls(body, numerics, params, ranks)

    @property
    def where(self) -> str:
        """The body, for messages."""
        return f"body {self.body.name!r}" + (f" ({self.body.location})" if self.body.location else "")
