"""Compilation of users' rules: they are traced like a model, with static shapes, and compared with their eager runs.

The eager result of a rule, for the positions of a prompt, is its definition. The program has room for the longest
prompt, so the same rule is run on a prompt followed by unused rows, and must give the positions of the prompt the same
scores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx.node import map_arg

from sscc.compiler.frontend.algorithm import PLAIN, Softmax
from sscc.compiler.frontend.capture import AttentionSizes
from sscc.compiler.frontend.decompositions import decompose
from sscc.compiler.frontend.mutations import works_in_place
from sscc.compiler.frontend.quiet import one_line, quiet_libraries
from sscc.compiler.frontend.source_lines import forward_frames_only, source_line
from sscc.compiler.options.policy import Policy, Rule, file_of, method_of, place_of
from sscc.compiler.options.rule_prompt import Prompt
from sscc.ir.errors import ErrorKind, InputError, UnsupportedError
from sscc.ir.geometry import Geometry

CHECK_TOKENS = 24
CHECK_SEED = 0
# For f32, relative to the largest score: zeros behind a prompt may change the order of sums.
CHECK_TOLERANCE = 1e-5
TENSORS = ("observed", "log_sum_exp", "k_scratch", "v_scratch", "query_positions", "prompt_length")
"""Inputs of a rule's program, in this order."""


class RuleErrors(ErrorKind):
    SCORES_FAIL = InputError, "{place}: {rule}.scores: {cause}"
    NO_TENSOR = InputError, "{place}: {rule}.scores must return a tensor of scores, got {type}"
    OTHER_SHAPE = (
        InputError,
        "{place}: {rule}.scores returns [{shape}] numbers of {dtype}; it must return [{expected}]: a float for each "
        "KV head "
        "and position",
    )
    NOT_TRACED = UnsupportedError, "{place}: {rule} cannot be traced: {cause}"
    OWN_TENSOR = (
        UnsupportedError,
        "{place}: {rule} reads a tensor from outside: a rule may read the tensors of the prompt, and create others "
        "from numbers (torch.arange, torch.full)",
    )
    CHANGES_PROMPT = UnsupportedError, "{place}: {rule} changes a tensor of the prompt: compute another one"
    SHAPE_NOT_STATIC = (
        UnsupportedError,
        "{place}: {rule} makes a tensor of shape [{shape}] ({operator}): its shape depends on numbers, but a compiled "
        "program is static",
    )
    RANDOM = (
        UnsupportedError,
        "{place}: {rule}.scores returns different scores on every run. Rules must be deterministic; for a random "
        "baseline, hash prompt.positions",
    )
    NOT_FINITE = (
        InputError,
        "{place}: {rule}.scores returns scores that are not finite, for a random prompt of {tokens} tokens",
    )
    READS_BEHIND = (
        InputError,
        "{place}: {rule}.scores depends on rows behind the prompt: the scores of {tokens} random tokens differ by "
        "{apart:.1e} from those with {tokens} rows behind them, of a largest score of {largest:.1e}. A program has "
        "room for the longest prompt: divide sums by prompt.length, and mask with prompt.exists or prompt.visible "
        "what is not summed",
    )


@dataclass(frozen=True)
class CapturedRule:
    """A rule as a graph of decomposed operators over TENSORS that returns scores [Hkv, T].

    Attributes:
        sizes: sizes of the layers whose prompts it scores.
    """

    name: str
    sizes: AttentionSizes
    graph: torch.fx.Graph


