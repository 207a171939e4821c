"""The description of a family of models in GGUF files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

Names = dict[str, str]


class Layout(Enum):
    """The stored form of a parameter, for H heads of D numbers.

    ROTARY_Q, ROTARY_K: the rows of each head in pairs (0, D/2), (1, D/2 + 1), .., in place of halves.
    HEAD_QKV: all queries, then keys, then values, in place of those of each head.
    GROUP_QKV: the same, in place of those of each group of query heads with its KV head.
    GROUP_QKVZ: all queries, then keys, values and gates, in place of those of each key head with its value heads.
    TRANSPOSED: [N, K] in place of [K, N].
    LESS_ONE: 1 more than the parameter.
    LOG: minus the exponential of the parameter.
    INTERLEAVED: the parts in turn, [.., 2 N] or transposed [.., K, 2 N], in place of one tensor each.
    LATENT: parts k [H, R, N] and v [H, V, R] in place of rows of each head [H * (N + V), R].
    STACKED: the parameters of a list, one after another.
    """

    PLAIN = "plain"
    ROTARY_Q = "rotary q"
    ROTARY_K = "rotary k"
    HEAD_QKV = "head qkv"
    GROUP_QKV = "group qkv"
    GROUP_QKVZ = "group qkvz"
    TRANSPOSED = "transposed"
    LESS_ONE = "less one"
    LOG = "log"
    INTERLEAVED = "interleaved"
    LATENT = "latent"
    STACKED = "stacked"


@dataclass(frozen=True)
class Window:
    """The layers that attend within a window.

    Attributes:
        period: layers after which the pattern repeats; 0 if a file lists the layers, or all layers are equal.
        field: name of the config's field with the size; `chunked`: True if windows are chunks.
        size: the size for files that do not state it.
        whole_first: True if the first layer of a period attends to everything; else the last one does.
    """

    period: int = 0
    field: str = "sliding_window"
    size: int | None = None
    chunked: bool = False
    whole_first: bool = False


@dataclass(frozen=True)
class Family:
    """One family of models.

    Attributes:
        model_type: transformers' name.
        when: a metadata key, behind the architecture's name, that files of the family have, with a value other than 0,
            and others of the architecture do not; or the key and the value. "" for what is left.
        having: a tensor of any layer that files of the family have, and others do not; either this or `when` holds.
        fields: metadata key, behind the architecture's name -> field of the config; `a.b` is field b of the dict a.
        tensors: tensor -> parameter, both without `.weight` and `.bias` where both may have them. `*` is the number of
            a layer.
        layouts: tensor -> layout.
        shapes: tensor -> shape of the parameter, where that is another one: -1 is what is left, 0 the last stored size.
        tiled: tensor -> the axis along which the value heads lie in another order: the first of every key head, then
            the second of every one, in place of all heads of the first key head, then those of the second.
        joined: parameter -> tensors that it is made of, one below the other.
        constants: fields of the config that files do not say.
        quotients: field of the config -> the two keys whose quotient it is.
        present: field of the config -> a tensor, of any layer for `*`; the field is True where the file has it.
        rows: field of the config -> a tensor, of any layer for `*`, whose number of rows it is.
        kinds: the function of `sscc.compiler.frontend.gguf.layer_kinds` that says which kind each layer is of; "" where
            all are alike.
        rotary: False if no layer has a rotary embedding.
        window: which layers have one; None where the family knows none.
        partial: True if a part of a head may be rotated.
        two_ropes: True if layers with a window have a rotary embedding of their own.
        near_base: the base of that where files do not say it; None for the base of the others.
        attending: keys of which the layers that do not attend have 0.
        needed: keys that files must have, with a value other than 0.
        near: key -> field of the config, of the layers with a window; `fields` has that of the others.
        numbers: metadata key -> parameter, and its shape: parameters that are metadata, one number for each layer.
        fixed: key -> the one value that files may have, if they have the key.
        ignored: keys that change nothing.
        extra: what single families need, read by `sscc.compiler.frontend.gguf.config`.
    """

    model_type: str
    fields: Names
    tensors: Names
    when: tuple[str, Any] | str = ""
    having: str = ""
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    tiled: Mapping[str, int] = field(default_factory=dict)
    joined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    quotients: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    present: Names = field(default_factory=dict)
    rows: Names = field(default_factory=dict)
    kinds: str = ""
    rotary: bool = True
    window: Window | None = None
    partial: bool = False
    two_ropes: bool = False
    near_base: float | None = None
    attending: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    near: Names = field(default_factory=dict)
    numbers: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
