"""Kept captures: an export is returned for an equal model in an equal shape, and for no other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import MistralConfig

from sscc.compiler.frontend import capture as frontend
from sscc.compiler.frontend.capture import Capture, capture
from sscc.compiler.frontend.construction import build_model
from tests.captures import Exports
from tests.families import SHAPE


@pytest.fixture
def exported_arguments(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The arguments of every export that is made."""
    exports: list[tuple[Any, ...]] = []

    def export(*arguments: Any) -> Any:
        exports.append(arguments)
        return frontend.Captured(None, {}, {}, {}, {}, "")  # type: ignore[arg-type]

    monkeypatch.setattr(frontend, "_export", Exports(export))
    monkeypatch.setattr(frontend, "_weight_shapes", lambda captured: {})
    return exports


def captured(
    dtype: torch.dtype = torch.float32, batch: int = 1, chunk: int = 8, max_context: int = 64, **config: Any
) -> Capture:
    model = build_model(MistralConfig(**{**SHAPE, "num_key_value_heads": 2, "sliding_window": None, **config}), dtype)
    return capture(model, batch=batch, chunk=chunk, max_context=max_context)


def test_an_equal_model_in_an_equal_shape_is_exported_once(exported_arguments: list[tuple[Any, ...]]) -> None:
    first, again = captured(), captured()
    assert (again.prefill, again.decode) == (first.prefill, first.decode)
    assert len(exported_arguments) == 2


def test_an_entry_of_another_shape_alone_is_made_anew(exported_arguments: list[tuple[Any, ...]]) -> None:
    captured()
    captured(batch=3)
    captured(chunk=7, max_context=48)
    assert [arguments[1] for arguments in exported_arguments] == [(1, 8), (1, 1), (3, 1), (1, 7)]


@pytest.mark.parametrize(
    "other",
    [{"dtype": torch.bfloat16}, {"sliding_window": 64}, {"rms_norm_eps": 1e-3}, {"num_hidden_layers": 3}],
    ids=lambda other: next(iter(other)),
)
def test_another_model_is_exported_too(other: dict[str, Any], exported_arguments: list[tuple[Any, ...]]) -> None:
    captured()
    captured(**other)
    assert len(exported_arguments) == 4


def test_where_there_are_windows_another_context_is_exported_too(exported_arguments: list[tuple[Any, ...]]) -> None:
    for context in (64, 48, 64):
        captured(sliding_window=64, max_context=context)
    assert len(exported_arguments) == 4