def end_of_prompt(queries: Tensor, keys: Tensor, values: Tensor, scale: float, g: Geometry, softmax: Softmax) -> Prompt:
    """Return a prompt in the form of eager runs.

    Args:
        queries: [H, n, D], of every position.
        keys: [Hkv, n, D].
        values: [Hkv, n, Dv].
    """
    n = keys.shape[1]
    window = min(g.obs, n)
    observed, at = queries[:, n - window :], torch.arange(n - window, n)
    wide = torch.promote_types(queries.dtype, torch.float32)
    sums = []
    for head, query in enumerate(observed):  # one at a time, to limit memory to W * n
        products = query.to(wide) @ keys[head * keys.shape[0] // queries.shape[0]].to(wide).T * scale
        scores = softmax.scores(products).masked_fill(torch.arange(n)[None, :] > at[:, None], float("-inf"))
        if softmax.sinks is not None:
            scores = torch.cat([scores, softmax.sinks[head].to(wide).expand(window, 1)], dim=1)
        sums.append(scores.logsumexp(dim=1, keepdim=True))
    tensors = (observed[None], torch.stack(sums)[None], keys[None], values[None], at, torch.tensor([n]))
    return Prompt(*tensors, scale, softmax.softcap or 0.0, g.recent)


def scores_by(rule: Rule) -> Callable[..., Tensor]:
    """Return the rule in the form of `algorithm.compress`, with the arguments of `end_of_prompt`."""
    return lambda *prompt: scores_of(rule, end_of_prompt(*prompt))


def scores_of(rule: Rule, prompt: Prompt) -> Tensor:
    """Return a rule's scores of a prompt, [Hkv, n] f32. Raises InputError if it fails, or returns something else."""
    file = file_of(rule)
    try:
        scores: Any = rule.policy.scores(prompt)
    except UnsupportedError:
        raise
    except Exception as error:  # any exception of torch or the rule
        raise RuleErrors.SCORES_FAIL(place=place_of(error, file), rule=rule.name, cause=_reason(error)) from error
    expected = tuple(prompt.keys_scratch.shape[1:3])
    if not isinstance(scores, Tensor):
        raise RuleErrors.NO_TENSOR(place=method_of(rule), rule=rule.name, type=type(scores).__name__)
    if tuple(scores.shape) != expected or not scores.dtype.is_floating_point:
        raise RuleErrors.OTHER_SHAPE(
            place=method_of(rule), rule=rule.name, shape=list(scores.shape), dtype=scores.dtype, expected=list(expected)
        )
    return scores.to(torch.float32)


def _reason(error: Exception) -> str:
    kind = type(error).__name__
    if kind in ("GuardOnDataDependentSymNode", "UserError", "DataDependentOutputException"):
        return (
            "its control flow depends on the numbers of a tensor, but a compiled program is the same for all: use "
            "operations such as torch.where"
        )
    return f"{kind}: {one_line(error)}"


class _Scores(torch.nn.Module):
    """A rule as a function of tensors."""

    def __init__(self, rule: Rule, sizes: AttentionSizes, g: Geometry) -> None:
        super().__init__()
        self.rule, self.sizes, self.recent = rule, sizes, g.recent

    def forward(
        self, observed: Tensor, log_sum_exp: Tensor, keys: Tensor, values: Tensor, at: Tensor, length: Tensor
    ) -> Tensor:
        sizes = self.sizes
        prompt = Prompt(observed, log_sum_exp, keys, values, at, length, sizes.scale, sizes.softcap, self.recent)
        return scores_of(self.rule, prompt)


def capture_rule(rule: Rule, sizes: AttentionSizes, g: Geometry, rows: int) -> CapturedRule:
    """Trace a rule for prompts of up to `rows` positions.

    Raises:
        InputError: it fails, or returns something other than scores; the message has its line if that is known.
        UnsupportedError: it has shapes that depend on numbers, constants from outside, or changes its inputs.
    """
    _check(rule, sizes, g)
    graph = _traced(rule, sizes, g, rows)
    if g.pool == 1 and _is_sum_of_attention(graph, sizes, g, rows):
        graph = _traced(Rule(_Mass(), rule.name, rule.digest), sizes, g, rows)
    return CapturedRule(rule.name, sizes, graph)


class _Mass(Policy):
    """SnapKV's scores as a rule, which the operation of the algorithm computes without a matrix."""

    def scores(self, prompt: Prompt) -> Tensor:
        return prompt.attention_mass()


class _SumThenMean(Policy):
    def scores(self, prompt: Prompt) -> Tensor:
        return prompt.mean_over_group(prompt.attention().sum(dim=1))


class _MeanThenSum(Policy):
    def scores(self, prompt: Prompt) -> Tensor:
        return prompt.mean_over_group(prompt.attention()).sum(dim=1)


def _is_sum_of_attention(graph: torch.fx.Graph, sizes: AttentionSizes, g: Geometry, rows: int) -> bool:
    """Return True if a rule's program has the same operations as `_Mass`. The operation of the algorithm returns zeros
    in the columns of the window, which are not candidates: without pooling they are not used."""
    if not graph.find_nodes(op="call_function", target=torch.ops.aten.exp.default):
        return False
    forms = (Rule(form(), form.__name__, "") for form in (_SumThenMean, _MeanThenSum))
    return any(_structure(_traced(form, sizes, g, rows)) == _structure(graph) for form in forms)


def _structure(graph: torch.fx.Graph) -> list[tuple[Any, ...]]:
    """Return the operations of a graph with the origins of their operands, independent of names."""
    numbers = {node: number for number, node in enumerate(graph.nodes)}

    def operand(node: torch.fx.Node) -> str:
        return f"%{numbers[node]}"

    return [
        (node.op, node.target if node.op == "call_function" else "", *map_arg((node.args, node.kwargs), operand))
        for node in graph.nodes
    ]


def _traced(rule: Rule, sizes: AttentionSizes, g: Geometry, rows: int) -> torch.fx.Graph:
    """Return a rule's graph for prompts of up to `rows` positions. Raises as `capture_rule` does."""
    window = [1, sizes.heads, g.obs]
    examples = (
        torch.zeros(*window, sizes.width, dtype=sizes.dtype),
        torch.zeros(*window, 1),
        torch.zeros(1, sizes.kv_heads, rows, sizes.width, dtype=sizes.dtype),
        torch.zeros(1, sizes.kv_heads, rows, sizes.value_width, dtype=sizes.dtype),
        torch.zeros(g.obs, dtype=torch.int64),
        torch.zeros(1, dtype=torch.int64),
    )
    file = file_of(rule)
    try:
        with quiet_libraries(), torch.no_grad(), forward_frames_only(file):
            program = torch.export.export(_Scores(rule, sizes, g), examples, strict=False)
            graph = decompose(program.graph_module).graph
    except (InputError, UnsupportedError):
        raise
    except Exception as error:
        raise RuleErrors.NOT_TRACED(place=place_of(error, file), rule=rule.name, cause=_reason(error)) from error
    _refuse(graph, rule, file)
    return graph


def _refuse(graph: torch.fx.Graph, rule: Rule, file: str) -> None:
    """Refuse operations that a rule's program cannot contain."""
    own = {node for node in graph.nodes if node.op == "get_attr"}
    own |= set([node for node in graph.nodes if node.op == "placeholder"][len(TENSORS) :])
    for node in graph.nodes:
        value, place = node.meta.get("val"), source_line(node) or file
        if own & set(node.all_input_nodes):
            raise RuleErrors.OWN_TENSOR(place=place, rule=rule.name)
        if works_in_place(node):
            raise RuleErrors.CHANGES_PROMPT(place=place, rule=rule.name)
        if isinstance(value, Tensor) and any(not isinstance(size, int) for size in value.shape):
            raise RuleErrors.SHAPE_NOT_STATIC(
                place=place, rule=rule.name, shape=list(value.shape), operator=node.target
            )


def _check(rule: Rule, sizes: AttentionSizes, g: Geometry) -> None:
    """Refuse a rule whose scores are not finite, or depend on rows behind the prompt."""
    generator = torch.Generator().manual_seed(CHECK_SEED)

    def rows(heads: int, count: int, width: int) -> Tensor:
        return torch.randn(heads, count, width, generator=generator).to(sizes.dtype)

    n = CHECK_TOKENS
    queries, keys = rows(sizes.heads, n, sizes.width), rows(sizes.kv_heads, n, sizes.width)
    values = rows(sizes.kv_heads, n, sizes.value_width)
    softmax = Softmax(sizes.softcap) if sizes.softcap else PLAIN
    whole = end_of_prompt(queries, keys, values, sizes.scale, g, softmax)
    place = method_of(rule)
    with torch.no_grad():
        before = [tensor.clone() for tensor in _tensors(whole)]
        exact, repeated = scores_of(rule, whole), scores_of(rule, replace(whole))
        if not all(map(torch.equal, before, _tensors(whole))):
            raise RuleErrors.CHANGES_PROMPT(place=place, rule=rule.name)
        if bool(exact.isfinite().all()) and not torch.equal(exact, repeated):
            raise RuleErrors.RANDOM(place=place, rule=rule.name)
        padded = scores_of(rule, _with_rows_behind(whole, g, rows))[:, :n]
    if not bool(exact.isfinite().all()):
        raise RuleErrors.NOT_FINITE(place=place, rule=rule.name, tokens=n)
    difference = (exact - padded).abs().max() if bool(padded.isfinite().all()) else torch.inf
    if not difference <= CHECK_TOLERANCE * exact.abs().max():
        raise RuleErrors.READS_BEHIND(
            place=place, rule=rule.name, tokens=n, apart=float(difference), largest=float(exact.abs().max())
        )


def _tensors(prompt: Prompt) -> list[Tensor]:
    """Return the tensors named in TENSORS."""
    return [
        prompt.observed, prompt.log_sum_exp, prompt.keys_scratch, prompt.values_scratch, prompt.query_positions,
        prompt.length,
    ]  # fmt: skip


def _with_rows_behind(prompt: Prompt, g: Geometry, rows: Any) -> Prompt:
    """Return the same prompt in the form of a program: followed by rows of an earlier prompt, with room for all
    queries."""
    n, window = prompt.keys_scratch.shape[2], prompt.observed.shape[2]
    missing = min(g.obs, 2 * n) - window
    heads, width = prompt.observed.shape[1], prompt.observed.shape[3]
    kv_heads, value_width = prompt.keys_scratch.shape[1], prompt.values_scratch.shape[3]
    start = int(prompt.query_positions[0])
    return Prompt(
        torch.cat([prompt.observed, rows(heads, missing, width)[None]], 2),
        torch.cat([prompt.log_sum_exp, torch.zeros(1, heads, missing, 1)], 2),
        torch.cat([prompt.keys_scratch, 9 * rows(kv_heads, n, width)[None]], 2),
        torch.cat([prompt.values_scratch, 9 * rows(kv_heads, n, value_width)[None]], 2),
        torch.arange(start, start + window + missing),
        prompt.length,
        prompt.scale,
        prompt.softcap,
        prompt.recent,
    )
