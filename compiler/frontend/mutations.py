"""Removal of operations in place from a decomposed graph, without a second trace of it.

Before:

    y = aten.add(a, b);  z = aten.slice(y, 0, 0, 2);  aten.mul_(z, c);  return y

After:

    y = aten.add(a, b);  z = aten.slice(y, 0, 0, 2);  z1 = aten.mul(z, c);  y1 = aten.slice_scatter(y, z1, 0, 0, 2);
    return y1
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

aten = torch.ops.aten

ORIGIN = ("nn_module_stack", "stack_trace")
"""Metadata of a node that the nodes in its place keep: the path of its module and its source lines."""


def works_in_place(node: torch.fx.Node) -> bool:
    """Return True if an operation of a graph changes one of its operands."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def without_mutations(module: torch.fx.GraphModule, mode: FakeTensorMode) -> torch.fx.GraphModule | None:
    """Return the function of `module` without operations in place; None if it changes a placeholder or an attribute, or
    changes a tensor through a view that has no scatter here.

    Args:
        module: decomposed graph with static shapes; every node has its fake tensor in `meta["val"]`.
        mode: mode of the fake tensors of the new nodes.
    """
    try:
        return _Rewriter(module, mode).run()
    except _NotCoveredError:
        return None


class _NotCoveredError(Exception):
    """A mutation that this module does not rewrite."""


class _Rewriter:
    """Copies a graph node by node. After each mutation, every earlier tensor that shares its memory and is read later
    has a new value."""

    def __init__(self, module: torch.fx.GraphModule, mode: FakeTensorMode) -> None:
        self.module, self.mode, self.graph = module, mode, torch.fx.Graph()
        nodes = list(module.graph.nodes)
        order = {node: index for index, node in enumerate(nodes)}
        self.last_use = {node: max((order[user] for user in node.users), default=-1) for node in nodes}
        self.source: dict[torch.fx.Node, torch.fx.Node] = {}  # what a node is a view of
        self.family: dict[torch.fx.Node, list[torch.fx.Node]] = {}  # tensors of one memory in order, by the first one
        self.values: dict[torch.fx.Node, torch.fx.Node] = {}  # the current value of each node of the old graph

    def run(self) -> torch.fx.GraphModule:
        for index, node in enumerate(self.module.graph.nodes):
            source = node.args[0] if _is_alias(node) or works_in_place(node) else None
            if isinstance(source, torch.fx.Node):
                self.source[node] = source
            self.family.setdefault(self._root(node), []).append(node)
            if works_in_place(node):
                self._replace(node, index)
            else:
                self.values[node] = self.graph.node_copy(node, self.values.__getitem__)
        return torch.fx.GraphModule(self.module, self.graph)

    def _root(self, node: torch.fx.Node) -> torch.fx.Node:
        while node in self.source:
            node = self.source[node]
        return node

    def _replace(self, node: torch.fx.Node, index: int) -> None:
        """Replace a mutation by the operation that returns the new tensor."""
        changed, root = self.source.get(node), self._root(node)
        if changed is None or root.op != "call_function":
            raise _NotCoveredError
        new = {changed: self._call(_returning(node), node, *node.args, **node.kwargs)}
        before, after = changed.meta["val"], new[changed].meta["val"]
        if (before.shape, before.dtype) != (after.shape, after.dtype):
            raise _NotCoveredError
        self.values[node] = new[node] = new[changed]
        child_of, child = dict[torch.fx.Node, torch.fx.Node](), changed
        while child in self.source:
            child_of[self.source[child]] = child
            child = self.source[child]

        def value(old: torch.fx.Node) -> torch.fx.Node:
            if old not in new:
                if old in child_of:
                    new[old] = self._scattered(child_of[old], value(child_of[old]), node)
                elif works_in_place(old):
                    new[old] = value(self.source[old])
                else:
                    new[old] = self._viewed(old, value(self.source[old]), node)
            return new[old]

        for old in self.family[root]:
            if self.last_use[old] > index:
                value(old)
        self.values |= new

    def _scattered(self, view: torch.fx.Node, value: torch.fx.Node, origin: torch.fx.Node) -> torch.fx.Node:
        """Return the tensor that `view` shows a part of, with `value` as that part."""
        if works_in_place(view):
            return value
        inverse = _INVERSES.get(view.target)
        if inverse is None:
            raise _NotCoveredError
        source = self.source[view]
        target, arguments = inverse(source.meta["val"], self.values[source], value, *view.args[1:], **view.kwargs)
        return self._called(target, origin, arguments, {})

    def _viewed(self, view: torch.fx.Node, source: torch.fx.Node, origin: torch.fx.Node) -> torch.fx.Node:
        """Return the view again, of another tensor."""
        if view.target not in _INVERSES:
            raise _NotCoveredError
        return self._called(view.target, origin, (source, *view.args[1:]), dict(view.kwargs))

    def _call(self, target: Any, origin: torch.fx.Node, *arguments: Any, **keywords: Any) -> torch.fx.Node:
        current = torch.fx.map_arg((arguments, keywords), self.values.__getitem__)
        return self._called(target, origin, *current)

    def _called(self, target: Any, origin: torch.fx.Node, arguments: Any, keywords: Any) -> torch.fx.Node:
        call = self.graph.call_function(target, tuple(arguments), keywords)

        def empty(node: torch.fx.Node) -> Tensor:
            tensor = node.meta["val"]
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)

        with self.mode:
            operands, named = torch.fx.map_arg((call.args, call.kwargs), empty)
            call.meta = {key: value for key, value in origin.meta.items() if key in ORIGIN}
            call.meta["val"] = target(*operands, **named)
        return call


def _is_alias(node: torch.fx.Node) -> bool:
    """Return True if a result of `node` may share the memory of its first operand."""
    if node.target is operator.getitem:
        return True
    return isinstance(node.target, torch._ops.OpOverload) and any(
        result.alias_info is not None for result in node.target._schema.returns
    )


def _returning(node: torch.fx.Node) -> Any:
    """Return the operator that returns what an operator in place would write to its first operand."""
    target: Any = node.target
    schema = target._schema
    first, *others = schema.arguments
    if not (first.alias_info and first.alias_info.is_write) or any(other.alias_info for other in others):
        raise _NotCoveredError
    packet = getattr(aten, schema.name.removeprefix("aten::").removesuffix("_"), None)
    overload = getattr(packet, target._overloadname, None)
    if not schema.name.endswith("_") or overload is None:
        raise _NotCoveredError
    return overload


_Inverse = Callable[..., tuple[Any, tuple[Any, ...]]]


def _permuted(whole: Any, old: Any, part: Any, dims: list[int]) -> tuple[Any, tuple[Any, ...]]:
    axes = [dim % whole.dim() for dim in dims]
    return aten.permute.default, (part, [axes.index(axis) for axis in range(whole.dim())])


_INVERSES: Mapping[Any, _Inverse] = {
    aten.slice.Tensor: lambda whole, old, part, *where: (aten.slice_scatter.default, (old, part, *where)),
    aten.select.int: lambda whole, old, part, *where: (aten.select_scatter.default, (old, part, *where)),
    aten.transpose.int: lambda whole, old, part, *dims: (aten.transpose.int, (part, *dims)),
    aten.permute.default: _permuted,
    aten.view.default: lambda whole, old, part, shape: (aten.view.default, (part, list(whole.shape))),
    aten.unsqueeze.default: lambda whole, old, part, dim: (aten.select.int, (part, dim, 0)),
}
"""By view: the operator and arguments that give a whole tensor with another part, of the fake tensor of the whole, the
old whole, the new part, and the further arguments of the view."""
