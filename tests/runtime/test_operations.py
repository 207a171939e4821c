"""Each specification is proven by running its operation on both interpreters: what it says is not read may be poison,
what it says is not written stays as it was, and no more of an operand counts than it says is read."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
import torch

from sscc.ir import schedule
from sscc.ir.errors import InputError
from sscc.ir.geometry import Span
from sscc.ir.kv_rows import INT8
from sscc.ir.opspec import Op, spec_of
from sscc.ir.schedule import Body, Param
from tests.runtime.programs import DTYPES, run_kernel
from tests.runtime.schedules import one_stage

NO_WINDOW = Span()
STEPS = tuple(kind for kind in schedule.STEPS if issubclass(kind, Op))
SIZES = {"B": 1, "Q": 1, "H": 2, "Hkv": 1, "D": 4, "Dv": 6, "R": 9, "SR": 6, "N": 4, "K": 3, "T": 12, "C": 4, "W": 3}
SIZES |= {"J": 5, "R0": 3, "T0": 7, "R1": 4, "T1": 8, "E": 1, "S": 5, "Top": 3, "P": 3, "L": 3}
SIZES |= {"G": 1, "X": 2, "O": 120, "I": 32, "E0": 34, "Hi": 2, "Hc": 1, "Slots1": 1, "Pend": 3, "Packed": 15}
SCALARS = (
    {"start": 4, "length": 7, "topk": 3},
    {"start": 8, "length": 12, "topk": 2},
    {"start": 0, "length": 3, "topk": 3},
    {"start": 8, "length": 12, "topk": 0},
)
"""A chunk that is partly padding, the last one of the longest prompt, and a prompt shorter than a chunk; as many
positions selected as there is room for, fewer, and none."""
SETTINGS: dict[str, Any] = {
    "scale": 0.5, "sink": 2, "recent": 4, "pool": 3, "width": 3, "pool_mode": "avg", "mode": "max", "window": 0,
    "topk": 3, "bits": 2, "fetch": 2, "softcap": None, "first": 0, "format": "Q8_0", "block": 1, "local": 0, "spare": 0,
}  # fmt: skip
INTEGERS = {"row": 7, "position": 6, "base": SETTINGS["sink"] + 2, "held": 6}
RESIDENT = {"resident": [2, 4, -1], "places": [1, 0, 2]}
"""Of the positions 2 .. 6, which are candidates."""
BY_QUERY = {"quantized_key_scores", "choose_rows", "fetch_rows", "query_attention"}
"""Their caches have sinks and ring alone."""
LATE = 10
"""With this position they have more candidates than they choose."""
OF_WEIGHTS = {"look_up"}
"""These read packed weights natively; the operands here are inputs."""
PLAIN, INDEXED = ("key", "value"), ("key", "value", "index")
MEMBERS: dict[str, list[tuple[tuple[str, ...], ...]]] = {
    "cached_attention": [((*PLAIN, "valid"),), ((*PLAIN, "valid"), (*PLAIN, "valid", "index"))],
    "decode_attention": [(), (INDEXED,)],
    "dequantize": [(("bytes",),)],
    "look_up": [(("bytes",),)],
}
"""By operation: the operands of its segments, or of the parts of its weight."""
DTYPE = {"f": torch.float32, "f32": torch.float32, "row": torch.float32, "any": torch.float32, "prompt": torch.float32,
         "bf16": torch.bfloat16, "quantized_key": torch.int8, "encoded": torch.int8, "i8": torch.int8,
         "i64": torch.int64, "i1": torch.bool}  # fmt: skip
ROWS = ("row", "any", "prompt")
"""Elements that may be floats or encoded."""


def has_rows(kind: type[Op]) -> bool:
    return any(operand.element in ROWS for operand in spec_of(kind).operands.values())


def windows_of(kind: type[Op]) -> tuple[Span, ...]:
    """None, of one position, one that begins within a chunk and one that begins before it; and windows that move by all
    of themselves, of the one and the other kind."""
    sizes = (Span(), Span(1), Span(3), Span(6), Span(3, 3), Span(6, 6))
    return sizes if "window" in spec_of(kind).attributes else sizes[:1]


def _named(kind: type[Op], number: int, encoded: bool, window: Span, members: tuple[tuple[str, ...], ...]) -> str:
    segments = "".join(f"-{'+'.join(names)}" for names in members)
    return f"{kind.kind}-{number}{'-encoded' if encoded else ''}{f'-{window.name}' if window else ''}{segments}"


CASES = [
    pytest.param(kind, scalars, encoded, window, members, id=_named(kind, number, encoded, window, members))
    for kind in STEPS
    for members in MEMBERS.get(kind.kind, [()])
    for number, scalars in enumerate(SCALARS if spec_of(kind).numbers else SCALARS[:1])
    for encoded in ((False, True) if has_rows(kind) else (False,))
    for window in windows_of(kind)
]


class OperationTrial:
    """One operation with random contents; rows that are encoded are those of zeros, so that any bytes are numbers."""

    def __init__(
        self,
        kind: type[Op],
        scalars: dict[str, int],
        encoded: bool,
        window: Span = NO_WINDOW,
        members: tuple[tuple[str, ...], ...] = (),
    ) -> None:
        stride = window.stride if window.chunked else None
        self.spec, settings = spec_of(kind, members), {**SETTINGS, "window": window.size, "window_stride": stride}
        self.scalars = {name: scalars[name] for name in self.spec.numbers}
        self.integers = INTEGERS
        ring: dict[str, int] = {}
        if kind.kind in BY_QUERY:
            self.integers, ring = {**self.integers, "position": LATE}, {"R": SIZES["SR"]}
        if kind.kind == "choose_by_index":  # its tokens are those of the chunk
            self.integers = {**self.integers, "position": scalars["start"] + 2}
        live = self.integers["position"] + 1
        self.sizes = {**SIZES, **self.scalars, **ring, "valid": min(live, self.spec.rows(SIZES)), "live": live}
        self.sizes |= {name: value for name, value in settings.items() if value is not None}
        generator = torch.Generator().manual_seed(0)
        self.contents: dict[str, torch.Tensor] = {}
        for name, operand in self.spec.operands.items():
            shape = [int(dim) if dim.isdigit() else self.sizes[dim] for dim in operand.step_dims]
            kept = encoded and operand.element in ROWS
            dtype = torch.int8 if kept else DTYPE[operand.element]
            if kept or operand.element == "encoded":
                shape[-1] += INT8.scale_bytes
            self.contents[name] = self._random(name, shape, dtype, generator)
        fields = {name: name for name in (*self.spec.operands, *self.spec.numbers)}
        self.step = self.spec.step(fields | {name: settings[name] for name in self.spec.attributes})

    def _random(self, name: str, shape: list[int], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
        if dtype is torch.int64:
            if name in RESIDENT:
                return torch.tensor(RESIDENT[name]).expand(shape).clone()
            if name in self.integers:
                whole = torch.full(shape, self.integers[name])
                # Tokens of a chunk have positions of their own: threads would race for one row.
                return whole + torch.arange(1 - shape[1], 1) if len(shape) == 2 and name == "position" else whole
            most = SIZES[name.replace("segments[", "T").replace("].index", "")] if "[" in name else SIZES["T"]
            return torch.randint(0, most, shape, generator=generator).sort().values
        if dtype is torch.bool:
            return torch.ones(shape, dtype=torch.bool)
        if self.spec.operands[name].element in ("i8", "quantized_key"):
            return torch.randint(-128, 128, shape, generator=generator).to(torch.int8)
        numbers = torch.randn([*shape[:-1], shape[-1] - INT8.scale_bytes * (dtype is torch.int8)], generator=generator)
        if dtype.is_floating_point:
            return numbers.to(dtype)
        scales = torch.full((*shape[:-1], 1), 0.01).view(torch.int8)
        return torch.cat([(numbers * 40).round().clamp(-127, 127).to(torch.int8), scales], -1)

    def run(self, native: bool = False, **changed: torch.Tensor) -> dict[str, torch.Tensor]:
        """Every operand after the operation."""
        tensors = {name: value.clone() for name, value in {**self.contents, **changed}.items()}
        params = tuple(
            Param(name, tuple(value.shape), DTYPES[value.dtype], "read" if self.reads(name) else "update")  # type: ignore[arg-type]
            for name, value in tensors.items()
        )
        body = Body("k", params, tuple(self.scalars), (), (), (self.step,))  # type: ignore[arg-type]
        inputs = {name: value for name, value in tensors.items() if self.reads(name)}
        writes = {name: value for name, value in tensors.items() if not self.reads(name)}
        return run_kernel(one_stage(body), (body,), inputs, writes, self.scalars, native=native)

    def reads(self, name: str) -> bool:
        return self.spec.operands[name].mode == "read"

    def moved(self, name: str) -> tuple[int, int]:
        return self.spec.operands[name].moved(self.sizes, tuple(self.contents[name].shape))


def poisoned(value: torch.Tensor) -> torch.Tensor:
    return torch.full_like(value, torch.nan if value.is_floating_point() else 113)


def same(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return True for elements with the same bytes; NaN equals NaN."""
    return (one == other) | ((one != one) & (other != other))


