"""Addresses: what lives at the same time never overlaps, and little space is wasted."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from sscc.compiler.emit.emit import EmissionErrors, _with_tiers
from sscc.compiler.emit.memory import Lifetime, pack, share
from sscc.ir.schedule import Program, Tensor
from sscc.ir.sizes import ALIGNMENT, align
from sscc.ir.target import Target
from tests.errors import raises
from tests.targets import changed

SETTINGS = settings(max_examples=150)
BASE = 4 * ALIGNMENT


@st.composite
def lifetimes(draw: st.DrawFn) -> dict[str, Lifetime]:
    lifetimes = {}
    for index in range(draw(st.integers(0, 12))):
        first = draw(st.integers(0, 9))
        lifetimes[f"t{index}"] = Lifetime(draw(st.integers(1, 400)), first, draw(st.integers(first, 10)))
    return lifetimes


@SETTINGS
@given(st.integers(0, 10**6))
def test_align(size: int) -> None:
    assert align(size) % ALIGNMENT == 0
    assert 0 <= align(size) - size < ALIGNMENT


@SETTINGS
@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(0, 500), max_size=8))
def test_packed_regions_lie_side_by_side(sizes: dict[str, int]) -> None:
    addresses, end = pack(sizes, BASE)
    at = BASE
    for name, size in sizes.items():
        assert addresses[name] == at
        at += align(size)
    assert end == at


@SETTINGS
@given(lifetimes())
def test_no_two_that_live_at_once_overlap(given_: dict[str, Lifetime]) -> None:
    addresses, end = share(given_, BASE)
    assert addresses.keys() == given_.keys()
    regions = [(addresses[n], addresses[n] + align(t.nbytes), t.first, t.last) for n, t in given_.items()]
    assert all(start >= BASE and start % ALIGNMENT == 0 and stop <= end for start, stop, _, _ in regions)
    for i, (start, stop, first, last) in enumerate(regions):
        for other_start, other_stop, other_first, other_last in regions[:i]:
            together = first <= other_last and other_first <= last
            assert not together or stop <= other_start or other_stop <= start


@SETTINGS
@given(lifetimes(), st.randoms(use_true_random=False))
def test_addresses_do_not_depend_on_the_order_of_names(given_: dict[str, Lifetime], random: object) -> None:
    names = list(given_)
    random.shuffle(names)  # type: ignore[attr-defined]
    assert share({name: given_[name] for name in names}, BASE) == share(given_, BASE)


@SETTINGS
@given(lifetimes())
def test_no_more_than_side_by_side_and_no_less_than_alive(given_: dict[str, Lifetime]) -> None:
    _, end = share(given_, BASE)
    assert end - BASE <= sum(align(t.nbytes) for t in given_.values())
    alive = [sum(align(t.nbytes) for t in given_.values() if t.first <= now <= t.last) for now in range(11)]
    assert end - BASE >= max(alive, default=0)


def test_a_chain_needs_two() -> None:
    chain = {f"t{i}": Lifetime(100, i, i + 1) for i in range(20)}
    assert share(chain, 0)[1] == 2 * align(100)


def test_a_gap_is_filled() -> None:
    addresses, end = share({"a": Lifetime(64, 0, 1), "b": Lifetime(64, 0, 9), "c": Lifetime(64, 2, 3)}, 0)
    assert addresses == {"a": 0, "b": 64, "c": 0}
    assert end == 128


def test_the_last_use_still_counts() -> None:
    """A launch that reads one temporary and writes another needs both."""
    addresses, _ = share({"read": Lifetime(64, 0, 5), "written": Lifetime(64, 5, 6)}, 0)
    assert addresses["read"] != addresses["written"]


def weights(*sizes: int) -> Program:
    tensors = [Tensor(f"w{n}", (size,), "i8", "weight", "hbm", 0, (f"w{n}",)) for n, size in enumerate(sizes)]
    return Program(tuple(tensors), (), (), (), 0)


def tiers(program: Program, target: Target) -> list[str]:
    return [tensor.tier for tensor in _with_tiers(program, target).tensors]


def test_what_a_memory_does_not_hold_is_in_the_next() -> None:
    target = changed({"hbm.capacity": 192, "ddr.capacity": 128})
    assert tiers(weights(64, 64, 64), target) == ["hbm"] * 3
    assert tiers(weights(64, 128, 64), target) == ["hbm", "hbm", "ddr"]
    assert tiers(weights(64, 64, 64, 64, 64), target) == ["hbm"] * 3 + ["ddr"] * 2
    with raises(EmissionErrors.MEMORY, required=384, memories=["HBM", "DDR"], capacities=[192, 128], sockets=1):
        tiers(weights(*[64] * 6), target)


def test_a_store_lies_behind_main_memory() -> None:
    target = changed({"hbm.capacity": 192, "ddr.capacity": 128})
    program = weights(64, 64, 64)
    placed = [tensor.tier for tensor in _with_tiers(program, target, {"w1"}).tensors]
    assert placed == ["hbm", "ddr", "hbm"]
    with raises(EmissionErrors.MEMORY, required=320, capacities=[192, 128]):
        _with_tiers(weights(64, 192, 64), target, {"w1"})
    near = replace(target, levels=target.levels[:2])
    assert [tensor.tier for tensor in _with_tiers(program, near, {"w1"}).tensors] == ["hbm"] * 3


def test_a_target_without_far_memory() -> None:
    target = changed({"hbm.capacity": 192})
    near = replace(target, levels=target.levels[:2])
    assert tiers(weights(64, 128), near) == ["hbm"] * 2
    with raises(EmissionErrors.MEMORY, required=256, memories=["HBM"], capacities=[192], sockets=1):
        tiers(weights(128, 128), near)
