"""LoRA adapters, merged into the weights of a checkpoint as they are read.

An adapter is a folder as PEFT saves it: adapter_config.json and adapter_model.safetensors (or .bin). A weight W [N, K]
of a module becomes W + s B A, with A [r, K], B [N, r] and s = alpha / r, or alpha / sqrt(r) with `use_rslora`. An
embedding [V, D] has A [r, V] and B [D, r], and becomes E + s (B A)^T. Tensors that are stored whole (`modules_to_save`,
biases) replace those of the checkpoint. Weights that the checkpoint stores in a quantized format are quantized again,
and the report of a compilation measures the error.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from typing import Any

import torch
from transformers.pytorch_utils import Conv1D

from sscc.compiler.frontend.checkpoint import Checkpoint
from sscc.compiler.frontend.construction import build_skeleton
from sscc.compiler.frontend.model_config import read_json
from sscc.compiler.frontend.naming import stored_names
from sscc.compiler.frontend.sources import (
    DictSource,
    SafetensorsSource,
    StoredForm,
    TensorInfo,
    TensorSource,
    load_weights_only,
    state_dict,
)
from sscc.ir.errors import ErrorKind, InputError, UnsupportedError, UsageError
from sscc.runtime.support.quantization import Parts

CONFIG = "adapter_config.json"
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_PREFIX = "base_model.model."
_FACTORS = re.compile(r"(?P<module>.+)\.lora_(?P<embedding>embedding_)?(?P<factor>[AB])(\.weight)?")
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_NEUTRAL = {
    "alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "ensure_weight_tying", "eva_config",
    "exclude_modules", "fan_in_fan_out", "inference_mode", "init_lora_weights", "layers_pattern",
    "layers_to_transform", "lora_alpha", "lora_dropout", "megatron_core", "modules_to_save", "peft_type",
    "peft_version", "qalora_group_size", "r", "rank_pattern", "revision", "runtime_config", "target_modules",
    "task_type", "use_rslora",
}  # fmt: skip
"""Known fields: those that are read here, and those that may be ignored. The latter describe the adapter's training, or
facts that tensors and model show: the adapted modules, and weights stored as [K, N] (`fan_in_fan_out`)."""
_CHANGED_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Initialisations that change the weights of the base model; the adapter's file does not contain these changes."""


class AdapterErrors(ErrorKind):
    NO_ADAPTER = InputError, "{path} is not an adapter: it has no adapter_config.json, or no {weights}"
    TYPE = (
        UnsupportedError,
        "{path} is an adapter of type {type!r}, but only LORA is supported: merge it and save the model",
    )
    FIELD = (
        UnsupportedError,
        "{path} sets {field} = {value}, which is not supported: merge the adapter and save the model",
    )
    NUMBER = InputError, "{path}: {field} is {value!r}, expected {expected}"
    TENSOR = UnsupportedError, "{path}: tensor {tensor!r} is not part of LoRA: merge the adapter and save the model"
    HALF = InputError, "{path}: {module!r} has no lora_{factor}"
    NOT_IN_MODEL = (
        InputError,
        "{path} changes {tensor!r}, but {checkpoint} has no such tensor: was the adapter made for another base model?",
    )
    SHAPE = InputError, "{path}: {tensor!r} has shape {shape}, expected {expected}"
    RANK = InputError, "{path}: {module!r} has rank {rank}, but adapter_config.json states {expected}"
    DTYPE = UnsupportedError, "{path}: tensor {tensor!r} must be f16, bf16 or f32, got {dtype}"
    NOT_FINITE = InputError, "{path}: tensor {tensor!r} has a number that is not finite"
    OF_PROGRAM = UsageError, "--lora cannot change the exported program {path}: merge the adapter before the export"


