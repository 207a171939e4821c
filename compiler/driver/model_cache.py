"""Cache of compiled models in the user's cache folder: a model is compiled once, and its artifact is reused.

An artifact is identified by the content of the model's files, the options and the version of the compiler. A note
beside it records the files (inode, size, time of change) with that content, so that a later run reads none of them.
Artifacts refer to their weights, which are packed in the same cache (`sscc.compiler.driver.weight_cache`).
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sscc.compiler.driver.referred_checkpoints import EXPORTED, files_of, is_remembered, remember
from sscc.compiler.options.compile_options import CompileOptions
from sscc.compiler.options.garbage import collected_rarely
from sscc.compiler.options.progress import status
from sscc.compiler.options.versions import compiler_digest, own_version, tool_versions
from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.extras import COMPILE, is_installed, require
from sscc.ir.files import file_digest, output_errors
from sscc.ir.option import flag_of, records_of
from sscc.ir.stopwatch import Stopwatch, recorded
from sscc.runtime.artifact.artifact_files import MANIFEST
from sscc.runtime.support.usable_memory import usable_memory
from sscc.runtime.support.user_cache import HINT, cache_folder, make_cache_folder, open_cached, replacing_cached

if TYPE_CHECKING:
    from sscc.compiler.frontend.checkpoint import Checkpoint

MODELS = "models"
ARTIFACT, NOTE = "artifact.rdu", "note.json"
_NOTE_BYTES = 2**20
_SUFFIXES = (".gguf", ".pt", ".pth", EXPORTED)
_KEY_DIGITS = 24
_SHARE = 2
"""With the default context, states take at most 1 / `_SHARE` of the memory that weights leave."""
_LEAST_CONTEXT = 1024

logger = logging.getLogger("sscc")


class ModelCacheErrors(ErrorKind):
    NO_FILES = InputError, "{path} is not a model, artifact or adapter: it has neither a config nor weights"


OF_MODELS = tuple(name for name, record in records_of(CompileOptions).items() if record.of_models)
"""Compilation options of commands that accept a model in place of an artifact."""


class ModelOptions:
    """Values of the options in `OF_MODELS`; None for the default.

    Attributes:
        values: values by name. `weights` is a format, "keep" or "dense".
    """

    def __init__(self, **values: Any) -> None:
        assert {*values} <= {*OF_MODELS}
        self.values: dict[str, Any] = {name: values.get(name) for name in OF_MODELS}

    def __getattr__(self, name: str) -> Any:
        if name in OF_MODELS:
            return self.values[name]
        raise AttributeError(name)

    def given(self) -> list[str]:
        """Return the flags of the options that were given."""
        return [flag_of(name) for name, value in self.values.items() if value is not None]


@dataclass(frozen=True)
class CachedModel:
    """An artifact in the cache.

    Attributes:
        key: name of its folder.
        model: path from which it was compiled.
        options: options that were given.
        used: time of its last use, in seconds since the epoch.
    """

    key: str
    model: str
    options: Mapping[str, Any]
    used: float
    nbytes: int


def is_model(path: Path) -> bool:
    """Return True for a file or folder that `sscc compile` accepts, False for an artifact or anything else."""
    if path.is_dir():
        return not (path / MANIFEST).is_file() and (path / "config.json").is_file()
    return path.suffix.lower() in _SUFFIXES


def artifact_of(model: Path, options: ModelOptions) -> Path:
    """Return the artifact of a model. Compiles it if the cache has none for its content, options and version.

    Raises:
        UsageError: the packages for compilation are not installed.
        SsccError: the errors of `compile_model`.
        UnsafeCacheError: another user could write to the cache.
    """
    with collected_rarely():
        return _artifact_of(model, options)


def _artifact_of(model: Path, options: ModelOptions) -> Path:
    digest = _digest_of(model, imports=True)
    name = f"{MODELS}/{_key(digest, options)}"
    folder = cache_folder() / name
    if not (folder / ARTIFACT / MANIFEST).is_file():
        require(COMPILE, f"compiling {model}")
        _compile(model, options, name)
    else:
        _note_place(folder / ARTIFACT, model)
    _note_use(name, model, options)
    return folder / ARTIFACT


def cached_models() -> Iterator[CachedModel]:
    """Yield the artifacts of the cache, the most recently used first."""
    root = cache_folder() / MODELS
    found = []
    for folder in root.iterdir() if root.is_dir() else ():
        if (folder / ARTIFACT / MANIFEST).is_file():
            note = _read(f"{MODELS}/{folder.name}/{NOTE}")
            used = float(note.get("used", 0.0))
            model, options = str(note.get("model", "?")), note.get("options", {})
            found.append(CachedModel(folder.name, model, options, used, _file_bytes(folder)))
    yield from sorted(found, key=lambda model: -model.used)


# ---------------------------------------------------------------------------------------------------------- content


def _digest_of(model: Path, *, imports: bool = False) -> str:
    """Return the sha256 of a model's files. It is cached until the files change.

    Args:
        imports: import the compiler concurrently if the model is new and will probably be compiled.
    """
    files = files_of(model)
    if not files:
        raise ModelCacheErrors.NO_FILES(path=model)
    place = hashlib.sha256(os.fsencode(model.resolve())).hexdigest()[:_KEY_DIGITS]
    name = f"{MODELS}/{place}.json"
    states = {file: list(state) for file, state in files.items()}
    note = _read(name)
    if note.get("files") == states and isinstance(note.get("digest"), str):
        return str(note["digest"])
    with status(f"reading {model.name}"):
        folder = model if model.is_dir() else model.parent
        paths = [folder / file if file else model for file in sorted(files)]
        with ThreadPoolExecutor(1) as worker:  # sha256 releases the GIL
            hashing = worker.submit(lambda: list(map(file_digest, paths)))
            if imports and not note and is_installed(COMPILE):
                importlib.import_module("sscc.compiler.driver.driver")
            digests = hashing.result()
    digest = hashlib.sha256(json.dumps(sorted(digests)).encode()).hexdigest()
    _write(name, {"digest": digest, "files": states})
    return digest


def _key(digest: str, options: ModelOptions) -> str:
    records = records_of(CompileOptions)
    given: dict[str, Any] = {name: value for name, value in options.values.items() if records[name].identity}
    if options.lora is not None:
        given["lora"] = _digest_of(options.lora)
    if options.max_context is None:
        given["memory"] = usable_memory().bit_length()
    made_of = [digest, given, own_version(), tool_versions(), compiler_digest()]
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:_KEY_DIGITS]


def _read(name: str) -> dict[str, Any]:
    """Return a note of the cache; {} if it is missing or unreadable."""
    file = open_cached(name)
    if file is None:
        return {}
    with file:
        try:
            note = json.loads(file.read(_NOTE_BYTES))
        except (ValueError, RecursionError):
            return {}
    return note if isinstance(note, dict) else {}


def _write(name: str, note: Mapping[str, Any]) -> None:
    with replacing_cached(name) as file:
        file.write((json.dumps(note, sort_keys=True) + "\n").encode())


def _note_use(name: str, model: Path, options: ModelOptions) -> None:
    given = {name: value for name, value in options.values.items() if value is not None}
    if options.lora is not None:
        given["lora"] = str(options.lora.resolve())
    _write(f"{name}/{NOTE}", {"model": str(model.resolve()), "options": given, "used": time.time()})


def _note_place(artifact: Path, model: Path) -> None:
    """Record that the files of `model`, too, hold the weights of an artifact."""
    from sscc.runtime.artifact.artifact_files import decoded, read_manifest
    from sscc.runtime.artifact.manifest import Manifest

    record = Manifest.from_json(decoded(read_manifest(artifact), artifact / MANIFEST), artifact).weights
    if record.mode == "reference" and record.digest and not is_remembered(record.digest, model):
        remember(record.digest, model)


# ------------------------------------------------------------------------------------------------------ compilation


def _compile(model: Path, options: ModelOptions, name: str) -> None:
    """Compile a model into a folder of the cache, which appears atomically."""
    from sscc.compiler.driver.driver import compile_model
    from sscc.compiler.frontend.checkpoint import open_checkpoint
    from sscc.ir.weight_formats.registry import parse_format

    folder = make_cache_folder(MODELS)
    with output_errors(folder, HINT), tempfile.TemporaryDirectory(prefix=".compiling-", dir=folder) as temporary:
        with status(f"compiling {model.name}") as update, recorded(
            Stopwatch(entered=lambda phase: update(f"compiling {model.name}: {phase}"))
        ):
            checkpoint = open_checkpoint(model)
            values = dict(options.values)
            weights = values.pop("weights")
            if options.max_context is None:
                values["max_context"] = _default_context(checkpoint, options.batch or 1)
            compile_model(
                CompileOptions(
                    model,
                    Path(temporary) / ARTIFACT,
                    weights="reference" if options.lora is None and model.suffix.lower() != EXPORTED else "embed",
                    weight_format=None if weights is None else parse_format(weights),
                    **values,
                ),
                checkpoint,
                pack=options.lora is None and model.suffix.lower() != EXPORTED,
            )
        target = cache_folder() / name
        make_cache_folder(name)
        if not (target / ARTIFACT).exists():
            os.rename(Path(temporary) / ARTIFACT, target / ARTIFACT)


def _default_context(checkpoint: Checkpoint, batch: int) -> int | None:
    """Return the longest context of a model whose states fit the memory of this machine; None if the config
    does not determine its length or its KV size."""
    from sscc.compiler.frontend.model_config import model_context

    config = checkpoint.config
    context = None if config is None else model_context(config)
    if config is None or context is None:
        return None
    per_token = _kv_bytes(config.to_dict())
    room = (usable_memory() - _file_bytes(checkpoint.path)) // _SHARE
    fitting = max(room // max(per_token * (1 + batch // 16), 1), _LEAST_CONTEXT)
    return int(min(context, 1 << (int(fitting).bit_length() - 1)))


def _kv_bytes(config: Mapping[str, Any]) -> int:
    """Return the bytes of K and V of a token in all layers, 4 bytes per number, as in the scratch of a prompt."""
    layers = int(config.get("num_hidden_layers") or config.get("n_layer") or 1)
    heads = int(config.get("num_attention_heads") or config.get("n_head") or 1)
    width = int(config.get("hidden_size") or config.get("n_embd") or 1)
    dim = int(config.get("head_dim") or width // heads)
    latent = config.get("kv_lora_rank")
    if latent:
        return 4 * layers * (int(latent) + int(config.get("qk_rope_head_dim") or 0))
    return 8 * layers * int(config.get("num_key_value_heads") or heads) * dim


def _file_bytes(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def folder_bytes(name: str) -> int:
    """Return the size of the files in a folder of the cache, in bytes."""
    folder = cache_folder() / name
    return _file_bytes(folder) if folder.is_dir() else 0


def clear(names: tuple[str, ...]) -> int:
    """Remove folders of the cache, and return the number of bytes that this has freed."""
    freed = 0
    for name in names:
        folder = cache_folder() / name
        if folder.is_symlink() or not folder.is_dir():
            continue
        freed += _file_bytes(folder)
        with output_errors(folder, HINT):
            shutil.rmtree(folder)
    return freed
