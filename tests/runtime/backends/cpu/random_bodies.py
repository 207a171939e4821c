"""Random bodies of affine steps, for tests of general properties."""

from __future__ import annotations

import random
from math import prod

import torch

from sscc.ir.schedule import Access, Body, Instr, Local, Param, Product, Reduction, Vector, View, Window
from sscc.ir.sizes import dense_strides
from tests.runtime.schedules import identity, view_of

Shape = tuple[int, ...]
EXTENTS = (2, 3, 4, 5, 16, 17, 32, 48)


class RandomBody:
    """A chain of steps, each of which reads what an earlier one wrote; some values are parameters, others locals.

    Attributes:
        body: the body.
        inputs, writes: contents for its parameters.
    """

    def __init__(self, seed: int, elements: int = 2000) -> None:
        self._draw = random.Random(seed)
        self._torch = torch.Generator().manual_seed(seed)
        self._limit = elements
        self._locals: list[Local] = []
        self._windows: list[Window] = []
        self._steps: list[Vector | Reduction | Product] = []
        self._shapes: dict[str, Shape] = {}
        self.inputs: dict[str, torch.Tensor] = {}
        self.writes: dict[str, torch.Tensor] = {}
        rank = self._draw.randint(1, 3)
        value = self._input(tuple(self._draw.choice(EXTENTS) for _ in range(rank)) if rank < 3 else (3, 4, 16))
        kinds = (self._unary, self._transposed, self._reduced, self._product, self._reshaped, self._joined)
        kinds += (self._in_place, self._swapped_halves, self._spread)
        for _ in range(self._draw.randint(2, 5)):
            value = self._draw.choice(kinds)(value)
        self._step(value, self._new(self._shapes[value], written=True))
        tensors = {**self.inputs, **self.writes}
        params = tuple(
            Param(n, tuple(t.shape), "f32", "update" if n in self.writes else "read") for n, t in tensors.items()
        )
        self.body = Body("k", params, (), tuple(self._locals), tuple(self._windows), tuple(self._steps))

    # -- values

    def _input(self, shape: Shape) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs[name] = torch.randn(shape, generator=self._torch)
        self._shapes[name] = shape
        return name

    def _new(self, shape: Shape, *, written: bool | None = None) -> str:
        if self._draw.random() < 0.3 if written is None else written:
            name = f"y{len(self.writes)}"
            self.writes[name] = torch.randn(shape, generator=self._torch)
        else:
            name = f"l{len(self._locals)}"
            self._locals.append(Local(name, shape, "f32"))
        self._shapes[name] = shape
        return name

    def _window(self, name: str, view: View) -> str:
        window = f"w{len(self._windows)}"
        self._windows.append(Window(window, view))
        self._shapes[window] = view.shape
        return window

    def _root(self, name: str) -> tuple[str, int]:
        """The region that a dense window looks at, and where."""
        for window in self._windows:
            if window.name == name:
                return window.view.tensor, window.view.offset
        return name, 0

    # -- steps

    def _step(self, source: str, target: str, scale: float = 0.5) -> str:
        shape = self._shapes[source]
        program = (Instr("r", "mulf", ("in0", scale), "f32"),)
        whole = identity(len(shape))
        self._steps.append(Vector(shape, (Access(source, whole),), Access(target, whole), program, "r"))
        return target

    def _unary(self, value: str) -> str:
        return self._step(value, self._new(self._shapes[value]))

    def _transposed(self, value: str) -> str:
        shape = self._shapes[value]
        order = self._draw.sample(range(len(shape)), len(shape))
        rows = identity(len(shape))
        target = self._new(tuple(shape[d] for d in order))
        out = Access(target, tuple(rows[d] for d in order))
        self._steps.append(Vector(shape, (Access(value, rows),), out, (), "in0"))
        return target

    def _reduced(self, value: str) -> str:
        """A sum along one dimension, and the value less that: a norm."""
        shape = self._shapes[value]
        dim = self._draw.randrange(len(shape))
        rows = identity(len(shape))
        kept = tuple(row for d, row in enumerate(rows) if d != dim) or ((0,) * (len(shape) + 1),)
        total = self._new(tuple(s for d, s in enumerate(shape) if d != dim) or (1,))
        self._steps.append(
            Reduction(shape, (dim,), (Access(value, rows),), Access(total, kept), (), "in0", "addf", 0.0)
        )
        if self._draw.random() < 0.3:
            return total
        target = self._new(shape)
        program = (Instr("r", "subf", ("in0", "in1"), "f32"),)
        inputs = (Access(value, rows), Access(total, kept))
        self._steps.append(Vector(shape, inputs, Access(target, rows), program, "r"))
        return target

    def _product(self, value: str) -> str:
        *outer, k = self._shapes[value]
        n = self._draw.choice(EXTENTS)
        if prod(outer) * n > self._limit:
            return self._unary(value)
        weight = self._input((n, k))
        rank = len(outer) + 2
        rows = identity(rank)
        target = self._new((*outer, n))
        a = Access(value, (*rows[: len(outer)], rows[-1]))
        self._steps.append(
            Product((*outer, n, k), (rank - 1,), a, Access(weight, rows[-2:]), Access(target, rows[:-1]))
        )
        return target

    def _reshaped(self, value: str) -> str:
        """The same elements in one dimension, or with the last one cut in two."""
        shape = self._shapes[value]
        root, offset = self._root(value)
        factors = [f for f in range(2, shape[-1]) if shape[-1] % f == 0]
        flat: Shape = (prod(shape),)
        cut = flat
        if factors and self._draw.random() < 0.6:
            inner = self._draw.choice(factors)
            cut = (*shape[:-1], shape[-1] // inner, inner)
        return self._window(root, view_of(root, cut, offset))

    def _joined(self, value: str) -> str:
        """Two values side by side in a third, written by two steps."""
        shape = self._shapes[value]
        if 2 * prod(shape) > self._limit:
            return self._unary(value)
        target = self._new((2, *shape))
        for half in range(2):
            part = self._window(target, view_of(target, shape, half * prod(shape)))
            self._step(value, part, 1.0 + half)
        return target

    def _in_place(self, value: str) -> str:
        root, _ = self._root(value)
        return self._unary(value) if root in self.inputs else self._step(value, value)

    def _swapped_halves(self, value: str) -> str:
        """The two halves of the last dimension change places, as in a rotary embedding."""
        *outer, n = self._shapes[value]
        if n % 2:
            return self._unary(value)
        root, offset = self._root(value)
        target = self._new((*outer, n))
        half: Shape = (*outer, n // 2)
        strides = (*(s for s in dense_strides((*outer, n))[:-1]), 1)
        for first, second in ((0, n // 2), (n // 2, 0)):
            source = self._window(root, View(root, half, strides, offset + first))
            self._step(source, self._window(target, View(target, half, strides, second)))
        return target

    def _spread(self, value: str) -> str:
        """Repeated along a new first dimension."""
        shape = self._shapes[value]
        if 3 * prod(shape) > self._limit:
            return self._unary(value)
        target = self._new((3, *shape))
        rows = identity(len(shape) + 1)
        self._steps.append(Vector((3, *shape), (Access(value, rows[1:]),), Access(target, rows), (), "in0"))
        return target
