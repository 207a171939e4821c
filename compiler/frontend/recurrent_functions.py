"""Recognition of recurrences in the models' own code.

transformers' models compute a recurrence by a function of their module, which has the parameters of the published
kernels (flash-linear-attention, mamba-ssm), or by a method. Such a function is found by its parameters, and is
recognised only if it gives the same numbers as the recurrence on a short random text. While a model runs, it is
replaced by `sscc::recurrence`. A function that has these parameters but computes something else is refused.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import softplus

from sscc.compiler.frontend.eager_run import EagerRun
from sscc.compiler.frontend.recognition import recognise_in_layers
from sscc.compiler.frontend.recurrence import RecurrentInputs, in_blocks, in_steps, recurring
from sscc.ir.errors import ErrorKind, UnsupportedError
from sscc.ir.layer_state.row_streams import RECURRENT

Arguments = Mapping[str, Any]
Compute = Callable[[RecurrentInputs], Tensor]
"""Computes a recurrence: [b, s, H, Dv]."""

TOLERANCE = 1e-4
"""Maximum difference, relative to the largest number, between a function and its recurrence."""
NORM_EPSILON = 1e-6
"""Added to the squared norm of keys and queries, as flash-linear-attention does."""


INITIAL_STATES = ("initial_state", "initial_states", "recurrent_states")
"""Parameters that give a recurrence an initial state other than zeros."""


class RecurrentFunctionErrors(ErrorKind):
    OTHER = (
        UnsupportedError,
        "{function} has the parameters of a recurrence, but its results differ from it by {difference:.1e}",
    )
    MASK = UnsupportedError, "{function} is called with a padding mask: leave attention_mask out"
    INITIAL_STATE = UnsupportedError, "{function} is called with an initial state ({argument}), which is not supported"


class Form(Protocol):
    """A signature of functions by which models compute a recurrence.

    Attributes:
        parameters: names that are among the parameters of such a function.
        buffers: names of buffers of the module whose method it is; empty for a function that reads no module.
    """

    parameters: frozenset[str]
    buffers: frozenset[str]

    def examples(self, owner: Any) -> Sequence[dict[str, Any]]:
        """Return arguments of short random texts, one for each recurrence that such a function may compute.

        Args:
            owner: the Python module, or the class, that has the function.
        """

    def compute(self, arguments: Arguments, recurrence: Compute) -> Any:
        """Return what such a function returns for these arguments, whose recurrence is computed by `recurrence`."""


class DeltaRule:
    """`chunk_gated_delta_rule` and `chunk_kda` of flash-linear-attention: the gated delta rule, with a decay for each
    head or each channel of its keys."""

    parameters = frozenset({"query", "key", "value", "g", "beta", "initial_state", "use_qk_l2norm_in_kernel"})
    buffers = frozenset[str]()

    def examples(self, owner: Any) -> Sequence[dict[str, Any]]:
        """See `Form`."""
        tokens, heads, groups = 5, 4, 2

        def texts(groups: int, *channels: int) -> dict[str, Any]:
            query, key = _random(1, tokens, groups, 8), _random(1, tokens, groups, 8)
            decay = -_random(1, tokens, heads, *channels).abs()
            beta = _random(1, tokens, heads).sigmoid()
            named = {"query": query, "key": key, "value": _random(1, tokens, heads, 6), "g": decay, "beta": beta}
            return named | {"initial_state": None, "output_final_state": False, "use_qk_l2norm_in_kernel": True}

        return texts(groups), texts(heads, 8)

    def compute(self, arguments: Arguments, recurrence: Compute) -> tuple[Tensor, None]:
        """See `Form`."""
        query, key, value, decay, beta = (
            arguments[name].float() for name in ("query", "key", "value", "g", "beta")
        )
        if arguments["use_qk_l2norm_in_kernel"]:
            query, key = _normalised(query), _normalised(key)
        query = query / query.shape[3] ** 0.5
        decay = decay if decay.dim() == 4 else decay[..., None]
        out = recurrence(RecurrentInputs(query, key, value, decay, beta=beta))
        return out.to(arguments["query"].dtype), None


class StateSpaceDuality:
    """`mamba_chunk_scan_combined` of mamba-ssm: Mamba-2."""

    parameters = frozenset({"hidden_states", "dt", "A", "B", "C", "D", "dt_bias", "dt_softplus", "dt_limit"})
    buffers = frozenset[str]()

    def examples(self, owner: Any) -> Sequence[dict[str, Any]]:
        """See `Form`."""
        tokens, heads, groups = 5, 4, 2
        sides = {name: _random(1, tokens, groups, 8) for name in ("B", "C")}
        rates = {"A": -_random(heads).exp(), "D": _random(heads), "dt_bias": _random(heads)}
        inputs = {"hidden_states": _random(1, tokens, heads, 6), "dt": _random(1, tokens, heads)}
        settings = {"chunk_size": 4, "dt_softplus": True, "dt_limit": (0.5, 1.0)}
        return ({**inputs, **sides, **rates, **settings},)

    def compute(self, arguments: Arguments, recurrence: Compute) -> Tensor | tuple[Tensor, None]:
        """See `Form`. A decode step of mamba-ssm (`selective_state_update`) has no limits of time steps."""
        step = _time_step(arguments["dt"], arguments["dt_bias"], arguments["dt_softplus"])
        if step.shape[1] > 1:
            step = step.clamp(*arguments["dt_limit"])
        step = step.float()[..., None]
        value = arguments["hidden_states"].float()
        key, query = arguments["B"].float(), arguments["C"].float()
        decay = step * arguments["A"].float()[:, None]
        out = recurrence(RecurrentInputs(query, key, value * step, decay))
        if arguments["D"] is not None:
            out = out + arguments["D"].float()[:, None] * value
        return (out, None) if arguments["return_final_states"] else out


class SelectiveScan:
    """`selective_scan_fn` of mamba-ssm: Mamba, whose channels are heads of one number."""

    parameters = frozenset({"hidden_states", "dt", "A", "B", "C", "D", "z", "delta_bias", "delta_softplus"})
    buffers = frozenset[str]()

    def examples(self, owner: Any) -> Sequence[dict[str, Any]]:
        """See `Form`."""
        tokens, channels, width = 5, 6, 4
        sides = {name: _random(1, width, tokens) for name in ("B", "C")}
        rates = {"A": -_random(channels, width).exp(), "D": _random(channels), "delta_bias": _random(channels)}
        inputs = {name: _random(1, channels, tokens) for name in ("hidden_states", "dt", "z")}
        return ({**inputs, **sides, **rates, "delta_softplus": True},)

    def compute(self, arguments: Arguments, recurrence: Compute) -> Tensor | tuple[Tensor, None]:
        """See `Form`."""
        x = arguments["hidden_states"].transpose(1, 2)
        step = _time_step(arguments["dt"].transpose(1, 2), arguments["delta_bias"], arguments["delta_softplus"])
        key, query = (arguments[name].transpose(1, 2).float()[:, :, None] for name in ("B", "C"))
        step, value = step.float()[..., None], x.float()[..., None]
        out = recurrence(RecurrentInputs(query, key, value * step, step, arguments["A"].float()))[..., 0]
        out = out.to(x.dtype).transpose(1, 2)
        if arguments["D"] is not None:
            out = out + arguments["hidden_states"] * arguments["D"][:, None]
        if arguments["z"] is not None:
            out = out * torch.nn.functional.silu(arguments["z"])
        return (out, None) if arguments["return_last_state"] else out


class GatedUnits:
    """`_rnn_scan` of RecurrentGemma: an RG-LRU, whose channels are heads of one number, with keys and queries of 1."""

    parameters = frozenset({"hidden_states", "recurrent_gate", "reset", "recurrent_states", "acc_dtype"})
    buffers = frozenset[str]()

    def examples(self, owner: Any) -> Sequence[dict[str, Any]]:
        """See `Form`."""
        tokens, channels = 5, 6
        reset = torch.zeros(1, tokens, 1, dtype=torch.bool)
        reset[0, 0] = True
        gate = _random(1, tokens, channels).sigmoid()
        inputs = {"hidden_states": _random(1, tokens, channels), "recurrent_gate": gate, "reset": reset}
        return ({**inputs, "recurrent_states": None},)

    def compute(self, arguments: Arguments, recurrence: Compute) -> tuple[Tensor, None]:
        """See `Form`. A gate of 0 is a decay of -inf: the state restarts."""
        x = arguments["hidden_states"]
        gate = (arguments["recurrent_gate"] * ~arguments["reset"]).float()
        one = torch.ones(*x.shape[:2], 1, 1)
        out = recurrence(RecurrentInputs(one, one, x.float()[..., None], gate.log()[..., None]))
        return out[..., 0].to(x.dtype), None


class LightningAttention:
    """`forward` of MiniMax-01's lightning attention (arXiv 2501.08313): a fixed decay for each head, and a loop over
    blocks of tokens."""

    parameters = frozenset({"self", "hidden_states", "attention_mask", "cache"})
    buffers = frozenset({"slope_rate", "query_decay", "key_decay", "diagonal_decay"})

    def examples(self, owner: Any) -> Sequence[dict[str, Any]]:
        """See `Form`: of a small module, and a text of two blocks."""
        config = SimpleNamespace(
            hidden_size=16, num_attention_heads=2, head_dim=8, num_hidden_layers=3, block_size=4, hidden_act="silu",
            layer_types=["linear_attention"] * 3,
        )  # fmt: skip
        with torch.random.fork_rng():
            torch.manual_seed(0)
            module = owner(config, 1)
        inputs = {"hidden_states": _random(1, 7, config.hidden_size), "position_embeddings": None}
        return ({"self": module, **inputs, "attention_mask": None},)

    def compute(self, arguments: Arguments, recurrence: Compute) -> tuple[Tensor, None]:
        """See `Form`."""
        module, x = arguments["self"], arguments["hidden_states"]
        if arguments["attention_mask"] is not None:
            raise RecurrentFunctionErrors.MASK(function=type(module).__name__)
        heads = module.slope_rate.shape[0]
        sides = module.act_fn(module.qkv_proj(x)).unflatten(2, (heads, -1)).float().chunk(3, 3)
        decay = -module.slope_rate.float().reshape(1, 1, heads, 1).expand(*x.shape[:2], heads, 1)
        query, key, value = sides
        out = module.norm(recurrence(RecurrentInputs(query, key, value, decay)).flatten(2).to(x.dtype))
        return module.out_proj(torch.sigmoid(module.output_gate(x)) * out), None


FORMS: tuple[Form, ...] = (DeltaRule(), StateSpaceDuality(), SelectiveScan(), GatedUnits(), LightningAttention())


def _time_step(step: Tensor, bias: Tensor | None, positive: bool) -> Tensor:
    """Return the time steps [b, s, H] of a state-space model."""
    step = step if bias is None else step + bias.to(step.dtype)
    return softplus(step) if positive else step


def _normalised(rows: Tensor) -> Tensor:
    return rows * torch.rsqrt((rows * rows).sum(-1, keepdim=True) + NORM_EPSILON)


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + sum(shape)))


# ------------------------------------------------------------------------------------------------- recognition


@dataclass(frozen=True)
class _Found:
    """A function of a model that computes a recurrence.

    Attributes:
        owner: Python module, or class, that has it.
        name: its name in the owner.
    """

    owner: Any
    name: str
    form: Form

    @property
    def function(self) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(self.owner, self.name)
        return function

    @property
    def in_words(self) -> str:
        return f"{self.name} of {self.owner.__name__}"

    def arguments(self, /, *args: Any, **keywords: Any) -> dict[str, Any]:
        """Return the arguments of a call by name, with defaults, without those that only other implementations use.

        Raises:
            UnsupportedError: the call has an initial state.
        """
        bound = inspect.signature(self.function).bind(*args, **keywords)
        bound.apply_defaults()
        state = next((name for name in INITIAL_STATES if bound.arguments.get(name) is not None), None)
        if state is not None:
            raise RecurrentFunctionErrors.INITIAL_STATE(function=self.in_words, argument=state)
        return dict(bound.arguments)


def found_in(model: torch.nn.Module) -> list[_Found]:
    """Return the functions of a model's modules that have the parameters of a recurrence."""
    classes = {type(module) for module in model.modules() if type(module).__module__.startswith("transformers.")}
    owners = dict.fromkeys(sys.modules[cls.__module__] for cls in sorted(classes, key=lambda cls: cls.__name__))
    buffers: dict[Any, set[str]] = {}
    for module in model.modules():
        buffers.setdefault(type(module), set()).update(name for name, _ in module.named_buffers(recurse=False))
    found = []
    for owner in (*owners, *sorted(classes, key=lambda cls: cls.__name__)):
        for name, function in vars(owner).items():
            if inspect.isfunction(function):
                names = inspect.signature(function).parameters.keys()
                has = buffers.get(owner, set())
                forms = (form for form in FORMS if form.parameters <= names and form.buffers <= has)
                found += [_Found(owner, name, form) for form in forms]
    return found


