"""Machine code of a program: generated, kept in the user's cache, and loaded from it.

Code is generated from a schedule on the CPU that runs it, and kept in the user's cache under a key of everything that
it depends on: the schedule, the code generator, LLVM and the CPU. Code is never loaded from anywhere else: an artifact
contains no code.

A file of the cache is a line with the sha256 of the rest, a line of JSON (`_Contents`), the plan, and a shared library.
"""

from __future__ import annotations

import _ctypes
import ctypes
import hashlib
import importlib.metadata
import json
import logging
import os
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

import sscc.ir
import sscc.runtime
from sscc.ir.errors import ErrorKind, InputError, OutputError, UsageError, quoted
from sscc.ir.schedule import Program
from sscc.runtime.backends.cpu.codegen.checks import CheckedModule, Violations
from sscc.runtime.backends.cpu.codegen.features import Features
from sscc.runtime.backends.cpu.codegen.mlir import Module
from sscc.runtime.backends.cpu.plan.storage import Packings
from sscc.runtime.support import _native
from sscc.runtime.support.user_cache import NATIVE, UnsafeCacheError, make_cache_folder, open_cached, replacing_cached

LINKER = "cc"
LLVM = "torch-mlir"
"""Package that contains LLVM."""

OPTIMISATION = "SSCC_NATIVE_OPTIMISE"
"""Environment variable with LLVM's optimization level, 0 to 3."""

CODE_BYTES = 2**30
"""Maximum size of a file with native code in bytes."""

_LOGGER = logging.getLogger("sscc")


@dataclass(frozen=True)
class NativeCode:
    """Machine code in memory.

    Attributes:
        plan: encoded `NativePlan`.
        addresses: addresses of its functions, in the plan's order; valid while `owner` is alive.
        owner: object that keeps the code in memory.
        violations: memory in which checked code records invalid accesses; None for unchecked code.
    """

    plan: bytes
    addresses: Sequence[int]
    owner: object
    violations: Violations | None = None


@dataclass(frozen=True)
class _Contents:
    """Header of a file of the cache.

    Attributes:
        functions: names of the functions in the library, in the plan's order.
        plan_bytes: size of the plan in bytes; the library follows it.
    """

    functions: list[str]
    plan_bytes: int


class NativeCodeErrors(ErrorKind):
    DAMAGED = InputError, "the native code in the cache is damaged: its sha256 differs from the recorded one"
    NOT_LOADED = InputError, "the native code in the cache cannot be loaded: {cause}"
    NO_LINKER = OutputError, "native code cannot be linked: there is no {linker!r} on the PATH"
    LINKING = OutputError, "native code cannot be linked: {cause}"
    OPTIMISATION = UsageError, "{variable}={value} is not a level of optimization: choose 0, 1, 2 or 3"


# ------------------------------------------------------------------------------------------------------------- keys


def code_key(schedule: str, features: Features | None = None) -> str:
    """Return the name of a schedule's code in the cache of this machine. It changes with everything that the code
    depends on.

    Args:
        schedule: sha256 of the schedule's file form.
        features: as in `make_code`.
    """
    chosen = Features.chosen() if features is None else features
    depends_on = [
        schedule,
        generator_digest(),
        importlib.metadata.version(LLVM),
        _native.architecture(),
        [chosen.cpu, *sorted(chosen.extensions)],
        chosen.activation_bits,
        _optimisation(),
    ]
    return _digest(json.dumps(depends_on).encode())[:32]


@cache
def generator_digest() -> str:
    """Return the sha256 of all parts of sscc that determine the code and the plan of a schedule."""
    lines = "".join(f"{path.name} {_digest(path.read_bytes())}\n" for path in generator_files())
    return _digest(lines.encode())


