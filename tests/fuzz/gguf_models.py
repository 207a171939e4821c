"""Target `gguf-models`: models in `.gguf` files whose metadata and tensors say what they do not mean.

A case is the header of a tiny model (`tests.compiler.frontend.gguf_models`) with one to three changes: metadata of its
architecture dropped or given another value, tensors dropped, put in each other's place or given another shape. Config
and weights are read within a second of processor time, or refused in words.
"""

from __future__ import annotations

import dataclasses
import random
import time
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from sscc.compiler.frontend.gguf.config import config_of, family_of
from sscc.compiler.frontend.gguf.header import GgufHeader, StoredTensor, read_header
from sscc.compiler.frontend.gguf.unfused import unfused
from sscc.compiler.frontend.gguf.weights import GgufSource
from sscc.ir.errors import SsccError
from tests.compiler.frontend.gguf_models import CASES, archive
from tests.fuzz.harness import Finding, Target

SECONDS = 1.0
NUMBER_BYTES = 4
NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 3, 7, 1024, 2**31 - 1, 2**32, 2**63, True, False),
    *(0.0, -1.0, 1.5, float("nan"), float("inf"), 1e38),
)
OTHERS: tuple[Any, ...] = (
    *("", "x", "yarn", "linear", "longrope", ["a", "b"]),
    *(np.array([1, 2, 3]), np.zeros(0, np.int64), np.array([0.5, np.nan], np.float32), np.array([True, False])),
    *(np.full(100, 8), np.array([2**40] * 2)),
)
KEYS = (
    *("rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length", "rope.freq_base_swa"),
    *("rope.scaling.yarn_log_multiplier", "rope.dimension_count", "attention.sliding_window"),
    *("attention.sliding_window_pattern", "attention.key_length", "attention.value_length", "attention.kv_lora_rank"),
    *("attention.head_count_kv", "attention.shared_kv_layers", "nextn_predict_layers", "expert_count", "vocab_size"),
    *("expert_gating_func", "feed_forward_length", "leading_dense_block_count", "activation_sparsity_scale"),
)


class GgufModels(Target):
    name: ClassVar[str] = "gguf-models"
    memory: ClassVar[int] = 256 << 20
    seconds: ClassVar[float] = 5.0

    def __init__(self, folder: Path) -> None:
        self._headers = []
        for name in CASES:
            path = folder / f"{name}.gguf"
            path.write_bytes(archive()[path.name])
            self._headers.append(read_header(path))
            self._read(self._headers[-1])  # what this imports is not charged to a case

    def run(self, seed: int) -> str:
        rng = random.Random(seed)
        header = rng.choice(self._headers)
        metadata, tensors = dict(header.metadata), dict(header.tensors)
        changes = [_change(rng, header.architecture, metadata, tensors) for _ in range(rng.randint(1, 3))]
        changed = dataclasses.replace(header, metadata=metadata, tensors=tensors)
        began = time.process_time()
        try:
            outcome = self._read(changed)
        except SsccError as error:
            if not str(error).isprintable():
                raise Finding(f"{changes}: its message does not print: {error!r:.500}") from error
            outcome = f"refused {error.exit_code}"
        except Exception as error:
            raise Finding(f"{header.path.stem}, {changes}: {type(error).__name__}: {error}") from error
        if time.process_time() - began > SECONDS:
            raise Finding(f"{header.path.stem}, {changes}: more than {SECONDS} s of processor time")
        return outcome

    def _read(self, header: GgufHeader) -> str:
        family = family_of(header)
        apart = unfused(header, family)
        source = GgufSource(apart, family, config_of(apart, family))
        for name, (shape, _) in source.names().items():
            if tuple(source.tensor(name).shape) != shape:
                raise Finding(f"{name} is of another shape than {shape}")
        return "read"


def _change(
    rng: random.Random, architecture: str, metadata: dict[str, Any], tensors: dict[str, StoredTensor]
) -> tuple[Any, ...]:
    """Change metadata or a tensor, and return what was changed."""
    own = [key for key in metadata if key.startswith(f"{architecture}.")]
    match rng.randrange(6):
        case 0 if own:
            key = rng.choice(own)
            del metadata[key]
            return "dropped", key
        case 1 | 2:
            key = rng.choice(own) if own and rng.random() < 0.7 else f"{architecture}.{rng.choice(KEYS)}"
            metadata[key] = rng.choice(NUMBERS if rng.random() < 0.7 else OTHERS)
            return key, metadata[key]
        case 3:
            name = rng.choice(list(tensors))
            del tensors[name]
            return "dropped", name
        case 4:
            name, other = rng.choice(list(tensors)), rng.choice(list(tensors))
            tensors[name] = dataclasses.replace(tensors[other], name=name)
            return name, other
    name = rng.choice(list(tensors))
    shape = tensors[name].shape
    shapes = [(), (0,), shape[::-1], (*shape, 1), (1,) * 4, shape[:1]]
    other_shape = rng.choice([each for each in shapes if prod(each) <= prod(shape)])
    nbytes = prod(other_shape) * NUMBER_BYTES
    tensors[name] = dataclasses.replace(tensors[name], shape=other_shape, nbytes=nbytes)
    return name, other_shape
