"""Weights, config and tokenizer of a `.gguf` file, through transformers' own GGUF code.

transformers maps the metadata to a config and undoes llama.cpp's changes to the weights; `gguf` dequantizes. What
transformers would drop in silence (rope scaling, tensors without a place in the model) is refused here. Blocks that a
format of programs holds exactly are given as codes, too.
"""

from __future__ import annotations

import hashlib
import re
import struct
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from gguf.constants import GGMLQuantizationType, GGUFValueType
from gguf.quants import dequantize
from transformers import TOKENIZER_MAPPING, PreTrainedConfig, TokenizersBackend
from transformers.integrations.ggml import GGUF_CONFIG_MAPPING
from transformers.integrations.gguf.dequant import GGML_BLOCK
from transformers.integrations.gguf.reader import GgufHeader, LazyGgufTensor, load_gguf_state_dict, read_gguf_metadata
from transformers.integrations.gguf.utils import is_gguf_arch_supported
from transformers.modeling_gguf_pytorch_utils import (
    TENSOR_PROCESSORS,
    TensorProcessor,
    get_gguf_hf_weights_map,
    load_gguf_checkpoint,
)

from sscc.compiler.frontend.construction import build_skeleton
from sscc.compiler.frontend.model_config import config_from_dict
from sscc.compiler.frontend.quiet import one_line
from sscc.compiler.frontend.sources import StoredForm, TensorInfo, TensorSource
from sscc.ir.errors import ErrorKind, InputError, UnsupportedError, quoted
from sscc.ir.weight_format import WeightFormat
from sscc.runtime.quantization import Quantized