def check_function(found: _Found) -> None:
    """Compare a function with its presumed recurrence on short random texts.

    Raises:
        UnsupportedError: it computes something else.
    """
    differences = []
    for example in found.form.examples(found.owner):
        bound = (example.pop("self", None),) if inspect.isclass(found.owner) else ()
        arguments = found.arguments(*bound, **example)
        with torch.no_grad():
            ours = _first(found.form.compute(arguments, lambda inputs: in_blocks(inputs, inputs.zeros())[0]))
            try:
                theirs = _first(found.function(*bound, **example))
            except (RuntimeError, IndexError):  # a function whose decays have another axis
                continue
        if theirs.shape == ours.shape:
            scale = float(theirs.abs().max())
            differences.append(float((theirs - ours).abs().max()) / scale)
    difference = min(differences, default=float("inf"))
    if difference > TOLERANCE:
        raise RecurrentFunctionErrors.OTHER(function=found.in_words, difference=difference)


def _first(result: Any) -> Tensor:
    first: Tensor = result[0] if isinstance(result, tuple) else result
    return first


class RecurrenceRecogniser:
    """Replaces the functions that compute recurrences while it is active.

    Attributes:
        layer: decoder layer that is running.
    """

    def __init__(self, found: Sequence[_Found]) -> None:
        self.layer: int | None = None
        self._found = found
        self._originals: list[Any] = []

    def __enter__(self) -> RecurrenceRecogniser:
        self._originals = [vars(each.owner)[each.name] for each in self._found]
        for each, original in zip(self._found, self._originals, strict=True):
            setattr(each.owner, each.name, self._replacing(each, original))
        return self

    def __exit__(self, *error: object) -> None:
        for each, original in zip(self._found, self._originals, strict=True):
            setattr(each.owner, each.name, original)

    def _replacing(self, found: _Found, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def replaced(*args: Any, **keywords: Any) -> Any:
            if self.layer is None:
                return original(*args, **keywords)
            arguments = found.arguments(*args, **keywords)
            return found.form.compute(arguments, functools.partial(_operator, layer=self.layer))

        return replaced


def _operator(inputs: RecurrentInputs, layer: int) -> Tensor:
    x = inputs
    out: Tensor = torch.ops.sscc.recurrence(x.query, x.key, x.value, x.decay, x.rate, x.beta, layer)
    return out


class Recurrence:
    """See `sscc.compiler.frontend.stateful.StatefulOperator`."""

    target = torch.ops.sscc.recurrence.default
    layer_argument = 6
    layer_types = frozenset({"linear_attention", "mamba", "recurrent"})

    def modules(self, model: torch.nn.Module) -> list[str]:
        """See `StatefulOperator`: modules whose class, or whose Python module, has a function of a recurrence."""
        owners = [each.owner for each in found_in(model)]
        modules = ((name, type(module)) for name, module in model.named_modules())
        return [name for name, cls in modules if cls in owners or sys.modules[cls.__module__] in owners]

    def recognise(self, model: Any) -> None:
        """See `StatefulOperator`: within decoder layers, which are numbered."""
        found = found_in(model)
        for each in found:
            check_function(each)
        recognise_in_layers(model, [], lambda ids, positions: RecurrenceRecogniser(found))

    def in_pieces(self) -> AbstractContextManager[None]:
        """See `StatefulOperator`."""
        states: dict[int, Tensor] = {}

        def recur(inputs: RecurrentInputs, layer: int) -> Tensor:
            out, states[layer] = in_blocks(inputs, states.get(layer, inputs.zeros()))
            return out

        return recurring(recur)

    def prefilling(self, run: EagerRun) -> AbstractContextManager[None]:
        """See `StatefulOperator`."""

        def recur(inputs: RecurrentInputs, layer: int) -> Tensor:
            out, state = in_blocks(inputs, inputs.zeros())
            run.keep_state(layer, RECURRENT[0], state[0])
            return out

        return recurring(recur)

    def decoding(self, run: EagerRun) -> AbstractContextManager[None]:
        """See `StatefulOperator`."""

        def recur(inputs: RecurrentInputs, layer: int) -> Tensor:
            kept = run.state(layer, RECURRENT[0])
            out, state = in_steps(inputs, kept[None])
            kept.copy_(state[0])
            return out

        return recurring(recur)


RECURRENCE = Recurrence()
