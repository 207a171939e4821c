"""Random functions of level `graph`: element-wise chains, products, reductions, slices, transpositions, broadcasts,
gathers and normalisations, with values that several or none read."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from math import prod

Shape = tuple[int, ...]
EXTENTS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
TABLE_ROWS = 7
HEADER = """module attributes {sscc.level = "graph",
  kv.geometry = {sink = 0 : i64, recent = 2 : i64, topk = 2 : i64, obs = 2 : i64, pool = 3 : i64,
                 pool_mode = "avg", max_context = 8 : i64},
  sscc.program = {batch = 2 : i64, chunk = 4 : i64, dtype = "f32", layers = 1 : i64, vocab_size = 9 : i64,
                  config = "{}", digest = "", eos = "[]"}} {
"""


@dataclass(frozen=True)
class GraphValue:
    name: str
    shape: Shape

    @property
    def type(self) -> str:
        return f"tensor<{''.join(f'{size}x' for size in self.shape)}f32>"


@dataclass
class RandomGraph:
    """A function `layer` of `steps` random operations, as text.

    Attributes:
        limit: elements of a tensor at most.
    """

    draw: random.Random
    limit: int = 1500
    lines: list[str] = field(default_factory=list)
    arguments: list[tuple[str, str, str]] = field(default_factory=list)  # role, name, type
    values: list[GraphValue] = field(default_factory=list)

    def text(self, steps: int) -> str:
        for _ in range(self.draw.randint(1, 2)):
            rank = self.draw.randint(1, 3)
            self._argument("input", tuple(self.draw.choice(EXTENTS) for _ in range(rank)))
        while steps:
            steps -= self._step()
        values = [self.values[-1], *self.draw.sample(self.values, self.draw.randint(0, 1))]
        outputs = [value for value in dict.fromkeys(values) if value.name.startswith("v")]
        outputs = outputs or [self._mapped(self._pick())]
        parameters = ", ".join(f'%{name}: {kind} {{sscc.{role} = "{name}"}}' for role, name, kind in self.arguments)
        types = ", ".join(f'{value.type} {{sscc.output = "y{index}"}}' for index, value in enumerate(outputs))
        returned = f"{', '.join(f'%{v.name}' for v in outputs)} : {', '.join(v.type for v in outputs)}"
        body = "\n".join(f"    {line}" for line in self.lines)
        function = f"  func.func private @layer({parameters}) -> ({types}) {{\n{body}\n    return {returned}\n  }}\n"
        return f"{HEADER}{function}}}\n"

    def _step(self) -> int:
        """Adds an operation; 0 where the drawn one does not fit the drawn value."""
        kinds = (
            self._mapped, self._joined, self._broadcast, self._reduced, self._normalised, self._product,
            self._transposed, self._sliced, self._sliced, self._reshaped, self._concatenated, self._gathered,
        )  # fmt: skip
        value = self.draw.choice(kinds)(self._pick())
        return int(value is not None)

    def _pick(self) -> GraphValue:
        """A value, a late one more likely."""
        late = self.values[-3:]
        return self.draw.choice(late if self.draw.random() < 0.7 else self.values)

    # ------------------------------------------------------------------------------------------------- values

    def _argument(self, role: str, shape: Shape) -> GraphValue:
        value = GraphValue(f"a{len(self.arguments)}", shape)
        self.arguments.append((role, value.name, value.type))
        if role == "input":
            self.values.append(value)
        return value

    def _fresh(self) -> str:
        return f"t{len(self.lines)}"

    def _put(self, shape: Shape, text: str) -> GraphValue:
        """Adds a line that makes a value of a shape."""
        value = GraphValue(f"v{len(self.lines)}", shape)
        self.lines.append(f"%{value.name} = {text}")
        self.values.append(value)
        return value

    def _empty(self, shape: Shape) -> GraphValue:
        value = GraphValue(self._fresh(), shape)
        self.lines.append(f"%{value.name} = tensor.empty() : {value.type}")
        return value

    def _filled(self, shape: Shape, number: str) -> GraphValue:
        empty, constant = self._empty(shape), self._fresh()
        self.lines.append(f"%{constant} = arith.constant {number} : f32")
        filled = GraphValue(self._fresh(), shape)
        self.lines.append(
            f"%{filled.name} = linalg.fill ins(%{constant} : f32) outs(%{empty.name} : {empty.type}) -> {empty.type}"
        )
        return filled

    def _generic(
        self,
        inputs: list[GraphValue],
        maps: list[list[int]],
        out: GraphValue,
        axes: list[int],
        body: str,
        reduced: int = -1,
    ) -> GraphValue:
        """A linalg.generic; maps and `axes` name the dimension of each axis, `body` computes %r from %x0, .. and %o."""
        rank = 1 + max([*axes, *(dim for dims in maps for dim in dims)], default=-1)
        dims = ", ".join(f"d{dim}" for dim in range(rank))
        read = [f"affine_map<({dims}) -> ({', '.join(f'd{dim}' for dim in axes_of)})>" for axes_of in (*maps, axes)]
        kinds = ", ".join('"reduction"' if dim == reduced else '"parallel"' for dim in range(rank))
        block = ", ".join([*(f"%x{index}: f32" for index in range(len(inputs))), "%o: f32"])
        ins = f"ins({', '.join(f'%{v.name}' for v in inputs)} : {', '.join(v.type for v in inputs)}) " if inputs else ""
        return self._put(
            out.shape,
            f"linalg.generic {{indexing_maps = [{', '.join(read)}], iterator_types = [{kinds}]}} {ins}"
            f"outs(%{out.name} : {out.type}) {{\n    ^bb0({block}):\n      {body}\n      linalg.yield %r : f32\n"
            f"    }} -> {out.type}",
        )

    # -------------------------------------------------------------------------------------------- operations

    def _mapped(self, value: GraphValue) -> GraphValue:
        axes = list(range(len(value.shape)))
        body = self.draw.choice(("%r = math.tanh %x0 : f32", "%r = arith.negf %x0 : f32",
                                 "%c = math.absf %x0 : f32\n      %r = math.sqrt %c : f32",
                                 "%c = arith.constant 0.5 : f32\n      %r = arith.maximumf %x0, %c : f32"))  # fmt: skip
        return self._generic([value], [axes], self._empty(value.shape), axes, body)

    def _joined(self, value: GraphValue) -> GraphValue | None:
        others = [other for other in self.values if other.shape == value.shape]
        name = self.draw.choice(("add", "sub", "max"))
        other, empty = self.draw.choice(others), self._empty(value.shape)
        ins = f"%{value.name}, %{other.name} : {value.type}, {other.type}"
        return self._put(value.shape, f"linalg.{name} ins({ins}) outs(%{empty.name} : {empty.type}) -> {empty.type}")

    def _broadcast(self, value: GraphValue) -> GraphValue:
        """Along a new axis, or with a weight along one of its own."""
        axes = list(range(len(value.shape)))
        if self.draw.random() < 0.5 or not axes:
            weight = self._argument("weight", (value.shape[axes[-1]],))
            body = "%r = arith.mulf %x0, %x1 : f32"
            return self._generic([value, weight], [axes, axes[-1:]], self._empty(value.shape), axes, body)
        size = self.draw.choice((2, 3)) if prod(value.shape) * 3 <= self.limit and len(axes) < 4 else 1
        at = self.draw.randrange(len(axes) + 1)
        shape = (*value.shape[:at], size, *value.shape[at:])
        own = [dim for dim in range(len(shape)) if dim != at]
        body = "%c = arith.constant 0.25 : f32\n      %r = arith.addf %x0, %c : f32"
        return self._generic([value], [own], self._empty(shape), list(range(len(shape))), body)

    def _reduced(self, value: GraphValue) -> GraphValue | None:
        if len(value.shape) < 2:
            return None
        axis = self.draw.randrange(len(value.shape))
        total = self.draw.random() < 0.5
        body = "%r = arith.addf %x0, %o : f32" if total else "%r = arith.maximumf %x0, %o : f32"
        return self._along(value, axis, body, "0.0" if total else "0xFF800000")

    def _along(self, value: GraphValue, axis: int, body: str, start: str) -> GraphValue:
        axes = list(range(len(value.shape)))
        kept = [dim for dim in axes if dim != axis]
        out = self._filled(tuple(value.shape[dim] for dim in kept), start)
        return self._generic([value], [axes], out, kept, body, axis)

    def _normalised(self, value: GraphValue) -> GraphValue | None:
        """A softmax, or a division by the norm."""
        if len(value.shape) < 2:
            return None
        axis, axes = self.draw.randrange(len(value.shape)), list(range(len(value.shape)))
        kept = [dim for dim in axes if dim != axis]
        if self.draw.random() < 0.5:
            peak = self._along(value, axis, "%r = arith.maximumf %x0, %o : f32", "0xFF800000")
            body = "%d = arith.subf %x0, %x1 : f32\n      %r = math.exp %d : f32"
            parts = self._generic([value, peak], [axes, kept], self._empty(value.shape), axes, body)
            total = self._along(parts, axis, "%r = arith.addf %x0, %o : f32", "0.0")
            body = "%r = arith.divf %x0, %x1 : f32"
            return self._generic([parts, total], [axes, kept], self._empty(value.shape), axes, body)
        square = "%s = arith.mulf %x0, %x0 : f32\n      %r = arith.addf %s, %o : f32"
        total = self._along(value, axis, square, "0.0")
        body = ("%c = arith.constant 1.0 : f32\n      %s = arith.addf %x1, %c : f32\n      %q = math.rsqrt %s : f32\n"
                "      %r = arith.mulf %x0, %q : f32")  # fmt: skip
        return self._generic([value, total], [axes, kept], self._empty(value.shape), axes, body)

    def _product(self, value: GraphValue) -> GraphValue | None:
        if len(value.shape) != 2:
            return None
        rows, inner = value.shape
        columns = self.draw.choice(EXTENTS)
        weight = self._argument("weight", (columns, inner) if self.draw.random() < 0.6 else (inner, columns))
        if weight.shape[0] == columns and columns != inner:
            weight = self._permuted(weight, (1, 0))
        elif weight.shape != (inner, columns):
            return None
        out = self._filled((rows, columns), "0.0")
        ins = f"%{value.name}, %{weight.name} : {value.type}, {weight.type}"
        return self._put((rows, columns), f"linalg.matmul ins({ins}) outs(%{out.name} : {out.type}) -> {out.type}")

    def _transposed(self, value: GraphValue) -> GraphValue:
        return self._permuted(value, tuple(self.draw.sample(range(len(value.shape)), len(value.shape))))

    def _permuted(self, value: GraphValue, order: Shape) -> GraphValue:
        empty = self._empty(tuple(value.shape[axis] for axis in order))
        return self._put(
            empty.shape,
            f"linalg.transpose ins(%{value.name} : {value.type}) outs(%{empty.name} : {empty.type}) "
            f"permutation = {list(order)}",
        )

    def _sliced(self, value: GraphValue) -> GraphValue:
        """A box, every second element of an axis perhaps."""
        offsets, sizes, steps = [], [], []
        for size in value.shape:
            offset = self.draw.randrange(size) if self.draw.random() < 0.5 else 0
            step = self.draw.choice((1, 1, 2, 3))
            most = -(-(size - offset) // step)
            offsets.append(offset)
            steps.append(step)
            sizes.append(most if self.draw.random() < 0.7 else self.draw.randint(1, most))
        shape = tuple(sizes)
        result = GraphValue("", shape)
        return self._put(
            shape, f"tensor.extract_slice %{value.name}{offsets} {sizes} {steps} : {value.type} to {result.type}"
        )

    def _reshaped(self, value: GraphValue) -> GraphValue | None:
        shape = value.shape
        if len(shape) > 1 and self.draw.random() < 0.5:
            at = self.draw.randrange(len(shape) - 1)
            merged = (*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :])
            groups = [[axis] for axis in range(at)] + [[at, at + 1]] + [[axis] for axis in range(at + 2, len(shape))]
            return self._put(
                merged,
                f"tensor.collapse_shape %{value.name} {groups} : {value.type} into {GraphValue('', merged).type}",
            )
        at = self.draw.randrange(len(shape))
        factors = [factor for factor in range(1, shape[at] + 1) if shape[at] % factor == 0]
        first = self.draw.choice(factors)
        if len(shape) > 3:
            return None
        cut = (*shape[:at], first, shape[at] // first, *shape[at + 1 :])
        groups = [[axis] for axis in range(at)] + [[at, at + 1]] + [[axis + 1] for axis in range(at + 1, len(shape))]
        return self._put(
            cut,
            f"tensor.expand_shape %{value.name} {groups} output_shape {list(cut)} : {value.type} into "
            f"{GraphValue('', cut).type}",
        )

    def _concatenated(self, value: GraphValue) -> GraphValue | None:
        axis = self.draw.randrange(len(value.shape))
        others = [other for other in self.values if _fits(value.shape, other.shape, axis)]
        other = self.draw.choice(others)
        shape = (*value.shape[:axis], value.shape[axis] + other.shape[axis], *value.shape[axis + 1 :])
        if prod(shape) > self.limit:
            return None
        return self._put(
            shape,
            f"tensor.concat dim({axis}) %{value.name}, %{other.name} : ({value.type}, {other.type}) -> "
            f"{GraphValue('', shape).type}",
        )

    def _gathered(self, value: GraphValue) -> GraphValue | None:
        """Rows of a table, by tokens, beside the value's own columns."""
        if len(value.shape) != 2:
            return None
        rows, columns = value.shape
        table = self._argument("weight", (TABLE_ROWS, columns))
        ids = f"a{len(self.arguments)}"
        self.arguments.append(("input", ids, f"tensor<{rows}xi64>"))
        empty = self._empty(value.shape)
        return self._put(
            value.shape,
            "linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0, d1)>], "
            f'iterator_types = ["parallel", "parallel"]}} ins(%{ids} : tensor<{rows}xi64>) '
            f"outs(%{empty.name} : {empty.type}) {{\n    ^bb0(%i: i64, %o: f32):\n"
            "      %row = arith.index_cast %i : i64 to index\n      %column = linalg.index 1 : index\n"
            f"      %r = tensor.extract %{table.name}[%row, %column] : {table.type}\n      linalg.yield %r : f32\n"
            f"    }} -> {empty.type}",
        )


def _fits(one: Shape, other: Shape, axis: int) -> bool:
    if len(one) != len(other):
        return False
    return all(a == b for index, (a, b) in enumerate(zip(one, other, strict=True)) if index != axis)
