"""Results of torch.export for tiny models, kept for the next test that compiles the same model in the same shape.

An export takes half a second. It contains no weights: it depends only on the model's class, its config, the shapes,
and, if the model has sliding windows, on the context. All later steps, from the import into MLIR on, run in every
compilation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from sscc.compiler.frontend import capture, operator

KEPT = 64
"""Number of exports that are kept: the most recently used ones."""


_EXPORT = capture._export


class Exports:
    """Replacement of `capture._export` for models built from a config: it returns the export of an equal model
    again."""

    def __init__(self, export: Callable[..., capture.Captured] = _EXPORT) -> None:
        self._export = export
        self._kept: dict[Any, capture.Captured] = {}

    def __call__(self, entry: Any, *arguments: Any) -> capture.Captured:
        if entry.exported:
            return self._export(entry, *arguments)
        # If a model has windows, its forward depends on the context: a window of at least the context has no effect.
        fields = ("sliding_window", "attention_chunk_size")
        windows = any(getattr(entry.model.config, field, None) is not None for field in fields)
        context = operator._context.get() if windows else None
        key = (_model_key(entry.model), context, _plain(arguments))
        exported = self._kept.pop(key, None) or self._export(entry, *arguments)
        self._kept[key] = exported
        if len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]
        return exported


@contextmanager
def exports_kept() -> Iterator[None]:
    with mock.patch.object(capture, "_export", Exports()):
        yield


@contextmanager
def exports_anew() -> Iterator[None]:
    with mock.patch.object(capture, "_export", _EXPORT):
        yield


def _model_key(model: torch.nn.Module) -> Any:
    """Everything that a forward depends on: buffers that are not persistent are computed from the config."""
    config: Any = model.config
    described = config.to_dict()
    described.pop("_name_or_path", None)  # a model is the same one in whatever folder it lies
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return (
        type(model),
        json.dumps(described, sort_keys=True, default=str),
        config._attn_implementation,
        tuple((name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors),
    )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(sorted(value.items()))
    if isinstance(value, (set, frozenset)):
        return tuple(sorted(value))
    return tuple(map(_plain, value)) if isinstance(value, (list, tuple)) else value
