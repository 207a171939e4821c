"""A `.pt2` file: somebody's own decoder, exported over ids and positions, both [b, s] and dynamic."""

from __future__ import annotations

import io
import json
import warnings
import zipfile
from pathlib import Path

import torch
from torch.export import ExportedProgram
from torch.export.pt2_archive._package import load_pt2

from sscc.compiler.frontend import operator  # noqa: F401 - registers sscc::attention, which the program names
from sscc.compiler.frontend.quiet import quiet_libraries
from sscc.ir.errors import InputError, UnsupportedError

EXPORT_HOWTO = (
    "export it with b, s = Dim('b', min=1), Dim('s', min=1) and torch.export.export(model, (ids, positions), "
    "dynamic_shapes=({0: b, 1: s}, {0: b, 1: s}))"
)


def load_program(path: Path) -> ExportedProgram:
    """Loads and checks an exported decoder.

    Returns:
        A program over ids and positions, both i64 [b, s] with both dimensions dynamic.

    Raises:
        InputError: not a `.pt2` archive, truncated, or of another form.
        UnsupportedError: it holds pickled objects, or its inputs are not those above.
    """
    _refuse_pickles(path)
    try:
        # torch.export.load would hide the reason of a failure, and then try an older form that it unpickles.
        with quiet_libraries():
            programs = load_pt2(str(path)).exported_programs
    except Exception as error:  # torch raises its own kinds, and SerializeError for operators it does not know
        reason = " ".join(str(error).split()).split(". This is an internal")[0][:300] or type(error).__name__
        raise InputError(f"{path} cannot be loaded as an exported program: {reason}") from error
    if "model" not in programs:
        raise InputError(f"{path} holds no program named model: save one with torch.export.save")
    program: ExportedProgram = programs["model"]
    _check_inputs(path, program)
    return program


def _refuse_pickles(path: Path) -> None:
    """torch.export.load unpickles some payloads with code in them: refuse those archives before it sees them."""
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path} is not a .pt2 archive (torch.export.save), or truncated")
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
            for name in archive.namelist():
                _check_member(path, archive, name)
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError) as error:
        raise InputError(f"{path} is a damaged .pt2 archive: {error}") from error
    if broken is not None:
        raise InputError(f"{path} is a damaged .pt2 archive: the checksum of {broken} does not hold")


def _check_member(path: Path, archive: zipfile.ZipFile, name: str) -> None:
    """Refuses a payload that torch would unpickle with code, and a torch.save member that needs code."""
    if name.endswith(("weights_config.json", "constants_config.json")):
        pickled = _pickled_payloads(archive.read(name))
        if pickled:
            raise UnsupportedError(f"{path} pickles {', '.join(pickled[:3])}: export plain tensors only")
    if not name.endswith(".pt") or archive.getinfo(name).file_size == 0:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.load(io.BytesIO(archive.read(name)), map_location="cpu", weights_only=True)
    except Exception as error:  # torch.export.load would fall back to unpickling code
        raise UnsupportedError(f"{path}: {name} holds pickled objects: export plain tensors only") from error


def _pickled_payloads(config: bytes) -> list[str]:
    """Names of the tensors that a config of weights or constants says are pickled. Raises ValueError."""
    payloads = json.loads(config)
    payloads = payloads.get("config", {}) if isinstance(payloads, dict) else None
    if not isinstance(payloads, dict) or not all(isinstance(payload, dict) for payload in payloads.values()):
        raise ValueError("a list of its tensors has another form")
    return [name for name, payload in payloads.items() if payload.get("use_pickle")]


def _check_inputs(path: Path, program: ExportedProgram) -> None:
    names = [str(name) for name in program.graph_signature.user_inputs]
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    inputs = [values.get(name) for name in names]
    if len(inputs) != 2:
        raise UnsupportedError(f"{path} takes {len(inputs)} inputs ({', '.join(names)}), not 2: {EXPORT_HOWTO}")
    for name, value in zip(names, inputs, strict=True):
        if not isinstance(value, torch.Tensor) or value.dtype != torch.int64 or value.dim() != 2:
            raise UnsupportedError(f"{path}: input {name} must be an int64 tensor [b, s]: {EXPORT_HOWTO}")
        static = [f"{dim} (size {size})" for dim, size in enumerate(value.shape) if isinstance(size, int)]
        if static:
            raise UnsupportedError(
                f"{path}: input {name} has a static dimension {static[0]}, both must be dynamic: {EXPORT_HOWTO}"
            )
