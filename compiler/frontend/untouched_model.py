"""The untouched model with a checkpoint's weights, for eager runs: the probe and goldens.

The numbers of a checkpoint may take many times the memory of the stored form, and more than there is: 4-bit codes
become numbers of 16 or 32 bits. If the numbers take more than `RESIDENT_BYTES`, a decoder layer has its weights only
while it runs. Each call of the model then reads the checkpoint once; the results are bitwise equal.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import torch

from sscc.compiler.frontend.capture import layer_count
from sscc.compiler.frontend.checkpoint import Checkpoint
from sscc.compiler.frontend.construction import build_model, build_skeleton, canonical_names
from sscc.compiler.frontend.distinct import layer_stack, only_captured
from sscc.compiler.frontend.frequencies import stretched, with_first_length
from sscc.compiler.frontend.headless import Headed
from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.levels import LayerKinds
from sscc.ir.sizes import format_bytes
from sscc.ir.weight_formats.registry import Encoding
from sscc.runtime.artifact.tensor_files import Layout
from sscc.runtime.support.quantization import dequantize, round_trip
from sscc.runtime.support.usable_memory import usable_memory

logger = logging.getLogger("sscc")

REACHES = ("sliding_window", "window_size", "attention_chunk_size", "floor_scale", "log_scaling_n_floor")
"""Fields of a config with a distance between tokens beyond which a feature shows; a short text has to show it."""

RESIDENT_BYTES = max(4 << 30, usable_memory() // 3)
"""Maximum bytes of numbers of a model whose layers all have their weights at once: a third of the memory, or 4 GiB."""


class LoadingErrors(ErrorKind):
    LACKS = InputError, "{path} lacks the parameter {tensor!r} of shape {shape}"
    SHAPE = InputError, "{path}: parameter {tensor!r} has shape {stored}, but the config requires {shape}"


def load_model(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    reach: int | None = None,
    context: int = 0,
    layout: Layout = MappingProxyType({}),
    kinds: LayerKinds | None = None,
    tokens: Sequence[int] | None = None,
) -> torch.nn.Module:
    """Return the untouched transformers model with the checkpoint's weights, which calls our attention operator.

    Parameters become `dtype`, except those that transformers keeps in f32; buffers that the checkpoint holds, such as
    the biases of routers, keep the model's dtype. Tensors that have their dtype already stay memory-mapped. Layers that
    are not one list have their weights all the time.

    Args:
        reach: number of positions to which the fields of `REACHES` are reduced, and beyond which a text has long-text
            frequencies, if a text of `context` positions has these; None for no change.
        layout: weights of a program. Parameters that it has quantized are dequantized from its codes; those that the
            checkpoint stores in the same format already are. An embedding whose rows are looked up keeps its own
            numbers, even if the head, which is tied to it, is quantized.
        kinds: read only the captured layers, without which the model must not run (`only_captured`).
        tokens: read only the rows of these tokens of the embedding and of the head; token i of the model is then the
            i-th of these. None reads all rows, as does a model without a head.

    Raises:
        InputError: the checkpoint lacks a parameter, has it in another shape, or cannot be read.
    """
    assert checkpoint.config is not None
    config = checkpoint.config
    if reach is not None:
        config = with_first_length(config, reach) if stretched(config, context) else copy.deepcopy(config)
        for name in REACHES:
            if getattr(config, name, None) is not None:
                setattr(config, name, min(getattr(config, name), reach))
    model = build_model(config, dtype).requires_grad_(False)
    canonical, stack = canonical_names(model), layer_stack(model, layer_count(config))
    numbers = _Numbers(checkpoint, _encodings(checkpoint, layout), tuple(tokens or ()))
    with only_captured(model, kinds):
        _read_parameters(model, checkpoint, canonical, numbers, layout, stack)
    return model


def _read_parameters(
    model: torch.nn.Module,
    checkpoint: Checkpoint,
    canonical: Mapping[str, str],
    numbers: _Numbers,
    layout: Layout,
    stack: tuple[str, torch.nn.ModuleList] | None,
) -> None:
    """Load the parameters and buffers of a model.

    Args:
        canonical: names of the checkpoint by those of the model.
        stack: path and layers of its stack, if they are a list.
    """
    held = checkpoint.names()
    for name, parameter in model.named_parameters():
        shape = held[canonical[name]][0] if canonical[name] in held else None
        expected = str(list(parameter.shape))
        if shape is None:
            raise LoadingErrors.LACKS(path=checkpoint.path, tensor=name, shape=expected)
        if shape != tuple(parameter.shape):
            raise LoadingErrors.SHAPE(path=checkpoint.path, tensor=name, stored=str(list(shape)), shape=expected)
    streamed = _stream_layers(model, stack, canonical, numbers)
    ends = _ends(model) if numbers.tokens else ()
    plain = {source for stack in layout.values() if not stack.encoding for source in stack.sources}
    saved = model.state_dict().keys()
    for path, module in model.named_modules():
        for slot, buffer in module.named_buffers(path, recurse=False):
            if slot in saved and slot in held:
                module._buffers[slot.rpartition(".")[2]] = checkpoint.tensor(slot).to(buffer.dtype)
        for name, parameter in module.named_parameters(path, recurse=False):
            source = canonical[name]
            if module in ends:
                module._parameters[name.rpartition(".")[2]] = numbers.of_tokens(source, parameter.dtype)
            elif name not in streamed:
                looked_up = source in plain and isinstance(module, torch.nn.Embedding)
                module._parameters[name.rpartition(".")[2]] = numbers.shared(
                    source, parameter.dtype, quantized=not looked_up
                )


def _ends(model: torch.nn.Module) -> tuple[torch.nn.Module, ...]:
    """Return the embedding and the head, which may have fewer rows from now on; () where there is no head."""
    if isinstance(model, Headed):
        return ()
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()  # type: ignore[operator]
    if not isinstance(embedding, torch.nn.Embedding) or not isinstance(head, torch.nn.Linear):
        return ()
    embedding.padding_idx = None  # it may exceed the rows that are read
    return embedding, head


def _encodings(checkpoint: Checkpoint, layout: Layout) -> dict[str, Encoding]:
    """Return the encodings of tensors that a program has quantized, but the checkpoint not in the same way, by name."""
    return {
        source: Encoding.parse(stack.encoding)
        for stack in layout.values()
        if stack.encoding
        for source in stack.sources
        if not checkpoint.stores(source, Encoding.parse(stack.encoding))
    }


@dataclass(frozen=True)
class _Numbers:
    """The parameters of a model, by the names under which the checkpoint holds them."""

    checkpoint: Checkpoint
    encodings: Mapping[str, Encoding]
    tokens: tuple[int, ...] = ()
    _rows: dict[str, torch.nn.Parameter] = field(default_factory=dict)
    _shared: dict[tuple[str, bool], torch.nn.Parameter] = field(default_factory=dict)

    def read(self, name: str, dtype: torch.dtype, *, quantized: bool = True) -> torch.nn.Parameter:
        """Read a parameter. With `quantized` it is dequantized from the program's codes, if there are any."""
        values = self.checkpoint.tensor(name).to(dtype)
        if quantized and name in self.encodings:
            rounded = round_trip(values.float().numpy(), self.encodings[name])
            values = torch.from_numpy(rounded).to(dtype)
        return torch.nn.Parameter(values, requires_grad=False)

    def of_tokens(self, name: str, dtype: torch.dtype) -> torch.nn.Parameter:
        """Return the rows of `tokens` of a matrix or a bias with a row per token."""
        if name not in self._rows:
            values = self._quantized_rows(name)
            values = self.checkpoint.tensor(name)[list(self.tokens)] if values is None else values
            self._rows[name] = torch.nn.Parameter(values.to(dtype), requires_grad=False)
        return self._rows[name]

    def _quantized_rows(self, name: str) -> torch.Tensor | None:
        """Return the rows of `tokens` of a matrix whose rows are quantized one by one; None for any other."""
        form = self.checkpoint.stored_form(name)
        if form is None or form.format is None or form.transposed or form.ordered:
            return None
        parts = {}
        for part in form.format.parts:
            stored = self.checkpoint.kept(name, Encoding(form.format, part.name))
            if stored is None:
                return None
            parts[part.name] = stored[list(self.tokens)]
        return torch.from_numpy(dequantize(parts, form.format))

    def shared(self, name: str, dtype: torch.dtype, *, quantized: bool) -> torch.nn.Parameter:
        """Read a parameter like `read`, once for all modules that are tied."""
        key = name, quantized and name in self.encodings
        if key not in self._shared:
            self._shared[key] = self.read(name, dtype, quantized=quantized)
        return self._shared[key]


