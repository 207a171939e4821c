"""Places of tensors, compared with a list of every byte; and each limit, just inside and just outside."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest

from sscc.ir.errors import ErrorKind
from sscc.ir.schedule import Body, Buffer, Kernel, Local, Pipeline, Program, Tensor
from sscc.runtime.validator.failure import NumberProofErrors
from sscc.runtime.validator.placement import (
    PlacementProofErrors,
    check_capacity,
    check_overlaps,
    check_sizes,
    check_tensors,
    tier_bytes,
)
from tests.errors import raises, refusal
from tests.targets import changed

LINE = 64
GIGABYTE = 1 << 30
LARGEST = (1 << 48) - 1


def tensor(name: str, nbytes: int, address: int, role: Any = "temporary", tier: Any = "hbm") -> Tensor:
    return Tensor(name, (nbytes,), "i8", role, tier, address, (name,) if role == "weight" else ())


def kernels_of(spilled: dict[str, list[tuple[str, Buffer]]]) -> Any:
    """Facts of kernels of which only the spilled buffers, each with its pipeline, matter."""
    return {name: SimpleNamespace(spilled=buffers) for name, buffers in spilled.items()}


def entry_of(name: str, *launched: str) -> Any:
    launches = [SimpleNamespace(kernel=SimpleNamespace(name=of), position=n) for n, of in enumerate(launched)]
    return SimpleNamespace(entry=SimpleNamespace(name=name), launches=launches)


def test_bytes_of_a_tier_are_counted_once() -> None:
    choose = random.Random(1)
    for _ in range(300):
        tiers = ("hbm", "ddr")
        tensors = tuple(
            tensor(f"t{n}", choose.randint(0, 40), choose.randint(0, 99), "input", choose.choice(tiers))
            for n in range(choose.randint(0, 5))
        )
        buffers = [
            Buffer(f"b{n}", (choose.randint(1, 30),), "i8", "hbm", choose.randint(0, 99), choose.randint(1, 2))
            for n in range(choose.randint(0, 2))
        ]
        items: list[Any] = [*tensors, *buffers]
        listed: dict[str, set[int]] = {item.tier: set() for item in items}
        for item in items:
            listed[item.tier] |= set(range(item.address, item.address + item.nbytes))
        tier_sizes = tier_bytes(Program(tensors, (), (), (), 0), kernels_of({"k": [("p", b) for b in buffers]}))
        assert tier_sizes == {tier: len(held) for tier, held in listed.items()}
        assert list(tier_sizes) == sorted(tier_sizes)


def test_addresses_are_shared_only_by_what_never_lives_together() -> None:
    """Tensors in lines of an arena, temporaries with a life in each entry, buffers that are alive in their launch."""
    choose, seen = random.Random(2), Counter[ErrorKind | None]()
    for case in range(3000):
        launched = {name: choose.choices(("k", "l"), k=choose.randint(1, 3)) for name in ("main", "other")}
        arena = choose.choice((8, 12))
        tensors, lives = [], {name: {} for name in launched}  # type: ignore[var-annotated]
        for n in range(choose.randint(0, 4)):
            role = choose.choice(("temporary", "temporary", "temporary", "state", "weight"))
            line = choose.randrange(12)
            tensors.append(tensor(f"t{n}", choose.choice((0, LINE, 60, 2 * LINE)), line * LINE, role))
            for name, kernels in launched.items():
                if role == "temporary" and choose.random() < 0.6:
                    span = sorted(choose.choices(range(len(kernels)), k=2))
                    lives[name][f"t{n}"] = (span[0], span[1])
        spilled: dict[str, list[tuple[str, Buffer]]] = {"k": [], "l": [], "idle": []}
        for n in range(choose.choice((0, 1, 2, 3))):
            address = choose.randrange(12) * LINE + choose.choice((0, 0, 0, 0, 0, 0, 0, 0, 4))
            buffer = Buffer(f"b{n}", (choose.choice((LINE, 2 * LINE, 60)),), "i8", "hbm", address, 1)
            spilled[choose.choice(("k", "k", "l", "idle"))].append((choose.choice(("p", "q")), buffer))
        is_refused = _sharing(tensors, lives, launched, spilled, arena * LINE)
        error = refusal(
            check_overlaps,
            Program(tuple(tensors), (), (), (), arena * LINE),
            [entry_of(name, *kernels) for name, kernels in launched.items()],
            lives,
            kernels_of(spilled),
        )
        assert (error is not None) == is_refused, (case, error)
        seen[error.kind if error else None] += 1
    assert min(seen.values()) > 20, seen
    assert len(seen) == 7, seen


def _sharing(tensors: Any, lives: Any, launched: Any, spilled: Any, arena: int) -> bool:
    """Return True if two tensors share memory that they must not share."""
    kept = [(kernel, where, buffer) for kernel, items in spilled.items() for where, buffer in items]
    if any(b.address % LINE or b.address + b.nbytes > arena for *_, b in kept):
        return True
    if any(t.role == "weight" and t.nbytes and t.address < arena for t in tensors):
        return True
    used = {of for kernels in launched.values() for of in kernels}
    pairs = [(one, other) for one, other in combinations(kept, 2) if one[:2] == other[:2] and one[0] in used]
    if any(_meet(one[2], other[2]) for one, other in pairs):
        return True
    alive: list[tuple[Any, Any]] = []  # what, and the moments at which it is there; None for always
    for t in tensors:
        spans = {entry: items[t.name] for entry, items in lives.items() if t.name in items}
        moments = {(entry, n) for entry, (first, last) in spans.items() for n in range(first, last + 1)}
        alive.append((t, moments if t.role == "temporary" else None))
    count = len(alive)
    launches = [(entry, n, of) for entry, kernels in launched.items() for n, of in enumerate(kernels)]
    alive += [(b, {(entry, n)}) for kernel, _, b in kept for entry, n, of in launches if of == kernel]
    for (m, (one, here)), (n, (other, there)) in combinations(enumerate(alive), 2):
        together = here is None or there is None or here & there
        if together and _meet(one, other) and not (m >= count and n >= count):
            return True
    return False


def _meet(one: Any, other: Any) -> bool:
    here, there = (set(range(item.address, item.address + item.nbytes)) for item in (one, other))
    return bool(here & there)


def test_what_shares_addresses_is_named_with_its_place_and_time() -> None:
    tensors = (tensor("a", 64, 0), tensor("b", 128, 64), tensor("c", 64, 128))
    lives = {"main": {"a": (0, 1), "b": (1, 2), "c": (2, 4)}}
    where = "temporary 'b' at 64 .. 191 and temporary 'c' at 128 .. 191"
    launches = {"entry": "main", "first": 1, "last": 2, "other_first": 2, "other_last": 4}
    with raises(PlacementProofErrors.ALIVE_TOGETHER, where=where, **launches):
        check_overlaps(Program(tensors, (), (), (), 256), [entry_of("main", "k")], lives, kernels_of({"k": []}))
    three = [("p", Buffer("u", (64,), "i8", "hbm", 64, 1)), ("q", Buffer("v", (96,), "i8", "hbm", 64, 1))]
    three.append(("r", Buffer("w", (32,), "i8", "hbm", 0, 1)))
    lives["main"]["b"] = lives["main"]["c"] = (5, 5)
    lives["main"]["a"] = (1, 1)
    kept = (tensor("d", 64, 128, "state"), tensor("e", 64, 192, "input"))
    where = "buffers 'u', 'v' of kernel 'k' at 64 .. 159 and state 'd' at 128 .. 191"
    with raises(PlacementProofErrors.KEPT_OVERLAP, where=where):
        check_overlaps(Program(kept, (), (), (), 256), [entry_of("main", "k")], lives, kernels_of({"k": three}))


@pytest.mark.parametrize(
    "candidate",
    [
        Tensor("t", (2,), "f32", "constant", "hbm", 0, ("s",)),
        Tensor("t", (2, 3), "f32", "weight", "hbm", 0, ("s", "r")),
        Tensor("t", (32,), "f32", "input", "hbm", 128),
        Tensor("t", (33,), "f32", "weight", "hbm", 128, ("s",)),
        Tensor("t", (LARGEST,), "i8", "weight", "hbm", 0, ("s",)),
    ],
)
def test_a_tensor_has_a_shape_sources_and_a_place(candidate: Tensor) -> None:
    check_tensors(Program((candidate,), (), (), (), 256))


@pytest.mark.parametrize(
    ("candidate", "kind", "fields"),
    [
        (Tensor("t", (2, -1), "f32", "input", "hbm", 0), PlacementProofErrors.NEGATIVE_SHAPE, {"shape": [2, -1]}),
        (
            Tensor("t", (2,), "f32", "weight", "hbm", 0), PlacementProofErrors.SOURCES,
            {"role": "weight", "shape": [2], "count": 0},
        ),
        (
            Tensor("t", (2,), "f32", "input", "hbm", 0, ("s",)), PlacementProofErrors.SOURCES,
            {"role": "input", "shape": [2], "count": 1},
        ),
        (
            Tensor("t", (3, 2), "f32", "weight", "hbm", 0, ("s", "r")), PlacementProofErrors.SOURCES,
            {"role": "weight", "shape": [3, 2], "count": 2},
        ),
        (
            Tensor("t", (), "f32", "weight", "hbm", 0, ("s", "r")), PlacementProofErrors.SOURCES,
            {"role": "weight", "shape": [], "count": 2},
        ),
        (
            Tensor("t", (33,), "f32", "input", "hbm", 128), PlacementProofErrors.OUTSIDE_ARENA,
            {"low": 128, "high": 259, "arena": 256},
        ),
        (Tensor("t", (2,), "f32", "input", "hbm", 96), PlacementProofErrors.UNALIGNED, {"address": 96}),
        (Tensor("t", (2,), "f32", "input", "hbm", -64), PlacementProofErrors.UNALIGNED, {"address": -64}),
        (
            Tensor("t", (LARGEST + 1,), "i8", "weight", "hbm", 0, ("s",)), NumberProofErrors.TOO_LARGE,
            {"number": LARGEST + 1, "largest": LARGEST},
        ),
        (
            Tensor("t", (LARGEST,), "i8", "weight", "hbm", 64, ("s",)), NumberProofErrors.TOO_LARGE,
            {"number": LARGEST + 64, "largest": LARGEST},
        ),
    ],
)  # fmt: skip
def test_a_tensor_without_them_is_refused(candidate: Tensor, kind: ErrorKind, fields: dict[str, Any]) -> None:
    with raises(kind, where="tensor 't'", **fields):
        check_tensors(Program((candidate,), (), (), (), 256))


def _kept(*buffers: Buffer, arena: int = 0, tensors: Any = (), locals_: Any = ()) -> Program:
    kernel = Kernel("k", (), (), (Pipeline("p", "i", 0, 1, (), buffers, ()),))
    return Program(tensors, (Body("b", (), (), locals_, (), ()),), (kernel,), (), arena)


def test_the_arena_ends_with_what_lies_in_it() -> None:
    """At a multiple of 64. Weights lie behind it, and buffers on chip elsewhere."""
    lying = (tensor("t", 100, 64), tensor("w", 64, 4096, "weight"))
    spilled, on_chip = Buffer("s", (5,), "i8", "hbm", 192, 13), Buffer("c", (512,), "i8", "sram", 0, 1)
    check_sizes(_kept(arena=0))
    with raises(PlacementProofErrors.ARENA, where="memory", arena=1, end=0):
        check_sizes(_kept(arena=1))
    for buffers, end, most in (((), 164, 192), ((spilled,), 257, 320), ((on_chip,), 164, 192)):
        check_sizes(_kept(*buffers, arena=most, tensors=lying))
        with raises(PlacementProofErrors.ARENA, where="memory", arena=most + 1, end=end):
            check_sizes(_kept(*buffers, arena=most + 1, tensors=lying))


@pytest.mark.parametrize(("nbytes", "room"), [(0, GIGABYTE), (GIGABYTE, 4 * GIGABYTE)])
def test_what_is_kept_is_no_larger_than_what_tensors_hold(nbytes: int, room: int) -> None:
    """A gigabyte, or four times all tensors."""
    tensors = (tensor("t", nbytes, 0, "weight"),) if nbytes else ()

    def kept(*buffers: Buffer, locals_: Any = ()) -> None:
        check_sizes(_kept(*buffers, tensors=tensors, locals_=locals_))

    def local(name: str, elements: int) -> Local:
        return Local(name, (2, elements // 2), "f32")

    half = room // 8
    kept(locals_=(local("m", half - 2), local("n", half + 2)))
    with raises(PlacementProofErrors.TOO_LARGE, where="body 'b'", name="n", size=4 * (half + 2), room=room):
        kept(locals_=(local("m", half), local("n", half + 2)))
    ends = Buffer("m", (room // 2,), "i8", "sram", room // 2, 1)
    pipeline = "kernel 'k', pipeline 'p'"
    kept(ends)
    kept(ends, Buffer("n", (room // 4,), "i8", "sram", 0, 2))
    with raises(PlacementProofErrors.TOO_LARGE, where=pipeline, name="n", size=room // 2 + 2, room=room):
        kept(ends, Buffer("n", (room // 4 + 1,), "i8", "sram", 0, 2))
    kept(Buffer("m", (4,), "i8", "sram", room - 4, 1))
    with raises(PlacementProofErrors.ON_CHIP, where=pipeline, end=room + 1, room=room):
        kept(Buffer("m", (4,), "i8", "sram", room - 3, 1))


@pytest.mark.parametrize("tier", ["hbm", "ddr", "sram"])
def test_a_tier_holds_as_much_as_all_sockets_have(tier: Any) -> None:
    capacities = {"hbm": 2 << 20, "ddr": 3 << 20, "sram": 4 << 20}
    given = {f"{name}.capacity": float(nbytes) for name, nbytes in capacities.items()}
    target = changed(given).with_sockets(2)
    sizes = (5, 4 << 20, 2 << 20, 7)
    other = "ddr" if tier == "hbm" else "hbm"
    tensors = tuple(tensor(f"t{n}", size, 0, "input", tier) for n, size in enumerate(sizes))
    program = Program((*tensors, tensor("far", 3 << 20, 0, "input", other)), (), (), (), 0)
    most = 2 * capacities[tier]

    def fits(nbytes: int) -> None:
        buffer = Buffer("b", (nbytes,), "i8", tier, 0, 1)
        check_capacity(program, kernels_of({"k": [("p", buffer)]}), target)

    fits(most)
    largest = ["t1 4 MB", "t2 2 MB", "t3 7 bytes"]
    required = most + (1 << 20)
    with raises(
        PlacementProofErrors.CAPACITY, required=required, tier=tier.upper(), capacity=most, largest=largest
    ):
        fits(required)
