"""Native code of a program, as it is made, kept and found again.

Code is made for the CPU that it is made on, from a schedule, and kept in the user's cache under a key of everything
that it depends on: the schedule, the code generator, LLVM, the CPU. It is never taken from anywhere else: an artifact
holds no code, and what lies in one is not looked for.

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
"""The package that LLVM comes with."""

OPTIMISATION = "SSCC_NATIVE_OPTIMISE"
"""Names LLVM's level of optimization, 0 to 3."""

CODE_BYTES = 2**30
"""The largest file that is taken for native code."""

_LOGGER = logging.getLogger("sscc")


@dataclass(frozen=True)
class NativeCode:
    """Code in memory.

    Attributes:
        plan: an encoded `NativePlan`.
        addresses: of its functions, in the plan's order; valid as long as `owner` lives.
        owner: what keeps the code in memory.
        violations: where checked code notes what it does wrong; None for code that is not checked.
    """

    plan: bytes
    addresses: Sequence[int]
    owner: object
    violations: Violations | None = None


@dataclass(frozen=True)
class _Contents:
    """What a file of the cache says of itself.

    Attributes:
        functions: names in the library, in the plan's order.
        plan_bytes: size of the plan; the library is the rest.
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


def code_key(schedule: str) -> str:
    """The name under which the code of a schedule is kept on this machine, as long as nothing it depends on changes.

    Args:
        schedule: sha256 of the schedule's file form.
    """
    chosen = Features.chosen()
    depends_on = [
        schedule,
        generator_digest(),
        importlib.metadata.version(LLVM),
        _native.architecture(),
        [chosen.cpu, *sorted(chosen.extensions)],
        _optimisation(),
    ]
    return _digest(json.dumps(depends_on).encode())[:32]


@cache
def generator_digest() -> str:
    """sha256 over everything of sscc that decides what the code and the plan of a schedule are."""
    lines = "".join(f"{path.name} {_digest(path.read_bytes())}\n" for path in generator_files())
    return _digest(lines.encode())


def generator_files() -> list[Path]:
    """The sources that generating code can reach, and the native module, whose core reads the plans."""
    cpu = ("", "/codegen", "/plan", "/products", "/attention")
    runtime = ("support", "artifact", "backends", "backends/collectives", *(f"backends/cpu{room}" for room in cpu))
    parts = {sscc.runtime: runtime, sscc.ir: ("", "weight_formats")}
    # A package may have several places: an editable install keeps what is compiled apart from the sources.
    folders = [Path(place, part) for package, inside in parts.items() for place in package.__path__ for part in inside]
    sources = [path for folder in folders for path in folder.glob("*.py")]
    return [*sorted(sources), Path(str(_native.__file__))]


def schedule_digest(program: Program) -> str:
    """sha256 of a program's file form, as an artifact's manifest has it."""
    return _digest(program.to_json().encode())


# ----------------------------------------------------------------------------------------------------------- making


def can_link() -> bool:
    """Whether this machine can make shared libraries."""
    return shutil.which(LINKER) is not None


def make_code(
    program: Program,
    features: Features | None = None,
    optimise: int | None = None,
    packings: Packings | None = None,
    *,
    checked: bool = False,
) -> NativeCode:
    """Compiles a program in memory, in seconds.

    Args:
        features: what code may use; `Features.chosen` if None.
        optimise: LLVM's level, 0 to 3; $SSCC_NATIVE_OPTIMISE, or 3, if None.
        packings: how weights are packed, as `packed_weights` finds it; found here if None.
        checked: whether every access to memory is checked (sscc.runtime.backends.cpu.codegen.checks), for tests: slow.
    """
    module = CheckedModule() if checked else Module()
    compiled, names, plan = _generate(program, features, optimise, module, packings)
    addresses = compiled.addresses
    violations = module.violations if isinstance(module, CheckedModule) else None
    return NativeCode(plan, [addresses[name] for name in names], compiled, violations)


def cached_code(
    program: Program, schedule: str | None = None, packings: Packings | None = None
) -> NativeCode:
    """The program's code from the user's cache; made and kept there where there is none, or where it is damaged.

    Where it cannot be kept, it is made for this process alone. All of that is said through the logger.

    Args:
        schedule: sha256 of the program's file form; computed if None.
        packings: how weights are packed, as `packed_weights` finds it; found here if None.

    Raises UnsafeCacheError where somebody else could have written what is in the cache, and InputError where there is
    no native code for the program.
    """
    key = code_key(schedule or schedule_digest(program))
    code = _kept(key)
    if code is not None:
        return code
    _LOGGER.info("compiling the schedule for this CPU")
    try:
        return _parsed(_keep(program, key, packings))
    except (OutputError, InputError) as error:
        if isinstance(error, InputError) and error.kind not in (NativeCodeErrors.DAMAGED, NativeCodeErrors.NOT_LOADED):
            raise
        _LOGGER.info(f"its code is not kept and will be made again in every run: {error}")
        return make_code(program, packings=packings)


def keep_code(program: Program, packings: Packings | None = None) -> None:
    """Puts a program's code into the user's cache, unless it is there already, for whoever runs it here later.

    Raises as `cached_code` does, and OutputError where there is no linker, it fails, or the cache cannot be written.
    """
    key = code_key(schedule_digest(program))
    if _kept(key) is None:
        _keep(program, key, packings)


def _keep(program: Program, key: str, packings: Packings | None) -> bytes:
    """Makes a program's code and writes it into the cache. Returns the file. Raises OutputError."""
    make_cache_folder(NATIVE)  # first: compiling takes seconds
    data = _file(program, packings)
    with replacing_cached(_name(key)) as file:
        file.write(data)
    return data


