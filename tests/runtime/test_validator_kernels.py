"""One kernel: every limit just inside and just outside, what it moves, and which of its parameters it may read."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from sscc.ir.schedule import Body, Buffer, For, If, Kernel, Pipeline, Scalar, Stage
from sscc.runtime.validator import Limits
from sscc.runtime.validator.bodies import prove_body
from sscc.runtime.validator.failure import NumberProofErrors
from sscc.runtime.validator.kernels import Caller, KernelFacts, KernelProofErrors, prove_kernel
from sscc.runtime.validator.pipelines import PipelineProofErrors
from tests.errors import check, raises, refusal
from tests.runtime.broken.build import port
from tests.runtime.schedules import copy_body, read, update, write

BODIES = {
    body.name: prove_body(body, Limits())
    for body in (copy_body("tile", (2,)), Body("look", (read("x", (2,)),), (), (), (), ()), copy_body("row", (4,)))
}


PIPELINE = "kernel 'k', pipeline 'p'"
COPIED = (read("x", (4,)), update("y", (4,)))


def machine(pcus: int = 100, sram: int = 1 << 20, pmu: int = 1 << 10) -> Any:
    figures = [SimpleNamespace(value=value) for value in (sram, pcus, pmu)]
    nearest = SimpleNamespace(capacity=figures[0], label="SRAM")
    return SimpleNamespace(nearest=nearest, units=SimpleNamespace(pcus=figures[1], pmu_bytes=figures[2]))


def facts(
    *body: Any,
    params: Any = COPIED,
    on: Any = None,
    longest: float = inf,
    **scalars: tuple[float, float],
) -> KernelFacts:
    caller = Caller(scalars, [])
    return prove_kernel(Kernel("k", params, tuple(scalars), body), BODIES, caller, on, Limits(), longest)


def copying(name: str = "p", lower: Any = 0, upper: Any = 1, **fields: Any) -> Pipeline:
    """Return a program that copies both tiles of x to y in each iteration."""
    at = (("t0", 2),)
    stage = Stage("s", "tile", (2,), (port("x", (2,), terms=at), port("y", (2,), terms=at)), (), (), **fields)
    return Pipeline(name, "i", lower, upper, (), (), (stage,))


def streaming(*buffers: Buffer, pcus: tuple[int, ...] = (), iterations: int = 3) -> Pipeline:
    """A chain of stages, from x through the buffers to y."""
    stages, before = [], port("x", (2,))
    for number, buffer in enumerate(buffers):
        waits = tuple(b.name for b in buffers[max(number - 1, 0) : number + 1])
        stages.append(Stage(f"s{number}", "tile", (), (before, port(buffer.name, (2,), 1)), (), waits))
        before = port(buffer.name, (2,), 1)
    stages.append(Stage("out", "tile", (), (before, port("y", (2,))), (), tuple(b.name for b in buffers[-1:])))
    stages = [
        Stage(s.name, s.body, s.grid, s.ports, (), s.waits, pcus=count)
        for s, count in zip(stages, pcus or [0] * len(stages), strict=True)
    ]
    return Pipeline("p", "i", 0, iterations, (), buffers, tuple(stages))


def buffer(name: str, address: int, depth: int = 1, tier: Any = "sram") -> Buffer:
    return Buffer(name, (2,), "f32", tier, address, depth)


# ------------------------------------------------------------------------------------------------------ capacities


def test_buffers_on_chip_lie_side_by_side() -> None:
    facts(streaming(buffer("a", 8), buffer("b", 0)))
    with raises(KernelProofErrors.BUFFERS_OVERLAP, where=PIPELINE, one="b", low=0, high=7, other="a", address=4):
        facts(streaming(buffer("a", 4), buffer("b", 0)))
    facts(streaming(buffer("a", 4), buffer("b", 0, tier="hbm")))
    for address, behind in ((-8, 0), (-4, 4)):
        with raises(KernelProofErrors.NEGATIVE_ADDRESS, where=PIPELINE, buffer="a", address=address):
            facts(streaming(buffer("a", address), buffer("b", behind)))


def test_a_pipeline_takes_no_more_than_the_machine_has() -> None:
    stream = streaming(buffer("a", 0), buffer("b", 8, 3), buffer("c", 40), buffer("d", 64), pcus=(1, 3, 2, 5, 4))
    facts(stream, on=machine(pcus=15, sram=72))
    with raises(
        KernelProofErrors.TOO_MANY_PCUS, where=PIPELINE, required=15, available=14, largest=["s3 5", "out 4", "s1 3"]
    ):
        facts(stream, on=machine(pcus=14, sram=72))
    largest = ["b 24 bytes", "d 8 bytes", "c 8 bytes"]
    with raises(KernelProofErrors.TOO_LARGE, where=PIPELINE, required=72, memory="SRAM", capacity=71, largest=largest):
        facts(stream, on=machine(pcus=15, sram=71))
    spilled = streaming(buffer("a", 0), buffer("b", 8, 3, "hbm"), pcus=(1, 3, 2))
    facts(spilled, on=machine(sram=8))
    with raises(KernelProofErrors.TOO_LARGE, capacity=7, largest=["a 8 bytes"]):
        facts(spilled, on=machine(sram=7))
    facts(copying(), on=machine(sram=0))


# --------------------------------------------------------------------------------------------------------- control


def test_sixteen_loops_and_branches_stand_in_each_other() -> None:
    item: Any = copying()
    for level in range(16):
        item = If("n", (item,)) if level % 2 else For(f"l{level}", 0, "n", (item,))
    facts(item, n=(0, 1))
    with raises(KernelProofErrors.TOO_DEEP, where="kernel 'k'", levels=16):
        facts(If("n", (item,)), n=(0, 1))


@pytest.mark.parametrize("looped", [False, True])
def test_control_has_an_iteration_and_an_end(looped: bool) -> None:
    def proved(lower: Any, upper: Any, longest: float = inf, **scalars: tuple[float, float]) -> KernelFacts:
        item = For("l", lower, upper, (copying(),)) if looped else copying(lower=lower, upper=upper)
        return facts(item, longest=longest, **scalars)

    for lower, upper, range_of_n in ((0, 1, (0, 0)), (-1, 0, (0, 0)), (0, "n", (0, 1)), ("n", 3, (2, 9))):
        proved(lower, upper, n=range_of_n)
    for lower, upper in ((0, 0), (2, 2), (3, 1), (0, "n"), ("n", -5)):
        with raises(KernelProofErrors.NO_ITERATION):
            proved(lower, upper, n=(-5, 0))
    for lower, upper, low in ((0, 7, 0), (2, 9, 0), ("n", 9, 2)):
        proved(lower, upper, 7, n=(low, 3))
    for lower, upper, low in ((0, 8, 0), (1, 9, 0), ("n", 9, 1)):
        with raises(KernelProofErrors.TOO_MANY_ITERATIONS, iterations=8, most=7):
            proved(lower, upper, 7, n=(low, 3))
    proved(0, "n", n=(0, inf))


def test_a_branch_is_taken_for_some_value() -> None:
    for low, high, taken in ((0, 0, False), (0, 1, True), (-1, 0, True), (1, 1, True), (-1, 1, True)):
        error = refusal(facts, If("n", (copying(),)), n=(low, high))
        assert (error is None) is taken, (low, high)
        if error:
            check(error, KernelProofErrors.NEVER_TAKEN, where="kernel 'k'", condition="n")
    with raises(KernelProofErrors.NEVER_TAKEN, condition="m"):
        facts(Scalar("m", "sub", ("n", "n")), If("m", (copying(),)), n=(0, 9))


def test_a_loop_tells_the_range_of_its_index() -> None:
    """An index that is proved to be inside for all values needs no samples: the loop ends before its upper bound."""

    def left(*body: Any, **scalars: Any) -> int:
        return sum(len(pipeline.open) for pipeline in facts(*body, **scalars).pipelines.values())

    def at(lower: Any, upper: Any, offset: int, factor: int) -> For:
        stage = Stage("s", "look", (), (port("x", (2,), terms=(("l", factor),)),), (), ())
        stage = Stage("s", "look", (), (_moved(stage.ports[0], offset),), (), ())
        return For("l", lower, upper, (Pipeline("p", "i", 0, 1, (), (), (stage,)),))

    assert left(at(0, 3, 0, 1)) == left(at(0, 3, 2, -1)) == left(at(1, 4, -1, 1)) == 0
    for beyond, low, high in ((at(0, 4, 0, 1), 0, 4), (at(0, 3, 1, -1), -1, 2), (at(0, 3, 1, 1), 1, 4)):
        with raises(PipelineProofErrors.VIEW_OUT_OF_RANGE, tensor="x", low=low, high=high, elements=4):
            facts(beyond)
    assert left(at(0, "n", 0, 1), n=(1, 3)) == 0
    assert left(at(0, "n", 0, 1), n=(1, 4)) == 1
    assert left(at("n", 3, 0, 1), n=(0, 1)) == 0
    assert left(at("n", 3, 0, 1), n=(-1, 1)) == 1


def _moved(end: Any, offset: int) -> Any:
    view = type(end.view)(end.view.tensor, end.view.shape, end.view.strides, offset, end.view.terms)
    return type(end)(view, end.per, end.lag)


def test_names_and_shapes_of_parameters() -> None:
    params = (read("x", (4,)), update("y", (4,)))
    with raises(KernelProofErrors.PARAMETER_TWICE, where="kernel 'k'", name="x"):
        facts(copying(), params=(*params, read("x", (1,))))
    with raises(KernelProofErrors.PARAMETER_TWICE, where="kernel 'k'", name="x"):
        facts(copying(), params=params, x=(0, 1))
    with raises(KernelProofErrors.EMPTY_SHAPE, where="kernel 'k'", name="z", shape=[2, 0]):
        facts(copying(), params=(*params, read("z", (2, 0))))
    facts(copying(), params=(*params, read("z", ())))
    with raises(NumberProofErrors.TOO_LARGE, largest=281474976710655):
        facts(copying(), params=(*params, read("z", (1 << 24, 1 << 24))))
    facts(copying("p"), copying("q"))
    with raises(KernelProofErrors.PIPELINE_TWICE, where="kernel 'k'", pipeline="p"):
        facts(copying("p"), For("l", 0, 2, (copying("p"),)))


def test_a_parameter_is_read_after_it_is_written() -> None:
    """By a stage before, or of the same pipeline; one that may hold something before, at any time."""
    looks = Stage("look", "look", (), (port("y", (2,)),), (), ())
    alone = Pipeline("look", "i", 0, 1, (), (), (looks,))
    both = (read("x", (4,)), write("y", (4,)))
    facts(copying(), alone, params=both)
    facts(alone, copying())
    where = "kernel 'k', pipeline 'look', stage 'look', port 'x'"
    with raises(KernelProofErrors.READ_BEFORE_WRITTEN, where=where, name="y"):
        facts(alone, copying(), params=both)


def test_bounds_that_are_proved_are_counted() -> None:
    """A view for each port; what is left open does not count."""
    assert facts(copying()).proved == 2
    assert facts(copying(), copying("q")).proved == 4
    beyond = Stage("s", "look", (), (port("x", (2,), terms=(("n", 1),)),), (), ())
    assert facts(copying(), Pipeline("q", "i", 0, 1, (), (), (beyond,)), n=(0, 9)).proved == 2
