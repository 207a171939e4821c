"""Compilation of MLIR text to machine code by LLVM: an object file, which can be linked to a shared library, or code in
memory.

This is the only module of the runtime that imports MLIR's bindings. They come with torch-mlir and are loaded without
torch.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from sscc.ir.errors import ErrorKind, InternalError
from sscc.runtime.backends.cpu.codegen.features import host_attributes
from sscc.runtime.backends.cpu.codegen.mlir import Module

PIPELINE = (
    "builtin.module(canonicalize,cse,convert-scf-to-cf,convert-math-to-llvm,convert-math-to-libm,convert-vector-to-llvm,"
    "convert-arith-to-llvm,convert-cf-to-llvm,convert-func-to-llvm,convert-ub-to-llvm,reconcile-unrealized-casts)"
)
_TABLE = "function_table"


class NativeCompilationErrors(ErrorKind):
    MALFORMED = InternalError, "generated code is malformed: {cause}"


class Jit:
    """A module compiled for this host.

    Args:
        module: module to compile.
        cpu: LLVM's name of the CPU to compile for, "" for this host.
        optimise: LLVM's level of optimization, 0 (fast to compile) to 3.
    """

    def __init__(self, module: Module, cpu: str = "", optimise: int = 3) -> None:
        from torch_mlir import ir, passmanager
        from torch_mlir.execution_engine import ExecutionEngine

        context = _context()
        text = module.text(table=_TABLE)
        try:
            # this verifies the module, and LLVM verifies its own form of it later
            parsed = ir.Module.parse(text, context)
            passes = passmanager.PassManager.parse(PIPELINE, context)
            passes.enable_verifier(False)  # verifying after each pass takes longer than the passes themselves
            passes.run(parsed.operation)
        except (ir.MLIRError, ValueError) as error:
            raise NativeCompilationErrors.MALFORMED(cause=str(error)) from None
        if cpu:
            _set_target(parsed, {"target-cpu": cpu, "target-features": ""})
        elif attributes := host_attributes():
            _set_target(parsed, {"target-features": attributes})
        if not optimise:
            _leave_as_written(parsed)
        self._engine: Any = ExecutionEngine(parsed, opt_level=optimise, enable_object_dump=True, enable_pic=True)
        self._names = module.exported

    @cached_property
    def addresses(self) -> dict[str, int]:
        """Return the address of each exported function; valid as long as this object lives."""
        table = (ctypes.c_int64 * max(1, len(self._names)))()
        pointer = ctypes.c_void_p(ctypes.addressof(table))
        # The engine looks functions up in a form that takes an array of pointers to arguments.
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._engine.raw_lookup(_TABLE))
        call(ctypes.addressof((ctypes.c_void_p * 1)(ctypes.addressof(pointer))))
        return dict(zip(self._names, table, strict=False))

    def object_code(self) -> bytes:
        """Return the object file: position-independent, and the same for equal modules."""
        self._engine.raw_lookup(_TABLE)  # compiles; before this there is nothing to dump
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "code.o"
            self._engine.dump_to_object_file(str(path))
            return path.read_bytes()


@cache
def _context() -> Any:
    """Return MLIR's context with all its dialects, which is kept because creating one takes longer than the passes over
    a small module. It has no threads of its own, because a forked process would wait for them in vain."""
    from torch_mlir import ir

    context = ir.Context()
    context.enable_multithreading(False)
    return context


def link(object_code: bytes, out: Path, linker: str = "cc") -> None:
    """Link an object file to a shared library. Raises OSError or subprocess.CalledProcessError on failure."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "code.o"
        path.write_bytes(object_code)
        command = [linker, "-shared", "-nostartfiles", "-Wl,--build-id=none", "-o", str(out), str(path), "-lm"]
        subprocess.run(command, check=True, capture_output=True)


def _set_target(module: Any, target: dict[str, str]) -> None:
    from torch_mlir import ir

    with module.context:
        pairs = [ir.ArrayAttr.get([ir.StringAttr.get(k), ir.StringAttr.get(v)]) for k, v in target.items()]
        for attributes in _attributes_of_functions(module):
            others = list(attributes["passthrough"]) if "passthrough" in attributes else []
            attributes["passthrough"] = ir.ArrayAttr.get([*others, *pairs])


def _leave_as_written(module: Any) -> None:
    """Mark functions as not to be optimised. The engine's level affects only passes over LLVM's IR; machine code is
    always selected and scheduled at the default level, which takes twice as long, unless functions carry this mark."""
    from torch_mlir import ir

    with module.context:
        for attributes in _attributes_of_functions(module):
            attributes["no_inline"] = attributes["optimize_none"] = ir.UnitAttr.get()


def _attributes_of_functions(module: Any) -> Iterator[Any]:
    for operation in module.body.operations:
        if operation.operation.name == "llvm.func":
            yield operation.operation.attributes
