"""The evaluated model: its digest, its tokenizer, and a compiled program for every cell."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from sscc.compiler.options.compile_options import CompileOptions, cache_options
from sscc.compiler.options.layer_topk import LayerTopk
from sscc.compiler.options.policy import Rule
from sscc.compiler.options.versions import compiler_digest, own_version, tool_versions
from sscc.compiler.tools.quality.eval_options import Numbers
from sscc.compiler.tools.quality.prompts import DAY
from sscc.ir.files import files_digest, output_errors, replacing, state_of
from sscc.ir.geometry import Geometry
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.text.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from sscc.runtime.text.chat_template import ChatTemplate

logger = logging.getLogger("sscc")

TOKENIZER = "tokenizer.json"


class ModelFiles:
    """A checkpoint, and a folder of files derived from it.

    Args:
        model: model that `sscc compile` accepts.
        folder: created if necessary. Its files are reused if model, options and compiler are the same.
        numbers: numeric formats of the programs.

    Raises:
        InputError: there is no such model.
    """

    def __init__(self, model: Path, folder: Path, numbers: Numbers) -> None:
        state_of(model)  # raises InputError if the model does not exist
        self.model = model
        self._folder = folder
        self._numbers = numbers

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hexadecimal) of the names and contents of the model's files."""
        return files_digest(
            [self.model] if self.model.is_file() else sorted(p for p in self.model.rglob("*") if p.is_file())
        )

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """Tokenizer of the checkpoint; None without one. Raises InputError if it is damaged."""
        path = self._tokenizer_folder / TOKENIZER
        return load_tokenizer(path) if path.is_file() else None

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """Chat template of the checkpoint with the date DAY; None without one. Raises InputError if it is damaged."""
        from sscc.runtime.text.chat_template import ChatTemplate

        return ChatTemplate.load(self._tokenizer_folder, lambda: DAY)

    @cached_property
    def _tokenizer_folder(self) -> Path:
        """Folder with the checkpoint's tokenizer, kept because the conversion of a .gguf's tokenizer takes seconds."""
        folder = self._folder / f"{self.digest[:16]}-tokenizer"
        if not (folder / TOKENIZER).is_file():
            from sscc.compiler.frontend.checkpoint import open_checkpoint
            from sscc.compiler.frontend.tokenizer_files import TOKENIZER_FILES

            files = open_checkpoint(self.model).tokenizer
            # tokenizer.json is written last: if it exists, so do the other files.
            for name in sorted(files.keys() & TOKENIZER_FILES, key=lambda name: name == TOKENIZER):
                _make_folder(folder)
                with replacing(folder / name) as file:
                    file.write(files[name])
        return folder

    def artifact(
        self, geometry: Geometry, layer_topk: LayerTopk | None = None, rule: Rule | None = None
    ) -> Artifact:
        """Return the program for a geometry, compiled if it does not exist yet. Raises the errors of `compile_model`.

        Args:
            geometry: geometry of the cache.
            layer_topk: selected positions per layer, if they differ.
            rule: user's rule, whose name and digest are in the geometry.
        """
        cache = cache_options(geometry)
        if layer_topk is not None:
            cache |= {"kv_topk": None, "kv_topk_per_layer": str(layer_topk)}
        path = self._folder / f"{self._key(cache)}.rdu"
        if not path.exists():
            _make_folder(self._folder)
            self._compile(cache if rule is None else {**cache, "kv_policy": rule}, path)
        return Artifact.load(path)

    def _compile(self, cache: Mapping[str, Any], path: Path) -> None:
        from sscc.compiler.driver.driver import compile_model

        options = CompileOptions(
            model=self.model,
            output=path,
            **cache,
            dtype=self._numbers.dtype,
            prefill_chunk=self._numbers.prefill_chunk,
            weights="reference",
            weight_format=self._numbers.weight_format,
        )
        logger.debug("compiling %s", path)
        compile_model(options)

    def _key(self, cache: Mapping[str, Any]) -> str:
        numbers = asdict(self._numbers)
        made_of = [self.digest, str(self.model.resolve()), dict(cache), numbers, own_version(), tool_versions()]
        text = json.dumps([*made_of, compiler_digest()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _make_folder(folder: Path) -> None:
    with output_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