@pytest.mark.parametrize(("kind", "scalars", "encoded", "window", "members"), CASES)
def test_what_was_there_before_is_not_read_and_what_is_not_written_stays(
    kind: type[Op], scalars: dict[str, int], encoded: bool, window: Span, members: tuple[tuple[str, ...], ...]
) -> None:
    trial = OperationTrial(kind, scalars, encoded, window, members)
    after = trial.run(native=kind.kind not in OF_WEIGHTS)
    for name, value in after.items():
        operand, (_, written) = trial.spec.operands[name], trial.moved(name)
        changed = ~same(value, trial.contents[name])
        assert int(changed.sum()) <= written
        if operand.mode == "update":
            continue
        again = trial.run(**{name: poisoned(trial.contents[name])})
        if operand.mode == "write":  # every element is written, whatever was there
            equal = {other: same(again[other], after[other]) for other in after}
            if operand.padded:
                live = trial.sizes["length"] - trial.sizes["start"]
                equal[name] = equal[name].transpose(0, operand.dims.index("C"))[:live]
            assert all(bool(equality.all()) for equality in equal.values())
        else:
            assert int((~same(again[name], poisoned(value))).sum()) >= written


@pytest.mark.parametrize(("kind", "scalars", "encoded", "window", "members"), CASES)
def test_no_more_counts_than_is_read(
    kind: type[Op], scalars: dict[str, int], encoded: bool, window: Span, members: tuple[tuple[str, ...], ...]
) -> None:
    """Index by index of the dimension of which only a part moves."""
    trial = OperationTrial(kind, scalars, encoded, window, members)
    before = trial.run()
    for name, operand in trial.spec.operands.items():
        if not operand.along:
            continue
        axis, (read, _) = operand.step_dims.index(operand.along), trial.moved(name)
        size, value = trial.contents[name].shape[axis], trial.contents[name]
        counts = 0
        for index in range(size):
            other = value.clone()
            other.select(axis, index).copy_(poisoned(value).select(axis, index))
            try:
                after = trial.run(**{name: other})
            except InputError:  # no place of a resident row
                counts += 1
                continue
            counts += any(not _agrees(before[key], after[key], key == name, axis, index) for key in before)
        assert counts * prod(value.shape) // size <= read


