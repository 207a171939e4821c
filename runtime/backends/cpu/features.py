"""What generated code may use of the CPU that it is compiled for."""

from __future__ import annotations

from dataclasses import dataclass

from sscc.runtime import _native

LANES = 16
"""Lanes of every vector of f32; LLVM splits them where the CPU's registers are narrower."""


@dataclass(frozen=True)
class Features:
    """Instructions that generated code names itself; everything else is left to LLVM, which knows the host.

    Attributes:
        cpu: LLVM's name of a CPU to compile for, "" for the host.
        bf16_dot: AVX512_BF16, products of pairs of bf16 summed in f32.
        int8_dot: AVX512_VNNI, products of quadruples of 8-bit integers summed in i32.
    """

    cpu: str = ""
    bf16_dot: bool = False
    int8_dot: bool = False

    @classmethod
    def of_host(cls) -> Features:
        flags = set(_native.cpu_features())
        return cls(bf16_dot="avx512_bf16" in flags, int8_dot="avx512_vnni" in flags)

    @property
    def wide_registers(self) -> bool:
        """Whether the CPU has 32 registers of 512 bits; else tiles fit 16 of 256."""
        if self.bf16_dot or self.int8_dot:
            return True
        return not self.cpu and "avx512f" in _native.cpu_features()


GENERIC = Features()
"""The host's vectors and no named instruction."""

AVX2 = Features(cpu="haswell")
"""What an x86 CPU of 2013 runs; so that this can be tested anywhere."""
