"""Bodies as native functions, called for chosen ranges of units and without a plan, and the same on the reference."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch

from sscc.ir.schedule import Access, Body, Local, Param, Window
from sscc.ir.sizes import dense_strides
from sscc.runtime.backends.cpu.codegen.bodies import Variant, lower_body
from sscc.runtime.backends.cpu.codegen.features import Features
from sscc.runtime.backends.cpu.codegen.machine_code import Jit
from sscc.runtime.backends.cpu.codegen.mlir import Module
from sscc.runtime.backends.cpu.codegen.nests import Strides
from sscc.runtime.backends.cpu.plan.plan import NOTE_BYTES
from sscc.runtime.backends.cpu.products.packing import Panels
from sscc.runtime.backends.cpu.products.quantized_packing import QuantizedPanels
from sscc.runtime.backends.reference.arrays import to_array
from tests.runtime.backends.cpu.product_data import AlignedArray
from tests.runtime.backends.cpu.scalar_words import ScalarWords
from tests.runtime.programs import DTYPES, run_kernel
from tests.runtime.schedules import one_stage

Shares = Callable[[int], Iterable[tuple[int, int]]]
"""The ranges in which a function is called, of its number of units."""

_FUNCTION = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
)  # fmt: skip
_GARBAGE = 0xFF
"""Byte of uninitialised scratch memory: it reads as NaN or -1."""


def at_once(units: int) -> list[tuple[int, int]]:
    """Return the division of units in which one call has all of them."""
    return [(0, units)]


def one_by_one(units: int) -> list[tuple[int, int]]:
    """A call per unit, the last one first."""
    return [(unit, unit + 1) for unit in reversed(range(units))]


def in_thirds(units: int) -> list[tuple[int, int]]:
    """As three threads share units out, some of them none."""
    return [(units * t // 3, units * (t + 1) // 3) for t in (1, 0, 2)]


class NativeBody:
    """The functions of a body.

    Args:
        strides: of parameters that are not dense, in elements.
        packed: parameters that are packed weights.
        positions: as of `Variant`; `run` takes one more scalar then.
    """

    def __init__(
        self,
        body: Body,
        strides: Mapping[str, Strides] | None = None,
        packed: Mapping[str, Panels | QuantizedPanels] | None = None,
        features: Features | None = None,
        positions: int | None = None,
    ) -> None:
        strides_of = {p.name: dense_strides(p.shape) for p in body.params} | dict(strides or {})
        strides_of_all = tuple(strides_of[p.name] for p in body.params)
        variant = Variant(body, strides_of_all, tuple((packed or {}).items()), positions)
        module = Module()
        self.body = body
        self.code = lower_body(module, body.name, variant, Features.of_host() if features is None else features)
        self._jit = Jit(module, optimise=0)
        self.reported = False
        self.functions = [_FUNCTION(self._jit.addresses[r.function]) for r in self.code.routines]

    @property
    def units(self) -> list[int]:
        """Units of each function, in order."""
        return [r.units for r in self.code.routines]

    def run(
        self,
        memory: Mapping[str, np.ndarray],
        scalars: Sequence[int] = (),
        shares: Shares = at_once,
        *,
        keep: bool = False,
    ) -> None:
        """Call all functions on what the parameters point to; every call finds garbage in its scratch, or with `keep`
        what the call before it left there. `reported` says whether one found an index outside of what it indexes."""
        shared, private = AlignedArray(self.code.shared_bytes), AlignedArray(self.code.private_bytes)
        shared.bytes[:] = _GARBAGE
        pointers = [*(memory[p.name].ctypes.data for p in self.body.params), shared.address]
        arguments = (ctypes.c_void_p * len(pointers))(*pointers)
        words = ScalarWords(scalars)
        for function, units in zip(self.functions, self.units, strict=True):
            private.bytes[:] = _GARBAGE
            private.bytes[:NOTE_BYTES] = 0
            for begin, end in shares(units):
                if not keep:
                    private.bytes[:] = _GARBAGE
                function(arguments, words.address, begin, end, private.address)
        self.reported = words.reported


def body_of(
    steps: tuple[object, ...],
    inputs: Mapping[str, torch.Tensor],
    writes: Mapping[str, torch.Tensor],
    scalars: Sequence[str] = (),
    locals_: tuple[Local, ...] = (),
    windows: tuple[Window, ...] = (),
) -> Body:
    """A body that reads `inputs` and updates `writes`."""
    params = tuple(
        Param(name, tuple(t.shape), DTYPES[t.dtype], "update" if name in writes else "read")
        for name, t in {**inputs, **writes}.items()
    )
    return Body("k", params, tuple(scalars), locals_, windows, steps)  # type: ignore[arg-type]


def reference(
    body: Body,
    inputs: Mapping[str, torch.Tensor],
    writes: Mapping[str, torch.Tensor],
    scalars: Mapping[str, int] | None = None,
) -> dict[str, torch.Tensor]:
    """Return the contents of `writes` after the reference interpreter has run."""
    return run_kernel(one_stage(body), (body,), inputs, writes, scalars, native=False)


def check(
    body: Body,
    inputs: Mapping[str, torch.Tensor],
    writes: Mapping[str, torch.Tensor],
    scalars: Mapping[str, int] | None = None,
    *,
    packed: Mapping[str, Panels] | None = None,
    tolerance: float = 1e-5,
) -> NativeBody:
    """Native code computes what the reference does, and the same bits however units are shared out."""
    native = NativeBody(body, packed=packed)
    expected = reference(body, inputs, writes, scalars)
    runs = []
    for shares in (at_once, one_by_one, in_thirds):
        memory = {name: _bits(value) for name, value in {**inputs, **writes}.items()}
        for name, panels in (packed or {}).items():
            memory[name] = panels.pack(memory[name].view(np.float32 if panels.dtype == "f32" else np.uint16))
        native.run(memory, list((scalars or {}).values()), shares)
        runs.append({name: memory[name] for name in writes})
    for name, tensor in expected.items():
        first = runs[0][name]
        assert all(np.array_equal(first, other[name]) for other in runs[1:]), f"{name} depends on the ranges of units"
        result = torch.from_numpy(first).view(tensor.dtype).reshape(tensor.shape)
        if tensor.is_floating_point():
            close = torch.isclose(result, tensor, rtol=tolerance, atol=tolerance, equal_nan=True)
            assert close.all(), f"{name}: {result[~close]} is not {tensor[~close]}"
        else:
            assert torch.equal(result, tensor), name
    return native


def _bits(value: torch.Tensor) -> np.ndarray:
    """A copy of a tensor's memory, as numbers that compare bit for bit."""
    array = np.array(to_array(value.contiguous()))
    return array.view({1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[array.itemsize])


def access(name: str, *rows: Sequence[int]) -> Access:
    """An access map, a row of coefficients and a constant per dimension."""
    return Access(name, tuple(tuple(row) for row in rows))
