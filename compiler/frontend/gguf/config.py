"""The config of a GGUF file: its metadata in the fields of transformers' config.

Every entry under the architecture's name is honoured, is neutral, or is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

import numpy as np
from transformers import PreTrainedConfig

from sscc.compiler.frontend.gguf.families import FAMILIES
from sscc.compiler.frontend.gguf.family import Family
from sscc.compiler.frontend.gguf.header import GgufHeader
from sscc.compiler.frontend.gguf.layer_kinds import kinds_of_layers
from sscc.compiler.frontend.gguf.model_metadata import PREDICTED_LAYERS, GgufMetadataErrors, Metadata, is_quantized
from sscc.compiler.frontend.gguf.rope import rope_fields
from sscc.compiler.frontend.model_config import MAX_LAYERS, config_from_dict
from sscc.ir.errors import ErrorKind, UnsupportedError

EMBEDDING, HEAD = "token_embd.weight", "output.weight"
NOT_DECODERS: Mapping[str, str] = {
    "clip": "the vision or audio part of a model (mmproj), without its decoder",
    **dict.fromkeys(
        ("bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3", "modern-bert", "neo-bert", "eurobert",
         "gemma-embedding", "llama-embed", "t5encoder"),
        "an embedding model, not a decoder",
    ),
    "wavtokenizer-dec": "a vocoder, not a language model",
}  # fmt: skip
PATTERN = "attention.sliding_window_pattern"
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_TOKENS = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "padding_token_id": "pad_token_id"}


class GgufConfigErrors(ErrorKind):
    """Models in GGUF files that are not supported."""

    ARCHITECTURE = UnsupportedError, "{path}: architecture {architecture!r} is not supported; supported are {known}"
    NOT_A_DECODER = UnsupportedError, "{path} is {what}"


def family_of(header: GgufHeader) -> Family:
    """Return the family of a file.

    Raises:
        UnsupportedError: an unknown architecture, or one that is not a decoder.
    """
    architecture, kind = header.architecture, header.metadata.get("general.type", "model")
    if kind != "model":
        raise GgufConfigErrors.NOT_A_DECODER(path=header.path, what=f"a file of type {str(kind)[:40]!r}, not a model")
    if architecture in NOT_DECODERS:
        raise GgufConfigErrors.NOT_A_DECODER(path=header.path, what=NOT_DECODERS[architecture])
    for family in FAMILIES.get(architecture, ()):
        if _holds(header, family):
            return family
    raise GgufConfigErrors.ARCHITECTURE(path=header.path, architecture=architecture, known=sorted(FAMILIES))


def _holds(header: GgufHeader, family: Family) -> bool:
    """Return True if a file has the metadata and tensors that its family requires."""
    if not family.when:
        return True
    if family.having and any(name.endswith(family.having) for name in header.tensors):
        return True
    key, expected = (family.when, None) if isinstance(family.when, str) else family.when
    value = header.metadata.get(f"{header.architecture}.{key}")
    return bool(np.any(value)) if expected is None else type(value) is type(expected) and value == expected


def config_of(header: GgufHeader, family: Family) -> PreTrainedConfig:
    """Return the config of a file.

    Raises:
        InputError: metadata that are missing, or of another type.
        UnsupportedError: metadata that are not honoured.
    """
    metadata = Metadata(header)
    fields = _Fields(metadata, family)
    values = fields.all()
    metadata.used.add(family.when if isinstance(family.when, str) else family.when[0])
    metadata.check_rest((*family.ignored, *family.numbers))
    config = config_from_dict(_nested(values), str(header.path))
    for name in _TOKENS.values():
        if values[name] is None:
            setattr(config, name, None)  # not the class's default, which is that of published models
    return config


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields in which those with a dot in their names are nested in dicts."""
    nested: dict[str, Any] = {}
    for name, value in values.items():
        outer, dot, inner = name.partition(".")
        if dot:
            nested.setdefault(outer, {})[inner] = value
        else:
            nested[name] = value
    return nested


