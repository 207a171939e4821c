"""A `.pt2` file: a user's decoder, exported over ids and positions, both [b, s] and dynamic."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.export import ExportedProgram
from torch.export.pt2_archive._package import load_pt2

from sscc.compiler.frontend import operator  # noqa: F401 - registers sscc::attention, which the program names
from sscc.compiler.frontend.pt2_archive import Pt2Errors, load_archive
from sscc.compiler.frontend.quiet import one_line, quiet_libraries
from sscc.ir.errors import ErrorKind, InputError, UnsupportedError, quoted

EXPORT_HOWTO = (
    "export it with b, s = Dim('b', min=1), Dim('s', min=1) and torch.export.export(model, (ids, positions), "
    "dynamic_shapes=({{0: b, 1: s}}, {{0: b, 1: s}}))"
)


class ExportedErrors(ErrorKind):
    NO_PROGRAM = InputError, "{path} holds no program named model: save one with torch.export.save"
    INPUTS = UnsupportedError, "{path} takes {count} inputs ({names}), not 2: " + EXPORT_HOWTO
    INPUT = UnsupportedError, "{path}: input {name} must be an int64 tensor [b, s]: " + EXPORT_HOWTO
    STATIC = (
        UnsupportedError,
        "{path}: input {name} has a static dimension {dim} (size {size}), both must be dynamic: " + EXPORT_HOWTO,
    )
    DTYPE = UnsupportedError, (
        "{path} computes {value} in {dtype}, but programs compute in f32 or bf16: export model.float() or "
        "model.bfloat16()"
    )
    NO_MODULE = InputError, "{path}: torch cannot make a module of the program: {cause}"


DTYPES = (torch.float32, torch.bfloat16)


def load_program(path: Path, *, trusted: bool = False) -> ExportedProgram:
    """Return an exported decoder.

    Args:
        trusted: load the archive with torch itself, which executes code that it holds.

    Returns:
        A program over ids and positions, both i64 [b, s] with both dimensions dynamic.

    Raises:
        InputError: not a `.pt2` archive, truncated or damaged.
        UnsupportedError: the archive holds something else than a plain program and tensors, or the program's inputs are
            not those above.
    """
    program = _load_trusted(path) if trusted else load_archive(path)
    _check_inputs(path, program)
    _check_dtypes(path, program)
    try:
        program.module()
    except Exception as error:  # weights whose names a module cannot have
        raise ExportedErrors.NO_MODULE(path=path, cause=quoted(one_line(error))) from error
    return program


def _load_trusted(path: Path) -> ExportedProgram:
    try:
        with quiet_libraries():
            programs = load_pt2(str(path)).exported_programs
    except Exception as error:  # torch raises various types, SerializeError for unknown operators among them
        raise Pt2Errors.NOT_LOADED(path=path, cause=one_line(error)) from error
    if "model" not in programs:
        raise ExportedErrors.NO_PROGRAM(path=path)
    program: ExportedProgram = programs["model"]
    return program


def _check_dtypes(path: Path, program: ExportedProgram) -> None:
    """Refuse logits and attention in a dtype that programs do not support."""
    values: list[tuple[str, object]] = []
    for node in program.graph.nodes:
        if node.op == "output":
            outputs = node.args[0] if isinstance(node.args[0], (tuple, list)) else node.args
            values += [("its logits", getattr(outputs[0], "meta", {}).get("val"))] if outputs else []
        elif node.target is torch.ops.sscc.attention.default:
            values.append(("attention", node.meta.get("val")))
    for what, value in values:
        if isinstance(value, torch.Tensor) and value.dtype not in DTYPES:
            raise ExportedErrors.DTYPE(path=path, value=what, dtype=str(value.dtype).removeprefix("torch."))


def _check_inputs(path: Path, program: ExportedProgram) -> None:
    names = [str(name) for name in program.graph_signature.user_inputs]
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    inputs = [values.get(name) for name in names]
    if len(inputs) != 2:
        raise ExportedErrors.INPUTS(path=path, count=len(inputs), names=names)
    for name, value in zip(names, inputs, strict=True):
        if not isinstance(value, torch.Tensor) or value.dtype != torch.int64 or value.dim() != 2:
            raise ExportedErrors.INPUT(path=path, name=name)
        for dim, size in enumerate(value.shape):
            if isinstance(size, int):
                raise ExportedErrors.STATIC(path=path, name=name, dim=dim, size=size)
