"""One kernel: every limit just inside and just outside, what it moves, and which of its parameters it may read."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from sscc.ir.errors import InputError
from sscc.ir.schedule import Body, Buffer, For, If, Kernel, Pipeline, Scalar, Stage
from sscc.runtime.validator import Limits
from sscc.runtime.validator.bodies import prove_body
from sscc.runtime.validator.kernels import Caller, KernelFacts, prove_kernel
from tests.runtime.broken.build import copy_body, port, read, update, write

BODIES = {
    body.name: prove_body(body, Limits())
    for body in (copy_body("tile", 2), Body("look", (read("x", 2),), (), (), (), ()), copy_body("row", 4))
}


COPIED = (read("x", 4), update("y", 4))


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


def refusal(*body: Any, **options: Any) -> str:
    try:
        facts(*body, **options)
    except InputError as error:
        return str(error).removeprefix("the schedule is invalid: ")
    return ""


def copying(name: str = "p", lower: Any = 0, upper: Any = 1, **fields: Any) -> Pipeline:
    """Copies both tiles of x to y in each iteration."""
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
    assert refusal(streaming(buffer("a", 8), buffer("b", 0))) == ""
    assert refusal(streaming(buffer("a", 4), buffer("b", 0))) == (
        "kernel 'k', pipeline 'p': buffers 'b' at 0 .. 7 and 'a' at 4 overlap in SRAM"
    )
    assert refusal(streaming(buffer("a", 4), buffer("b", 0, tier="hbm"))) == ""
    assert refusal(streaming(buffer("a", -8), buffer("b", 0))).endswith("'p': buffer 'a' is at address -8")
    assert refusal(streaming(buffer("a", -4), buffer("b", 4))).endswith("'p': buffer 'a' is at address -4")


def test_a_pipeline_takes_no_more_than_the_machine_has() -> None:
    stream = streaming(buffer("a", 0), buffer("b", 8, 3), buffer("c", 40), buffer("d", 64), pcus=(1, 3, 2, 5, 4))
    assert refusal(stream, on=machine(pcus=15, sram=72)) == ""
    assert refusal(stream, on=machine(pcus=14, sram=72)) == (
        "kernel 'k', pipeline 'p': required 15 PCUs, the machine has 14: largest stages s3 5, out 4, s1 3"
    )
    assert refusal(stream, on=machine(pcus=15, sram=71)) == (
        "kernel 'k', pipeline 'p': required 72 bytes of SRAM, capacity 71 bytes: largest buffers b 24 bytes, d 8 "
        "bytes, c 8 bytes"
    )
    spilled = streaming(buffer("a", 0), buffer("b", 8, 3, "hbm"), pcus=(1, 3, 2))
    assert refusal(spilled, on=machine(sram=8)) == ""
    assert refusal(spilled, on=machine(sram=7)).endswith("capacity 7 bytes: largest buffers a 8 bytes")
    assert refusal(copying(), on=machine(sram=0)) == ""


# --------------------------------------------------------------------------------------------------------- control


def test_sixteen_loops_and_branches_stand_in_each_other() -> None:
    item: Any = copying()
    for level in range(16):
        item = If("n", (item,)) if level % 2 else For(f"l{level}", 0, "n", (item,))
    assert refusal(item, n=(0, 1)) == ""
    assert refusal(If("n", (item,)), n=(0, 1)) == "kernel 'k': more than 16 loops and branches stand in each other"


@pytest.mark.parametrize("looped", [False, True])
def test_control_has_an_iteration_and_an_end(looped: bool) -> None:
    def message_of(lower: Any, upper: Any, longest: float = inf, **scalars: tuple[float, float]) -> str:
        item = For("l", lower, upper, (copying(),)) if looped else copying(lower=lower, upper=upper)
        return refusal(item, longest=longest, **scalars).partition(": ")[2]

    assert message_of(0, 1) == message_of(-1, 0) == message_of(0, "n", n=(0, 1)) == message_of("n", 3, n=(2, 9)) == ""
    for lower, upper in ((0, 0), (2, 2), (3, 1), (0, "n"), ("n", -5)):
        assert message_of(lower, upper, n=(-5, 0)) == "it has no iteration", (lower, upper)
    assert message_of(0, 7, 7) == message_of(2, 9, 7) == message_of("n", 9, 7, n=(2, 3)) == ""
    says = "it has up to 8 iterations, there are 7 layers or chunks to go through"
    assert message_of(0, 8, 7) == message_of(1, 9, 7) == message_of("n", 9, 7, n=(1, 3)) == says
    assert message_of(0, "n", n=(0, inf)) == ""


def test_a_branch_is_taken_for_some_value() -> None:
    for low, high, taken in ((0, 0, False), (0, 1, True), (-1, 0, True), (1, 1, True), (-1, 1, True)):
        message = refusal(If("n", (copying(),)), n=(low, high))
        assert message == ("" if taken else "kernel 'k': a branch on 'n' is never taken"), (low, high)
    assert refusal(Scalar("m", "sub", ("n", "n")), If("m", (copying(),)), n=(0, 9)).endswith("'m' is never taken")


def test_a_loop_tells_the_range_of_its_index() -> None:
    """What is proved inside for all values is not left to samples: the index ends before its upper bound."""

    def left(*body: Any, **scalars: Any) -> int:
        return sum(len(pipeline.open) for pipeline in facts(*body, **scalars).pipelines.values())

    def at(lower: Any, upper: Any, offset: int, factor: int) -> For:
        stage = Stage("s", "look", (), (port("x", (2,), terms=(("l", factor),)),), (), ())
        stage = Stage("s", "look", (), (_moved(stage.ports[0], offset),), (), ())
        return For("l", lower, upper, (Pipeline("p", "i", 0, 1, (), (), (stage,)),))

    assert left(at(0, 3, 0, 1)) == left(at(0, 3, 2, -1)) == left(at(1, 4, -1, 1)) == 0
    for beyond, ends in ((at(0, 4, 0, 1), "0 .. 4"), (at(0, 3, 1, -1), "-1 .. 2"), (at(0, 3, 1, 1), "1 .. 4")):
        assert refusal(beyond).endswith(f"view of 'x' reaches elements {ends} of 4"), ends
    assert left(at(0, "n", 0, 1), n=(1, 3)) == 0
    assert left(at(0, "n", 0, 1), n=(1, 4)) == 1
    assert left(at("n", 3, 0, 1), n=(0, 1)) == 0
    assert left(at("n", 3, 0, 1), n=(-1, 1)) == 1


def _moved(end: Any, offset: int) -> Any:
    view = type(end.view)(end.view.tensor, end.view.shape, end.view.strides, offset, end.view.terms)
    return type(end)(view, end.per, end.lag)


def test_names_and_shapes_of_parameters() -> None:
    params = (read("x", 4), update("y", 4))
    assert refusal(copying(), params=(*params, read("x", 1))) == "kernel 'k': two parameters are called 'x'"
    assert refusal(copying(), params=params, x=(0, 1)) == "kernel 'k': two parameters are called 'x'"
    assert refusal(copying(), params=(*params, read("z", 2, 0))) == "kernel 'k': parameter 'z' has shape [2, 0]"
    assert refusal(copying(), params=(*params, read("z"))) == ""
    assert refusal(copying(), params=(*params, read("z", 1 << 24, 1 << 24))).endswith("the largest is 281474976710655")
    assert refusal(copying("p"), copying("q")) == ""
    assert refusal(copying("p"), For("l", 0, 2, (copying("p"),))) == "kernel 'k': two pipelines are called 'p'"


def test_a_parameter_is_read_after_it_is_written() -> None:
    """By a stage before, or of the same pipeline; one that may hold something before, at any time."""
    looks = Stage("look", "look", (), (port("y", (2,)),), (), ())
    alone = Pipeline("look", "i", 0, 1, (), (), (looks,))
    both = (read("x", 4), write("y", 4))
    assert refusal(copying(), alone, params=both) == refusal(alone, copying()) == ""
    assert refusal(alone, copying(), params=both) == (
        "kernel 'k', pipeline 'look', stage 'look', port 'x': it reads parameter 'y', which is declared write and not "
        "written before"
    )


def test_bounds_that_are_proved_are_counted() -> None:
    """A view for each port; what is left open does not count."""
    assert facts(copying()).proved == 2
    assert facts(copying(), copying("q")).proved == 4
    beyond = Stage("s", "look", (), (port("x", (2,), terms=(("n", 1),)),), (), ())
    assert facts(copying(), Pipeline("q", "i", 0, 1, (), (), (beyond,)), n=(0, 9)).proved == 2
