"""Construction of transformers' model for a config, without weights and in bounded time and memory.

A config is untrusted: it may request more layers than there is time for, more bytes than there is memory, or a model
that transformers itself cannot build. Each of these is refused before anything is allocated.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from typing import Any

import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from transformers.core_model_loading import build_glob_alternation

from sscc.compiler.frontend import experts  # noqa: F401, registers the implementation of that name
from sscc.compiler.frontend.counted_positions import CountedPositions
from sscc.compiler.frontend.model_config import causal_class, composite_class, model_context
from sscc.compiler.frontend.operator import IMPLEMENTATION
from sscc.compiler.frontend.quiet import one_line
from sscc.compiler.frontend.recognition import (
    IMPLEMENTATIONS,
    WRITTEN_OUT,
    note_looked_up,
    observe_attention,
    recognise_attention,
    run_within,
)
from sscc.compiler.frontend.sparse_experts import ExpertRecogniser, stacked_experts
from sscc.compiler.frontend.stateful import OPERATORS
from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.sizes import format_bytes

MAX_MODULE_PARAMETERS = 100_000  # named parameters; the deepest current models have some thousands
MAX_ELEMENTS = 1 << 42  # of all parameters; the largest current models have 2 ** 41
OBSERVED_TOKENS = 512
MAX_OBSERVED_TOKENS = 4096
MAX_BUFFER_BYTES = 1 << 30  # buffers are computed, not read: rotary frequencies, masks of old models


class ConstructionErrors(ErrorKind):
    NOT_BUILT = InputError, "transformers cannot build the {model} of this config{hint}: {type}: {cause}"
    TOO_LARGE = (
        InputError,
        "the {model} of this config has {parameters} parameters, more than any model: {largest} alone is [{shape}]",
    )
    LARGE_TABLES = (
        InputError,
        "the {model} of this config computes tables of {size}, above the limit of {most}: {table} alone takes "
        "{table_size}",
    )
    TOO_MANY_PARAMETERS = InputError, "the model of this config has more than {most} named parameters"


def build_model(config: transformers.PreTrainedConfig, dtype: torch.dtype) -> torch.nn.Module:
    """Return the untouched transformers model of `config`, with parameters on the meta device and buffers computed on
    the CPU, which calls our operators for attention and experts.

    Raises:
        InputError: transformers cannot build it, or it is larger than any model.
    """
    _check_sizes(config, build_skeleton(config))
    with _building(config), _parameters_on_meta():
        model = _with_our_attention(config, {"experts_implementation": IMPLEMENTATION, "dtype": dtype})
    _keep_in_f32(model, dtype)
    model.eval()
    for operator in OPERATORS:  # before attention, which is searched for by running the whole model
        if operator.modules(model):
            operator.recognise(model)
    if not type(model)._supports_attention_backend:
        _recognise_attention(config, model)
    if stacked_experts(model):
        run_within(model, lambda ids, positions: ExpertRecogniser())
    run_within(model, lambda ids, positions: nullcontext() if positions is None else CountedPositions(positions))
    _supply_positions(model)
    if getattr(config, "residual_in_fp32", False):
        # The first layer converts its residual to f32. With the conversion in front of it the numbers are the same, and
        # all layers are of one kind.
        model.get_input_embeddings().register_forward_hook(lambda module, args, output: _in_f32(model, output))
    built: torch.nn.Module = model
    return built


def _recognise_attention(config: transformers.PreTrainedConfig, model: transformers.PreTrainedModel) -> None:
    """Recognise attention in a model that implements it in its own code, with masks and biases of its own length up to
    `MAX_OBSERVED_TOKENS`. A class that uses a mask without checking for None gets zeros."""
    recognise_attention(model)
    squares = [b.shape[-1] for b in model.buffers() if b.dim() >= 2 and b.shape[-1] == b.shape[-2]]
    tokens = max(squares) if squares else OBSERVED_TOKENS
    tokens = min(tokens, model_context(config) or tokens, MAX_OBSERVED_TOKENS)
    if not observe_attention(model, tokens):
        before = model.config._attn_implementation
        set_attention(model, WRITTEN_OUT)
        if not observe_attention(model, tokens):
            set_attention(model, before)


def _in_f32(model: transformers.PreTrainedModel, hidden: torch.Tensor) -> torch.Tensor:
    """Return hidden states as f32 where the model calls our operators."""
    return hidden.float() if model.config._attn_implementation in IMPLEMENTATIONS else hidden


def _keep_in_f32(model: transformers.PreTrainedModel, dtype: torch.dtype) -> None:
    """Keep in f32 the parameters and buffers that transformers keeps in f32 when it loads a checkpoint in `dtype`
    (`_keep_in_fp32_modules_strict`), such as the bias by which DeepSeek-V3's routers select experts: rounding it to
    bf16 would change the selection. A model built only from a config does not do this itself."""
    plan = model._get_dtype_plan(dtype)
    if not plan:
        return
    kept, _, _ = build_glob_alternation(list(plan))
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        for name, parameter in module._parameters.items():
            if parameter is not None and kept.search(prefix + name):
                module._parameters[name] = torch.nn.Parameter(parameter.float(), requires_grad=parameter.requires_grad)
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_floating_point() and kept.search(prefix + name):
                module._buffers[name] = buffer.float()


def _with_our_attention(
    config: transformers.PreTrainedConfig, keywords: dict[str, Any]
) -> transformers.PreTrainedModel:
    try:
        return _from_config(config, attn_implementation=IMPLEMENTATION, **keywords)
    except KeyError as error:
        if error.args != (IMPLEMENTATION,):
            raise
    # Older classes look up attention classes in a table that lacks ours.
    model = _from_config(config, attn_implementation="eager", **keywords)
    set_attention(model, WRITTEN_OUT)
    return model


def set_attention(model: torch.nn.Module, implementation: str) -> None:
    """Set the attention implementation of a model of transformers, even if its class implements attention itself: for
    such classes transformers' own method does nothing."""
    for part in model.modules():
        if isinstance(part, transformers.PreTrainedModel):
            part.config._attn_implementation = implementation


