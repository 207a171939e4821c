"""Goldens: a run of eager PyTorch recorded at compile time, which `sscc run --check` replays (golden_replay.py).

A golden holds the prompt and the new tokens, and tensors in order of execution::

    k_cache.{i}, v_cache.{i}   [Hkv, R, D]   layer i's compressed cache of slot 0 after prefill; with latent rows
                                             latent_cache.{i}, likewise below
    selected.{i}               [Hkv, topk]   selected positions, -1 for padding (absent when topk = 0)
    k_store.{i}, v_store.{i}   [Hkv, n, D]   instead, if every step's query selects: the rows of the whole prompt
    prefill_logits             [V]
    logits.{s}                 [V]           after feeding new_tokens[s] at position len(prompt) + s

All are numpy arrays in the dtypes of eager PyTorch. For a program of several ranks only the logits are recorded,
because each rank keeps different rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from sscc.ir.errors import ErrorKind, InputError, quoted
from sscc.runtime.artifact.artifact_files import GOLDEN, open_file
from sscc.runtime.artifact.tensor_files import Array, read_tensors
from sscc.runtime.artifact.writer import ArtifactWriter

_INDEX, _DATA = "golden.json", "golden.safetensors"
FILES = (f"{GOLDEN}/{_INDEX}", f"{GOLDEN}/{_DATA}")
_PROMPT, _TOKENS, _NAMES = "prompt", "new_tokens", "tensors"


class GoldenErrors(ErrorKind):
    DAMAGED = InputError, "{path} is damaged: {reason}"
    PARTS_DIFFER = InputError, "{path} does not list the tensors of {tensors}, or lists no tokens"


@dataclass(frozen=True)
class Golden:
    """A recorded run: token ids, and tensors by name in execution order."""

    prompt: tuple[int, ...]
    new_tokens: tuple[int, ...]
    tensors: Mapping[str, Array] = field(default_factory=dict)

    @property
    def of_logits(self) -> Golden:
        """Return the golden with only the logits."""
        logits = {name: value for name, value in self.tensors.items() if name.partition(".")[0].endswith("logits")}
        return replace(self, tensors=logits)

    def save(self, writer: ArtifactWriter) -> None:
        """Write golden/golden.json and golden/golden.safetensors of an artifact."""
        index = {_PROMPT: list(self.prompt), _TOKENS: list(self.new_tokens), _NAMES: list(self.tensors)}
        writer.write_json(FILES[0], index)
        writer.write_tensors(FILES[1], self.tensors)

    @classmethod
    def load(cls, folder: Path) -> Golden:
        """Return the golden in the folder golden/ of an artifact. Raise InputError if there is none, or its parts do
        not fit."""
        path, tensors_path = folder / _INDEX, folder / _DATA
        try:
            with open_file(folder.parent, f"{folder.name}/{_INDEX}") as file:
                index = json.loads(file.read().decode())
            prompt, new_tokens, names = (tuple(index[key]) for key in (_PROMPT, _TOKENS, _NAMES))
        except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
            raise GoldenErrors.DAMAGED(path=path, reason=quoted(repr(error))) from None
        with open_file(folder.parent, f"{folder.name}/{_DATA}") as file:
            tensors = read_tensors(tensors_path, file)
        plain = all(isinstance(name, str) for name in names) and all(type(t) is int for t in (*prompt, *new_tokens))
        if not plain or set(names) != set(tensors):
            raise GoldenErrors.PARTS_DIFFER(path=path, tensors=tensors_path)
        return cls(prompt, new_tokens, {name: tensors[name] for name in names})