class _Fields:
    """The fields of a config, from the metadata of a file of a family."""

    def __init__(self, metadata: Metadata, family: Family) -> None:
        self.metadata, self.family = metadata, family
        self.values: dict[str, Any] = {"model_type": family.model_type, **family.constants}

    def all(self) -> dict[str, Any]:
        """Return all fields."""
        family, values, tensors = self.family, self.values, self.metadata.header.tensors
        values |= {name: value for key, name in family.fields.items() if (value := self._field(key)) is not None}
        for key in family.needed:
            if not self.metadata.number(key):
                raise self.metadata.bad(key, self.metadata.get(key), "another number than 0")
        for key, expected in family.fixed.items():
            if self.metadata.number(key, expected) != expected:
                raise self.metadata.not_honoured(self.metadata.name(key), self.metadata.get(key))
        values |= {name: self._first(tensor) in tensors for name, tensor in family.present.items()}
        stored = {name: self._first(tensor) for name, tensor in family.rows.items()}
        values |= {name: self.metadata.rows(tensor) for name, tensor in stored.items() if tensor in tensors}
        values |= {name: self._quotient(*keys) for name, keys in family.quotients.items()}
        values["vocab_size"], values["tie_word_embeddings"] = self._vocabulary(), HEAD not in tensors
        values[self._name(_LAYERS)] = self._layers()
        values |= {name: int(values[name]) for name in family.extra.get("whole", ()) if not values[name] % 1}
        values |= self._dense_layers()
        values |= self._tokens() | self._sparsity() | self._shared_projection()
        if is_quantized(self.metadata.header):
            values["dtype"] = "bfloat16"
        rotated = family.extra.get("rotated")
        if rotated:  # in Granite's files this key states if layers have a rotary embedding
            values[rotated] = "rope" if self.metadata.number("rope.scaling.finetuned", True) else None
        if family.kinds:
            values |= kinds_of_layers(self.metadata, family.kinds, values[self._name(_LAYERS)])
        if self._attends():
            head_dim, widths = self._latent() if "kv_lora_rank" in values else self._heads()
            values |= widths
            values |= self._window()
            values |= rope_fields(self.metadata, family, head_dim, values) if family.rotary else {}
        return values

    def _attends(self) -> bool:
        """Return True for a family with layers that attend."""
        return self._name(_HEADS) in self.family.fields.values()

    def _first(self, tensor: str) -> str:
        """Return a tensor's name, for that of any layer the first one that the file has."""
        before, any_layer, behind = tensor.partition("*")
        if not any_layer:
            return tensor
        names = (f"{before}{layer}{behind}" for layer in range(MAX_LAYERS))
        return next((name for name in names if name in self.metadata.header.tensors), tensor)

    def _quotient(self, key: str, other: str) -> int:
        """Return a number of the metadata divided by another."""
        number, divisor = self.metadata.number(key, 0), self.metadata.number(other, 0)
        if type(number) is not int or type(divisor) is not int or not number or not divisor or number % divisor:
            raise self.metadata.bad(key, number, f"a multiple of {self.metadata.name(other)}, {divisor}")
        return number // divisor

    def _field(self, key: str) -> Any:
        """Return the value of a field; None where the file does not say it."""
        numbers = self.metadata.of_layers(key)
        if numbers is None:
            return None
        if key in self.family.near:
            numbers, own = self._split_by_window(numbers)
            self.values[self.family.near[key]] = own
        if key in self.family.attending:
            numbers = [number for number in numbers if number]
            if not numbers:
                return None
        double = self.family.extra.get("double width")
        if double and key == "feed_forward_length" and len(set(numbers)) > 1:
            own, shared = numbers[0], self.metadata.number("attention.shared_kv_layers", 0)
            fits = type(shared) is int and shared <= len(numbers)
            self.values[double] = fits and numbers == [own] * (len(numbers) - shared) + [2 * own] * shared
            numbers = [own] if self.values[double] else numbers
        return self.metadata.common(key, numbers)

    def _split_by_window(self, numbers: list[Any]) -> tuple[list[Any], Any]:
        """Return the numbers of the layers without a window, and the single number of those with one; a single number
        for all layers if they are equal."""
        windows = self.metadata.of_layers(PATTERN) or []
        if len(numbers) == 1 or len(windows) != len(numbers):
            return numbers, numbers[0]
        near = [number for number, window in zip(numbers, windows, strict=True) if window]
        far = [number for number, window in zip(numbers, windows, strict=True) if not window]
        return far or near, self.metadata.common(PATTERN, near or far)

    def _name(self, names: tuple[str, ...]) -> str:
        """Return the one of several fields that the family has."""
        return next((name for name in names if name in self.family.fields.values()), names[0])

    def _size(self, names: tuple[str, ...]) -> int:
        """Return the value of the one of these fields that the family has. Raises InputError where there is none."""
        name = self._name(names)
        value = self.values.get(name)
        if type(value) is not int or value < 1:
            key = next(key for key, field in self.family.fields.items() if field == name)
            raise GgufMetadataErrors.MISSING(path=self.metadata.header.path, key=self.metadata.name(key))
        return value

    def _vocabulary(self) -> int:
        """Return the number of rows of the embedding."""
        rows = self.metadata.rows(EMBEDDING)
        stated = self.metadata.number("vocab_size", rows)
        if stated != rows:
            raise self.metadata.bad("vocab_size", stated, f"{rows}, as the embedding has rows")
        return rows

    def _layers(self) -> int:
        """Return the number of layers, without the multi-token prediction layers behind them."""
        layers = self._size(_LAYERS) - int(self.metadata.number(PREDICTED_LAYERS, 0))
        if layers < 1:
            raise self.metadata.bad(PREDICTED_LAYERS, layers, "fewer than all layers")
        if layers > MAX_LAYERS:
            raise self.metadata.bad("block_count", layers, f"at most {MAX_LAYERS}")
        return layers

    def _dense_layers(self) -> dict[str, Any]:
        """Return the layers without experts, by their tensors: files may omit the number of leading dense layers."""
        tensors, layers = self.metadata.header.tensors, range(self.values[self._name(_LAYERS)])
        sparse = [f"blk.{layer}.ffn_gate_inp.weight" in tensors for layer in layers]
        found: dict[str, Any] = {}
        if "leading_dense_block_count" in self.family.fields and any(sparse):
            found[self.family.fields["leading_dense_block_count"]] = sparse.index(True)
        name = self.family.extra.get("kinds of layers")
        return found | ({name: ["sparse" if each else "dense" for each in sparse]} if name else {})

    def _tokens(self) -> dict[str, int | None]:
        """Return the ids of special tokens."""
        found = {name: self.metadata.header.metadata.get(f"tokenizer.ggml.{key}") for key, name in _TOKENS.items()}
        return {name: value if type(value) is int else None for name, value in found.items()}

    def _sparsity(self) -> dict[str, Any]:
        """Return the fraction of zero activations of each layer; Gemma 3n's files have it as a multiple of the standard
        deviation."""
        key = self.family.extra.get("sparsity")
        scales = self.metadata.get(key) if key else None
        if not isinstance(scales, np.ndarray):
            return {}
        normal = NormalDist()
        shares = [round(normal.cdf(scale), 6) if math.isfinite(scale) else 0.0 for scale in scales.tolist()]
        return {"activation_sparsity_pattern": shares}

    def _shared_projection(self) -> dict[str, bool]:
        """Return True if the values of layers without a window are their keys, whose projection alone is stored."""
        name, tensors = self.family.extra.get("value is key"), self.metadata.header.tensors
        keys = [tensor for tensor in tensors if tensor.endswith(".attn_k.weight")]
        return {name: any(key.replace("attn_k", "attn_v") not in tensors for key in keys)} if name else {}

    def _heads(self) -> tuple[int, dict[str, Any]]:
        """Return the width of a head, and the fields that follow from it. Raises UnsupportedError for widths that no
        field of the config can express."""
        heads, hidden, metadata = self._size(_HEADS), self._size(_HIDDEN), self.metadata
        width = metadata.number("attention.key_length", hidden // heads)
        if type(width) is not int or width < 1:
            raise metadata.bad("attention.key_length", width, "the numbers of a head")
        near = metadata.number("attention.key_length_swa", width)
        fields = self.family.fields
        for key, value, expected in (
            ("attention.key_length", width, width if "attention.key_length" in fields else hidden / heads),
            ("attention.key_length_swa", near, near if "attention.key_length_swa" in fields else width),
            ("attention.value_length", metadata.number("attention.value_length", width), width),
            ("attention.value_length_swa", metadata.number("attention.value_length_swa", near), near),
            ("attention.head_count_kv", self._kv_heads(heads), heads),
            ("rope.dimension_count_swa", metadata.number("rope.dimension_count_swa", near), near),
        ):
            if value != expected:
                raise metadata.not_honoured(metadata.name(key), value)
        found = {fields["attention.key_length"]: width} if "attention.key_length" in fields else {}
        layers = self.family.extra.get("layers of wide queries")
        if layers is not None:
            found["query_pre_attn_scalar"] = hidden // heads if self.values[self._name(_LAYERS)] == layers else width
        return width, found

    def _kv_heads(self, heads: int) -> Any:
        """Return the number of KV heads of a family that has no field for it, which must be that of all heads."""
        if "attention.head_count_kv" in (*self.family.fields, *self.family.fixed):
            return heads
        return self.metadata.number("attention.head_count_kv", heads)

    def _latent(self) -> tuple[int, dict[str, Any]]:
        """Return the rotated numbers of a head of multi-head latent attention, and the widths of heads."""
        metadata, heads = self.metadata, self._size(_HEADS)
        rotated = metadata.number("rope.dimension_count")
        key = metadata.number("attention.key_length_mla") or metadata.number("attention.key_length")
        for name in ("attention.key_length", "attention.value_length"):
            metadata.get(name)  # widths of latent rows, if those of heads are stated too
        if not rotated or not key or key < rotated:
            raise metadata.bad("rope.dimension_count", rotated, f"1 to {key}, the numbers of a key")
        found = {"qk_rope_head_dim": rotated, "qk_nope_head_dim": key - rotated, "num_key_value_heads": heads}
        whole = "blk.0.attn_kv_b.weight"
        if "v_head_dim" not in self.values and whole in metadata.header.tensors:
            found["v_head_dim"] = metadata.rows(whole) // heads - found["qk_nope_head_dim"]
        grouped = self.values.get("n_group", 1) > 1 and self.family.extra.get("groups of experts")
        return rotated, found | ({"topk_method": "group_limited_greedy"} if grouped else {})

    def _window(self) -> dict[str, Any]:
        """Return which layers attend within a window, and its size."""
        window = self.family.window
        if window is None:
            return {}
        size = self.metadata.number("attention.sliding_window", window.size) or None
        layers = self.values[self._name(_LAYERS)]
        pattern = self.metadata.of_layers(PATTERN) or [window.period]
        if len(pattern) == 1 and not pattern[0]:
            return {window.field: size}
        if len(pattern) == 1:
            last = 0 if window.whole_first else pattern[0] - 1
            pattern = [layer % pattern[0] != last for layer in range(layers)]
        if len(pattern) < layers:
            raise self.metadata.bad(PATTERN, len(pattern), f"{layers} numbers")
        name = "chunked_attention" if window.chunked else "sliding_attention"
        types = [name if size and each else "full_attention" for each in pattern[:layers]]
        return {window.field: size, "layer_types": types}
