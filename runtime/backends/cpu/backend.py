"""The CPU as a backend: weights packed for products, and machine code generated from a schedule by LLVM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from sscc.ir.errors import ErrorKind, InputError, OutputError, UsageError
from sscc.ir.schedule import Program
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.backends.backend import Conditions
from sscc.runtime.backends.cpu.codegen.features import LANES, Features
from sscc.runtime.backends.cpu.interpreter import NativeInterpreter
from sscc.runtime.backends.cpu.plan.library import cached_code, keep_code
from sscc.runtime.backends.cpu.plan.storage import PanelPacking
from sscc.runtime.backends.cpu.plan.weights import packed_weights
from sscc.runtime.backends.interpreter import Interpreter
from sscc.runtime.backends.registry import NATIVE, NATIVE_INT8
from sscc.runtime.support import _native
from sscc.runtime.support.user_cache import UnsafeCacheError


class NativeBackendErrors(ErrorKind):
    REFERENCE_OPTION = UsageError, "the {option} option needs --interpreter reference"


class Cpu:
    """Backend of the CPU, see `sscc.runtime.backends.backend.Backend`. Code is generated from the schedule once, and
    kept in the user's cache."""

    name = packer = NATIVE
    tile_rows = LANES

    def __init__(self, program: Program) -> None:
        self._program = program

    @property
    def features(self) -> Features:
        """The CPU, and the numbers of products, that code is generated for."""
        return Features.chosen()

    @cached_property
    def packings(self) -> Mapping[str, PanelPacking]:
        return packed_weights(self._program)

    def lower(self) -> str:
        try:
            keep_code(self._program, self.packings, self.features)
        except UnsafeCacheError:
            raise
        except InputError as error:
            return f"none ({error})"
        except OutputError as error:
            return f"none ({error}); sscc run makes it"
        chosen = self.features
        features = " ".join(name for name in _native.cpu_features() if name in chosen.extensions) or "no extensions"
        return f"in the cache, for {chosen.cpu or _native.architecture()} with {features}"

    def open(self, weights: Mapping[str, Array], conditions: Conditions) -> Interpreter:
        if conditions.precision != "f32" or conditions.checked:
            raise NativeBackendErrors.REFERENCE_OPTION(option="checked" if conditions.checked else "precision")
        code = cached_code(self._program, conditions.digest or None, self.packings, self.features)
        return NativeInterpreter(self._program, weights, packed=self.packings, code=code, threads=conditions.threads,
                                 group=conditions.group)  # fmt: skip


class Int8Cpu(Cpu):
    """The CPU, with products of quantized weights that round their left operand to 8 bits: up to twice as fast where
    arithmetic bounds them, as in prefill, and as accurate as llama.cpp's."""

    name = NATIVE_INT8

    @property
    def features(self) -> Features:
        """See `Cpu`."""
        return replace(Features.chosen(), activation_bits=8)
