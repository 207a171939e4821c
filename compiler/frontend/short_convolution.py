"""Short causal convolutions: the operator through which a captured model calls them, and its recognition.

A convolution of each channel over the last few tokens (LFM2's layers) keeps its last inputs from token to token. While
a model runs, `sscc::short_convolution` replaces a `conv1d` with one filter per channel, padded by one less than the
number of taps, if only the columns of the tokens are read from its result. With any other use of the result the
convolution is unchanged, and capture refuses the layer.

Importing this module registers the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv1d, pad
from torch.overrides import TorchFunctionMode

from sscc.compiler.frontend.eager_run import EagerRun
from sscc.compiler.frontend.recognition import recognise_in_layers
from sscc.compiler.frontend.tensor_facts import TensorFacts
from sscc.ir.layer_state.row_streams import INPUTS

Convolver = Callable[[Tensor, Tensor, "Tensor | None", int], Tensor]
"""Called as convolver(x [b, channels, s], weight [channels, 1, taps], bias, layer), returns [b, channels, s]."""

_convolver: ContextVar[Convolver | None] = ContextVar("sscc_convolver", default=None)


@torch.library.custom_op("sscc::short_convolution", mutates_args=())
def short_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, layer: int) -> Tensor:
    """Causal convolution of each channel of decoder layer `layer` over the tokens given.

    Args:
        x: [b, channels, s].
        weight: [channels, 1, taps].
        bias: [channels], or None.
        layer: index of the decoder layer.

    Returns:
        [b, channels, s] of x's dtype. Eagerly, outside of `convolving`: zeros stand before the first token.
    """
    convolver = _convolver.get()
    if convolver is not None:
        return convolver(x, weight, bias, layer)
    return convolved(pad(x, (weight.shape[2] - 1, 0)), weight, bias)


@short_convolution.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, layer: int) -> Tensor:
    return torch.empty_like(x)


@contextmanager
def convolving(convolver: Convolver) -> Iterator[None]:
    """Let `convolver` compute every `sscc::short_convolution` that runs eagerly inside the block."""
    token = _convolver.set(convolver)
    try:
        yield
    finally:
        _convolver.reset(token)


def convolved(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return a convolution [b, channels, s], summed in f32 and rounded once. Its inputs [b, channels, taps - 1 + s]
    begin with those before its tokens."""
    wide = None if bias is None else bias.float()
    out: Tensor = conv1d(inputs.float(), weight.float(), wide, groups=weight.shape[0])
    return out.to(inputs.dtype)


class InputsInPieces:
    """Computes the convolutions of a text that is fed in pieces."""

    def __init__(self) -> None:
        self._before: dict[int, Tensor] = {}

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None, layer: int) -> Tensor:
        kept = weight.shape[2] - 1
        before = self._before.get(layer, x.new_zeros(*x.shape[:2], kept))
        inputs = torch.cat([before, x], 2)
        self._before[layer] = inputs[..., inputs.shape[2] - kept :]
        return convolved(inputs, weight, bias)


def ring_of_inputs(x: Tensor, taps: int) -> Tensor:
    """Return the last inputs of a prompt [channels, n] as a ring [1, taps - 1, channels]: the input of position p is in
    row p mod (taps - 1); rows of positions before the first are zero."""
    kept, length = taps - 1, x.shape[1]
    last = pad(x, (kept, 0))[:, -kept:]
    return last.roll(length % kept, 1).T.contiguous()[None]


def step_of_ring(x: Tensor, weight: Tensor, bias: Tensor | None, ring: Tensor, position: int) -> Tensor:
    """Return the convolution [1, channels, 1] of one token [1, channels, 1] at `position`, and put it into the ring."""
    kept = ring.shape[1]
    before = torch.stack([ring[0, (position - back) % kept] for back in range(kept, 0, -1)], 1)
    out = convolved(torch.cat([before[None], x], 2), weight, bias)
    ring[0, position % kept] = x[0, :, 0]
    return out


