"""Goldens: a run of eager PyTorch recorded at compile time, which `sscc run --check` replays (golden_replay.py).

A golden holds prompt and new tokens, and tensors in the order in which execution makes them::

    k_cache.{i}, v_cache.{i}   [Hkv, R, D]   layer i's compressed cache of slot 0 after prefill; of latent rows
                                             latent_cache.{i}, and so below
    selected.{i}               [Hkv, topk]   positions picked, -1 for padding (absent when topk = 0)
    k_store.{i}, v_store.{i}   [Hkv, n, D]   in its place where every step's query picks: the rows of the whole prompt
    prefill_logits             [V]
    logits.{s}                 [V]           after feeding new_tokens[s] at position len(prompt) + s

All are numpy arrays in the dtypes that eager PyTorch had. Of a program of several ranks there are the logits alone:
each rank keeps rows of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from sscc.ir.errors import InputError, quoted
from sscc.runtime.artifact.tensor_files import Array, read_tensors
from sscc.runtime.artifact.writer import ArtifactWriter

_PROMPT, _TOKENS, _NAMES = "prompt", "new_tokens", "tensors"


@dataclass(frozen=True)
class Golden:
    """A recorded run: token ids, and tensors by name in execution order."""

    prompt: tuple[int, ...]
    new_tokens: tuple[int, ...]
    tensors: Mapping[str, Array] = field(default_factory=dict)

    @property
    def of_logits(self) -> Golden:
        """The same with the logits alone."""
        logits = {name: value for name, value in self.tensors.items() if name.partition(".")[0].endswith("logits")}
        return replace(self, tensors=logits)

    def save(self, writer: ArtifactWriter) -> None:
        """Writes golden/golden.json and golden/golden.safetensors of an artifact."""
        index = {_PROMPT: list(self.prompt), _TOKENS: list(self.new_tokens), _NAMES: list(self.tensors)}
        writer.write_json("golden/golden.json", index)
        writer.write_tensors("golden/golden.safetensors", self.tensors)

    @classmethod
    def load(cls, folder: Path) -> Golden:
        """Raises InputError where the folder holds no golden, or one whose parts do not fit."""
        path = folder / "golden.json"
        try:
            index = json.loads(path.read_text(encoding="utf-8"))
            prompt, new_tokens, names = (tuple(index[key]) for key in (_PROMPT, _TOKENS, _NAMES))
        except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
            raise InputError(f"{path} is missing or damaged: {quoted(repr(error))}") from None
        tensors = read_tensors(folder / "golden.safetensors")
        plain = all(isinstance(name, str) for name in names) and all(type(t) is int for t in (*prompt, *new_tokens))
        if not plain or set(names) != set(tensors):
            raise InputError(f"{path} does not fit golden.safetensors")
        return cls(prompt, new_tokens, {name: tensors[name] for name in names})
