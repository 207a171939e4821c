"""The plan's file format: a written plan is read back, and an error names the damaged part."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

from sscc.ir.errors import ErrorKind, InternalError
from sscc.runtime.backends.cpu.plan.plan import (
    OPS,
    VERSION,
    Barrier,
    Branch,
    Compute,
    Execute,
    Item,
    NativePlan,
    PlanArgument,
    PlanLoop,
    PlanRegion,
)
from sscc.runtime.support._native import Core
from sscc.runtime.support.native_errors import NativeErrors
from sscc.runtime.support.scalars import SCALAR_OPS
from tests.errors import raises
from tests.runtime.backends.cpu.native.plans import Recorder, core, plan, run
from tests.runtime.backends.cpu.plan_reader import decode_plan


def core_of(data: bytes) -> Core:
    return Core(data, [Recorder().address], [], 1)


def whole() -> NativePlan:
    """A plan with one of everything, and names that are no whole number of words."""
    regions = [
        PlanRegion("hidden state", "arena", 4096),
        PlanRegion("größe", "external", 64),
        PlanRegion("mine", "private", 100),
    ]
    arguments = [PlanArgument(0, 64, 128, ((1, 64), (2, -8))), PlanArgument(2, 4, 96)]
    runs = [run(units=5, grid=[(2, 3), (3, 4)], arguments=arguments, scalars=[1, 2]), run(mode="serial", label=1)]
    chosen = (Compute("select", 4, (6, 1, 7)), Compute("lookup", 4, (1, 2, 5)), Execute(1))
    body = (Execute(0), Barrier(), Branch(6, chosen))
    constants = [(7, -(2**63)), (3, 2**63 - 1)]
    return plan(
        PlanLoop(1, 0, 7, body),
        runs=runs,
        regions=regions,
        constants=constants,
        inputs=[0, 1],
        outputs=[4],
        scratch_bytes=9,
    )


def test_plans_survive_their_file_form() -> None:
    assert decode_plan(whole().encode()) == whole()


def test_operations_are_those_of_schedules() -> None:
    assert set(OPS) == set(SCALAR_OPS)


@pytest.mark.parametrize(
    "item",
    [
        Compute("xor", 0, (1, 2)),
        Compute("add", 0, (1,)),
        Compute("lookup", 0, (1, 2)),
        Compute("lookup", 0, (1, 2, 1, 1)),
        Compute("add", 2**63, (1, 2)),
    ],
)
def test_what_has_no_file_form_is_a_bug(item: Item) -> None:
    with pytest.raises(InternalError):
        plan(item).encode()


def test_truncated_plans_are_refused_by_both_readers() -> None:
    data = whole().encode()
    for length in range(len(data)):
        with raises(NativeErrors.PLAN_MALFORMED):
            decode_plan(data[:length])
        with raises(NativeErrors.PLAN_MALFORMED):
            core_of(data[:length])


def test_longer_plans_are_refused_by_both_readers() -> None:
    data = plan().encode() + bytes(16)
    with raises(NativeErrors.PLAN_MALFORMED, place="the file", reason="2 extra words at its end"):
        decode_plan(data)
    with raises(NativeErrors.PLAN_MALFORMED, place="the file", reason="2 extra words at its end"):
        core_of(data)


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        (0, "it does not have the magic number of a plan"),
        (1, f"it has version 7, but only version {VERSION} is supported"),
    ],
)
def test_other_files_are_refused_by_both_readers(word: int, reason: str) -> None:
    data = bytearray(plan().encode())
    data[8 * word : 8 * word + 8] = struct.pack("<q", 7)
    with raises(NativeErrors.PLAN_MALFORMED, reason=reason):
        decode_plan(bytes(data))
    with raises(NativeErrors.PLAN_MALFORMED, reason=reason):
        core_of(bytes(data))


def test_names_that_are_no_text() -> None:
    data = replace(plan(), labels=("name",)).encode().replace(b"name", b"n\xffme")
    with raises(NativeErrors.PLAN_MALFORMED, reason="a name that is not UTF-8"):
        decode_plan(data)
    assert core_of(data).labels == ["n\ufffdme"]


def nested(depth: int) -> Item:
    item: Item = Barrier()
    for _ in range(depth):
        item = Branch(0, (item,))
    return item


X = PlanRegion("x", "arena", 64)


@pytest.mark.parametrize(
    ("of", "place", "reason"),
    [
        (plan(registers=-1), "the file", "the number of registers is -1, outside of 0 .. 1048576"),
        (plan(registers=1 << 30), "the file", "the number of registers is 1073741824, outside of 0 .. 1048576"),
        (plan(scratch_bytes=-1), "the file", "scratch_bytes is -1, outside of 0 .. 70368744177664"),
        (
            plan(scratch_bytes=1 << 60),
            "the file",
            "scratch_bytes is 1152921504606846976, outside of 0 .. 70368744177664",
        ),
        (plan(regions=[PlanRegion("x", "arena", -1)]), "region 0", "the size is -1, outside of 0 .. 70368744177664"),
        (plan(regions=[X, X]), "region 1", "duplicate name 'x'"),
        (plan(constants=[(8, 0)]), "constants", "register 8 is out of range, there are 8"),
        (plan(constants=[(-1, 0)]), "constants", "register -1 is out of range, there are 8"),
        (plan(runs=[run(), run(function=1)]), "run 1", "function 1 is out of range, there are 1"),
        (replace(plan(runs=[run()]), labels=()), "run 0", "label 0 is out of range, there are 0"),
        (plan(runs=[run(units=-1)]), "run 0", "the number of units is -1, outside of 0 .. 70368744177664"),
        (plan(runs=[run(units=3, grid=[(0, 1 << 45)])]), "run 0", "the number of units overflows"),
        (plan(runs=[run(units=1 << 40, grid=[(0, 1 << 40)])]), "run 0", "the number of units overflows"),
        (plan(runs=[run(grid=[(0, -1)])]), "run 0", "an axis' trips is -1, outside of 0 .. 70368744177664"),
        (plan(runs=[run(grid=[(9, 1)])]), "run 0", "register 9 is out of range, there are 8"),
        (plan(runs=[run(scalars=[8])]), "run 0", "register 8 is out of range, there are 8"),
        (plan(runs=[run(scalars=[0] * 1025)]), "run 0", "a list of 1025 registers is too long"),
        (plan(runs=[run(arguments=[PlanArgument(0, 0, 0)])]), "run 0", "region 0 is out of range, there are 0"),
        (
            plan(runs=[run(arguments=[PlanArgument(0, 0, 65)])], regions=[X]),
            "run 0",
            "an argument's extent is 65, outside of 0 .. 64",
        ),
        (
            plan(runs=[run(arguments=[PlanArgument(0, 0, -1)])], regions=[X]),
            "run 0",
            "an argument's extent is -1, outside of 0 .. 64",
        ),
        (
            plan(runs=[run(arguments=[PlanArgument(0, 0, 1), PlanArgument(0, 1, 64)])], regions=[X]),
            "run 0",
            "argument 1 exceeds region 'x'",
        ),
        (
            plan(runs=[run(arguments=[PlanArgument(0, -1, 64)])], regions=[X]),
            "run 0",
            "argument 0 exceeds region 'x'",
        ),
        (
            plan(runs=[run(arguments=[PlanArgument(0, 0, 1, ((0, 1 << 50),))])], regions=[X]),
            "run 0",
            "a coefficient is 1125899906842624, outside of -70368744177664 .. 70368744177664",
        ),
        (
            plan(runs=[run(arguments=[PlanArgument(0, 0, 1, ((8, 1),))])], regions=[X]),
            "run 0",
            "register 8 is out of range, there are 8",
        ),
        (plan(Execute(0)), "entry 'main'", "run 0 is out of range, there are 0"),
        (plan(Execute(-1), runs=[run()]), "entry 'main'", "run -1 is out of range, there are 1"),
        (plan(Compute("add", 8, (0, 0))), "entry 'main'", "register 8 is out of range, there are 8"),
        (plan(Compute("select", 0, (0, 0, 8))), "entry 'main'", "register 8 is out of range, there are 8"),
        (plan(Compute("lookup", 0, (8, 0, 1))), "entry 'main'", "register 8 is out of range, there are 8"),
        (plan(Compute("lookup", 0, (0, 8, 1))), "entry 'main'", "register 8 is out of range, there are 8"),
        (plan(Compute("lookup", 0, (0, 5, 4))), "entry 'main'", "a table's size is 4, outside of 1 .. 3"),
        (plan(Compute("lookup", 0, (0, 0, 9))), "entry 'main'", "a table's size is 9, outside of 1 .. 8"),
        (plan(Compute("lookup", 0, (0, 0, 0))), "entry 'main'", "a table's size is 0, outside of 1 .. 8"),
        (plan(Compute("lookup", 0, (0, 0, -1))), "entry 'main'", "a table's size is -1, outside of 1 .. 8"),
        (
            plan(Compute("lookup", 0, (0, 7, 1 << 40))),
            "entry 'main'",
            "a table's size is 1099511627776, outside of 1 .. 1",
        ),
        (plan(PlanLoop(8, 0, 0, ())), "entry 'main'", "register 8 is out of range, there are 8"),
        (plan(Branch(8, ())), "entry 'main'", "register 8 is out of range, there are 8"),
        (plan(inputs=[8]), "entry 'main'", "register 8 is out of range, there are 8"),
        (plan(outputs=[-2]), "entry 'main'", "register -2 is out of range, there are 8"),
        (plan(nested(65)), "entry 'main'", "loops and branches are nested deeper than 64 levels"),
        (replace(plan(), entries=plan().entries * 2), "entry 'main'", "duplicate name"),
    ],
)
def test_nonsense_is_named(of: NativePlan, place: str, reason: str) -> None:
    with raises(NativeErrors.PLAN_MALFORMED, place=place, reason=reason):
        core_of(of.encode())


def test_the_deepest_nesting_works() -> None:
    assert core(plan(nested(64))).run("main") == []


@pytest.mark.parametrize("item", [(99,), (0, 17), (-1,)])
def test_unknown_codes_are_refused_by_both_readers(item: tuple[int, ...]) -> None:
    good = plan(Compute("add", 0, (0, 0))).encode()
    compute = 5 * 8  # the last words: code, operation, target and two arguments
    data = good[:-compute] + struct.pack(f"<{len(item)}q", *item) + good[len(good) - compute + 8 * len(item) :]
    for reader in (decode_plan, core_of):
        with raises(NativeErrors.PLAN_MALFORMED):
            reader(data)


@pytest.mark.parametrize(
    ("functions", "externals", "kind", "fields"),
    [
        ([], [("w", 4096, 64)], NativeErrors.FUNCTION_COUNT, {"functions": 1, "addresses": 0}),
        ([0], [("w", 4096, 64)], NativeErrors.NO_ADDRESS, {"function": "f"}),
        ([1], [], NativeErrors.REGION_MISSING, {"region": "w"}),
        ([1], [("v", 4096, 64)], NativeErrors.NO_REGION, {"region": "v"}),
        ([1], [("x", 4096, 64)], NativeErrors.REGION_NOT_EXTERNAL, {"region": "x"}),
        ([1], [("w", 4096, 64)] * 2, NativeErrors.REGION_NOT_EXTERNAL, {"region": "w"}),
        ([1], [("w", 4096, 63)], NativeErrors.REGION_BYTES, {"region": "w", "bytes": 63, "needed": 64}),
        ([1], [("w", 0, 64)], NativeErrors.REGION_BYTES, {"region": "w"}),
    ],
)
def test_addresses_must_fit_the_plan(
    functions: list[int], externals: list[Any], kind: ErrorKind, fields: dict[str, Any]
) -> None:
    of = plan(regions=[PlanRegion("w", "external", 64), X])
    with raises(kind, **fields):
        Core(of.encode(), functions, externals, 1)


@pytest.mark.parametrize("threads", [0, -1, 1025])
def test_impossible_teams_are_refused(threads: int) -> None:
    with raises(NativeErrors.THREADS, threads=threads):
        core(plan(), threads=threads)


def test_memory_that_is_not_there_is_refused() -> None:
    huge = 1 << 46
    with pytest.raises(MemoryError):
        core(plan(regions=[PlanRegion(f"x{i}", "arena", huge) for i in range(16)]))