# ------------------------------------------------------------------------------------------------- recognition


@dataclass(frozen=True)
class _Call:
    """A call of a convolution that may be a short causal one."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None

    def of_tokens(self, index: Any) -> bool:
        """True if an index of the result [b, channels, s + taps - 1] gives the columns of the tokens."""
        *others, columns = index if isinstance(index, tuple) else (index,)
        if not all(other in (slice(None), Ellipsis) for other in others) or not isinstance(columns, slice):
            return False
        from_first = columns.start in (None, 0) and columns.step in (None, 1)
        last_axis = Ellipsis in others or len(others) == 2
        return last_axis and from_first and columns.stop == self.x.shape[2]


class ConvolutionRecogniser(TorchFunctionMode):
    """Replaces short causal convolutions while it is active.

    Attributes:
        layer: decoder layer that is running.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layer: int | None = None
        self._calls = TensorFacts[_Call]()

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        keywords = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__getitem__" and args and self.layer is not None:
            call = self._calls.of(args[0])
            if call is not None and call.of_tokens(args[1]):
                return torch.ops.sscc.short_convolution(call.x, call.weight, call.bias, self.layer)
        result = func(*args, **keywords)
        call = _short(*args, **keywords) if name == "conv1d" else None
        self._calls.put(args[0] if name == "__setitem__" else result, call)
        return result


def _short(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> _Call | None:  # fmt: skip
    """Return a call of `conv1d` if it is a convolution of each channel, padded by all but one of its taps."""
    if input.dim() != 3 or input.shape[1] != groups or not _is_short(weight, groups, stride, dilation, padding):
        return None
    return _Call(input, weight, bias)


def _is_short(weight: Tensor, groups: int, stride: Any, dilation: Any, padding: Any) -> bool:
    """Return True for the settings of a convolution of each channel, padded by all but one of its taps."""
    channels, inputs, taps = weight.shape
    of_each = groups == channels and inputs == 1 and taps > 1
    settings = (value if isinstance(value, int | str) else tuple(value) for value in (stride, dilation, padding))
    pairs = zip(settings, (1, 1, taps - 1), strict=True)
    return of_each and all(value in (expected, (expected,)) for value, expected in pairs)


class ShortConvolution:
    """See `sscc.compiler.frontend.stateful.StatefulOperator`."""

    target = torch.ops.sscc.short_convolution.default
    layer_argument = 3
    layer_types = frozenset({"conv"})

    def modules(self, model: torch.nn.Module) -> list[str]:
        """See `StatefulOperator`: convolutions of each channel, padded by all but one of their taps."""
        return [
            name
            for name, module in model.named_modules()
            if isinstance(module, torch.nn.Conv1d)
            and _is_short(module.weight, module.groups, module.stride, module.dilation, module.padding)
        ]

    def recognise(self, model: Any) -> None:
        """See `StatefulOperator`: within decoder layers, which are numbered."""
        recognise_in_layers(model, [], lambda ids, positions: ConvolutionRecogniser())

    def in_pieces(self) -> AbstractContextManager[None]:
        """See `StatefulOperator`."""
        return convolving(InputsInPieces())

    def prefilling(self, run: EagerRun) -> AbstractContextManager[None]:
        """See `StatefulOperator`."""

        def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, layer: int) -> Tensor:
            taps = weight.shape[2]
            run.keep_state(layer, INPUTS[0], ring_of_inputs(x[0], taps))
            return convolved(pad(x, (taps - 1, 0)), weight, bias)

        return convolving(convolve)

    def decoding(self, run: EagerRun) -> AbstractContextManager[None]:
        """See `StatefulOperator`."""

        def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, layer: int) -> Tensor:
            return step_of_ring(x, weight, bias, run.state(layer, INPUTS[0]), run.position - 1)

        return convolving(convolve)


SHORT_CONVOLUTION = ShortConvolution()
