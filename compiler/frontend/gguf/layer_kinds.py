"""The kinds of the layers of a hybrid model, from the metadata of a GGUF file.

A layer without KV heads keeps a recurrent state or the inputs of a convolution; the arrays of numbers that say so have
an entry for each layer, those behind the model's own included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sscc.compiler.frontend.gguf.model_metadata import Metadata

KV_HEADS, FEED_FORWARD = "attention.head_count_kv", "feed_forward_length"
RECURRENT, INTERVAL = "attention.recurrent_layers", "full_attention_interval"
USUAL_INTERVAL = 4
"""Length of an interval whose last layer has attention, for files that do not state it."""
Fields = dict[str, Any]


def kinds_of_layers(metadata: Metadata, kinds: str, layers: int) -> Fields:
    """Return the fields of a config that state the kind of each layer.

    Args:
        kinds: a name of `KINDS`.

    Raises:
        InputError: missing or invalid numbers.
        UnsupportedError: kinds for which the config has no field.
    """
    return KINDS[kinds](metadata, layers)


def _of_layers(metadata: Metadata, key: str, layers: int) -> list[Any]:
    """Return one number for each of the model's own layers."""
    values = metadata.of_layers(key)
    values = [0] if values is None else values
    if len(values) == 1:
        return values * layers
    if len(values) < layers:
        raise metadata.bad(key, len(values), f"{layers} numbers")
    return values[:layers]


def _beside(kind: str) -> Callable[[Metadata, int], Fields]:
    """Return a function that says which layers attend; the others are of the given kind."""

    def fields(metadata: Metadata, layers: int) -> Fields:
        heads = _of_layers(metadata, KV_HEADS, layers)
        return {"layer_types": ["full_attention" if each else kind for each in heads]}

    return fields


def _indices(metadata: Metadata, layers: int) -> Fields:
    heads = _of_layers(metadata, KV_HEADS, layers)
    return {"attn_layer_indices": [layer for layer, each in enumerate(heads) if each]}


def _blocks(metadata: Metadata, layers: int) -> Fields:
    """Nemotron-H: each layer has attention, or an MLP or experts, or keeps a state, and nothing else."""
    heads, widths = (_of_layers(metadata, key, layers) for key in (KV_HEADS, FEED_FORWARD))
    wide = "moe" if metadata.number("expert_count", 0) else "mlp"
    kinds = ["full_attention" if head else wide if width else "linear_attention"
             for head, width in zip(heads, widths, strict=True)]  # fmt: skip
    return {"layers_block_type": kinds}


def _periods(metadata: Metadata, layers: int) -> Fields:
    """Jamba: layers with attention, and layers with experts, have a period and an offset each."""
    heads = _of_layers(metadata, KV_HEADS, layers)
    routers = [f"blk.{layer}.ffn_gate_inp.weight" in metadata.header.tensors for layer in range(layers)]
    period, offset = _period(metadata, KV_HEADS, [bool(each) for each in heads])
    found = {"attn_layer_period": period, "attn_layer_offset": offset}
    if not any(routers):
        return found | {"num_experts": 1}
    period, offset = _period(metadata, "expert_count", routers)
    return found | {"expert_layer_period": period, "expert_layer_offset": offset}


def _period(metadata: Metadata, key: str, chosen: list[bool]) -> tuple[int, int]:
    """Return the period and the offset of the chosen layers. Raises UnsupportedError where they have none."""
    places = [layer for layer, each in enumerate(chosen) if each]
    if not places:
        return len(chosen) + 1, len(chosen)
    period = places[1] - places[0] if len(places) > 1 else len(chosen)
    if places != list(range(places[0], len(chosen), period)) or places[0] >= period:
        raise metadata.not_honoured(metadata.name(key), places)
    return period, places[0]


def _interval(metadata: Metadata, layers: int) -> Fields:
    """Qwen3-Next and Qwen3.5: layers with attention are listed, or are the last of each interval."""
    interval = metadata.number(INTERVAL, USUAL_INTERVAL)
    recurrent = metadata.of_layers(RECURRENT)
    if recurrent is None:
        if type(interval) is not int or interval < 1:
            raise metadata.bad(INTERVAL, interval, "a number of layers")
        recurrent = [(layer + 1) % interval != 0 for layer in range(layers)]
    else:
        recurrent = _of_layers(metadata, RECURRENT, layers)
    return {"layer_types": ["linear_attention" if each else "full_attention" for each in recurrent]}


KINDS: Mapping[str, Callable[[Metadata, int], Fields]] = {
    "convolutions": _beside("conv"),
    "recurrences": _beside("linear_attention"),
    "indices": _indices,
    "blocks": _blocks,
    "periods": _periods,
    "interval": _interval,
}
