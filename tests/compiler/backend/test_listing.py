"""The listing tells the same program as the file form, in words."""

from __future__ import annotations

from sscc.compiler.backend.listing import list_program
from sscc.runtime.schedule import (
    Access,
    Entry,
    For,
    If,
    Instr,
    Kernel,
    Launch,
    Param,
    Program,
    Scalar,
    Tensor,
    Vector,
    View,
)

PROGRAM = Program(
    tensors=(
        Tensor("y", (2, 3), "f32", "output", "hbm", 64),
        Tensor("x", (2, 3), "f32", "input", "hbm", 0),
    ),
    kernels=(
        Kernel(
            "twice.0",
            (Param("x0", (3,), "f32", "read"), Param("y0", (3,), "f32", "write")),
            ("s",),
            (
                Vector(
                    (3,),
                    (Access("x0", ((1, 0),)),),
                    Access("y0", ((1, 0),)),
                    (Instr("v0", "addf", ("in0", "in0"), "f32"),),
                    "v0",
                ),
            ),
            "model.layers.0 model.py:7",
        ),
    ),
    entries=(
        Entry(
            "go",
            ("x",),
            ("y",),
            ("n",),
            ("n",),
            (
                Scalar("m", "min", ("n", 2)),
                For(
                    "i",
                    0,
                    "m",
                    (Launch("twice.0", (View("x", (3,), (1,), 0, (("i", 3),)), View("y", (3,), (2,), 1)), ("i",)),),
                ),
                If("n", (Scalar("k", "add", ("n", 1)),)),
            ),
        ),
    ),
    arena_bytes=128,
)


def test_every_part_of_the_program_is_listed() -> None:
    lines = [line.rstrip() for line in list_program(PROGRAM).splitlines()]
    for line in (
        "schedule: 1 kernels, 128 bytes of working memory, format 1",
        "  hbm 0x0000000000 input     f32  2x3                  x",
        "KERNEL twice.0    -- model.layers.0 model.py:7",
        "  read   x0: f32[3]",
        "  write  y0: f32[3]",
        "  scalar s",
        "  stage 0: vector dims=3 result=v0",
        "    in0 = x0[d0]",
        "    output = y0[d0]",
        "    v0: f32 = addf(in0, in0)",
        "ENTRY go(x, n) -> (y, n)",
        "  m = min(n, 2)",
        "  for i in 0 .. m:",
        "    launch twice.0(x[3 @ 3*i], y[3 strides 2 @ 1], i)",
        "  if n:",
        "    k = n + 1",
    ):
        assert line in lines, line


def test_memory_is_in_order_of_addresses() -> None:
    text = list_program(PROGRAM)
    assert text.index("x\n") < text.index(" y\n")


def test_the_listing_is_the_same_every_time() -> None:
    assert list_program(PROGRAM) == list_program(PROGRAM)
