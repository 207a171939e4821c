"""The weights of a GGUF file under transformers' names, as numbers or as stored codes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from typing import Any, TypeVar

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from transformers import PreTrainedConfig

from sscc.compiler.frontend.gguf.family import Family, Layout
from sscc.compiler.frontend.gguf.header import GgufHeader, StoredTensor
from sscc.compiler.frontend.gguf.model_metadata import PLAIN_TYPES, PREDICTED_LAYERS, is_quantized
from sscc.compiler.frontend.gguf.rope import TENSORS
from sscc.compiler.frontend.sources import StoredForm, TensorInfo, TensorSource
from sscc.compiler.options.warning import SsccWarning, warn
from sscc.ir.errors import ErrorKind, InputError, UnsupportedError
from sscc.ir.weight_formats import ggml, microscaling
from sscc.ir.weight_formats.registry import ORDER
from sscc.ir.weight_formats.weight_format import WeightFormat
from sscc.runtime.support.quantization import Parts, as_bytes, read_field
from sscc.runtime.support.quantization import dequantize as read_numbers

Numbers = np.ndarray[Any, np.dtype[Any]]
Order = np.ndarray[Any, np.dtype[np.int64]]
_T = TypeVar("_T")
_COMPUTED = (Layout.LESS_ONE, Layout.LOG)
"""Layouts of parameters whose numbers are computed from the stored ones."""
MOST_STACKED = 64
"""Maximum number of parameters of a list that are stored as one tensor."""
LAYER = re.compile(r"blk\.(\d+)\.")


class GgufWeightErrors(ErrorKind):
    """Tensors of GGUF files that cannot be the parameters of a model."""

    TYPE = UnsupportedError, "{path}: tensor {tensor!r} is stored as {type}, which is not supported"
    NO_PLACE = UnsupportedError, "{path}: {count} tensors are not part of a {model_type}: {names}"
    PART_MISSING = InputError, "{path} lacks tensor {tensor!r}, a part of {parameter!r}"
    NOT_JOINED = InputError, (
        "{path}: tensor {tensor!r} of shape {shape} cannot be joined with {other!r} of shape {other_shape}"
    )
    LOG = InputError, "{path}: tensor {tensor!r} must hold negative numbers, whose logarithms are {parameter!r}"
    SHAPE = InputError, "{path}: tensor {tensor!r} of shape {shape} does not divide into {heads} heads"
    RESHAPED = InputError, "{path}: tensor {tensor!r} of shape {shape} does not have the numbers of shape {other_shape}"
    NUMBERS = InputError, "{path}: metadata {key} has {count} numbers, expected one for each of {layers} layers"
    SCALES = InputError, "{path}: tensor {tensor!r} has shape {shape}, but {other!r} requires {count} numbers"
    NOT_FINITE = InputError, "{path}: tensor {tensor!r} holds a scale that is not finite"


class GgufWeightWarnings(ErrorKind):
    PREDICTING = SsccWarning, "{path}: {layers} layers that predict further tokens are not used"


@dataclass(frozen=True)
class _Parameter:
    """The stored tensors of a parameter, and their layout.

    Attributes:
        place: index within a stack.
        shape: shape from `Family.shapes`; () for the stored one.
        tiled: axis along which value heads are in tiles; None if none is.
    """

    parts: tuple[StoredTensor, ...]
    layout: Layout
    place: int = 0
    shape: tuple[int, ...] = ()
    tiled: int | None = None


class GgufSource(TensorSource):
    """Tensors of a `.gguf` file under transformers' names, dequantized to f32 one at a time.

    Raises:
        InputError: parts that do not fit together.
        UnsupportedError: a type that is not read, or tensors without a place in the model.
    """

    def __init__(self, header: GgufHeader, family: Family, config: PreTrainedConfig) -> None:
        self._header, self._family = header, family
        fields = config.to_dict()
        self._heads = {
            Layout.ROTARY_Q: fields.get("num_attention_heads"),
            Layout.ROTARY_K: fields.get("num_key_value_heads") or fields.get("num_attention_heads"),
            Layout.HEAD_QKV: fields.get("num_attention_heads") or fields.get("n_head"),
            Layout.GROUP_QKV: fields.get("num_kv_heads"),
            Layout.GROUP_QKVZ: fields.get("linear_num_key_heads"),
        }
        self._key_width = fields.get("linear_key_head_dim") or 0
        self._tiles = _Tiles(
            fields.get("linear_num_key_heads") or 0,
            fields.get("linear_num_value_heads") or 0,
            2 * (fields.get("linear_num_key_heads") or 0) * self._key_width,
            fields.get("linear_value_head_dim") or 0,
        )
        self._query_heads = fields.get("num_attention_heads") or fields.get("n_head") or 1
        self._scales = _scales_of_tensors(header)
        counts = (getattr(config, name, None) for name in ("num_hidden_layers", "n_layer", "n_layers"))
        self._layers = int(next(filter(None, counts), 0))
        self._parts = {part: (name, at) for name, parts in family.joined.items() for at, part in enumerate(parts)}
        self._parameters = self._placed()
        self._constants = self._from_metadata()
        self._shapes = {name: self._shape(name, parameter) for name, parameter in self._parameters.items()}

    def _placed(self) -> dict[str, _Parameter]:
        """Return the parameters by name."""
        family, stored = self._family, self._header.tensors
        self._check_types()
        predicted = int(self._header.metadata.get(f"{self._header.architecture}.{PREDICTED_LAYERS}", 0))
        if predicted:
            warn(GgufWeightWarnings.PREDICTING(path=self._header.path, layers=predicted))
        found: dict[str, dict[int, StoredTensor]] = {}
        first: dict[str, str] = {}
        unknown = []
        stacks: dict[str, _Parameter] = {}
        for name, tensor in stored.items():
            pattern, number = _pattern(name)
            behind = int(number) - self._layers if number else -1
            if name in TENSORS or name in self._scales.values() or 0 <= behind < predicted:
                continue
            if _is_scale_of_activations(name, stored):
                continue
            placed = self._place(pattern) if behind < 0 else None
            if placed is None:
                unknown.append(name)
                continue
            parameter, place = placed
            if _of_tensor(family.layouts, pattern) is Layout.STACKED:
                places = range(min(tensor.shape[0], MOST_STACKED) if tensor.shape else 0)
                stacks |= {parameter.replace("*", str(i)): _Parameter((tensor,), Layout.STACKED, i) for i in places}
                continue
            parameter = parameter.replace("*", number)
            found.setdefault(parameter, {})[place] = tensor
            if place == 0:
                first[parameter] = pattern
        if unknown:
            raise GgufWeightErrors.NO_PLACE(
                path=self._header.path, count=len(unknown), model_type=family.model_type, names=unknown[:4]
            )
        return stacks | {name: self._parameter(name, parts, first.get(name)) for name, parts in found.items()}

    def _place(self, pattern: str) -> tuple[str, int] | None:
        """Return the parameter of a tensor, and which of its parts the tensor is; None where it has no place."""
        tensors, (stem, _, suffix) = self._family.tensors, pattern.rpartition(".")
        if pattern in self._parts:
            parameter, place = self._parts[pattern]
            return tensors.get(pattern, parameter), place
        if pattern in tensors:
            return tensors[pattern], 0
        return (f"{tensors[stem]}.{suffix}", 0) if stem in tensors else None

    def _parameter(self, name: str, parts: Mapping[int, StoredTensor], first: str | None) -> _Parameter:
        pattern = re.sub(r"(?<=\.)\d+(?=\.)", "*", name, count=1)
        wanted = self._family.joined.get(pattern, ("",))
        missing = [part for place, part in enumerate(wanted) if place not in parts]
        if missing or first is None:
            number = re.search(r"\.(\d+)\.", name)
            tensor = (missing or wanted)[0].replace("*", number[1] if number else "")
            raise GgufWeightErrors.PART_MISSING(path=self._header.path, tensor=tensor, parameter=name)
        family = self._family
        return _Parameter(
            tuple(parts[place] for place in sorted(parts)),
            _of_tensor(family.layouts, first) or Layout.PLAIN,
            shape=_of_tensor(family.shapes, first) or (),
            tiled=_of_tensor(family.tiled, first) if self._tiles.heads != self._tiles.key_heads else None,
        )

    def _from_metadata(self) -> dict[str, Numbers]:
        """Return the parameters that are metadata."""
        found: dict[str, Numbers] = {}
        for key, (parameter, shape) in self._family.numbers.items():
            values = np.atleast_1d(self._header.metadata.get(key, np.zeros(0)))
            if len(values) not in (1, self._layers) or values.dtype.kind != "f":
                raise GgufWeightErrors.NUMBERS(path=self._header.path, key=key, count=len(values), layers=self._layers)
            each = np.broadcast_to(values, self._layers).astype(np.float32)
            found |= {parameter.replace("*", str(i)): np.array(each[i]).reshape(shape) for i in range(self._layers)}
        return found

    def _check_types(self) -> None:
        for name, tensor in self._header.tensors.items():
            if not _is_read(tensor.type):
                raise GgufWeightErrors.TYPE(path=self._header.path, tensor=name, type=tensor.type.name)

    # --------------------------------------------------------------------------------------------------- shapes

    def _shape(self, name: str, parameter: _Parameter) -> tuple[int, ...]:
        first, *others = parameter.parts
        layout, shape = parameter.layout, first.shape
        if layout is Layout.LATENT:
            return self._latent_shape(parameter)
        if layout is Layout.STACKED:
            return shape[1:]
        if parameter.shape:
            return self._reshaped(parameter)
        biases = _are_biases(parameter)
        for other in others:
            same_shape = 2 <= len(shape) == len(other.shape) and other.shape[:-2] == shape[:-2]
            same_shape = same_shape and (layout is not Layout.INTERLEAVED or other.shape == shape)
            if not same_shape or (other.shape[-1] != shape[-1] and not biases):
                raise self._not_joined(other, first)
        if biases:
            shape = (shape[0], sum(part.shape[1] for part in parameter.parts))
        elif others:
            shape = (*shape[:-2], sum(part.shape[-2] for part in parameter.parts), shape[-1])
        if len(shape) > 1 and (layout is Layout.TRANSPOSED or (layout is Layout.INTERLEAVED and len(shape) == 3)):
            return (*shape[:-2], shape[-1], shape[-2])
        self._check_heads(first, layout, shape)
        self._check_tiles(parameter, shape)
        return shape

    def _reshaped(self, parameter: _Parameter) -> tuple[int, ...]:
        """Return the shape of a parameter that is stored in another one, of one tensor or several of the same shape."""
        first, *others = parameter.parts
        for other in others:
            if other.shape != first.shape:
                raise self._not_joined(other, first)
        last = first.shape[-1] if first.shape else 0
        known = prod(size or last for size in parameter.shape if size >= 0)
        count = prod(first.shape) * len(parameter.parts)
        shape = tuple(count // max(known, 1) if size < 0 else size or last for size in parameter.shape)
        if not count or prod(shape) != count:
            raise GgufWeightErrors.RESHAPED(
                path=self._header.path, tensor=first.name, shape=str(list(first.shape)), other_shape=str(list(shape))
            )
        self._check_tiles(parameter, shape)
        return shape

    def _check_tiles(self, parameter: _Parameter, shape: tuple[int, ...]) -> None:
        """Check that a parameter whose value heads are in tiles divides into them."""
        if parameter.tiled is not None and not self._tiles.fit(shape, parameter.tiled):
            raise self._not_heads(parameter.parts[0], self._tiles.heads)

    def _check_heads(self, tensor: StoredTensor, layout: Layout, shape: tuple[int, ...]) -> None:
        """Check that the rows of a parameter of a shape divide as the layout of its first tensor asks for."""
        if layout not in self._heads:
            return
        heads, rows = self._heads[layout] or 0, shape[0] if shape else 0
        parts = {Layout.HEAD_QKV: 3 * heads, Layout.GROUP_QKV: heads and self._query_heads + 2 * heads}
        divisor = parts.get(layout, 2 * heads)
        rows -= 2 * heads * self._key_width if layout is Layout.GROUP_QKVZ else 0
        if not divisor or rows <= 0 or rows % divisor:
            raise self._not_heads(tensor, heads)

    def _not_heads(self, tensor: StoredTensor, heads: int) -> Exception:
        return GgufWeightErrors.SHAPE(
            path=self._header.path, tensor=tensor.name, shape=str(list(tensor.shape)), heads=heads
        )

    def _latent_shape(self, parameter: _Parameter) -> tuple[int, ...]:
        keys, values = parameter.parts
        fits = len(keys.shape) == len(values.shape) == 3 and keys.shape[0] == values.shape[0]
        if not fits or keys.shape[1] != values.shape[2]:
            raise self._not_joined(values, keys)
        heads, rank, width = keys.shape
        return heads * (width + values.shape[1]), rank

    def _not_joined(self, tensor: StoredTensor, other: StoredTensor) -> Exception:
        return GgufWeightErrors.NOT_JOINED(
            path=self._header.path,
            tensor=tensor.name,
            shape=str(list(tensor.shape)),
            other=other.name,
            other_shape=str(list(other.shape)),
        )

    def names(self) -> dict[str, TensorInfo]:
        return self._infos

    @cached_property
    def _infos(self) -> dict[str, TensorInfo]:
        constants = {name: (values.shape, torch.float32) for name, values in self._constants.items()}
        return {name: (shape, self._dtype(name)) for name, shape in self._shapes.items()} | constants

    def _dtype(self, name: str) -> torch.dtype:
        """Return the dtype of a parameter's numbers: bf16 where they are stored so, else f32."""
        parameter = self._parameters[name]
        stored = {part.type for part in parameter.parts} == {GGMLQuantizationType.BF16}
        return torch.bfloat16 if stored and parameter.layout not in _COMPUTED else torch.float32

    # -------------------------------------------------------------------------------------------------- numbers

    def tensor(self, name: str) -> torch.Tensor:
        if name in self._constants:
            return torch.tensor(self._constants[name])
        return self._parameter_numbers(name).to(self._dtype(name))

    def _parameter_numbers(self, name: str) -> torch.Tensor:
        """Return the numbers of a parameter, f32."""
        parameter, shape = self._parameters[name], self._shapes[name]
        if parameter.layout is Layout.LATENT:
            keys, values = map(self._numbers, parameter.parts)
            return _owned(np.concatenate([keys.swapaxes(1, 2), values], axis=1).reshape(shape))
        if parameter.layout is Layout.STACKED:
            return _owned(self._numbers(parameter.parts[0], parameter.place))
        if len(shape) == 3 and len(parameter.parts[0].shape) == 3 and not parameter.shape:
            turned = parameter.layout in (Layout.TRANSPOSED, Layout.INTERLEAVED)
            out = np.empty((shape[0], shape[2], shape[1]) if turned else shape, np.float32)
            for expert in range(shape[0]):  # one at a time: all of them may not fit in memory twice
                matrices = [self._numbers(part, expert) for part in parameter.parts]
                if parameter.layout is Layout.INTERLEAVED:
                    for number, matrix in enumerate(matrices):
                        out[expert, number :: len(matrices)] = matrix
                else:
                    laid_out = self._laid_out(matrices, parameter.layout)
                    out[expert] = laid_out.T if turned else laid_out
            # A view: the numbers of a transposed parameter stay where they are.
            return torch.from_numpy(out).transpose(1, 2) if turned else torch.from_numpy(out)
        arrays = [self._numbers(part) for part in parameter.parts]
        if _are_biases(parameter):
            joined = np.stack(arrays, -1) if parameter.layout is Layout.INTERLEAVED else np.concatenate(arrays, 1)
            return _owned(joined.reshape(shape))
        if len(arrays) > 1 and parameter.shape:
            arrays = [array.reshape(-1, *shape[1:]) for array in arrays]
        numbers = self._laid_out(arrays, parameter.layout)
        if parameter.layout is Layout.LOG and not np.isfinite(numbers).all():
            raise GgufWeightErrors.LOG(path=self._header.path, tensor=parameter.parts[0].name, parameter=name)
        return _owned(self._untiled(numbers.reshape(shape), parameter.tiled))

    def _untiled(self, numbers: Numbers, axis: int | None) -> Numbers:
        """Return a parameter with its value heads in the model's order."""
        return numbers if axis is None else numbers.take(self._tiles.stored_at(numbers.shape[axis]), axis)

    def _laid_out(self, arrays: list[Numbers], layout: Layout) -> Numbers:
        """Return a parameter, or that of one expert, made of stored arrays."""
        if layout is Layout.INTERLEAVED:
            return np.stack(arrays, 1).reshape(-1, arrays[0].shape[-1]).T
        whole = np.concatenate(arrays) if len(arrays) > 1 else arrays[0]
        if layout is Layout.TRANSPOSED and whole.ndim > 1:
            return whole.T
        if layout is Layout.LESS_ONE:
            return whole - np.float32(1)
        if layout is Layout.LOG:
            with np.errstate(divide="ignore", invalid="ignore"):
                return np.log(-whole.astype(np.float64)).astype(np.float32)
        order = self._order(layout, whole.shape[0]) if whole.ndim else None
        return whole if order is None else whole[order]

    def _order(self, layout: Layout, rows: int) -> Order | None:
        """Return which stored row each row of a parameter is; None for those in order."""
        heads = self._heads.get(layout)
        if heads is None:
            return None
        numbers = np.arange(rows)
        if layout is Layout.HEAD_QKV:
            return numbers.reshape(3, heads, -1).swapaxes(0, 1).reshape(-1)
        if layout is Layout.GROUP_QKV:
            width = rows // (self._query_heads + 2 * heads)
            queries, keys, values = np.split(numbers, [self._query_heads * width, (self._query_heads + heads) * width])
            parts = [queries.reshape(heads, -1), keys.reshape(heads, -1), values.reshape(heads, -1)]
            return np.concatenate(parts, 1).reshape(-1)
        if layout is Layout.GROUP_QKVZ:
            width = heads * self._key_width
            ends = [width, 2 * width, width + rows // 2]
            return np.concatenate([part.reshape(heads, -1) for part in np.split(numbers, ends)], 1).reshape(-1)
        return numbers.reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)

    # ---------------------------------------------------------------------------------------------------- codes

    @property
    def is_quantized(self) -> bool:
        return is_quantized(self._header)

    def stored_form(self, name: str) -> StoredForm | None:
        if name in self._constants:
            return None
        parameter = self._parameters[name]
        kinds = {part.type for part in parameter.parts}
        if kinds <= set(PLAIN_TYPES) and kinds != {GGMLQuantizationType.F16}:
            return None
        text = f"GGUF {' and '.join(sorted(kind.name for kind in kinds))}"
        held = _format(parameter.parts[0]) if len(kinds) == 1 else None
        moved = (Layout.PLAIN, Layout.TRANSPOSED, Layout.STACKED, Layout.INTERLEAVED, *self._heads)
        shape = parameter.parts[0].shape
        rank = len(shape) - (parameter.layout is Layout.STACKED)
        if held is None or parameter.layout not in moved or parameter.shape or rank < 2 or shape[-1] % held.block:
            return StoredForm(text)
        transposed = parameter.layout in (Layout.TRANSPOSED, Layout.INTERLEAVED)
        return StoredForm(text, held, transposed, ordered=parameter.tiled == 1)

    def parts(self, name: str) -> Parts:
        parameter = self._parameters[name]
        stored = [self._parts_of(part) for part in parameter.parts]
        whole = {kind: self._joined([part[kind] for part in stored], parameter) for kind in stored[0]}
        self._check_finite(parameter.parts[0], whole)
        if parameter.tiled == 1:
            return whole | {ORDER: self._tiles.head_at(self._shapes[name][1])}
        return {kind: self._untiled(part, parameter.tiled) for kind, part in whole.items()}

    def _joined(self, blocks: list[Numbers], parameter: _Parameter) -> Numbers:
        """Return one part of a parameter, i8 [.., N, bytes], from those of the tensors that it is made of."""
        if parameter.layout is Layout.STACKED:
            blocks = [stack[parameter.place] for stack in blocks]
        if parameter.layout is Layout.INTERLEAVED:
            joined = np.stack(blocks, -2)
            blocks = [joined.reshape(*joined.shape[:-3], -1, joined.shape[-1])]
        whole = np.concatenate(blocks, axis=-2) if len(blocks) > 1 else blocks[0]
        order = self._order(parameter.layout, whole.shape[0])
        return whole if order is None else whole[order]

    def _parts_of(self, tensor: StoredTensor) -> dict[str, Numbers]:
        """Return the parts of a tensor's format, i8 [.., N, bytes]."""
        blocks = np.asarray(tensor.stored()).reshape(*tensor.shape[:-1], -1)
        if tensor.type is not GGMLQuantizationType.NVFP4:
            return {ggml.BLOCKS: blocks.view(np.int8)}
        held, scale = _format(tensor), self._scales.get(tensor.name)
        assert held is not None
        whole = np.full(tensor.shape[:-2], 1, np.float32)
        if scale is not None:
            whole *= _plain_numbers(self._header.tensors[scale]).reshape(whole.shape)
        return nvfp4_parts(blocks, whole, held)

    def _numbers(self, tensor: StoredTensor, expert: int | None = None) -> Numbers:
        """Return the numbers of a tensor, or of one of its matrices, in f32."""
        if tensor.type is GGMLQuantizationType.NVFP4 and _format(tensor) is not None:
            held, parts = _format(tensor), self._parts_of(tensor)
            assert held is not None
            return read_numbers(parts if expert is None else {kind: part[expert] for kind, part in parts.items()}, held)
        return _plain_numbers(tensor, expert)

    def _check_finite(self, tensor: StoredTensor, parts: Parts) -> None:
        """Raise InputError where a scale or a minimum of parts [.., bytes] is no finite number."""
        held = _format(tensor)
        assert held is not None  # callers ask for parts only if there is a format
        raw = {
            part.name: np.ascontiguousarray(parts[part.name]).view(np.uint8).reshape(
                -1, parts[part.name].shape[-1] // part.bytes, part.bytes
            )
            for part in held.parts
        }  # fmt: skip
        floats = [field for field in (*held.scales, *held.minimums) if field.is_float]
        if not all(np.isfinite(read_field(field, raw)).all() for field in floats):
            raise GgufWeightErrors.NOT_FINITE(path=self._header.path, tensor=tensor.name)

    def update_digest(self, digest: hashlib._Hash) -> None:
        """Feed the bytes as stored: dequantizing them would only take time."""
        for name, values in sorted(self._constants.items()):
            digest.update(f"{name} {values.tolist()}\n".encode())
        for name, parameter in sorted(self._parameters.items()):
            for part in parameter.parts:
                digest.update(f"{name} ggml {int(part.type)} {part.shape}\n".encode())
                digest.update(np.ascontiguousarray(part.stored()).data)


