"""Native code of a program, as it is made, stored and loaded.

Code is made for the CPU that it is made on. It is kept as a shared library beside the plan that calls it, under a key
that names the CPU's features and the version of the generator; where the key does not fit, it is made again.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sscc.ir.errors import InputError, OutputError
from sscc.ir.files import output_errors, replacing
from sscc.runtime import _native
from sscc.runtime.codegen.features import Features
from sscc.runtime.schedule import Program
from sscc.runtime.user_cache import cache_folder

VERSION = 2
"""Of generated code: raised with every change that makes other code or other plans of the same schedule."""

LINKER = "cc"

_LOGGER = logging.getLogger("sscc")


@dataclass(frozen=True)
class NativeCode:
    """Code in memory.

    Attributes:
        plan: an encoded `NativePlan`.
        addresses: of its functions, in the plan's order; valid as long as `owner` lives.
        owner: what keeps the code in memory.
    """

    plan: bytes
    addresses: Sequence[int]
    owner: object


def host_key() -> str:
    """What this host's code is stored under: architecture, and a digest of its features and of `VERSION`."""
    text = json.dumps([VERSION, _native.architecture(), _native.cpu_features()])
    return f"{_native.architecture()}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def can_link() -> bool:
    """Whether this machine can make shared libraries."""
    return shutil.which(LINKER) is not None


def make_code(program: Program, features: Features | None = None, optimise: int | None = None) -> NativeCode:
    """Compiles a program in memory, in seconds.

    Args:
        features: what code may use; what this host has if None.
        optimise: LLVM's level, 0 to 3; $SSCC_NATIVE_OPTIMISE, or 3, if None.
    """
    made, names, plan = _generate(program, features, optimise)
    addresses = made.addresses
    return NativeCode(plan, [addresses[name] for name in names], made)


def store_code(program: Program, write: Callable[[str, bytes], object]) -> str:
    """Compiles a program for this host and writes its files, ``KEY.json``, ``KEY.plan`` and ``KEY.so``.

    Args:
        write: called with each file's name and content.

    Returns the key. Raises OSError or subprocess.CalledProcessError where there is no linker or it fails.
    """
    from sscc.runtime.codegen.compile import link

    made, names, plan = _generate(program, None, None)
    key = host_key()
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "code.so"
        link(made.object_code(), library, LINKER)
        code = library.read_bytes()
    about = {
        "architecture": _native.architecture(),
        "features": _native.cpu_features(),
        "functions": names,
        "sha256": {"plan": _digest(plan), "so": _digest(code)},
    }
    write(f"{key}.json", (json.dumps(about, indent=1, sort_keys=True) + "\n").encode())
    write(f"{key}.plan", plan)
    write(f"{key}.so", code)
    return key


def load_code(folder: Path) -> NativeCode | None:
    """The code of this host in a folder that `store_code` wrote to; None where there is none for it.

    Raises InputError where the files are damaged.
    """
    key = host_key()
    paths = {kind: folder / f"{key}.{kind}" for kind in ("json", "plan", "so")}
    if not all(path.is_file() for path in paths.values()):
        return None
    try:
        about = json.loads(paths["json"].read_text(encoding="utf-8"))
        plan = paths["plan"].read_bytes()
        for kind, data in (("plan", plan), ("so", paths["so"].read_bytes())):  # a library cut short stops the process
            if about["sha256"][kind] != _digest(data):
                raise ValueError(f"the digest of {paths[kind].name} is another one")
        library = ctypes.CDLL(str(paths["so"]))
        return NativeCode(plan, [_address(library, name) for name in about["functions"]], library)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{folder}: this native code is damaged: {error}") from None


def cached_code(program: Program) -> NativeCode:
    """The program's code from the user's cache; made and kept there where there is none for this CPU yet, or where it
    is damaged.

    Where it cannot be kept, it is made for this process alone. All of that is said through the logger.
    """
    folder = cache_folder() / "native" / _digest(program.to_json().encode())[:32]
    try:
        found = load_code(folder)
    except InputError as error:
        _LOGGER.info(str(error))
    else:
        if found is not None:
            return found
    _LOGGER.info("compiling the schedule for this CPU")
    if not can_link():
        _LOGGER.info(f"there is no linker ({LINKER}), so it is not kept and will be compiled in every run")
        return make_code(program)
    try:
        with output_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        store_code(program, lambda name, data: _keep(folder / name, data))
    except (OutputError, OSError, subprocess.CalledProcessError) as error:
        _LOGGER.info(f"it cannot be kept: {error}")
        return make_code(program)
    loaded = load_code(folder)
    return loaded if loaded is not None else make_code(program)


def _keep(path: Path, data: bytes) -> None:
    with replacing(path) as file:
        file.write(data)


def _generate(program: Program, features: Features | None, optimise: int | None) -> tuple[Any, list[str], bytes]:
    from sscc.runtime.codegen.compile import Jit
    from sscc.runtime.codegen.planner import plan_program

    chosen = Features.of_host() if features is None else features
    native = plan_program(program, chosen)
    level = int(os.environ.get("SSCC_NATIVE_OPTIMISE", "3")) if optimise is None else optimise
    made = Jit(native.module, chosen.cpu, level)
    return made, list(native.plan.functions), native.plan.encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _address(library: ctypes.CDLL, name: str) -> int:
    address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    if not address:
        raise AttributeError(f"no function {name!r}")
    return address


__all__ = ["NativeCode", "cached_code", "can_link", "host_key", "load_code", "make_code", "store_code"]
