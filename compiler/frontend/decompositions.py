"""Decomposition of captured operators: torch-mlir's table, with our rules where its own do not suit us."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import default_decompositions
from torch.export.exported_program import _override_composite_implicit_decomp
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch_mlir.extras.fx_decomp_util import get_decomposition_table

from sscc.compiler.frontend import experts  # noqa: F401, registers the operators that decompositions call
from sscc.compiler.frontend.mutations import ORIGIN, without_mutations, works_in_place
from sscc.ir.errors import ErrorKind, UnsupportedError

WITHOUT_EFFECT = (
    torch.ops.prims.device_put.default,
    torch.ops.aten.detach_.default,
    torch.ops.aten._assert_tensor_metadata.default,
)
"""Operators that return their first operand, or nothing: a program is on one device, has no gradients, and its dtypes
are those of the export."""
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


class DecompositionErrors(ErrorKind):
    COMPLEX_NUMBERS = (
        UnsupportedError,
        "{operator} of complex numbers cannot be compiled; they are supported for rotations (rotary embeddings) only",
    )


def decompose(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Return the decomposed graph of an exported program, like `ExportedProgram.run_decompositions` but in a fraction
    of the time: it traces each distinct call of an operator once in a process, and not the graph.

    Args:
        module: graph module of an ExportedProgram with static shapes; every placeholder has its fake tensor in
            `meta["val"]`.

    Returns:
        The same function with the same placeholders in order. No operation works in place, except copies into
        placeholders that the function changes. Nodes keep the module paths and source lines of their origins; values
        that a decomposition computes only from Python numbers are attributes.
    """
    with _override_composite_implicit_decomp(dict.fromkeys(_kept_whole(), _keep)):
        module = _retraced(module, lambda run: run) if _needs_one_trace(module) else _decomposed(module)
        if any(works_in_place(node) for node in module.graph.nodes):
            rewritten = None if _needs_one_trace(module) else without_mutations(module, _trace_mode())
            if rewritten is not None:
                module = _decomposed(rewritten)
            else:
                module = _retraced(module, lambda run: functionalize(run, remove="mutations"))
    join_slices(module)
    return module


@dataclass(frozen=True)
class _Operand:
    """A tensor of a call: everything that a decomposition may depend on except its elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class _Literal:
    """A Python value of a call. Equal numbers of different types, such as 1 and 1.0, are different literals."""

    type: type
    value: Any


def _decomposed(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Return `module` with every operator of the table replaced by the graph that is traced of its call."""
    graph, attributes = torch.fx.Graph(), dict[str, Any]()
    values: dict[torch.fx.Node, Any] = {}  # a node, or a list of nodes where an operator returns several tensors
    for node in module.graph.nodes:
        if node.op == "get_attr":
            attributes[node.target] = operator.attrgetter(node.target)(module)
        if node.target is operator.getitem and not isinstance(values[node.args[0]], torch.fx.Node):
            values[node] = values[node.args[0]][node.args[1]]
        elif node.op != "call_function" or not _is_decomposed(node.target):
            values[node] = graph.node_copy(node, values.__getitem__)
        else:
            values[node] = _inlined(node, values, graph, attributes)
    return _cleaned(torch.fx.GraphModule(attributes, graph))


def _inlined(
    node: torch.fx.Node, values: dict[torch.fx.Node, Any], graph: torch.fx.Graph, attributes: dict[str, Any]
) -> Any:
    """Copy the graph of a decomposed call to the end of `graph`, and return its results there.

    Args:
        attributes: tensors by name; those of the call are added.
    """
    operands: list[torch.fx.Node] = []

    def described(argument: Any) -> Any:
        if isinstance(argument, torch.fx.Node):
            value = values[argument]
            if not isinstance(value, torch.fx.Node):
                return tuple(map(described_value, value))
            return described_value(value)
        if isinstance(argument, (list, tuple)):
            return tuple(map(described, argument))
        return _Literal(type(argument), argument)

    def described_value(value: torch.fx.Node) -> _Operand:
        operands.append(value)
        tensor = value.meta["val"]
        return _Operand(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)

    arguments = tuple(map(described, node.args))
    keywords = tuple((name, described(argument)) for name, argument in node.kwargs.items())
    call = _traced(node.target, arguments, keywords, torch.get_default_dtype())
    *steps, output = call.graph.nodes
    inner: dict[torch.fx.Node, Any] = dict(zip(steps, operands, strict=False))  # placeholders come first
    for step in steps[len(operands) :]:
        copied = inner[step] = graph.node_copy(step, inner.__getitem__)
        if step.op == "get_attr":
            copied.target = f"{step.target}_{len(attributes)}"
            attributes[copied.target] = getattr(call, step.target)
        copied.meta = {key: value for key, value in node.meta.items() if key in ORIGIN} | {"val": step.meta["val"]}
    return torch.fx.map_arg(output.args[0], inner.__getitem__)


