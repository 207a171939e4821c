"""The config of a GGUF file: its metadata in the fields of transformers' config.

Every entry under the architecture's name is honoured, is neutral, or is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

import numpy as np
from gguf.quants import dequantize
from transformers import PreTrainedConfig

from sscc.compiler.frontend.gguf.families import FAMILIES, Family
from sscc.compiler.frontend.gguf.header import GgufHeader
from sscc.compiler.frontend.model_config import config_from_dict
from sscc.ir.errors import ErrorKind, InputError, UnsupportedError

NEUTRAL: Mapping[str, Any] = {
    "attention.causal": True,
    "expert_weights_scale": 1.0,
    "expert_group_count": 1,
    "expert_group_used_count": 1,
    "rope.scaling.type": "none",
    "rope.scaling.factor": 1.0,
    "rope.scaling.attn_factor": 1.0,
}
"""Values that say what holds without them. So do 0, False and empty ones."""
NO_RESULT = ("rope.scaling.finetuned", "rope.scaling.original_context_length")
"""Keys that change no result by themselves."""
PASSED_OVER = ("general.", "tokenizer.", "quantize.", "split.", "imatrix.")
"""Groups of keys that say nothing of the computation."""
SMALLEST, LARGEST = 0, 1 << 31
ROPE_FREQUENCIES = "rope_freqs.weight"
ROPE_FACTORS = ("rope_factors_long.weight", "rope_factors_short.weight")
NOT_DECODERS: Mapping[str, str] = {
    "clip": "the vision or audio part of a model (mmproj), without its decoder",
    **dict.fromkeys(
        ("bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3", "modern-bert", "neo-bert", "eurobert",
         "gemma-embedding", "llama-embed", "t5encoder"),
        "an embedding model, not a decoder",
    ),
    "wavtokenizer-dec": "a vocoder, not a language model",
}  # fmt: skip


class GgufConfigErrors(ErrorKind):
    """Models in GGUF files that are not read, and metadata that are not honoured."""

    ARCHITECTURE = UnsupportedError, "{path}: architecture {architecture!r} is not read; known are {known}"
    NOT_A_DECODER = UnsupportedError, "{path} is {what}"
    METADATA = UnsupportedError, "{path}: metadata {key} = {value} is not honoured for architecture {architecture!r}"
    MISSING = InputError, "{path} lacks metadata {key}"
    VALUE = InputError, "{path}: metadata {key} is {value!r}, expected {expected}"
    LAYERS_DIFFER = UnsupportedError, "{path}: metadata {key} differs from layer to layer: {value}"
    NO_EMBEDDING = InputError, "{path} lacks tensor {tensor!r}"


def family_of(header: GgufHeader) -> Family:
    """Return the family of a file.

    Raises:
        UnsupportedError: an architecture that is not known, or no decoder.
    """
    architecture = header.architecture
    kind = header.metadata.get("general.type", "model")
    if kind not in ("model", ""):
        raise GgufConfigErrors.NOT_A_DECODER(path=header.path, what=f"a file of type {kind!r}, not a model")
    if architecture in NOT_DECODERS:
        raise GgufConfigErrors.NOT_A_DECODER(path=header.path, what=NOT_DECODERS[architecture])
    for family in FAMILIES.get(architecture, ()):
        if _holds(header, family.when):
            return family
    raise GgufConfigErrors.ARCHITECTURE(path=header.path, architecture=architecture, known=sorted(FAMILIES))


def _holds(header: GgufHeader, when: tuple[str, Any] | str) -> bool:
    if not when:
        return True
    key, expected = (when, None) if isinstance(when, str) else when
    value = header.metadata.get(f"{header.architecture}.{key}")
    return bool(np.any(value)) if expected is None else bool(value == expected)


def config_of(header: GgufHeader, family: Family) -> PreTrainedConfig:
    """Return the config of a file.

    Raises:
        InputError: metadata that are missing, or of another type.
        UnsupportedError: metadata that are not honoured.
    """
    return config_from_dict(_Config(header, family).values(), str(header.path))


class _Config:
    """Metadata of a file as they become a config.

    Attributes:
        used: the keys that have been read.
    """

    def __init__(self, header: GgufHeader, family: Family) -> None:
        self.header, self.family = header, family
        self.used = {family.when if isinstance(family.when, str) else family.when[0]}

    def values(self) -> dict[str, Any]:
        """Return the fields of the config."""
        family, values = self.family, {"model_type": self.family.model_type, **self.family.constants}
        for key, name in family.fields.items():
            value = self.layers_value(key)
            if value is not None:
                values[name] = value
        values["num_hidden_layers" if "num_hidden_layers" in values else "n_layer"] = self.layers = self._layers(values)
        values |= self._sparsity()
        values |= {name: tensor in self.header.tensors for name, tensor in family.present.items()}
        values["vocab_size"] = self._vocabulary()
        values["tie_word_embeddings"] = "output.weight" not in self.header.tensors
        values |= self._tokens()
        values |= self._heads(values)
        values |= self._window(values)
        values |= self._rope(values)
        self._check_rest()
        return values

    # ------------------------------------------------------------------------------------------------- metadata

    def get(self, key: str) -> Any:
        """Return a value by its key behind the architecture's name; None where there is none."""
        self.used.add(key)
        return self.header.metadata.get(f"{self.header.architecture}.{key}")

    def layers_value(self, key: str) -> Any:
        """Return a value that may be a list of equal ones, one for each layer."""
        value = self.get(key)
        if isinstance(value, np.ndarray):
            numbers = [self.checked(key, number) for number in value.tolist()]
            if not numbers or any(number != numbers[0] for number in numbers):
                own = [number for number in numbers if number]
                if self.family.extra.get("conv where no heads") and own and len(set(own)) == 1:
                    return own[0]
                raise GgufConfigErrors.LAYERS_DIFFER(path=self.header.path, key=self.name(key), value=numbers[:8])
            value = numbers[0]
        return None if value is None else self.checked(key, value)

    def checked(self, key: str, value: Any) -> Any:
        """Return a number, checked."""
        fits = isinstance(value, bool) or (type(value) is int and SMALLEST <= value < LARGEST)
        if isinstance(value, float):  # f32: the decimal that somebody wrote
            value = float(str(np.float32(value)))
        if not fits and not (isinstance(value, float) and math.isfinite(value)):
            raise GgufConfigErrors.VALUE(
                path=self.header.path, key=self.name(key), value=value, expected="a number within 31 bits"
            )
        return value

    def number(self, key: str, default: Any = None) -> Any:
        """Return a number; the default where there is none."""
        value = self.get(key)
        return default if value is None else self.checked(key, value)

    def name(self, key: str) -> str:
        return f"{self.header.architecture}.{key}"

    def _check_rest(self) -> None:
        """Refuse what has not been read and is not neutral."""
        prefix = f"{self.header.architecture}."
        for key, value in self.header.metadata.items():
            name = key.removeprefix(prefix)
            if key.startswith(prefix):
                if name in self.used or name in self.family.ignored or name in NO_RESULT or _is_neutral(name, value):
                    continue
            elif key.startswith(PASSED_OVER) or key in self.family.numbers:
                continue
            raise GgufConfigErrors.METADATA(
                path=self.header.path, key=key, value=str(value)[:80], architecture=self.header.architecture
            )

    # ---------------------------------------------------------------------------------------------- what follows

    def _layers(self, values: Mapping[str, Any]) -> int:
        """Return the number of layers, without those behind them that predict several tokens."""
        layers = self._first(values, ("num_hidden_layers", "n_layer"))
        return layers - int(self.number("nextn_predict_layers", 0))

    def _sparsity(self) -> dict[str, Any]:
        """Return the share of activations that are zero, which a file has as a multiple of the standard deviation."""
        key, name = self.family.extra.get("sparsity", ("", ""))
        scales = self.get(key) if key else None
        if not isinstance(scales, np.ndarray):
            return {}
        normal = NormalDist()
        shares = [round(normal.cdf(scale), 6) if math.isfinite(scale) else 0.0 for scale in scales.tolist()]
        rank = self.header.tensors.get("blk.0.laurel_l.weight")
        per_layer = self.header.tensors.get("per_layer_token_embd.weight")
        found = {name: shares} | ({} if rank is None else {"laurel_rank": rank.shape[0]})
        return found | ({} if per_layer is None else {"vocab_size_per_layer_input": per_layer.shape[0]})

    def _vocabulary(self) -> int:
        """Return the number of rows of the embedding."""
        embedding = self.header.tensors.get("token_embd.weight")
        if embedding is None:
            raise GgufConfigErrors.NO_EMBEDDING(path=self.header.path, tensor="token_embd.weight")
        rows = embedding.shape[0]
        said = self.number("vocab_size", rows)
        if said != rows:
            raise GgufConfigErrors.VALUE(
                path=self.header.path, key=self.name("vocab_size"), value=said, expected=f"{rows}, as the embedding has"
            )
        return rows

    def _tokens(self) -> dict[str, int | None]:
        """Return the ids of special tokens."""
        fields = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "padding_token_id": "pad_token_id"}
        found = {name: self.header.metadata.get(f"tokenizer.ggml.{key}") for key, name in fields.items()}
        return {name: value if type(value) is int else None for name, value in found.items()}

    def _heads(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return what follows from the widths of heads, and check what the config has no field for."""
        if "kv_lora_rank" in values:
            return self._latent(values)
        heads, hidden = (self._first(values, names) for names in (("num_attention_heads", "n_head"), _HIDDEN))
        width = self.number("attention.key_length", hidden // max(heads, 1))
        if "attention.key_length" not in self.family.fields and width * heads != hidden:
            raise GgufConfigErrors.METADATA(
                path=self.header.path, key=self.name("attention.key_length"), value=str(width),
                architecture=self.header.architecture,
            )  # fmt: skip
        if self.number("attention.value_length", width) != width:
            raise GgufConfigErrors.METADATA(
                path=self.header.path, key=self.name("attention.value_length"),
                value=str(self.get("attention.value_length")), architecture=self.header.architecture,
            )  # fmt: skip
        self.head_dim = width
        layers = self.family.extra.get("query scale")
        if layers is None:
            return {}
        return {"query_pre_attn_scalar": hidden // heads if values["num_hidden_layers"] == layers else width}

    def _first(self, values: Mapping[str, Any], names: tuple[str, ...]) -> int:
        """Return the value of the one of these fields that is there."""
        found = next((values[name] for name in names if name in values), None)
        if type(found) is not int or found < 1:
            key = next(key for key, name in self.family.fields.items() if name in names)
            raise GgufConfigErrors.MISSING(path=self.header.path, key=self.name(key))
        return found

    def _latent(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the widths of the heads of multi-head latent attention."""
        heads, rotary = values["num_attention_heads"], self.number("rope.dimension_count")
        key = self.number("attention.key_length_mla") or self.number("attention.key_length")
        for name in ("attention.key_length", "attention.value_length"):
            self.get(name)  # those of the latent rows, where the others are said too
        if rotary is None or key is None:
            raise GgufConfigErrors.MISSING(path=self.header.path, key=self.name("rope.dimension_count"))
        self.head_dim = rotary
        found = {"qk_rope_head_dim": rotary, "qk_nope_head_dim": key - rotary, "num_key_value_heads": heads}
        whole = self.header.tensors.get("blk.0.attn_kv_b.weight")
        if "v_head_dim" not in values and whole is not None:
            found["v_head_dim"] = whole.shape[0] // max(heads, 1) - found["qk_nope_head_dim"]
        if values.get("n_group", 1) > 1 and self.family.model_type == "deepseek_v2":
            return found | {"topk_method": "group_limited_greedy"}
        return found

    def _window(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return which layers attend within a window, and the size of that."""
        kinds = self.get("attention.head_count_kv")
        if self.family.extra.get("conv where no heads") and isinstance(kinds, np.ndarray):
            return {"layer_types": ["full_attention" if heads else "conv" for heads in kinds.tolist()]}
        window = self.family.window
        if window is None:
            return {}
        size = self.number("attention.sliding_window", window.size) or None
        pattern, layers = self.get("attention.sliding_window_pattern"), self._first(values, ("num_hidden_layers",))
        if isinstance(pattern, np.ndarray):
            if len(pattern) != layers:
                raise GgufConfigErrors.VALUE(
                    path=self.header.path, key=self.name("attention.sliding_window_pattern"), value=len(pattern),
                    expected=f"{layers} numbers",
                )  # fmt: skip
            within = [bool(item) for item in pattern.tolist()]
        else:
            period = self.checked("attention.sliding_window_pattern", pattern or window.period)
            if not period:
                return {window.field: size}
            last = 0 if window.whole_first else period - 1
            within = [layer % period != last for layer in range(layers)]
        name = "chunked_attention" if window.chunked else "sliding_attention"
        types = [name if size and each else "full_attention" for each in within]
        return {window.field: size, "layer_types": types}

    # ------------------------------------------------------------------------------------------- rotary embedding

    def _rope(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of the rotary embedding."""
        theta = float(self.number("rope.freq_base", 10000.0))
        rope: dict[str, Any] = {"rope_type": "default", "rope_theta": theta, **self.family.extra.get("rope", {})}
        rope |= self._scaling(values)
        rotated = self.number("rope.dimension_count", self.head_dim)
        if self.family.partial:
            rope["partial_rotary_factor"] = rotated / self.head_dim
        elif rotated != self.head_dim:
            raise GgufConfigErrors.METADATA(
                path=self.header.path, key=self.name("rope.dimension_count"), value=str(rotated),
                architecture=self.header.architecture,
            )  # fmt: skip
        near = float(self.number("rope.freq_base_swa", theta))
        original = {"original_max_position_embeddings": rope["original_max_position_embeddings"]} \
            if "original_max_position_embeddings" in rope and self.family.model_type.startswith("phi") else {}
        if self.family.two_ropes:
            plain = {"rope_type": "default", "rope_theta": near}
            return {"rope_parameters": {"full_attention": rope, "sliding_attention": plain}}
        if near != theta:
            raise GgufConfigErrors.METADATA(
                path=self.header.path, key=self.name("rope.freq_base_swa"), value=str(near),
                architecture=self.header.architecture,
            )  # fmt: skip
        return {"rope_parameters": rope, **original}

    def _scaling(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return what scales the rotary embedding: factors of single frequencies, or a method."""
        kind = self.get("rope.scaling.type") or "none"
        length = self.number("rope.scaling.original_context_length") or values.get("max_position_embeddings")
        attention = self.number("rope.scaling.attn_factor")
        if ROPE_FACTORS[0] in self.header.tensors:
            long, short = (self._factors(name) for name in ROPE_FACTORS)
            rope = {"rope_type": "longrope", "long_factor": long, "short_factor": short}
            rope["original_max_position_embeddings"] = length
            return rope | ({} if attention is None else {"attention_factor": attention})
        if ROPE_FREQUENCIES in self.header.tensors:
            factors = self._factors(ROPE_FREQUENCIES)
            if any(factor != 1.0 for factor in factors):
                rope = {"rope_type": "longrope", "long_factor": factors, "short_factor": factors}
                return rope | {"original_max_position_embeddings": length, "attention_factor": 1.0, "factor": 1.0}
        if kind == "linear":
            return {"rope_type": "linear", "factor": float(self.number("rope.scaling.factor", 1.0))}
        if kind == "yarn":
            return self._yarn(length)
        if kind not in ("none", "longrope"):
            raise GgufConfigErrors.METADATA(
                path=self.header.path, key=self.name("rope.scaling.type"), value=str(kind),
                architecture=self.header.architecture,
            )  # fmt: skip
        return {"original_max_position_embeddings": length} if self.family.model_type.startswith("phi3") else {}

    def _yarn(self, length: int) -> dict[str, Any]:
        """Return the parameters of YaRN (arXiv 2309.00071)."""
        rope: dict[str, Any] = {"rope_type": "yarn", "factor": float(self.number("rope.scaling.factor", 1.0))}
        rope["original_max_position_embeddings"] = length
        names = {"yarn_attn_factor": "attention_factor", "yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow"}
        for key, name in names.items():
            value = self.number(f"rope.scaling.{key}")
            if value is not None:
                rope[name] = float(value)
        multiplier = self.number("rope.scaling.yarn_log_multiplier")
        if multiplier:
            all_dims = multiplier if self.family.model_type == "ministral3" else multiplier / 0.1
            rope |= {"mscale": all_dims, "mscale_all_dim": all_dims}
        temperature = self.number("attention.temperature_scale")
        if temperature:
            rope["llama_4_scaling_beta"] = temperature
        return rope

    def _factors(self, name: str) -> list[float]:
        """Return the factors of frequencies in a tensor."""
        tensor = self.header.tensors.get(name)
        if tensor is None:
            raise GgufConfigErrors.NO_EMBEDDING(path=self.header.path, tensor=name)
        factors = dequantize(tensor.stored(), tensor.type).reshape(-1)
        if len(factors) > LARGEST_ROPE or not np.isfinite(factors).all() or (factors <= 0).any():
            raise GgufConfigErrors.VALUE(
                path=self.header.path, key=name, value=len(factors), expected="positive numbers, one for each frequency"
            )
        return [float(factor) for factor in factors]


LARGEST_ROPE = 1 << 14
_HIDDEN = ("hidden_size", "n_embd")


def _is_neutral(name: str, value: Any) -> bool:
    """Return True for a value that says what holds without it."""
    if isinstance(value, np.ndarray | list):
        return len(value) == 0
    return not value or (name in NEUTRAL and NEUTRAL[name] == value)
