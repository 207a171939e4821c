"""The operators of a captured model, other than attention, that depend on earlier tokens.

Each declares what capture, configs and eager runs need to know about it. Attention has its own interface
(`sscc.compiler.frontend.operator`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol

import torch

from sscc.compiler.frontend.eager_run import EagerRun
from sscc.compiler.frontend.learned_index import CHOSEN_ATTENTION, LEARNED_INDEX
from sscc.compiler.frontend.recurrent_functions import RECURRENCE
from sscc.compiler.frontend.short_convolution import SHORT_CONVOLUTION


class StatefulOperator(Protocol):
    """An operator that depends on earlier tokens.

    Attributes:
        target: the operator in a captured graph.
        layer_argument: index of its argument with the number of the decoder layer.
        layer_types: types of layers, in configs, that call it.
    """

    target: Any
    layer_argument: int
    layer_types: frozenset[str]

    def modules(self, model: torch.nn.Module) -> list[str]:
        """Return the paths of the modules of a model that the operator may replace."""

    def recognise(self, model: Any) -> None:
        """Let a model of transformers call the operator, while its attention implementation is one of ours."""

    def in_pieces(self) -> AbstractContextManager[None]:
        """Return a context in which the operator computes a text that is fed in pieces."""

    def prefilling(self, run: EagerRun) -> AbstractContextManager[None]:
        """Return a context in which the operator computes a whole prompt, and leaves its state in `run`."""

    def decoding(self, run: EagerRun) -> AbstractContextManager[None]:
        """Return a context in which the operator computes a token at `run.position` - 1 by its state."""


OPERATORS: tuple[StatefulOperator, ...] = (SHORT_CONVOLUTION, RECURRENCE, LEARNED_INDEX, CHOSEN_ATTENTION)
TARGETS: Mapping[object, int] = {
    torch.ops.sscc.attention.default: 3, **{operator.target: operator.layer_argument for operator in OPERATORS}
}
"""All operators that depend on earlier tokens, attention included, with the index of their argument for the layer's
number."""
LAYER_TYPES: frozenset[str] = frozenset().union(*(operator.layer_types for operator in OPERATORS))
"""Types of layers, in configs, that call one of `OPERATORS` and have no attention."""


OperatorContext = Callable[[StatefulOperator], AbstractContextManager[None]]
"""Returns the context in which an operator computes."""


@contextmanager
def computing(context: OperatorContext) -> Iterator[None]:
    """Enter the context of every operator."""
    with ExitStack() as stack:
        for operator in OPERATORS:
            stack.enter_context(context(operator))
        yield
