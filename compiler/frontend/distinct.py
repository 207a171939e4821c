"""Kinds of decoder layers, so that torch.export runs once per kind and not once per layer.

torch.export dominates compile time, and most models repeat one layer. Layers with equal classes, parameter shapes and
settings form a kind. The first and the last layer of each kind are captured, with their own layer indices; the pass
`repeat-layers` confirms that both became the same program before it repeats the first for all layers in between. A
layer that differs in anything unknown is a kind of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from sscc.ir.levels import LayerKinds

_IDENTITY = frozenset({"layer_idx", "layer_id", "layer_number"})
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


def layer_stack(model: torch.nn.Module, layers: int) -> tuple[str, torch.nn.ModuleList] | None:
    """Return the path and modules of the `layers` decoder layers of `model`; None if they are not one ModuleList."""
    stacks = [
        (path, module)
        for path, module in model.named_modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) == layers
    ]
    return stacks[0] if len(stacks) == 1 else None


def find_kinds(model: torch.nn.Module, layers: int, types: Sequence[str] = ()) -> LayerKinds | None:
    """Return the kinds of the `layers` decoder layers of `model`; None if they are not a `layer_stack`, or if every
    layer would be captured anyway.

    Args:
        types: types of layers in the config, if it lists them: a layer may show its type nowhere else.
    """
    of_layers = layer_stack(model, layers)
    if of_layers is None:
        return None
    path, stack = of_layers
    first: dict[Any, int] = {}
    signs = [(_signature(layer), *types[index : index + 1]) for index, layer in enumerate(stack)]
    kinds = LayerKinds(path, tuple(first.setdefault(sign, index) for index, sign in enumerate(signs)))
    return kinds if len(kinds.captured) < layers else None


def _signature(module: torch.nn.Module) -> tuple[Any, ...]:
    """Return everything about a module that its forward could depend on, except its place in the stack."""
    parameters = [(name, tuple(p.shape), p.dtype) for name, p in module._parameters.items() if p is not None]
    buffers = [(name, None if b is None else _value(b)) for name, b in module._buffers.items()]
    settings = [
        (name, _value(value))
        for name, value in sorted(vars(module).items())
        if name not in _IDENTITY and name not in _MODULE_STATE
    ]
    hooks = [len(vars(module)[name]) for name in sorted(_MODULE_STATE) if name.endswith("_hooks")]
    children = [(name, None if c is None else _signature(c)) for name, c in module._modules.items()]
    return (type(module), tuple(parameters), tuple(buffers), tuple(settings), tuple(hooks), tuple(children))


_MODULE_STATE = frozenset(vars(torch.nn.Module()))


def _value(value: Any) -> Any:
    """Return a hashable stand-in: equal for equal plain values, the identity of all other objects."""
    if isinstance(value, _PLAIN):
        return (type(value), value)
    if isinstance(value, (list, tuple)):
        return (type(value), tuple(_value(item) for item in value))
    if isinstance(value, torch.Tensor) and value.device.type != "meta" and value.numel() <= 1 << 20:
        return (tuple(value.shape), value.dtype, value.detach().contiguous().reshape(-1).tolist().__repr__())
    if isinstance(value, torch.nn.Module):
        return _signature(value)
    if isinstance(value, functools.partial):  # an activation with its settings, a separate object in each layer
        return (functools.partial, _value(value.func), _value(value.args), _value(sorted(value.keywords.items())))
    return id(value)


class _Last:
    """Result of the captured layer that ran last."""

    output: Any = None

    def note(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        self.output = output


class _LeftOut(torch.nn.Module):
    """Stand-in for a layer that is not captured, so that a model that iterates over its layers sees all of them. It has
    the layer's attributes except tensors, and returns the previous layer's result."""

    def __init__(self, layer: torch.nn.Module, last: _Last) -> None:
        super().__init__()
        self._layer = (layer,)  # in a tuple, so that it is not registered as a submodule
        self._last = last

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_layer"][0], name)

    def forward(self, *args: Any, **keywords: Any) -> Any:
        return self._last.output


@contextmanager
def only_captured(model: torch.nn.Module, kinds: LayerKinds | None) -> Iterator[None]:
    """Keep only the captured layers in `model`'s stack, at their own places, inside the block."""
    if kinds is None:
        yield
        return
    stack, last = model.get_submodule(kinds.path), _Last()
    before = dict(stack._modules)
    captured = {str(layer): before[str(layer)] for layer in kinds.captured}
    hooks = [layer.register_forward_hook(last.note) for layer in captured.values() if layer is not None]
    left_out = {name: _LeftOut(layer, last) for name, layer in before.items() if layer is not None}
    stack._modules.update({**left_out, **captured})
    try:
        yield
    finally:
        stack._modules.update(before)
        for hook in hooks:
            hook.remove()
