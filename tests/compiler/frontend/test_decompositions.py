"""Decomposed graphs: the operators that torch's own way gives, and nothing that works in place."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sscc.compiler.frontend import decompositions
from sscc.compiler.frontend.decompositions import WITHOUT_EFFECT, decompose, decomposition_table
from sscc.compiler.frontend.mutations import works_in_place
from sscc.compiler.frontend.quiet import quiet_libraries


class Decoder(torch.nn.Module):
    """A module with the operators of decoders, and operators that are not decomposed."""

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        heads = F.layer_norm(x, (8,), w)[:, None].expand(2, 3, 4, 8).transpose(1, 2).contiguous()
        scores = torch.einsum("bqhd,bkhd->bhqk", heads, heads).softmax(-1) + F.linear(x, x[0]).tril()[:, None]
        hidden = F.rms_norm(torch.matmul(scores, heads.transpose(1, 2)), (8,), w)
        gated = F.silu(hidden) * F.gelu(hidden, approximate="tanh") + F.softplus(hidden.float()).to(x.dtype)
        gated = torch.where(torch.isclose(gated, w), gated, F.normalize(gated, dim=-1))
        return torch.cat(gated.split(4, -1)[::-1], -1).cumsum(-1) * torch.linalg.norm(w)


class InPlace(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        y[:, 0] = x[:, 1]
        y += F.layer_norm(x, (8,))
        y[:, 1:3].clamp_(min=0.5)
        return y.masked_fill_(y > 3, 1.0).transpose(1, 2)


def exported(model: torch.nn.Module, *arguments: Tensor) -> torch.export.ExportedProgram:
    with torch.no_grad():
        return torch.export.export(model, arguments, strict=False)


def operators(graph: torch.fx.Graph) -> list[str]:
    return [str(node.target) for node in graph.nodes if node.op == "call_function"]


def test_operators_are_those_of_run_decompositions() -> None:
    program = exported(Decoder(), torch.randn(2, 4, 8), torch.randn(8))
    with quiet_libraries(), torch.no_grad():
        ours, theirs = decompose(program.graph_module), program.run_decompositions(dict(decomposition_table()))
    without_effect = {str(target) for target in WITHOUT_EFFECT}
    assert operators(ours.graph) == [name for name in operators(theirs.graph) if name not in without_effect]
    assert {"aten.rms_norm.default", "aten.isclose.default", "aten.linalg_norm.default"} <= set(operators(ours.graph))
    assert [node.name for node in ours.graph.nodes if node.op == "get_attr"] == []


def test_nothing_works_in_place_and_the_function_stays() -> None:
    x = torch.randn(2, 4, 8)
    program = exported(InPlace(), x)
    assert any(works_in_place(node) for node in program.graph.nodes)
    with torch.no_grad():
        module = decompose(program.graph_module)
    assert not any(works_in_place(node) for node in module.graph.nodes)
    assert torch.allclose(module(x)[0], InPlace()(x), atol=1e-6)


class Written(torch.nn.Module):
    """A tensor of `parts`, each written where it belongs, in the order given."""

    def __init__(self, *parts: slice) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, *sources: Tensor) -> Tensor:
        whole = sources[0].new_empty(2, 3, 12)
        for part, source in zip(self.parts, sources, strict=True):
            whole[..., part].copy_(source)
        return whole * 2


@pytest.mark.parametrize("parts", [(slice(0, 8), slice(8, None)), (slice(-4, 12), slice(3), slice(3, 8))], ids=str)
def test_slices_of_uninitialised_memory_are_joined(parts: tuple[slice, ...]) -> None:
    """One of them is broadcast."""
    sources = [torch.randn(2, 3, len(range(12)[part])) for part in parts]
    sources[-1] = sources[-1][:, :1]
    with torch.no_grad():
        module = decompose(exported(Written(*parts), *sources).graph_module)
    assert set(operators(module.graph)) <= {"aten.expand.default", "aten.cat.default", "aten.mul.Tensor"}
    assert torch.equal(module(*sources)[0], Written(*parts)(*sources))


@pytest.mark.parametrize(
    "parts", [(slice(0, 8), slice(9, 12)), (slice(0, 8), slice(7, 12)), (slice(0, 12, 2),)], ids=str
)
def test_slices_with_gaps_or_in_common_stay(parts: tuple[slice, ...]) -> None:
    sources = [torch.randn(2, 3, len(range(12)[part])) for part in parts]
    with torch.no_grad():
        module = decompose(exported(Written(*parts), *sources).graph_module)
    assert operators(module.graph).count("aten.slice_scatter.default") == len(parts)
    result, expected = module(*sources)[0], Written(*parts)(*sources)
    written = [i for part in parts for i in range(12)[part]]
    assert torch.equal(result[..., written], expected[..., written])


def through_views(x: Tensor) -> Tensor:
    """A mutation shows in every view of the memory: through the tensor, beside it, and of the result."""
    whole = x * 2
    row, turned, pairs = whole[1], whole.transpose(0, 1), whole.view(4, 2, 3)
    beside = pairs[:, 0]
    changed = turned[1:3].permute(1, 0, 2)[..., :1].mul_(x[:, :2, :1])
    row.add_(changed[0, 0]).unsqueeze(0)[:, 2:].copy_(x[0, :1])
    return torch.cat([whole.flatten(), row.flatten(), turned.flatten(), beside.flatten(), changed.flatten()])


def of_the_whole(x: Tensor) -> Tensor:
    whole = x + 1
    first, second = whole[:, :1], whole.select(1, 1)
    whole.masked_fill_(x > 0, 7.0).sub_(second[:, None].clone())
    first[:, 0] = second
    return torch.cat([first, second[:, None], whole], 1)


def of_a_narrower_type(x: Tensor) -> Tensor:
    return x.bfloat16().mul_(x[0])


def of_an_operand(x: Tensor) -> Tensor:
    return x.mul_(2.0) + 1


def of_parts(x: Tensor) -> Tensor:
    whole = x + 1
    left, right = whole.split([1, 2], -1)
    left.mul_(right[..., :1])
    return whole - right.sum()


class Function(torch.nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.mark.parametrize(
    ("function", "again"),
    [(through_views, 0), (of_the_whole, 0), (of_a_narrower_type, 1), (of_an_operand, 1), (of_parts, 1)],
)
def test_mutations_show_in_every_tensor_of_the_memory(function: Callable[[Tensor], Tensor], again: int) -> None:
    """The graph is traced again only if a mutation needs facts that the graph of a single tensor lacks."""
    x = torch.randn(2, 4, 3)
    program = exported(Function(function), x.clone())
    assert any(works_in_place(node) for node in program.graph.nodes)
    with torch.no_grad(), mock.patch.object(decompositions, "_retraced", wraps=decompositions._retraced) as retraced:
        module = decompose(program.graph_module)
    assert retraced.call_count == again
    result = module(x.clone())
    result = result[-1] if isinstance(result, (tuple, list)) else result
    assert torch.equal(result, function(x.clone()))