def _file(program: Program, packings: Packings | None = None) -> bytes:
    from sscc.runtime.backends.cpu.codegen.machine_code import link

    if not can_link():
        raise NativeCodeErrors.NO_LINKER(linker=LINKER)
    compiled, names, plan = _generate(program, None, None, Module(), packings)
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
    """LLVM's level that $SSCC_NATIVE_OPTIMISE names, or 3. Raises UsageError for another than 0 .. 3."""
    value = os.environ.get(OPTIMISATION, "") or "3"
    if value not in ("0", "1", "2", "3"):
        raise NativeCodeErrors.OPTIMISATION(variable=OPTIMISATION, value=value)
    return int(value)


# ---------------------------------------------------------------------------------------------------------- finding


def _name(key: str) -> str:
    return f"{NATIVE}/{key}.code"


def _kept(key: str) -> NativeCode | None:
    """The code that the cache holds; None where it holds none, or none that is whole, which is said."""
    try:
        file = open_cached(_name(key))
        if file is None:
            return None
        with file:
            nbytes = os.fstat(file.fileno()).st_size  # room for more would be reserved
            return _parsed(file.read(min(nbytes, CODE_BYTES)))
    except UnsafeCacheError:
        raise
    except InputError as error:
        _LOGGER.info(str(error))
    except OSError as error:
        _LOGGER.info(f"the native code {_name(key)} in the cache cannot be read: {error.strerror}")
    return None


def _parsed(data: bytes) -> NativeCode:
    """The code in a file of the cache. Raises InputError where it cannot be loaded."""
    digest, _, rest = data.partition(b"\n")
    if digest != _digest(rest).encode():  # a library that is cut short would stop the process
        raise NativeCodeErrors.DAMAGED()
    line, _, binary = rest.partition(b"\n")
    try:
        contents = _Contents(**json.loads(line))
        plan, library = binary[: contents.plan_bytes], _Library(binary[contents.plan_bytes :])
        return NativeCode(plan, [library.address(name) for name in contents.functions], library)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise NativeCodeErrors.NOT_LOADED(cause=quoted(error)) from None


class _Library:
    """A shared library that is loaded from memory, so that what was checked is what is executed.

    It is unloaded when the last reference to this object is gone. Raises OSError where it cannot be loaded.
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
        # The loader knows a library by its name: until it is unloaded, no other file may have this descriptor.
        weakref.finalize(self, _unload, self._library._handle, file).atexit = False

    def address(self, name: str) -> int:
        """Raises AttributeError where there is no such function."""
        address = ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value
        if not address:
            raise AttributeError(f"no function {name!r}")
        return address


def _unload(handle: int, file: IO[bytes]) -> None:
    _ctypes.dlclose(handle)
    file.close()


def _unnamed_file() -> IO[bytes]:
    """An empty file that is in no folder: in memory, or where the system has no such files, in the user's cache."""
    try:
        return os.fdopen(os.memfd_create("sscc"), "w+b")
    except (AttributeError, OSError):
        return tempfile.TemporaryFile(dir=make_cache_folder(NATIVE))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


__all__ = ["NativeCode", "cached_code", "can_link", "code_key", "keep_code", "make_code", "schedule_digest"]