@dataclass(frozen=True)
class _Tiles:
    """Value heads in tiles: the first ones of all key heads are stored first, then the second ones, and so on.

    Attributes:
        before: rows of queries and keys, in front of those of the values in a tensor of all three.
        width: numbers of a value head.
    """

    key_heads: int
    heads: int
    before: int
    width: int

    def _values(self, size: int) -> int:
        """Return how many of the rows or columns of a tensor are of value heads: all, but for a tensor with keys."""
        values = self.heads * self.width
        return values if size == self.before + values else size

    def fit(self, shape: tuple[int, ...], axis: int) -> bool:
        """Return True if an axis of a tensor of this shape divides into the heads."""
        if axis >= len(shape) or not self.key_heads or not self.heads or self.heads % self.key_heads:
            return False
        return shape[axis] > 0 and self._values(shape[axis]) % self.heads == 0

    def head_at(self, size: int) -> Order:
        """Return which number of the model's order each stored number is, i64 [size]."""
        first = size - self._values(size)
        values = np.arange(first, size).reshape(self.key_heads, self.heads // self.key_heads, -1)
        return np.concatenate([np.arange(first), values.swapaxes(0, 1).reshape(-1)])

    def stored_at(self, size: int) -> Order:
        """Return where each number of the model's order is stored, i64 [size]."""
        return self.head_at(size).argsort()


def _of_tensor(table: Mapping[str, _T], pattern: str) -> _T | None:
    """Return the entry of a family's table for a tensor, by its whole name or by the name without its last part."""
    return table.get(pattern, table.get(pattern.rpartition(".")[0]))


def _are_biases(parameter: _Parameter) -> bool:
    """Return True for a parameter that is made of several biases of experts, [X, N] each."""
    return len(parameter.parts) > 1 and parameter.parts[0].name.endswith(".bias")


def _pattern(name: str) -> tuple[str, str]:
    """Return the name of a tensor with * in the place of its layer, and the layer's number."""
    match = LAYER.match(name)
    return (name, "") if match is None else (f"blk.*.{name[match.end() :]}", match[1])


@cache
def _is_read(kind: GGMLQuantizationType) -> bool:
    """Return True if the package dequantizes a type."""
    if kind in PLAIN_TYPES:
        return True
    _, size = GGML_QUANT_SIZES[kind]
    try:
        dequantize(np.zeros((1, size), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def _scales_of_tensors(header: GgufHeader) -> dict[str, str]:
    """Return the tensor with the global scale of each NVFP4 tensor, one number or one per matrix, by the name of the
    NVFP4 tensor. Raises InputError if it has another shape."""
    scales = {}
    for name, tensor in header.tensors.items():
        scale = f"{name.removesuffix('.weight')}.scale"
        if tensor.type is not GGMLQuantizationType.NVFP4 or scale not in header.tensors:
            continue
        if prod(header.tensors[scale].shape) != prod(tensor.shape[:-2]):
            shape = str(list(header.tensors[scale].shape))
            raise GgufWeightErrors.SCALES(
                path=header.path, tensor=scale, shape=shape, count=prod(tensor.shape[:-2]), other=name
            )
        scales[name] = scale
    return scales


def _is_scale_of_activations(name: str, stored: Mapping[str, StoredTensor]) -> bool:
    """Return True for a scale by which activations are divided before rounding; activations are not rounded here."""
    weight = stored.get(f"{name.removesuffix('.input_scale')}.weight")
    return name.endswith(".input_scale") and weight is not None and weight.type is GGMLQuantizationType.NVFP4


def nvfp4_parts(blocks: Numbers, whole: Numbers, held: WeightFormat) -> dict[str, Numbers]:
    """Return the parts of NVFP4, i8 [.., N, bytes], from the blocks of a file.

    Args:
        blocks: u8 [.., N, 36 K / 64]: of each 64 numbers four e4m3 without sign, and codes. 127 stands for 0, and 255
            for no number, as it does in the parts.
        whole: the scale of each matrix, f32 [..].
    """
    *outer, nbytes = blocks.shape
    blocks = blocks.reshape(*outer, nbytes // 36, 36)
    stored = blocks[..., :4]
    scales = np.where(stored == 127, np.uint8(0), stored & np.uint8(127)).reshape(*outer, -1)
    columns = scales.shape[-1] * microscaling.NVFP4_GROUP
    half = np.broadcast_to((whole / 2)[..., None, None], (*outer, columns // held.block))
    return {
        microscaling.BLOCKS: blocks[..., 4:].reshape(*outer, -1).view(np.int8),
        microscaling.SCALES: scales.view(np.int8),
        microscaling.WHOLE: as_bytes(half.astype(np.float32)),
    }


def _plain_numbers(tensor: StoredTensor, expert: int | None = None) -> Numbers:
    """Return the numbers of a tensor, or of one of its matrices, that no other tensor scales, in f32."""
    stored, shape = tensor.stored(), tensor.shape
    if expert is not None:
        stored, shape = stored[expert], shape[1:]
    if tensor.type in PLAIN_TYPES and tensor.type is not GGMLQuantizationType.BF16:
        dtypes = {GGMLQuantizationType.F32: "<f4", GGMLQuantizationType.F16: "<f2", GGMLQuantizationType.F64: "<f8"}
        values: Numbers = np.ascontiguousarray(stored).view(dtypes[tensor.type]).astype(np.float32)
        return values.reshape(shape)
    held = _format(tensor)
    if held is not None:
        return read_numbers({ggml.BLOCKS: np.asarray(stored).reshape(*shape[:-1], -1).view(np.int8)}, held)
    values = dequantize(np.ascontiguousarray(stored), tensor.type)
    return values.reshape(shape)


def _owned(values: Numbers) -> torch.Tensor:
    return torch.from_numpy(np.require(values, np.float32, ["C", "W"]))


def _format(tensor: StoredTensor) -> WeightFormat | None:
    """Return the format of a tensor's blocks; None for a type whose blocks no program holds."""
    if tensor.type is GGMLQuantizationType.NVFP4:
        return microscaling.nvfp4_of(tensor.shape[-1], gguf=True) if tensor.shape else None
    return ggml.FORMATS.get(tensor.type.name)


__all__ = ["GgufSource", "GgufWeightErrors"]