@lru_cache(maxsize=4096)
def _traced(
    target: Any, arguments: tuple[Any, ...], keywords: tuple[tuple[str, Any], ...], default_dtype: torch.dtype
) -> torch.fx.GraphModule:
    """Return the graph of one call of an operator, decomposed. Its placeholders are the tensors in order.

    Args:
        arguments, keywords: arguments of the call, with `_Operand` for tensors and `_Literal` for other values.
        default_dtype: torch's default dtype, which decompositions use for numbers. It is a part of the key only.
    """
    mode = _trace_mode()

    def run(*tensors: Tensor) -> Any:
        following = iter(tensors)

        def value(argument: Any) -> Any:
            if isinstance(argument, tuple):
                return [value(element) for element in argument]
            return next(following) if isinstance(argument, _Operand) else argument.value

        positional = [value(argument) for argument in arguments]
        return target(*positional, **{name: value(argument) for name, argument in keywords})

    with mode:
        operands = [
            torch.empty_strided(each.shape, each.strides, dtype=each.dtype, device=each.device)
            for each in _operands((arguments, tuple(argument for _, argument in keywords)))
        ]
    return _trace(run, mode, operands)


@cache
def _trace_mode() -> FakeTensorMode:
    """Return the mode of all tensors in traces that are kept."""
    return FakeTensorMode()


def _operands(arguments: Any) -> Iterator[_Operand]:
    """Yield the tensors of nested arguments in order."""
    if isinstance(arguments, tuple):
        for argument in arguments:
            yield from _operands(argument)
    elif isinstance(arguments, _Operand):
        yield arguments


def _trace(run: Callable[..., Any], mode: FakeTensorMode, operands: list[Tensor]) -> torch.fx.GraphModule:
    """Return the decomposed graph of a function of tensors of a mode."""
    trace = make_fx(run, decomposition_table=decomposition_table(), _disable_torch_fn_metadata_mode=True)
    # torch's Python rules decompose composite operators differently than its C++ code. An export uses them too.
    with mode, enable_python_dispatcher():
        return _cleaned(trace(*operands))


def _cleaned(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Return a graph without operators that have no effect, and without results that nothing reads."""
    for target in WITHOUT_EFFECT:
        for node in module.graph.find_nodes(op="call_function", target=target):
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    return module


@cache
def _is_decomposed(target: Any) -> bool:
    """Return True if a call of this operator may become other operators."""
    if not isinstance(target, torch._ops.OpOverload) or target in WITHOUT_EFFECT:
        return False
    composite = target.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
    return target in decomposition_table() or (composite and target not in _kept_whole())


def _needs_one_trace(module: torch.fx.GraphModule) -> bool:
    """Return True if calls cannot be traced one by one, because a graph has complex numbers or shapes that depend on
    values."""
    tensors = [value for node in module.graph.nodes if isinstance(value := node.meta.get("val"), Tensor)]
    return any(tensor.is_complex() or not all(type(size) is int for size in tensor.shape) for tensor in tensors)


def _retraced(
    module: torch.fx.GraphModule, transformed: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> torch.fx.GraphModule:
    """Return `module` with every operator of the table decomposed."""

    def run(*arguments: Tensor) -> Any:
        with torch.fx.traceback.preserve_node_meta():
            return _WithoutComplexNumbers(module).run(*arguments)

    values = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
    return _trace(transformed(run), values[0].fake_mode, values)


@dataclass(frozen=True)
class _Complex:
    """A tensor of complex numbers, as [.., 2] real and imaginary parts."""

    parts: Tensor


class _WithoutComplexNumbers(torch.fx.Interpreter):
    """Runs a graph with two real numbers for every complex one, because torch-mlir does not lower complex numbers."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        target = AGAIN.get(target, target)
        rule = COMPLEX.get(target)
        held = any(isinstance(argument, _Complex) for argument in args)
        if rule is None and held:
            raise DecompositionErrors.COMPLEX_NUMBERS(operator=target)
        if rule is None or not (held or target in MAKES_COMPLEX):
            return super().call_function(target, args, kwargs)
        return rule(*args, **kwargs)


def _rotated(x: Any, y: Any) -> _Complex:
    """Return the product of two tensors of complex numbers, or of one and of real numbers."""
    if not isinstance(x, _Complex):
        x, y = y, x
    if not isinstance(y, _Complex):
        return _Complex(x.parts * (y[..., None] if isinstance(y, Tensor) else y))
    a, b, c, d = x.parts[..., 0], x.parts[..., 1], y.parts[..., 0], y.parts[..., 1]
    return _Complex(torch.stack([a * c - b * d, a * d + b * c], -1))


AGAIN: dict[Any, Any] = {torch.ops.prims.squeeze.default: torch.ops.aten.squeeze.dims}
"""Operators that decompositions produce and that a second trace, without in-place operations, does not accept, with the
operators that they came from."""
MAKES_COMPLEX = frozenset({torch.ops.aten.polar.default, torch.ops.aten.view_as_complex.default})
COMPLEX: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.polar.default: lambda size, angle: _Complex(
        torch.stack([size * angle.cos(), size * angle.sin()], -1)
    ),
    torch.ops.aten.view_as_complex.default: _Complex,
    torch.ops.aten.view_as_real.default: lambda z: z.parts,
    torch.ops.aten.mul.Tensor: _rotated,
    torch.ops.aten.mul.Scalar: _rotated,
    torch.ops.aten.unsqueeze.default: lambda z, dim: _Complex(z.parts.unsqueeze(dim if dim >= 0 else dim - 1)),
    torch.ops.aten.slice.Tensor: lambda z, dim=0, *bounds: _Complex(
        torch.ops.aten.slice.Tensor(z.parts, dim if dim >= 0 else dim - 1, *bounds)
    ),
    torch.ops.aten._to_copy.default: lambda z, **where: z,
    torch.ops.aten.to.dtype_layout: lambda z, **where: z,
    torch.ops.aten._assert_tensor_metadata.default: lambda z, **expected: None,
}
"""Implementations of operators on complex numbers, which rotary embeddings use."""