@dataclass(frozen=True)
class LowRank:
    """A change of a weight by two factors.

    Attributes:
        a, b: names of the factors in the adapter's file.
        scale: s.
        transposed: True for (B A)^T.
    """

    a: str
    b: str
    scale: float
    transposed: bool


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter.

    Attributes:
        factors: low-rank changes, by the adapter's name of the parameter.
        replaced: names in the file of tensors that replace parameters, likewise.
    """

    path: Path
    config: Mapping[str, Any]
    source: TensorSource
    factors: Mapping[str, LowRank]
    replaced: Mapping[str, str]

    def update_digest(self, digest: hashlib._Hash) -> None:
        """Feed everything that the merged weights depend on."""
        scales = {name: [factor.scale, factor.transposed] for name, factor in self.factors.items()}
        digest.update(json.dumps(scales, sort_keys=True).encode())
        self.source.update_digest(digest)

    def tensor(self, name: str) -> torch.Tensor:
        """Return a tensor of the file. Raises InputError where a number is not finite."""
        values = self.source.tensor(name)
        if not bool(torch.isfinite(values).all()):
            raise AdapterErrors.NOT_FINITE(path=self.path, tensor=name)
        return values


def open_adapter(path: Path) -> Adapter:
    """Open an adapter, and check its config and names. Only headers are read.

    Raises:
        InputError: missing or damaged files.
        UnsupportedError: another type of adapter, or an unsupported field or tensor.
    """
    weights = next((path / name for name in _WEIGHTS if (path / name).is_file()), None)
    if weights is None or not (path / CONFIG).is_file():
        raise AdapterErrors.NO_ADAPTER(path=path, weights=" or ".join(_WEIGHTS))
    config = read_json(path / CONFIG)
    _check_config(path, config)
    source: TensorSource
    if weights.suffix == ".bin":
        source = DictSource(state_dict(load_weights_only(weights), str(weights)))
    else:
        source = SafetensorsSource({weights: None})
    factors: dict[str, dict[str, tuple[str, bool]]] = {}
    replaced = {}
    for name, (_, dtype) in source.names().items():
        if dtype not in _DTYPES:
            raise AdapterErrors.DTYPE(path=path, tensor=name, dtype=str(dtype).removeprefix("torch."))
        bare = name.removeprefix(_PREFIX)
        found = _FACTORS.fullmatch(bare)
        if found is not None:
            factors.setdefault(found["module"], {})[found["factor"]] = name, bool(found["embedding"])
        elif "lora_" in bare or bare == name or not bare.endswith((".weight", ".bias")):
            raise AdapterErrors.TENSOR(path=path, tensor=name)
        else:
            replaced[bare.replace(".base_layer.", ".").replace(".modules_to_save.", ".")] = name
    added = dict(_low_rank(path, config, source, factors))
    return Adapter(path, config, source, added, replaced)


def _check_config(path: Path, config: Mapping[str, Any]) -> None:
    """Check that every field is read or changes nothing."""
    file = path / CONFIG
    if config.get("peft_type") != "LORA":
        raise AdapterErrors.TYPE(path=file, type=config.get("peft_type"))
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGED_BASE):
        raise AdapterErrors.FIELD(path=file, field="init_lora_weights", value=start)
    for name, value in config.items():
        if name not in _NEUTRAL and value:
            raise AdapterErrors.FIELD(path=file, field=name, value=json.dumps(value)[:64])


def _low_rank(
    path: Path, config: Mapping[str, Any], source: TensorSource, factors: Mapping[str, Mapping[str, tuple[str, bool]]]
) -> Iterator[tuple[str, LowRank]]:
    """Yield the changes by names of parameters, with their scales."""
    held = source.names()
    for module, pair in factors.items():
        for factor in "AB":
            if factor not in pair:
                raise AdapterErrors.HALF(path=path, module=module, factor=factor)
        (a, is_embedding), (b, _) = pair["A"], pair["B"]
        for name in (a, b):
            if len(held[name][0]) != 2:
                raise AdapterErrors.SHAPE(path=path, tensor=name, shape=str(list(held[name][0])), expected="2 axes")
        rank = held[a][0][0]
        if held[b][0][1] != rank:
            raise AdapterErrors.SHAPE(
                path=path, tensor=b, shape=str(list(held[b][0])), expected=str([held[b][0][0], rank])
            )
        stated = _number(path, config, "r", "rank_pattern", module)
        if rank != stated or rank < 1:
            raise AdapterErrors.RANK(path=path, module=module, rank=rank, expected=stated)
        alpha = _number(path, config, "lora_alpha", "alpha_pattern", module)
        scale = alpha / (sqrt(rank) if config.get("use_rslora") else rank)
        yield f"{module}.weight", LowRank(a, b, scale, is_embedding)


def _number(path: Path, config: Mapping[str, Any], field: str, pattern: str, module: str) -> float:
    """Return a number of a module: that of the first pattern that its name ends with, else that of all."""
    patterns = config.get(pattern) or {}
    if not isinstance(patterns, Mapping):
        raise AdapterErrors.NUMBER(path=path / CONFIG, field=pattern, value=patterns, expected="an object")
    value = config.get(field)
    for key, own in patterns.items():
        try:
            matches = re.fullmatch(rf"(.*\.)?({key})", module)
        except re.error:
            raise AdapterErrors.NUMBER(path=path / CONFIG, field=pattern, value=key, expected="patterns") from None
        if matches:
            value = own
            break
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**31:
        raise AdapterErrors.NUMBER(path=path / CONFIG, field=field, value=value, expected="a number")
    return value


# ---------------------------------------------------------------------------------------------------------- merging


class AdaptedSource(TensorSource):
    """A source whose weights are changed by an adapter.

    Args:
        factors, replaced: as in `Adapter`, by the names of the source.
    """

    def __init__(
        self, source: TensorSource, adapter: Adapter, factors: Mapping[str, LowRank], replaced: Mapping[str, str]
    ) -> None:
        self._source, self._adapter = source, adapter
        self._factors, self._replaced = factors, replaced

    def names(self) -> dict[str, TensorInfo]:
        return self._source.names()

    @property
    def is_quantized(self) -> bool:
        return self._source.is_quantized

    def tensor(self, name: str) -> torch.Tensor:
        dtype, own, change = self.names()[name][1], self._replaced.get(name), self._factors.get(name)
        values = self._source.tensor(name) if own is None else self._adapter.tensor(own).to(dtype)
        if change is None:
            return values
        a, b = (self._adapter.tensor(factor).float() for factor in (change.a, change.b))
        delta = change.scale * (b @ a)
        return (values.float() + (delta.T if change.transposed else delta)).to(dtype)

    def stored_form(self, name: str) -> StoredForm | None:
        """Return the checkpoint's form of a weight, without its codes if the adapter changes the weight."""
        form = self._source.stored_form(name)
        changed = name in self._factors or name in self._replaced
        if form is None or not changed:
            return form
        # Changed weights need new scales, and the order of columns says nothing about them.
        return replace(form, is_exact=False, format=None if form.ordered else form.format)

    def parts(self, name: str) -> Parts:
        return self._source.parts(name)

    def update_digest(self, digest: hashlib._Hash) -> None:
        self._source.update_digest(digest)
        self._adapter.update_digest(digest)


