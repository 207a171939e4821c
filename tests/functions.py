"""A cache of native functions compiled without optimisation, for later programs with the same functions. It is in
memory, in place of the files in the user's cache.

Programs of one model at several levels, and of models of one shape, have most of their functions in common. Without
optimisation nothing is inlined, so the code of a function depends only on its text and on the functions that it
calls. Plans, and all steps before the text, are computed for every program.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from unittest import mock

from sscc.ir.schedule import Program
from sscc.runtime.backends.cpu import backend
from sscc.runtime.backends.cpu.codegen import machine_code as making
from sscc.runtime.backends.cpu.codegen.features import Features
from sscc.runtime.backends.cpu.codegen.mlir import Module
from sscc.runtime.backends.cpu.plan import library
from sscc.runtime.backends.cpu.plan.library import NativeCode, cached_code, code_key, make_code, schedule_digest
from sscc.runtime.backends.cpu.plan.storage import PanelPacking

_CALLED = re.compile(r'func\.call @"([^"]+)"')
_JIT = making.Jit


class Functions:
    """In place of `compile.Jit`: an exported function that was compiled once is not compiled again.

    Checked modules are compiled as they are, because their code says where it notes what it does wrong; and so is what
    is optimised.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, ...], tuple[making.Jit, int]] = {}

    def __call__(self, module: Module, cpu: str = "", optimise: int = 3) -> making.Jit | SharedJit:
        if optimise or type(module) is not Module:
            return _JIT(module, cpu, optimise)
        return SharedJit(module, cpu, self)

    def addresses(self, module: Module, cpu: str) -> dict[str, int]:
        """Return the address of each exported function, valid while this object lives."""
        texts = {name: function.text() for name, function in module._functions.items()}
        callees = {name: list(dict.fromkeys(_CALLED.findall(text))) for name, text in texts.items()}
        digests = {name: _digest(text) for name, text in texts.items() if not module.get(name).exported}
        parts = {name: _reached(name, callees) for name in module.exported}
        # An exported function may have another name in another module, and no function of the module calls it.
        own = {name: _digest(texts[name].replace(f'@"{name}"', '@""', 1)) for name in parts}
        keys = {name: (cpu, own[name], *(digests[part] for part in parts[name][1:])) for name in parts}
        missing = {key: name for name, key in keys.items() if key not in self._kept}
        if missing:
            needed = {part for name in missing.values() for part in parts[name]}
            rest = Module()
            rest._functions = {name: module.get(name) for name in texts if name in needed}
            jit = _JIT(rest, cpu, 0)
            self._kept |= {key: (jit, jit.addresses[name]) for key, name in missing.items()}
        return {name: self._kept[key][1] for name, key in keys.items()}


class SharedJit:
    """As `compile.Jit`, of a module whose code is not optimised."""

    def __init__(self, module: Module, cpu: str, functions: Functions) -> None:
        self._module, self._cpu, self._functions = module, cpu, functions

    @cached_property
    def addresses(self) -> dict[str, int]:
        return self._functions.addresses(self._module, self._cpu)

    def object_code(self) -> bytes:
        """Return the whole module, compiled completely, because a file must be self-contained."""
        return _JIT(self._module, self._cpu, 0).object_code()


class Programs:
    """In place of `backend.cached_code`: the code of a program is made in memory, once, also for several threads.

    It stays for the next 64 programs. Optimised code comes from the user's cache, as ever.
    """

    def __init__(self) -> None:
        self._kept: dict[str, NativeCode] = {}
        self._making = threading.Lock()

    def __call__(
        self,
        program: Program,
        schedule: str | None = None,
        packings: Mapping[str, PanelPacking] | None = None,
        features: Features | None = None,
    ) -> NativeCode:
        if library._optimisation():
            return cached_code(program, schedule, packings, features)
        key = code_key(schedule or schedule_digest(program), features)
        with self._making:
            code = self._kept.pop(key, None) or make_code(program, features, packings=packings)
            self._kept[key] = code
            if len(self._kept) > 64:
                del self._kept[next(iter(self._kept))]
        return code


def _reached(name: str, callees: Mapping[str, Sequence[str]]) -> list[str]:
    """A function and all that it calls, itself first."""
    found = {name: None}
    waiting = [name]
    while waiting:
        new = [callee for callee in callees[waiting.pop()] if callee not in found]
        found |= dict.fromkeys(new)
        waiting += new
    return list(found)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@contextmanager
def functions_kept() -> Iterator[None]:
    with mock.patch.object(making, "Jit", Functions()), mock.patch.object(backend, "cached_code", Programs()):
        yield


@contextmanager
def code_in_the_cache() -> Iterator[None]:
    """In here sessions take code from the user's cache, and write it there."""
    with mock.patch.object(backend, "cached_code", cached_code):
        yield
