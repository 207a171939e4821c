"""Native code for thousands of programs that differ little: the functions of each body are compiled once.

Everything else, such as plans, is computed for every program.
"""

from __future__ import annotations

from unittest import mock

from sscc.ir.schedule import Program
from sscc.runtime.backends.cpu.codegen import bodies
from sscc.runtime.backends.cpu.codegen.checks import CheckedModule, Violations
from sscc.runtime.backends.cpu.codegen.features import Features
from sscc.runtime.backends.cpu.codegen.machine_code import Jit
from sscc.runtime.backends.cpu.codegen.mlir import Module
from sscc.runtime.backends.cpu.plan import draft
from sscc.runtime.backends.cpu.plan.library import NativeCode
from sscc.runtime.backends.cpu.plan.planner import plan_program


class NativeCache:
    """A cache of checked native code without optimisation. Code with a true `keep` is kept for later programs."""

    def __init__(self) -> None:
        self._features = Features.of_host()
        self._kept: dict[bodies.Variant, tuple[bodies.NativeBody, Jit]] = {}
        self._count = 0
        self._violations = Violations()

    def code(self, program: Program, *, keep: bool = False) -> NativeCode:
        """As `make_code`, and raises what that does."""
        used: list[Jit] = []

        def lower(module: Module, name: str, variant: bodies.Variant, features: Features) -> bodies.NativeBody:
            code, jit = self._kept.get(variant) or self._lower(variant)
            if keep:
                self._kept[variant] = code, jit
            used.append(jit)
            return code

        with mock.patch.object(draft, "lower_body", lower):
            plan = plan_program(program, self._features).plan
        addresses = {name: address for jit in used for name, address in jit.addresses.items()}
        return NativeCode(plan.encode(), [addresses[name] for name in plan.functions], used, self._violations)

    def _lower(self, variant: bodies.Variant) -> tuple[bodies.NativeBody, Jit]:
        module = CheckedModule(self._violations)
        self._count += 1
        code = bodies.lower_body(module, f"body.{self._count}", variant, self._features)
        return code, Jit(module, self._features.cpu, 0)


__all__ = ["NativeCache"]
