"""The `quantization_config` of a config.json: a method and its fields.

A known field is honoured, or is listed as one that changes no weight. Any other field is refused by name, with the
method: ignoring it might read other numbers than intended. Fields without a value (null, false, empty) are ignored.

Activations, which some methods round while a model runs, are not rounded here: a checkpoint defines weights only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sscc.ir.errors import ErrorKind, InputError, UnsupportedError

FP8, MXFP4, GPTQ, AWQ, COMPRESSED = "fp8", "mxfp4", "gptq", "awq", "compressed-tensors"
MODELOPT = "modelopt"

_GPTQ_MAKING = "damp_percent damp_auto_increment static_groups true_sequential model_name_or_path model_file_base_name"
_GPTQ_RUNNING = "use_exllama exllama_config max_input_length use_cuda_fp16 disable_exllama use_triton backend"
_CALIBRATION = "dataset tokenizer batch_size pad_token_id model_seqlen cache_block_outputs meta version"
_MODULES = "block_name_to_quantize module_name_preceding_first_block modules_in_block_to_quantize lm_head"

_HARMLESS: Mapping[str, str] = {
    FP8: "activation_scheme modules_to_not_convert ignored_layers dequantize scale_fmt",
    MXFP4: "modules_to_not_convert dequantize",
    GPTQ: f"{_GPTQ_MAKING} {_GPTQ_RUNNING} {_CALIBRATION} {_MODULES} group_size desc_act sym is_marlin_format",
    AWQ: f"group_size modules_to_not_convert fuse_max_seq_len do_fuse modules_to_fuse {_GPTQ_RUNNING} {_CALIBRATION}",
    COMPRESSED: "config_groups ignore global_compression_ratio quantization_status kv_cache_scheme version",
    MODELOPT: "config_groups ignore exclude_modules group_size kv_cache_scheme kv_cache_quant_algo producer "
    "quantized_layers",
}
"""Fields whose information is also in the tensors, or that describe how the weights were made or are multiplied
elsewhere."""

_VALUES: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    FP8: {"fmt": ("e4m3", "float8_e4m3fn")},  # DeepSeek's name, and MiniMax's
    MXFP4: {},
    GPTQ: {"bits": (4, 8), "checkpoint_format": ("gptq", "gptq_v2"), "pack_dtype": ("int32",), "format": ("gptq",)},
    AWQ: {"bits": (4,), "version": ("gemm", "GEMM"), "zero_point": (True,), "format": ("gemm",), "backend": ("gemm",)},
    COMPRESSED: {
        "format": (
            *("dense", "int-quantized", "naive-quantized", "pack-quantized"),
            *("float-quantized", "mixed-precision", "nvfp4-pack-quantized"),
        ),
    },
    MODELOPT: {"quant_algo": ("FP8", "NVFP4", "W4A16_NVFP4", "MIXED_PRECISION")},
}
"""Fields that must have one of these values if they are present."""

_FREE: Mapping[str, tuple[str, ...]] = {FP8: ("weight_block_size",)}
"""Fields that the reading of tensors honours and checks."""


class QuantizationConfigErrors(ErrorKind):
    NO_METHOD = InputError, "{origin}: quantization_config names no quant_method"
    UNKNOWN_METHOD = (
        UnsupportedError,
        "{origin}: the weights are quantized by quant_method {method!r}{hint}, but sscc supports only {known}: "
        "dequantize "
        "them to f32, f16 or bf16 and remove quantization_config",
    )
    OTHER_VALUE = (
        UnsupportedError,
        "{origin}: quant_method {method!r} with {field} = {value:.80} is not supported, {field} must be one of {known}",
    )
    UNKNOWN_FIELD = (
        UnsupportedError,
        "{origin}: quant_method {method!r} has the unknown field {field} = {value:.80}, whose effect on the weights "
        "would be lost",
    )


def check_quantization(fields: Mapping[str, Any], origin: str) -> str:
    """Return the method of a `quantization_config` whose weights can be read.

    Raises:
        InputError: it names no method.
        UnsupportedError: an unsupported method, or a field that would not be honoured.
    """
    method = fields.get("quant_method")
    if not isinstance(method, str) or not method:
        if fields.get("load_in_4bit") or fields.get("load_in_8bit"):
            method = "bitsandbytes"  # older configs do not name it
        else:
            raise QuantizationConfigErrors.NO_METHOD(origin=origin)
    if method not in _HARMLESS:
        kind = next((f" ({name})" for name in ("load_in_4bit", "load_in_8bit", "quant_algo") if fields.get(name)), "")
        raise QuantizationConfigErrors.UNKNOWN_METHOD(origin=origin, method=method, hint=kind, known=list(_HARMLESS))
    harmless = {"quant_method", *_HARMLESS[method].split(), *_FREE.get(method, ())}
    for name, value in fields.items():
        listed = _VALUES[method].get(name)
        if listed is not None and (value is None or value in listed):
            continue
        if listed is not None:
            raise QuantizationConfigErrors.OTHER_VALUE(
                origin=origin, method=method, field=name, value=repr(value), known=list(listed)
            )
        if name == "sparsity_config" and isinstance(value, Mapping) and value.get("format") == "dense":
            continue  # the weights were made sparse, but are stored dense
        if name not in harmless and value not in (None, False, "", [], {}):
            raise QuantizationConfigErrors.UNKNOWN_FIELD(origin=origin, method=method, field=name, value=repr(value))
    return method
