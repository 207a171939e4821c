"""CPUs that kernels are tested for: each set of instructions that generated code uses explicitly, once."""

from __future__ import annotations

import pytest

from sscc.runtime.backends.cpu.codegen.features import AVX2, GENERIC, Features

HOST = Features.of_host()


def distinct(features: dict[str, Features]) -> dict[str, Features]:
    """Return `features` without those whose instructions are those of an earlier one: their code differs by what LLVM
    makes of it alone."""
    names = {each.extensions: name for name, each in reversed(features.items())}
    return {name: each for name, each in features.items() if names[each.extensions] == name}


CPUS = [
    pytest.param(features, id=name)
    for name, features in distinct({"host": HOST, "generic": GENERIC, "avx2": AVX2}).items()
]
"""This one, one without vectors that code may name, and where it has other instructions one with AVX2."""


def optimisation(features: Features) -> int:
    """Return LLVM's level for a kernel by itself: that of `sscc compile` on this CPU. Other CPUs differ in the
    instructions that we generate, and LLVM would take three times as long for them."""
    return 3 if features == HOST else 0
