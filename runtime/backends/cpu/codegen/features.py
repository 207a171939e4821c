"""The features of a CPU that generated code may use."""

from __future__ import annotations

import os
from dataclasses import dataclass

from sscc.ir.errors import ErrorKind, UsageError
from sscc.runtime.support import _native

LANES = 16
"""Lanes of every vector of f32; LLVM splits vectors for CPUs with narrower registers."""

VARIABLE = "SSCC_NATIVE_CPU"
"""Environment variable with the CPU to compile for, one of `MODELS`; by default this host."""

_V3 = ("sse4_1", "sse4_2", "avx", "f16c", "fma", "avx2", "bmi2")
MODELS: dict[str, tuple[str, ...]] = {
    "x86-64-v3": _V3,
    "x86-64-v4": (*_V3, "avx512f", "avx512dq", "avx512bw", "avx512vl"),
}
"""CPUs to compile for, by LLVM's name, with their extensions as the native module names them."""

_ARM = {
    "asimd": "neon",
    "asimdhp": "fullfp16",
    "asimddp": "dotprod",
    "asimdfhm": "fp16fml",
    "i8mm": "i8mm",
    "bf16": "bf16",
}
"""Extensions of 64-bit Arm that code may use: the kernel's names, with LLVM's. SVE is not among them, because vectors
here have a fixed size."""


class NativeCpuErrors(ErrorKind):
    UNKNOWN = UsageError, "{variable}={cpu} is not a CPU that sscc can compile for: choose one of {models}"
    MISSING_INSTRUCTIONS = UsageError, "{variable}={cpu} requires instructions that this CPU lacks: {missing}"


@dataclass(frozen=True)
class Features:
    """A CPU, and the instructions that generated code uses explicitly; LLVM chooses all others for the CPU.

    Attributes:
        cpu: LLVM's name of the CPU to compile for, "" for the host.
        extensions: extensions that code may use explicitly, named as in `_native.cpu_features`.
        activation_bits: bits of the integers to which products with quantized weights round their left operand, 16 or
            8 (`sscc.runtime.backends.cpu.products.quantized_products`).
    """

    cpu: str = ""
    extensions: frozenset[str] = frozenset()
    activation_bits: int = 16

    @classmethod
    def of_host(cls) -> Features:
        return cls("", frozenset(_native.cpu_features()))

    @classmethod
    def chosen(cls) -> Features:
        """Return the CPU that $SSCC_NATIVE_CPU names, or the host.

        Raises UsageError for a name that is not in `MODELS`, or if the host cannot run code for that CPU.
        """
        name = os.environ.get(VARIABLE, "")
        if not name:
            return cls.of_host()
        if name not in MODELS:
            raise NativeCpuErrors.UNKNOWN(variable=VARIABLE, cpu=name, models=list(MODELS))
        missing = [e for e in MODELS[name] if e not in _native.cpu_features()]
        if missing:
            raise NativeCpuErrors.MISSING_INSTRUCTIONS(variable=VARIABLE, cpu=name, missing=missing)
        return cls(name, frozenset(MODELS[name]))

    @property
    def bf16_dot(self) -> bool:
        """Return True if products of pairs of bf16 can be summed in f32 (AVX512_BF16)."""
        return "avx512_bf16" in self.extensions

    @property
    def bf16_tiles(self) -> bool:
        """Return True if the CPU multiplies tiles of bf16: 16 rows of 32 by 32 of 16 (AMX_BF16)."""
        return {"amx_tile", "amx_bf16", "avx512f"} <= self.extensions

    @property
    def int8_tiles(self) -> bool:
        """Return True if products of tiles of 8-bit integers can be summed in i32: 16 rows of 64 by 64 of 16
        (AMX_INT8)."""
        return {"amx_tile", "amx_int8", "avx512f"} <= self.extensions

    @property
    def int8_dot(self) -> bool:
        """Return True if products of four 8-bit integers each can be summed in i32 (AVX512_VNNI)."""
        return "avx512_vnni" in self.extensions

    @property
    def signed_dot(self) -> bool:
        """Return True if products of four signed 8-bit integers can be summed in i32, in registers of 128 bits
        (`asimddp`)."""
        return "asimddp" in self.extensions

    @property
    def int16_dot(self) -> int:
        """Return the width in bits of registers in which products of pairs of 16-bit integers are summed in i32: 512
        (AVX512BW) or 256 (AVX2); 0 for none."""
        return 512 if "avx512bw" in self.extensions else 256 if "avx2" in self.extensions else 0

    @property
    def wide_registers(self) -> bool:
        """Return True if the CPU has 32 registers of 512 bits; otherwise tiles are sized for 16 of 256."""
        return "avx512f" in self.extensions


def host_attributes() -> str:
    """Return the attribute "target-features" for LLVM on a 64-bit Arm host. LLVM itself would read a file with the
    names, which emulators and containers may lack. "" elsewhere, because there it asks the CPU."""
    return ",".join(f"+{_ARM[name]}" for name in _native.cpu_features() if name in _ARM)


GENERIC = Features(extensions=frozenset(_native.cpu_features()) & {"avx512f"})
"""The vectors of the host, without explicit instructions."""

AVX2 = Features("x86-64-v3", frozenset(_V3))
"""The instructions of an x86 CPU of 2013, so that this code can be tested on any x86 host."""