def join_slices(module: torch.fx.GraphModule) -> None:
    """Replace tensors that are written slice by slice with concatenations of the slices, if these cover the tensor.

    Such a tensor begins as uninitialised memory, which is not a value; and torch-mlir would lower each write to an
    element-wise gather of the whole.
    """
    scatter = torch.ops.aten.slice_scatter.default
    for node in reversed(module.graph.find_nodes(op="call_function", target=scatter)):  # the last write first
        inner: Any = node.args[0]
        slices = [_written(node)]
        while inner.op == "call_function" and inner.target is scatter:
            slices.append(_written(inner))
            inner = inner.args[0]
        ordered = sorted(slices, key=lambda written: written[1])
        ends = [0, *(end for _, _, end, _ in ordered)]
        starts = [*(start for _, start, _, _ in ordered), node.meta["val"].shape[slices[0][0]]]
        if starts != ends or len({dim for dim, *_ in slices}) > 1:
            continue
        with module.graph.inserting_before(node):
            joined = module.graph.call_function(
                torch.ops.aten.cat.default, ([source for *_, source in ordered], slices[0][0])
            )
        joined.meta = dict(node.meta)
        node.replace_all_uses_with(joined)
    module.graph.eliminate_dead_code()
    module.recompile()


def _written(node: Any) -> tuple[int, int, int, torch.fx.Node]:
    """Return the axis, begin, end and source of a slice_scatter. The end is -1 if it leaves gaps, so that no slice
    continues it."""
    whole, source, *numbers = node.args
    arguments: list[Any] = list(numbers)
    dim, start, end, step = arguments + [0, None, None, 1][len(arguments) :]
    size = whole.meta["val"].shape[dim]
    first, last, step = slice(start, end, step).indices(size)
    return dim % whole.meta["val"].dim(), first, last if step == 1 else -1, source


@cache
def _kept_whole() -> tuple[Any, ...]:
    """Keep composite operators whole that torch-mlir lowers itself; torch would decompose them before it uses any
    table."""
    table, composite = get_decomposition_table(), torch._C.DispatchKey.CompositeImplicitAutograd
    return tuple(op for op in default_decompositions() if op not in table and op.has_kernel_for_dispatch_key(composite))


def _keep(*arguments: Any, **keywords: Any) -> Any:
    """Leave an operator whole."""
    return NotImplemented