# Metadata under the architecture's prefix that has no field in a config and changes no result.
HARMLESS_KEYS = frozenset({"attention.value_length", "tensor_data_layout", "attention.causal"})
# Metadata that transformers' table of the architecture lacks -> the field of a config that has one of this name.
FIELDS = {
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
ARCHITECTURES = {"qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe", "minimax-m2": "minimax_m2"}  # transformers' names
EXPERTS = re.compile(r"blk\.(\d+)\.ffn_(gate|up|down)_exps\.weight")  # the matrices of a layer's experts, stacked
FORMATS = {
    GGMLQuantizationType.Q8_0: WeightFormat(8, 32, scales="f16"),
    GGMLQuantizationType.Q4_0: WeightFormat(4, 32, scales="f16"),
    GGMLQuantizationType.Q4_1: WeightFormat(4, 32, minimum=True, scales="f16"),
}
"""What holds the blocks of a type exactly. A block is an f16 scale, perhaps an f16 minimum, and codes; of 4 bits the
last 16 are in the high halves of the bytes."""
ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


class GgufErrors(ErrorKind):
    UNSUPPORTED = UnsupportedError, "{path}: transformers does not read this GGUF file: {cause}"
    NOT_GGUF = InputError, "{path} is not a GGUF file, or truncated: {cause}"
    TRUNCATED = InputError, "{path} is truncated: its tensors end at byte {end}, the file has {size}"
    HYBRID = UnsupportedError, "{path}: architecture {architecture!r} has layers that are not full attention"
    ROPE_SCALING = UnsupportedError, (
        "{path}: transformers {version} drops the rope scaling of a GGUF file ({scaling}): compile the Hugging Face "
        "folder instead"
    )
    METADATA = UnsupportedError, "{path}: metadata {key} = {value} is dropped by transformers' GGUF reader"
    CONFIG = InputError, "{path} has metadata that transformers cannot read: {cause}"
    TOKENIZER = InputError, "{path}: its tokenizer cannot be converted: {cause}"
    NO_PLACE = UnsupportedError, "{path}: {count} tensors have no place in transformers' {model_type}: {names}"
    NAMES = UnsupportedError, "{path}: transformers cannot map the tensors of a {model_type}: {cause}"
    NOT_JOINED = InputError, (
        "{path}: tensor {tensor!r} of shape {shape} cannot be joined with {other!r} of shape {other_shape}"
    )
    SHAPE = InputError, "{path}: tensor {tensor!r} of shape {shape}: {cause}"
    CONVERSION = UnsupportedError, "{path}: tensor {tensor!r} is converted in a way that is not known"
    NOT_FINITE = InputError, "{path}: tensor {tensor!r} holds a scale that is not finite"


class GgufFile:
    """A `.gguf` file whose header has been read and checked; tensors stay on disk.

    Raises:
        InputError: not a GGUF file, truncated, or damaged.
        UnsupportedError: an architecture or a metadata key that would not be honoured.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.header = GgufHeader.from_file(str(path))
            self.metadata, _ = read_gguf_metadata(str(path))
        except Exception as error:  # struct, index, unicode and value errors: all say that the bytes are wrong
            if "not supported" in str(error):
                raise GgufErrors.UNSUPPORTED(path=path, cause=_short(error)) from error
            raise GgufErrors.NOT_GGUF(path=path, cause=_short(error)) from error
        self._check_size()
        self._check_metadata()
        self.config = self._config()

    def _check_size(self) -> None:
        end = max((info.offset + info.nbytes for info in self.header.tensors), default=0) + self.header.data_start
        size = self.path.stat().st_size
        if end > size:
            raise GgufErrors.TRUNCATED(path=self.path, end=end, size=size)

    def _check_metadata(self) -> None:
        architecture = self.header.architecture
        if is_gguf_arch_supported(architecture):  # transformers' second reader: all of them hybrids
            raise GgufErrors.HYBRID(path=self.path, architecture=architecture)
        scaling = self.metadata.get(f"{architecture}.rope.scaling.type", "none")
        factors = [name for name in ROPE_FACTORS if name in self.header.ggml_types and not self._all_ones(name)]
        if scaling != "none" or factors:
            raise GgufErrors.ROPE_SCALING(
                path=self.path, version=transformers.__version__, scaling=factors or str(scaling)
            )
        mapping: Any = GGUF_CONFIG_MAPPING
        known = mapping.get(ARCHITECTURES.get(architecture, architecture), {}).keys() | HARMLESS_KEYS | FIELDS.keys()
        for key, value in self.metadata.items():
            prefix, _, name = key.partition(".")
            if prefix == architecture and name not in known and value and not name.startswith("rope.scaling."):
                raise GgufErrors.METADATA(path=self.path, key=key, value=str(value))

    def _all_ones(self, name: str) -> bool:
        values = _dequantized(load_gguf_state_dict(self.header)[name], self.header.ggml_types[name])
        return bool((values == 1).all())

    def _config(self) -> PreTrainedConfig:
        try:
            with _config_reader():
                values: dict[str, Any] = load_gguf_checkpoint(str(self.path), return_tensors=False)["config"]
        except Exception as error:
            if "not supported" in str(error):
                raise GgufErrors.UNSUPPORTED(path=self.path, cause=_short(error)) from error
            raise GgufErrors.CONFIG(path=self.path, cause=_short(error)) from error
        values.pop("_model_name_or_path", None)
        config = config_from_dict(values, str(self.path))
        own = {field: self.metadata.get(f"{self.header.architecture}.{key}") for key, field in FIELDS.items()}
        values |= {field: value for field, value in own.items() if value is not None and hasattr(config, field)}
        return config_from_dict(values, str(self.path))

    def tokenizer(self) -> dict[str, bytes]:
        """Files of the tokenizer that transformers converts from the metadata; takes seconds."""
        if not self.metadata.get("tokenizer.ggml.tokens"):
            return {}
        with tempfile.TemporaryDirectory() as folder:
            # Alone in a folder, so that no neighbour's tokenizer_config.json is mixed in.
            link = Path(folder) / "model.gguf"
            link.symlink_to(self.path.resolve())
            saved = Path(folder) / "tokenizer"
            try:
                tokenizer = self._tokenizer_class().from_pretrained(folder, gguf_file=link.name, local_files_only=True)
                tokenizer.save_pretrained(saved)
            except Exception as error:
                raise GgufErrors.TOKENIZER(path=self.path, cause=_short(error)) from error
            return {path.name: path.read_bytes() for path in sorted(saved.iterdir())}

    def _tokenizer_class(self) -> type[TokenizersBackend]:
        """The class that `AutoTokenizer` would choose, which first parses all metadata once more, for seconds."""
        tokenizer_class: type[TokenizersBackend] = TOKENIZER_MAPPING.get(type(self.config), TokenizersBackend)
        # mistral-common, where it is installed, reads a format of its own.
        return tokenizer_class if issubclass(tokenizer_class, TokenizersBackend) else TokenizersBackend


@dataclass(frozen=True)
class _Part:
    """A stored tensor that a parameter is, or one of those that it is made of, one below the other."""

    name: str
    type: int
    tensor: LazyGgufTensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Of its numbers."""
        shape = tuple(int(dim) for dim in self.tensor.shape)
        if self.type not in GGML_BLOCK:
            return shape
        elements, size = GGML_BLOCK[self.type]  # quantized: rows are of so many bytes
        return (*shape[:-1], shape[-1] // size * elements)


class GgufSource(TensorSource):
    """Tensors of a `.gguf` file under transformers' names, dequantized to f32 one at a time."""

    def __init__(self, file: GgufFile) -> None:
        self._path = file.path
        processor = TENSOR_PROCESSORS.get(file.header.architecture, TensorProcessor)
        self._processor: TensorProcessor = processor(config=file.config.to_dict())
        stored = load_gguf_state_dict(file.header)
        mapping = self._name_map(file.config, stored)
        unknown = sorted(set(stored) - set(mapping) - set(ROPE_FACTORS))
        if unknown:
            raise GgufErrors.NO_PLACE(
                path=self._path, count=len(unknown), model_type=file.config.model_type, names=unknown[:4]
            )
        self._stored: dict[str, list[_Part]] = {}
        for name in sorted(stored.keys() & mapping.keys()):  # of experts' matrices gate comes before up
            part = _Part(name, file.header.ggml_types[name], stored[name])
            self._stored.setdefault(mapping[name], []).append(part)
        self._names = {name: (self._shape(parts), torch.float32) for name, parts in self._stored.items()}

    def _name_map(self, config: PreTrainedConfig, stored: Iterable[str]) -> dict[str, str]:
        """GGUF name -> name of the parameter, found by transformers on an empty model; of experts by their layer."""
        try:
            model = build_skeleton(config)
            # transformers descends into every submodule and builds gguf's table anew in each (8 s for 30 layers), for
            # the few models whose names only fit without a prefix: the flat names come first.
            flat = SimpleNamespace(config=config, state_dict=model.state_dict, named_children=list)
            mapping: dict[str, str] = get_gguf_hf_weights_map(flat, self._processor)
            mapping |= _experts(stored, model.state_dict())
            if not mapping.keys() >= set(stored) - set(ROPE_FACTORS):
                mapping = get_gguf_hf_weights_map(model, self._processor) | _experts(stored, model.state_dict())
        except (ValueError, NotImplementedError, KeyError, AttributeError) as error:
            raise GgufErrors.NAMES(path=self._path, model_type=config.model_type, cause=_short(error)) from error
        return mapping

    def _shape(self, parts: list[_Part]) -> tuple[int, ...]:
        """Shape after transformers' conversion, found on an array that takes no memory."""
        first, *others = parts
        if not others:
            return self._converted(np.broadcast_to(np.float32(-1), first.shape), first.name).shape
        experts, _, columns = (*first.shape, 0, 0)[:3]
        for part in others:
            if len(part.shape) != 3 or (part.shape[0], part.shape[2]) != (experts, columns):
                raise GgufErrors.NOT_JOINED(
                    path=self._path,
                    tensor=part.name,
                    shape=str(list(part.shape)),
                    other=first.name,
                    other_shape=str(list(first.shape)),
                )
        return experts, sum(part.shape[1] for part in parts), columns

    def _converted(self, values: np.ndarray, gguf_name: str) -> np.ndarray:
        if EXPERTS.fullmatch(gguf_name):
            return values  # as the model has them; transformers' processors put them into another's dictionary
        try:
            result = self._processor.process(values, name=gguf_name)
        except ValueError as error:  # rows that do not divide into the heads that the metadata say
            raise GgufErrors.SHAPE(
                path=self._path, tensor=gguf_name, shape=str(list(values.shape)), cause=_short(error)
            ) from error
        if result.name is None:
            raise GgufErrors.CONVERSION(path=self._path, tensor=gguf_name)
        converted: np.ndarray = result.weights
        return converted

    def names(self) -> dict[str, TensorInfo]:
        return self._names

    def tensor(self, name: str) -> torch.Tensor:
        first, *others = self._stored[name]
        if not EXPERTS.fullmatch(first.name):
            values = self._converted(_dequantized(first.tensor, first.type), first.name)
            return torch.from_numpy(np.require(values, np.float32, ["C", "W"]))
        out = np.empty(self._names[name][0], np.float32)
        for expert in range(len(out)):
            row = 0
            for part in (first, *others):
                out[expert, row : row + part.shape[1]] = _dequantized(part.tensor, part.type, expert)
                row += part.shape[1]
        return torch.from_numpy(out)

    def stored_form(self, name: str) -> StoredForm | None:
        parts = self._stored[name]
        types = sorted({GGMLQuantizationType(part.type).name for part in parts if part.type in GGML_BLOCK})
        if not types:
            return None
        format_ = FORMATS.get(GGMLQuantizationType(parts[0].type)) if len({part.type for part in parts}) == 1 else None
        order = None if format_ is None else self._order(parts[0])
        text = f"GGUF {' and '.join(types)}"
        return StoredForm(text) if order is None else StoredForm(text, format_, order.transposed)

    def _order(self, part: _Part) -> _Order | None:
        """What transformers' conversion does to rows; None where it does more than move them."""
        if len(part.shape) < 2 or EXPERTS.fullmatch(part.name):
            return _Order(None) if len(part.shape) > 1 else None
        marks = np.arange(2 * part.shape[0]).reshape(-1, 2)
        try:
            moved = self._processor.process(marks, name=part.name).weights
        except ValueError:  # it asks for all columns
            return None
        if moved.shape == marks.T.shape and np.array_equal(moved, marks.T):
            return _Order(None, transposed=True)
        if moved.shape != marks.shape or not np.array_equal(moved, marks[moved[:, 0] // 2]):
            return None
        return _Order(moved[:, 0] // 2)

    def codes(self, name: str) -> Quantized:
        parts = [_codes(part) for part in self._stored[name]]
        order = self._order(self._stored[name][0])
        assert order is not None  # whoever asks has a format
        whole = {}
        for kind in FORMATS[GGMLQuantizationType(self._stored[name][0].type)].parts:
            arrays = [getattr(codes, kind) for codes in parts]
            array = np.concatenate(arrays, axis=-2) if len(arrays) > 1 else arrays[0]
            whole[kind] = array if order.rows is None else array[order.rows]
        if not all(np.isfinite(whole[kind]).all() for kind in whole if kind != "values"):
            raise GgufErrors.NOT_FINITE(path=self._path, tensor=self._stored[name][0].name)
        return Quantized(**whole)

    def update_digest(self, digest: hashlib._Hash) -> None:
        """Feeds the bytes as stored: dequantizing them would only take time."""
        for name, parts in sorted(self._stored.items()):
            for part in parts:
                digest.update(f"{name} ggml {part.type} {part.tensor.shape}\n".encode())
                digest.update(np.ascontiguousarray(part.tensor.data).data)


@dataclass(frozen=True)
class _Order:
    """Which stored row each row of a parameter is, None for those in order; and whether a parameter is [K, N]."""

    rows: np.ndarray | None
    transposed: bool = False


def _experts(stored: Iterable[str], names: Iterable[str]) -> dict[str, str]:
    """GGUF name -> parameter, of the matrices of experts: gate and up are one parameter."""
    known = {name.split("layers.", 1)[-1]: name for name in names if "layers." in name}
    parameters = {}
    for gguf_name in stored:
        match = EXPERTS.fullmatch(gguf_name)
        if match:
            layer, which = match.groups()
            parameter = known.get(f"{layer}.mlp.experts.{'down_proj' if which == 'down' else 'gate_up_proj'}")
            if parameter is not None:
                parameters[gguf_name] = parameter
    return parameters


def _codes(part: _Part) -> Quantized:
    """The blocks of a type in FORMATS as a program holds them, [.., N, K]."""
    held = FORMATS[GGMLQuantizationType(part.type)]
    elements, size = GGML_BLOCK[part.type]
    blocks = _rows(part.tensor).reshape(*part.shape[:-1], part.shape[-1] // elements, size)
    head = size - elements * held.bits // 8
    scales = np.ascontiguousarray(blocks[..., :head]).view(np.float16)
    raw = blocks[..., head:]
    if held.bits == 4:
        halves = np.concatenate([raw & 15, raw >> 4], axis=-1)
        raw = halves[..., 0::2] | (halves[..., 1::2] << 4)
    values = np.ascontiguousarray(raw).reshape(*part.shape[:-1], -1).view(np.int8)
    return Quantized(values, scales[..., 0].copy(), minimums=scales[..., 1].copy() if held.minimum else None)


class _ConfigReader(gguf.GGUFReader):
    """gguf's reader for what a config is made of. Of a vocabulary that is the number of its tokens: every text in an
    array is left empty. gguf itself would take slices for every token, merge and score, of numpy's memory map, and a
    slice of that is another memory map: nine tenths of the time."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value.view(np.ndarray) if name == "data" else value)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[GGUFValueType]]:
        if raw_type != GGUFValueType.ARRAY:
            parts: tuple[int, list[Any], list[int], list[GGUFValueType]] = super()._get_field_parts(orig_offs, raw_type)
            return parts
        kind, count = self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)
        item, length = GGUFValueType(kind[0]), int(count[0])
        start = end = orig_offs + 12
        if item == GGUFValueType.STRING:
            size = struct.Struct(">Q" if self.byte_order == "S" else "<Q")
            for _ in range(length):
                end += size.size + size.unpack_from(self.data, end)[0]
            items = [self.data[:0]] * length
        elif item in self.gguf_scalar_to_np:
            values = self._get(start, self.gguf_scalar_to_np[item], length)
            end += values.nbytes
            items = list(values.reshape(-1, 1))
        else:
            raise ValueError(f"an array of {item.name} in the metadata")
        types = [GGUFValueType.ARRAY, item] if items else [GGUFValueType.ARRAY]
        return end - orig_offs, [kind, count, *items], [*range(2, 2 + len(items))], types


@contextmanager
def _config_reader() -> Iterator[None]:
    """transformers, which makes a reader for itself, makes one for configs."""
    usual = gguf.GGUFReader
    gguf.GGUFReader = _ConfigReader
    try:
        yield
    finally:
        gguf.GGUFReader = usual


def _dequantized(tensor: LazyGgufTensor, ggml_type: int, expert: int | None = None) -> np.ndarray:
    """f32 values of a stored tensor, or of one expert's matrix, in torch's order of dimensions."""
    rows = _rows(tensor) if expert is None else _rows(tensor)[expert]
    values: np.ndarray = dequantize(rows, GGMLQuantizationType(ggml_type))
    return values


def _rows(tensor: LazyGgufTensor) -> np.ndarray:
    """The mapped bytes as [..., bytes per row]."""
    rows: np.ndarray = np.asarray(tensor.data).reshape(*tensor.shape[:-1], -1)
    return rows


def _short(error: BaseException) -> str:
    return quoted(one_line(error))