def generator_files() -> list[Path]:
    """Return the sources that code generation can reach, and the native module, whose core reads the plans."""
    cpu = ("", "/codegen", "/plan", "/products", "/attention")
    runtime = ("support", "artifact", "backends", "backends/collectives", *(f"backends/cpu{room}" for room in cpu))
    parts = {sscc.runtime: runtime, sscc.ir: ("", "weight_formats")}
    # A package may have several folders: an editable install keeps compiled files apart from the sources.
    folders = [Path(place, part) for package, inside in parts.items() for place in package.__path__ for part in inside]
    sources = [path for folder in folders for path in folder.glob("*.py")]
    return [*sorted(sources), Path(str(_native.__file__))]


def schedule_digest(program: Program) -> str:
    """Return the sha256 of a program's file form, as in an artifact's manifest."""
    return _digest(program.to_json().encode())


# ----------------------------------------------------------------------------------------------------------- making


def can_link() -> bool:
    """Return True if this machine can link shared libraries."""
    return shutil.which(LINKER) is not None


def make_code(
    program: Program,
    features: Features | None = None,
    optimise: int | None = None,
    packings: Packings | None = None,
    *,
    checked: bool = False,
) -> NativeCode:
    """Compile a program to machine code in memory, which takes seconds.

    Args:
        features: CPU features that code may use; None for `Features.chosen`.
        optimise: LLVM's optimization level, 0 to 3; None for $SSCC_NATIVE_OPTIMISE, or 3.
        packings: packings of the weights; None for the result of `packed_weights`.
        checked: True to check every memory access (sscc.runtime.backends.cpu.codegen.checks), which is slow; for tests.
    """
    module = CheckedModule() if checked else Module()
    compiled, names, plan = _generate(program, features, optimise, module, packings)
    addresses = compiled.addresses
    violations = module.violations if isinstance(module, CheckedModule) else None
    return NativeCode(plan, [addresses[name] for name in names], compiled, violations)


def cached_code(
    program: Program,
    schedule: str | None = None,
    packings: Packings | None = None,
    features: Features | None = None,
) -> NativeCode:
    """Return the program's code from the user's cache. If the cache has none, or its file is damaged, compile the code
    and store it there.

    Code that cannot be stored is used for this process only. The logger reports all of these cases.

    Args:
        schedule: sha256 of the program's file form; None to compute it.
        packings: packings of the weights; None for the result of `packed_weights`.
        features: as in `make_code`.

    Raises UnsafeCacheError if another user could have written to the cache, and InputError if native code does not
    support the program.
    """
    key = code_key(schedule or schedule_digest(program), features)
    code = _kept(key)
    if code is not None:
        return code
    _LOGGER.info("compiling the schedule for this CPU")
    try:
        return _parsed(_keep(program, key, packings, features))
    except (OutputError, InputError) as error:
        if isinstance(error, InputError) and error.kind not in (NativeCodeErrors.DAMAGED, NativeCodeErrors.NOT_LOADED):
            raise
        _LOGGER.info(f"its code is not kept and will be made again in every run: {error}")
        return make_code(program, features, packings=packings)


def keep_code(program: Program, packings: Packings | None = None, features: Features | None = None) -> None:
    """Store a program's code in the user's cache for later runs, unless it is there already.

    Raises the errors of `cached_code`, and OutputError if there is no linker, it fails, or the cache cannot be written.
    """
    key = code_key(schedule_digest(program), features)
    if _kept(key) is None:
        _keep(program, key, packings, features)


def _keep(program: Program, key: str, packings: Packings | None, features: Features | None) -> bytes:
    """Compile a program and write its code to the cache. Return the file's contents. Raises OutputError."""
    make_cache_folder(NATIVE)  # before the compilation, which takes seconds
    data = _file(program, packings, features)
    with replacing_cached(_name(key)) as file:
        file.write(data)
    return data


def _file(program: Program, packings: Packings | None = None, features: Features | None = None) -> bytes:
    from sscc.runtime.backends.cpu.codegen.machine_code import link

    if not can_link():
        raise NativeCodeErrors.NO_LINKER(linker=LINKER)
    compiled, names, plan = _generate(program, features, None, Module(), packings)
    try:
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "code.so"
            link(compiled.object_code(), library, LINKER)
            code = library.read_bytes()
    except (OSError, subprocess.CalledProcessError) as error:
        raise NativeCodeErrors.LINKING(cause=quoted(error)) from None
    rest = json.dumps(asdict(_Contents(names, len(plan)))).encode() + b"\n" + plan + code
    return _digest(rest).encode() + b"\n" + rest


