"""What generated code may use of the CPU that it is compiled for."""

from __future__ import annotations

import os
from dataclasses import dataclass

from sscc.ir.errors import ErrorKind, UsageError
from sscc.runtime.support import _native

LANES = 16
"""Lanes of every vector of f32; LLVM splits them where the CPU's registers are narrower."""

VARIABLE = "SSCC_NATIVE_CPU"
"""Names the CPU that code is made for, one of `MODELS`; without it, it is this host."""

_V3 = ("sse4_1", "sse4_2", "avx", "f16c", "fma", "avx2", "bmi2")
MODELS: dict[str, tuple[str, ...]] = {
    "x86-64-v3": _V3,
    "x86-64-v4": (*_V3, "avx512f", "avx512dq", "avx512bw", "avx512vl"),
}
"""CPUs that code can be made for by name, which is LLVM's: their extensions, as the native module calls them."""

_ARM = {
    "asimd": "neon",
    "asimdhp": "fullfp16",
    "asimddp": "dotprod",
    "asimdfhm": "fp16fml",
    "i8mm": "i8mm",
    "bf16": "bf16",
}
"""Extensions of 64-bit Arm that code may use, by the kernel's names, as LLVM calls them. SVE is none of them: vectors
here have a fixed size."""


class NativeCpuErrors(ErrorKind):
    UNKNOWN = UsageError, "{variable}={cpu} is not a CPU that code can be made for: choose one of {models}"
    MISSING_INSTRUCTIONS = UsageError, "{variable}={cpu} needs instructions that this CPU lacks: {missing}"


@dataclass(frozen=True)
class Features:
    """A CPU, and which of its instructions generated code names itself; all others are left to LLVM, which knows it.

    Attributes:
        cpu: LLVM's name of a CPU to compile for, "" for the host.
        extensions: of its instructions, those that code may name, as `_native.cpu_features` calls them.
    """

    cpu: str = ""
    extensions: frozenset[str] = frozenset()

    @classmethod
    def of_host(cls) -> Features:
        return cls("", frozenset(_native.cpu_features()))

    @classmethod
    def chosen(cls) -> Features:
        """The CPU that $SSCC_NATIVE_CPU names, or the host.

        Raises UsageError for a name that `MODELS` does not have, and where the host cannot run such code.
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
        """Products of pairs of bf16 summed in f32 (AVX512_BF16)."""
        return "avx512_bf16" in self.extensions

    @property
    def bf16_tiles(self) -> bool:
        """The same of whole tiles: 16 rows of 32 bf16 by 32 of 16 (AMX_BF16)."""
        return {"amx_tile", "amx_bf16", "avx512f"} <= self.extensions

    @property
    def int8_tiles(self) -> bool:
        """Products of tiles of 8-bit integers summed in i32: 16 rows of 64 by 64 of 16 (AMX_INT8)."""
        return {"amx_tile", "amx_int8", "avx512f"} <= self.extensions

    @property
    def int8_dot(self) -> bool:
        """Products of quadruples of 8-bit integers summed in i32 (AVX512_VNNI)."""
        return "avx512_vnni" in self.extensions

    @property
    def signed_dot(self) -> bool:
        """Products of quadruples of signed 8-bit integers summed in i32, in registers of 128 bits (`asimddp`)."""
        return "asimddp" in self.extensions

    @property
    def int16_dot(self) -> int:
        """Bits of the registers that products of pairs of 16-bit integers are taken of and summed in i32: 512
        (AVX512BW) or 256 (AVX2); 0 where there are none."""
        return 512 if "avx512bw" in self.extensions else 256 if "avx2" in self.extensions else 0

    @property
    def wide_registers(self) -> bool:
        """Whether the CPU has 32 registers of 512 bits; else tiles fit 16 of 256."""
        return "avx512f" in self.extensions


def host_attributes() -> str:
    """What LLVM is told of a host on 64-bit Arm, as its attribute "target-features" has it: by itself it reads the
    names of a file, which emulators and containers may lack. "" elsewhere, where it asks the CPU."""
    return ",".join(f"+{_ARM[name]}" for name in _native.cpu_features() if name in _ARM)


GENERIC = Features(extensions=frozenset(_native.cpu_features()) & {"avx512f"})
"""The host's vectors and no named instruction."""

AVX2 = Features("x86-64-v3", frozenset(_V3))
"""What an x86 CPU of 2013 runs; so that this can be tested anywhere."""
