"""What tests of stacks of layers have in common: the sizes of tiny models, and sessions that are fed tokens."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from sscc.runtime.artifact.reading import Artifact
from sscc.runtime.session import Session

CONTEXT, BATCH, CHUNK = 64, 2, 7
SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
ROW = 2 * 8 * 2 * 4
"""Bytes of a position in a layer: K and V of two KV heads of 8 in f32."""


@cache
def loaded(path: Path) -> Artifact:
    """Read and proved once."""
    return Artifact.load(path)


def opened(path: Path, interpreter: str = "native") -> Session:
    return Session.from_artifact(loaded(path), interpreter=interpreter)


def fed(session: Session, prompt: list[int], tokens: list[int], slot: int = 0) -> np.ndarray:
    """The logits of a prompt, and of each token after it."""
    rows = [session.prefill(slot, prompt).copy(), *(session.decode({slot: token})[slot].copy() for token in tokens)]
    return np.stack(rows)
