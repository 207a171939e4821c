"""The names that a step can use: parameters, locals and windows with their shapes and dtypes, and scalars.

Steps are compiled in three phases, so that a firing repeats no work: ``compile(step, interface)`` resolves names once
per body and returns a `Bind`; ``bind(views)`` fixes the tensors, once for each tile of a stage; ``fire(scalars)``
computes.
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
    """The names that the steps of a body can use, its numerics, and the ranks with the number of this one. The
    validator proves that names, shapes and dtypes match.

    `params` holds the parameters, and also locals and windows in the form of parameters: a local has the access
    "update", a window has the access and dtype of the tensor that it shows.
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
        """Return the location of the body, for messages."""
        return f"body {self.body.name!r}" + (f" ({self.body.location})" if self.body.location else "")