COUNTS = {"past_key_values_length", "cache_length"}
"""Names of the number of earlier tokens, before transformers 5.24 and since."""


def _supply_positions(model: transformers.PreTrainedModel) -> None:
    """Pass the model's position inputs to modules that look up positions.

    The decoders of BART's family ignore them and count their tokens, which would start again in every chunk and every
    step. The counts go to a module whose forward takes `position_ids` and a number named in `COUNTS`: there they are
    replaced, and the looked-up rows get the shape [b, s, D]. A model that does not use the attention interface is
    unchanged.
    """
    positions: list[torch.Tensor] = []

    def note(module: torch.nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        ours = model.config._attn_implementation in IMPLEMENTATIONS
        positions[:] = [keywords["position_ids"]] if ours else []

    def replace(
        module: torch.nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return args, keywords | ({"position_ids": positions[0]} if positions else {})

    def shape(module: torch.nn.Module, args: tuple[Any, ...], rows: torch.Tensor) -> torch.Tensor:
        if not positions:
            return rows
        rows = rows.reshape(*positions[0].shape, rows.shape[-1])
        note_looked_up(model, rows)
        return rows

    lookups = [module for module in model.modules() if _looks_up_positions(module)]
    if lookups:
        model.register_forward_pre_hook(note, with_kwargs=True)
    for module in lookups:
        module.register_forward_pre_hook(replace, with_kwargs=True)
        module.register_forward_hook(shape)


def _looks_up_positions(module: torch.nn.Module) -> bool:
    names = inspect.signature(type(module).forward).parameters.keys()
    return isinstance(module, torch.nn.Embedding) and "position_ids" in names and bool(COUNTS & names)


def build_skeleton(config: transformers.PreTrainedConfig) -> transformers.PreTrainedModel:
    """Return a model of names and shapes: parameters and buffers on the meta device. Raises as `build_model`."""
    with _building(config), _parameters_on_meta(), torch.device("meta"):
        return _from_config(config)


def build_whole(config: transformers.PreTrainedConfig) -> transformers.PreTrainedModel | None:
    """Return the skeleton of a composite model; None if transformers has no class for its config."""
    cls = composite_class(config)
    if cls is None:
        return None
    with _building(config), _parameters_on_meta(), torch.device("meta"):
        whole: transformers.PreTrainedModel = cls._from_config(_own(config))
    return whole


def idle_modules(config: transformers.PreTrainedConfig) -> frozenset[str]:
    """Return the paths of modules of a model that text alone does not run (such as image encoders); empty if that
    cannot be determined without values."""
    skeleton = build_skeleton(config).eval()
    paths = {module: name for name, module in skeleton.named_modules()}
    idle = set(paths.values())
    for module in paths:
        module.register_forward_pre_hook(lambda module, args: idle.discard(paths[module]))
    try:
        with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):  # models behave as during an export
            skeleton(input_ids=torch.zeros(1, 4, dtype=torch.long, device="meta"), use_cache=False)
    except Exception:  # a model that branches on computed values, which do not exist here
        return frozenset()
    return frozenset(idle)


def _from_config(config: transformers.PreTrainedConfig, **keywords: Any) -> transformers.PreTrainedModel:
    model: transformers.PreTrainedModel
    cls = causal_class(config)
    if cls is None or type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        model = transformers.AutoModelForCausalLM.from_config(_own(config), trust_remote_code=False, **keywords)
    else:
        model = cls._from_config(_own(config), **keywords)
    return model


def logits_width(model: torch.nn.Module) -> int | None:
    """Return the size of a model's vocabulary, from its head; None if only a capture tells it."""
    if not isinstance(model, transformers.PreTrainedModel):
        return None
    try:
        head = model.get_output_embeddings()
    except (AttributeError, NotImplementedError):
        return None
    weight = getattr(head, "weight", None)
    return int(weight.shape[0]) if isinstance(head, torch.nn.Linear) and weight is not None else None


def canonical_names(model: torch.nn.Module) -> dict[str, str]:
    """Return, for every name of every parameter, the name under which a checkpoint holds it: for a tied parameter the
    name to which transformers ties the others, otherwise the first one."""
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    names = [(name, id(parameter)) for name, parameter in model.named_parameters(remove_duplicate=False)]
    kept: dict[int, str] = {}
    # The sort is stable: among equally tied names the first one counts.
    for name, parameter in sorted(names, key=lambda item: item[0] in tied):
        kept.setdefault(parameter, name)
    return {name: kept[parameter] for name, parameter in names}


def _own(config: transformers.PreTrainedConfig) -> transformers.PreTrainedConfig:
    """Return a copy of the config for building: transformers writes the dtype into it, which would change the
    checkpoint's digest. The copy lacks `auto_map`, whose code transformers would look for."""
    own = deepcopy(config)
    vars(own).pop("auto_map", None)
    return own


@contextmanager
def _building(config: transformers.PreTrainedConfig) -> Iterator[None]:
    """Turn any exception of transformers inside the block into an InputError about the config."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise ConstructionErrors.NOT_BUILT(
            model=config.model_type, hint=_suspect(config, error), type=type(error).__name__, cause=one_line(error)
        ) from error


def _suspect(config: transformers.PreTrainedConfig, error: Exception) -> str:
    """Return a hint at the field that caused an error, if the message names one or a token lies outside the vocabulary.
    """
    vocabulary, pad = getattr(config, "vocab_size", None), getattr(config, "pad_token_id", None)
    if isinstance(vocabulary, int) and isinstance(pad, int) and not -vocabulary <= pad < vocabulary:
        return f" (pad_token_id is {pad}, the vocabulary has {vocabulary} tokens)"
    fields = config.to_dict()
    named = [name for name in fields if "_" in name and name in str(error)]
    return f" ({named[0]} is {fields[named[0]]!r:.80})" if named else ""


def _check_sizes(config: transformers.PreTrainedConfig, skeleton: torch.nn.Module) -> None:
    elements = sum(parameter.numel() for parameter in skeleton.parameters())
    if elements > MAX_ELEMENTS:
        largest = max(skeleton.named_parameters(), key=lambda item: item[1].numel())
        raise ConstructionErrors.TOO_LARGE(
            model=config.model_type, parameters=elements, largest=largest[0], shape=list(largest[1].shape)
        )
    buffers = {name: buffer.numel() * buffer.element_size() for name, buffer in skeleton.named_buffers()}
    if sum(buffers.values()) > MAX_BUFFER_BYTES:
        name = max(buffers, key=lambda name: buffers[name])
        raise ConstructionErrors.LARGE_TABLES(
            model=config.model_type,
            size=format_bytes(sum(buffers.values())),
            most=format_bytes(MAX_BUFFER_BYTES),
            table=name,
            table_size=format_bytes(buffers[name]),
        )


class _LargeOnMeta(TorchFunctionMode):
    """A mode that creates tensors larger than `MAX_BUFFER_BYTES`, which no buffer is, on the meta device."""

    _makers = frozenset({torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn})

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        if func in self._makers and "out" not in keywords:
            shape = func(*args, **keywords | {"device": "meta"})
            if shape.numel() * shape.element_size() > MAX_BUFFER_BYTES:
                return shape
        return func(*args, **keywords)


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Move parameters that are registered inside the block to the meta device; buffers stay real.

    A parameter is allocated before it is registered. Allocating memory without writing costs nothing, but some classes
    fill their parameters: tensors larger than any buffer are on the meta device from the start.
    """
    original = torch.nn.Module.register_parameter
    count = 0

    def register(module: torch.nn.Module, name: str, param: torch.nn.Parameter | None) -> None:
        nonlocal count
        count += 1
        if count > MAX_MODULE_PARAMETERS:
            raise ConstructionErrors.TOO_MANY_PARAMETERS(most=MAX_MODULE_PARAMETERS)
        if param is not None and param.device.type != "meta":
            param = torch.nn.Parameter(param.to("meta"), requires_grad=param.requires_grad)
            # This keeps transformers from drawing random numbers, which takes half the time of building a model.
            param._is_hf_initialized = True  # type: ignore[attr-defined]
        original(module, name, param)

    torch.nn.Module.register_parameter = register  # type: ignore[method-assign,assignment]
    try:
        with _LargeOnMeta():
            yield
    finally:
        torch.nn.Module.register_parameter = original  # type: ignore[method-assign]