def _generate(
    program: Program, features: Features | None, optimise: int | None, module: Module, packings: Packings | None
) -> tuple[Any, list[str], bytes]:
    from sscc.runtime.backends.cpu.codegen.machine_code import Jit
    from sscc.runtime.backends.cpu.plan.planner import plan_program

    chosen = Features.chosen() if features is None else features
    native = plan_program(program, chosen, module, packings)
    compiled = Jit(native.module, chosen.cpu, _optimisation() if optimise is None else optimise)
    return compiled, list(native.plan.functions), native.plan.encode()


def _optimisation() -> int:
    """Return LLVM's optimization level in $SSCC_NATIVE_OPTIMISE, or 3. Raises UsageError for a level outside of 0 ..
    3."""
    value = os.environ.get(OPTIMISATION, "") or "3"
    if value not in ("0", "1", "2", "3"):
        raise NativeCodeErrors.OPTIMISATION(variable=OPTIMISATION, value=value)
    return int(value)


# ---------------------------------------------------------------------------------------------------------- finding


def _name(key: str) -> str:
    return f"{NATIVE}/{key}.code"


def _kept(key: str) -> NativeCode | None:
    """Return the code in the cache; None if there is none, or if it is damaged, which is logged."""
    try:
        file = open_cached(_name(key))
        if file is None:
            return None
        with file:
            nbytes = os.fstat(file.fileno()).st_size  # a larger size would reserve memory for it
            return _parsed(file.read(min(nbytes, CODE_BYTES)))
    except UnsafeCacheError:
        raise
    except InputError as error:
        _LOGGER.info(str(error))
    except OSError as error:
        _LOGGER.info(f"the native code {_name(key)} in the cache cannot be read: {error.strerror}")
    return None


def _parsed(data: bytes) -> NativeCode:
    """Return the code in a file of the cache. Raises InputError if it cannot be loaded."""
    digest, _, rest = data.partition(b"\n")
    if digest != _digest(rest).encode():  # executing a truncated library would kill the process
        raise NativeCodeErrors.DAMAGED()
    line, _, binary = rest.partition(b"\n")
    try:
        contents = _Contents(**json.loads(line))
        plan, library = binary[: contents.plan_bytes], _Library(binary[contents.plan_bytes :])
        return NativeCode(plan, [library.address(name) for name in contents.functions], library)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise NativeCodeErrors.NOT_LOADED(cause=quoted(error)) from None


class _Library:
    """A shared library loaded from memory, so that the executed code is the code that was verified.

    It is unloaded with the last reference to this object. Raises OSError if it cannot be loaded.
    """

    def __init__(self, code: bytes) -> None:
        file = _unnamed_file()
        try:
            file.write(code)
            file.flush()
            self._library = ctypes.CDLL(f"/proc/self/fd/{file.fileno()}")
        except OSError:
            file.close()
            raise
        # The loader identifies a library by its name, so no other file may get this descriptor until it is unloaded.
        weakref.finalize(self, _unload, self._library._handle, file).atexit = False

    def address(self, name: str) -> int:
        """Return the address of a function. Raises AttributeError if there is none of this name."""
        address = ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value
        if not address:
            raise AttributeError(f"no function {name!r}")
        return address


def _unload(handle: int, file: IO[bytes]) -> None:
    _ctypes.dlclose(handle)
    file.close()


def _unnamed_file() -> IO[bytes]:
    """Return an empty file that is in no folder: in memory or, on systems without such files, in the user's cache."""
    try:
        return os.fdopen(os.memfd_create("sscc"), "w+b")
    except (AttributeError, OSError):
        return tempfile.TemporaryFile(dir=make_cache_folder(NATIVE))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


__all__ = ["NativeCode", "cached_code", "can_link", "code_key", "keep_code", "make_code", "schedule_digest"]