def _agrees(before: torch.Tensor, after: torch.Tensor, poisoned_itself: bool, axis: int, index: int) -> bool:
    """Return True if only the poisoned elements have changed."""
    equality = same(before, after)
    if poisoned_itself:
        equality = equality.clone()
        equality.select(axis, index).fill_(True)
    return bool(equality.all())


PROMPT_ROWS = ("key", "value", "k_scratch", "v_scratch", "latent_scratch")
WINDOWED = [kind for kind in STEPS if "window" in spec_of(kind).attributes]


@pytest.mark.parametrize("native", [False, True], ids=["reference", "native"])
@pytest.mark.parametrize("window", [*map(Span, (1, 3, 6, 100)), *(Span(n, n) for n in (3, 6, 8, 100))], ids=str)
@pytest.mark.parametrize("kind", WINDOWED)
def test_rows_below_the_window_do_not_matter(kind: type[Op], window: Span, native: bool) -> None:
    """The first query of a chunk is at `start`: what lies a window before it or more may be poison, and a row later
    counts; as many rows as the specification says are read."""
    start, chunk = 8, SIZES["C"]
    trial = OperationTrial(kind, {"start": start, "length": SIZES["T"]}, False, window)
    stored = [name for name in trial.spec.operands if name in PROMPT_ROWS]
    keys = trial.contents[stored[0]]
    below = window.first(start)
    assert trial.moved(stored[0])[0] == keys.shape[1] * keys.shape[3] * (start + chunk - below)
    before = trial.run(native=native)
    for rows, poison, agrees in ((below, torch.nan, True), (below + 1, 9.0, False)):
        changed = {name: trial.contents[name].clone() for name in stored}
        for value in changed.values():
            value[:, :, :rows] = poison
        after = trial.run(native=native, **changed)
        appends = trial.spec.operands[stored[0]].mode == "update"
        written = appends and rows > start  # a row of the chunk's own, before it is read
        assert torch.equal(before["out"], after["out"]) == (agrees or written)


def test_every_step_is_tried() -> None:
    assert {kind for kind, *_ in (case.values for case in CASES)} == set(STEPS)