def with_adapter(checkpoint: Checkpoint, path: Path) -> Checkpoint:
    """Return a checkpoint whose weights have an adapter merged into them.

    Raises:
        InputError: the adapter is damaged, or was made for another model.
        UnsupportedError: as `open_adapter`.
        UsageError: an exported program, or a checkpoint without weights.
    """
    adapter = open_adapter(path)
    if checkpoint.config is None or checkpoint.source is None:
        raise AdapterErrors.OF_PROGRAM(path=checkpoint.path)
    held = checkpoint.names()
    wanted = dict.fromkeys([*adapter.factors, *adapter.replaced])
    renamed = {stored: name for name, stored in stored_names(checkpoint.config, wanted).renamed.items()}
    swapped = {f"{name}.weight" for name, module in build_skeleton(checkpoint.config).named_modules()
               if isinstance(module, Conv1D)}  # fmt: skip
    factors, replaced = {}, {}
    for stored in wanted:
        name = renamed.get(stored, stored)
        if name not in held:
            raise AdapterErrors.NOT_IN_MODEL(path=path, tensor=stored, checkpoint=checkpoint.path)
        if stored in adapter.factors:
            change = adapter.factors[stored]
            factors[name] = replace(change, transposed=change.transposed or name in swapped)
            _check_change(adapter, factors[name], held[name][0])
        if stored in adapter.replaced:
            replaced[name] = adapter.replaced[stored]
            _check_shape(path, replaced[name], adapter.source.names()[replaced[name]][0], held[name][0])
    return replace(checkpoint, source=AdaptedSource(checkpoint.source, adapter, factors, replaced))


def _check_change(adapter: Adapter, change: LowRank, expected: tuple[int, ...]) -> None:
    shapes = adapter.source.names()
    shape = (shapes[change.b][0][0], shapes[change.a][0][1])
    _check_shape(adapter.path, change.b, shape[::-1] if change.transposed else shape, expected)


def _check_shape(path: Path, tensor: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Check that a change fits its weight. Raises InputError."""
    if tuple(shape) != tuple(expected):
        raise AdapterErrors.SHAPE(path=path, tensor=tensor, shape=str(list(shape)), expected=str(list(expected)))