def affordable(checkpoint: Checkpoint, dtype: torch.dtype, kinds: LayerKinds) -> LayerKinds:
    """Return the layers whose numbers are in memory at once: the captured ones, or, if these are too many, the first of
    each kind."""
    assert checkpoint.config is not None
    skeleton = build_skeleton(checkpoint.config)
    with only_captured(skeleton, kinds):
        numbers = sum(parameter.numel() for parameter in skeleton.parameters())
    return kinds if numbers * dtype.itemsize <= RESIDENT_BYTES else replace(kinds, both_ends=False)


def _stream_layers(
    model: torch.nn.Module,
    stack: tuple[str, torch.nn.ModuleList] | None,
    canonical: Mapping[str, str],
    numbers: _Numbers,
) -> frozenset[str]:
    """Let each decoder layer read its weights when it is called and drop them when it returns, if all of them together
    take too much memory. Return the names of these parameters in the model."""
    nbytes = sum(parameter.nbytes for parameter in model.parameters())
    if nbytes <= RESIDENT_BYTES or stack is None:
        return frozenset()
    logger.info("the model's weights take %s: loading layer by layer", format_bytes(nbytes))
    path, modules = stack
    for index, layer in enumerate(modules):
        _stream(layer, f"{path}.{index}.", canonical, numbers)
    return frozenset(name for name in canonical if name.startswith(f"{path}."))


def _stream(layer: torch.nn.Module, prefix: str, canonical: Mapping[str, str], numbers: _Numbers) -> None:
    slots = [
        (module, slot, parameter, canonical[f"{prefix}{path}.{slot}" if path else f"{prefix}{slot}"])
        for path, module in layer.named_modules()
        for slot, parameter in module.named_parameters(recurse=False)
    ]

    def fill(*_: object) -> None:
        for module, slot, empty, name in slots:
            module._parameters[slot] = numbers.read(name, empty.dtype)

    def drop(*_: object) -> None:
        for module, slot, empty, _name in slots:
            module._parameters[slot] = empty

    layer.register_forward_pre_hook(fill)
    layer.register_forward_hook(drop, always_call=True)