@cache
def decomposition_table() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by operator."""
    ours: dict[Any, Callable[..., Any]] = {
        torch.ops.aten.native_layer_norm.default: native_layer_norm,
        torch.ops.aten.gelu.default: gelu,
        torch.ops.aten.topk.default: topk,
        torch.ops.aten.max.dim: max_dim,
        torch.ops.aten.scatter.value: scatter_value,
        torch.ops.aten.masked_fill.Scalar: masked_fill,
        torch.ops.aten.copy.default: copy,
        torch.ops.aten.scalar_tensor.default: scalar_tensor,
        torch.ops.aten.var.correction: variance,
        **{getattr(torch.ops.aten, name).Scalar: partial(compare, name) for name in COMPARISONS},
    }
    # aten.full is kept: its decomposition fills uninitialised memory in place, which is not a tensor value.
    theirs = {op: rule for op, rule in get_decomposition_table().items() if op != torch.ops.aten.full.default}
    return {**theirs, **ours}


def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """GELU (arXiv 1606.08415), exact or by tanh, computed in f32 and rounded once to x's dtype, as in eager mode.

    torch-mlir's own lowering of the tanh form has 0.797724 for sqrt(2 / pi) = 0.797885 (2e-4 off).
    """
    wide = x.to(torch.float32)
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * (wide * wide * wide))
        return (0.5 * wide * (1 + torch.tanh(inner))).to(x.dtype)
    return (0.5 * wide * (1 + torch.erf(wide * math.sqrt(0.5)))).to(x.dtype)


def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor] | Any:
    """Return the k largest elements along the last axis, always in descending order. Other cases are not decomposed."""
    if not largest or dim not in (-1, x.dim() - 1):
        return _keep()
    values, indices = torch.ops.sscc.topk(x.reshape(-1, x.shape[-1]), k)
    shape = (*x.shape[:-1], k)
    return values.reshape(shape), indices.reshape(shape)


def max_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor] | Any:
    """Return the maximum along the last axis and its first index; for other axes the operator is not decomposed."""
    if dim not in (-1, x.dim() - 1) or not x.is_floating_point():
        return _keep()
    values, indices = topk(x, 1)
    return (values, indices) if keepdim else (values.squeeze(-1), indices.squeeze(-1))


def scatter_value(x: Tensor, dim: int, index: Tensor, value: float) -> Tensor | Any:
    """`x` with `value` wherever `index` names along the last axis; along another one the operator is left alone.

    torch-mlir lowers a scatter to a loop over one element after another, which no stage can be. Routers write a few of
    some groups or experts, so comparing each with each is little.
    """
    if dim not in (-1, x.dim() - 1) or index.shape[:-1] != x.shape[:-1]:
        return _keep()
    place = torch.arange(x.shape[-1], device=x.device)
    named = (index[..., None, :] == place[:, None]).to(torch.float32).sum(-1) > 0
    return torch.where(named, torch.full_like(x, value), x)


def compare(name: str, x: Tensor, value: float) -> Tensor | Any:
    """A comparison of floats with a number, in the dtype of `x` as eager has it: torch-mlir's is one of f64."""
    if not x.is_floating_point():
        return _keep()
    result: Tensor = getattr(torch.ops.aten, name).Tensor(x, torch.full_like(x, value))
    return result


def masked_fill(x: Tensor, mask: Tensor, value: float) -> Tensor:
    """Return `x` with `value` where the mask is set. torch's own decomposition leaves a conversion from f64, which
    torch-mlir does not lower."""
    return torch.where(mask, torch.full_like(x, value), x)


def copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """Return `source` in the dtype and shape of `x`, whose values are not used: they may be uninitialised memory."""
    source = source.to(x.dtype)
    return source if source.shape == x.shape else source.expand(x.shape)


def scalar_tensor(value: float, *, dtype: torch.dtype | None = None, device: Any = None, **others: Any) -> Tensor:
    """Return a number as a filled tensor; torch-mlir would create a literal and move it to a device."""
    return torch.full((), value, dtype=torch.get_default_dtype() if dtype is None else dtype, device=device)


def variance(
    x: Tensor, dim: list[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Tensor | Any:
    """Return the variance along some axes, in f32 and rounded once; torch-mlir's own computes in f64."""
    if not x.is_floating_point():
        return _keep()
    dims = [axis % x.dim() for axis in dim] if dim else list(range(x.dim()))
    wide = x.to(torch.float32)
    centred = wide - wide.mean(dims, keepdim=True)
    count = math.prod(x.shape[axis] for axis in dims) - (1 if correction is None else correction)
    return ((centred * centred).sum(dims, keepdim=keepdim) / count).to(x.dtype)


def native_layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """LayerNorm over the last `len(shape)` dimensions, computed in f32.

    torch-mlir's own lowering computes the variance in f64, which such accelerators lack; eager PyTorch accumulates in
    f32. Returns the normalised tensor of x's dtype, the mean, and the reciprocal deviation.
    """
    dims = list(range(x.dim() - len(shape), x.dim()))
    wide = x.to(torch.float32)
    mean = wide.mean(dims, keepdim=True)
    centred = wide - mean
    scale = torch.rsqrt((centred * centred).mean(dims, keepdim=True) + eps)
    out = centred * scale
    if weight is not None:
        out = out * weight.to(torch.float32)
    if bias is not None:
        out = out + bias.to(torch.float32)
    return out.to(x.dtype), mean, scale
