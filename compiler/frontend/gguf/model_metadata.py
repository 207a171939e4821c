"""The metadata of a GGUF file that describe its model, read by name and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from sscc.compiler.frontend.gguf.header import GgufHeader
from sscc.ir.errors import ErrorKind, InputError, SsccError, UnsupportedError

NEUTRAL: Mapping[str, Any] = {
    "attention.causal": True,
    "expert_weights_scale": 1.0,
    "expert_group_count": 1,
    "expert_group_used_count": 1,
    "rope.scaling.type": "none",
    "rope.scaling.factor": 1.0,
    "rope.scaling.attn_factor": 1.0,
}
"""Neutral values, which state the default. For other keys these are 0, False and empty values."""
NO_RESULT = ("rope.scaling.finetuned", "rope.scaling.original_context_length")
"""Keys without an effect on results."""
COMPUTED = ("xielu.", "adapter.", "diffusion.", "clip.")
"""Groups of keys, besides the architecture's own, that describe the computation. All other groups (`general.`,
`tokenizer.`, `quantize.`, `split.`, and those of quantizing tools) do not."""
PREDICTED_LAYERS = "nextn_predict_layers"
"""Number of layers behind the model's own that predict further tokens."""
LARGEST = 1 << 31
MATRIX = 2
MOST_FACTORS = 1 << 14
"""Maximum number of frequencies of a rotary embedding."""


PLAIN_TYPES = (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16, GGMLQuantizationType.F64)


def is_quantized(header: GgufHeader) -> bool:
    """Return True if most numbers of a file are stored as blocks of codes."""
    numbers = {True: 0, False: 0}
    for tensor in header.tensors.values():
        numbers[tensor.type not in PLAIN_TYPES] += prod(tensor.shape)
    return numbers[True] > numbers[False]


class GgufMetadataErrors(ErrorKind):
    """Metadata of GGUF files that are missing, damaged or not honoured."""

    NOT_HONOURED = UnsupportedError, "{path}: metadata {key} = {value} is not honoured for a model of {architecture!r}"
    MISSING = InputError, "{path} lacks metadata {key}"
    VALUE = InputError, "{path}: metadata {key} is {value!r}, expected {expected}"
    LAYERS_DIFFER = UnsupportedError, "{path}: metadata {key} differs from layer to layer: {value}"
    NO_TENSOR = InputError, "{path} lacks tensor {tensor!r}"
    NO_MATRIX = InputError, "{path}: tensor {tensor!r} of shape {shape} is not a matrix"


class Metadata:
    """The metadata of a file.

    Attributes:
        used: the keys, behind the architecture's name, that have been read.
    """

    def __init__(self, header: GgufHeader) -> None:
        self.header = header
        self.used: set[str] = set()

    def name(self, key: str) -> str:
        """Return a key with the architecture's name in front."""
        return f"{self.header.architecture}.{key}"

    def get(self, key: str) -> Any:
        """Return a value by its key behind the architecture's name; None where there is none."""
        self.used.add(key)
        return self.header.metadata.get(self.name(key))

    def number(self, key: str, default: Any = None) -> Any:
        """Return a number or a boolean, or the default."""
        value = self.get(key)
        return default if value is None else self.checked(key, value)

    def of_layers(self, key: str) -> list[Any] | None:
        """Return the numbers of all layers, of a list or of one value; None where there is none."""
        value = self.get(key)
        if value is None:
            return None
        values = value.tolist() if isinstance(value, np.ndarray) else [value]
        if not values:
            raise self.bad(key, values, "a number, or one for each layer")
        return [self.checked(key, each) for each in values]

    def common(self, key: str, values: list[Any]) -> Any:
        """Return the number that layers have in common. Raises UnsupportedError where they differ."""
        if any(value != values[0] for value in values):
            raise GgufMetadataErrors.LAYERS_DIFFER(path=self.header.path, key=self.name(key), value=values[:8])
        return values[0]

    def checked(self, key: str, value: Any) -> Any:
        """Return a number or a boolean: integers below 2^31, finite floats.

        An f32 becomes the shortest decimal that rounds to it, which is the number in the original config.
        """
        if isinstance(value, float) and math.isfinite(value):
            return float(str(np.float32(value)))
        if isinstance(value, bool) or (type(value) is int and 0 <= value < LARGEST):
            return value
        raise self.bad(key, value, "a finite number, not negative and below 2^31 where it is whole")

    def bad(self, key: str, value: Any, expected: str) -> SsccError:
        """Return the error of a value that cannot be."""
        shown = value if isinstance(value, str | int | float | bool) else str(value)[:80]
        return GgufMetadataErrors.VALUE(path=self.header.path, key=self.name(key), value=shown, expected=expected)

    def not_honoured(self, key: str, value: Any) -> SsccError:
        """Return the error of a value that would be dropped."""
        return GgufMetadataErrors.NOT_HONOURED(
            path=self.header.path, key=key, value=str(value)[:80], architecture=self.header.architecture
        )

    def factors(self, tensor: str) -> list[float]:
        """Return the numbers of a tensor that divide the frequencies of a rotary embedding."""
        stored = self.header.tensors.get(tensor)
        if stored is None:
            raise GgufMetadataErrors.NO_TENSOR(path=self.header.path, tensor=tensor)
        numbers = [0.0]
        if len(stored.shape) == 1 and stored.shape[0] <= MOST_FACTORS:
            numbers = [float(number) for number in dequantize(np.asarray(stored.stored()), stored.type).reshape(-1)]
        if not numbers or not all(0 < number < math.inf for number in numbers):
            raise GgufMetadataErrors.VALUE(
                path=self.header.path, key=tensor, value=f"of shape {list(stored.shape)}", expected="positive numbers"
            )
        return numbers

    def rows(self, tensor: str) -> int:
        """Return the number of rows of a matrix."""
        stored = self.header.tensors.get(tensor)
        if stored is None:
            raise GgufMetadataErrors.NO_TENSOR(path=self.header.path, tensor=tensor)
        if len(stored.shape) != MATRIX:
            raise GgufMetadataErrors.NO_MATRIX(path=self.header.path, tensor=tensor, shape=str(list(stored.shape)))
        return stored.shape[0]

    def check_rest(self, known: tuple[str, ...]) -> None:
        """Refuse metadata that has not been read and is not neutral.

        Args:
            known: keys that change nothing, or are read elsewhere.
        """
        prefix = self.name("")
        for key, value in self.header.metadata.items():
            own = key.removeprefix(prefix) if key.startswith(prefix) else ""
            if not own and not key.startswith(COMPUTED):
                continue
            if own and (own in self.used or own in NO_RESULT or _is_neutral(own, value)):
                continue
            if key not in known and own not in known:
                raise self.not_honoured(key, value)


def _is_neutral(name: str, value: Any) -> bool:
    """Return True for a value that states the default."""
    if isinstance(value, np.ndarray | list):
        return len(value) == 0
    return bool(NEUTRAL[name] == value) if name in NEUTRAL else not value
