"""The listing tells the same program as the file form, in words."""

from __future__ import annotations

from sscc.compiler.emit.listing import list_program
from sscc.ir.operations import DecodeAttention
from sscc.ir.schedule import (
    Access,
    Body,
    Buffer,
    Entry,
    For,
    If,
    Instr,
    Kernel,
    Launch,
    Local,
    Param,
    Pipeline,
    Port,
    Program,
    Scalar,
    Stage,
    Tensor,
    Vector,
    View,
    Window,
)

ROW = ((1, 0),)
TWICE = Body(
    "body.twice",
    (Param("x0", (3,), "f32", "read"), Param("y0", (3,), "f32", "write")),
    ("s",),
    (Local("t0", (2, 3), "bf16"),),
    (Window("w0", View("t0", (3,), (2,), 1)),),
    (
        Vector((3,), (Access("x0", ROW),), Access("w0", ROW), (Instr("v0", "addf", ("in0", "in0"), "f32"),), "v0"),
        DecodeAttention("q", "k", "v", "x0", "x0", "x0", "x0", "p", "n", "a", "s", "y0", 0.5, 4, 8),
    ),
    "model.layers.0 model.py:7",
)
COPY = Body(
    "copy",
    (Param("x0", (3,), "f32", "read"), Param("y0", (3,), "f32", "write")),
    (),
    (),
    (),
    (Vector((3,), (Access("x0", ROW),), Access("y0", ROW), (), "in0"),),
)
TILE = View("x0", (3,), (1,), 0, (("i0", 6), ("t0", 3)))
PIPELINE = Pipeline(
    "p0",
    "i0",
    0,
    "n",
    (Scalar("m", "min", ("n", 2)),),
    (Buffer("x", (3,), "f32", "sram", 128, 2), Buffer("h", (6,), "f32", "sram", 192, 2)),
    (
        Stage("load x", "copy", (2,), (Port(TILE), Port(View("x", (3,), (1,)), 1)), (), ("x",)),
        Stage(
            "twice",
            "body.twice",
            (2,),
            (Port(View("x", (3,), (1,)), 1), Port(View("h", (3,), (1,), 0, (("t0", 3),)), 2, 1)),
            ("m",),
            ("x", "h"),
            pcus=7,
        ),
        Stage(
            "store y0", "copy", (), (Port(View("h", (3,), (1,)), 1), Port(View("y0", (3,), (1,)))), (), ("h",), "last"
        ),
    ),
)
PROGRAM = Program(
    tensors=(
        Tensor("y", (2, 3), "f32", "output", "hbm", 64),
        Tensor("x", (2, 3), "f32", "input", "hbm", 0),
        Tensor("w", (2, 3), "bf16", "weight", "hbm", 128, ("layers.0.w", "layers.1.w"), cut="2:12/4"),
    ),
    bodies=(TWICE, COPY),
    kernels=(
        Kernel(
            "decode_layer.looped",
            (Param("x0", (12,), "f32", "read"), Param("y0", (3,), "f32", "write")),
            ("n",),
            (PIPELINE,),
            "model.layers.0 model.py:9",
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
                Scalar("r", "lookup", ("m", 7, 0, -3)),
                For(
                    "i",
                    0,
                    "m",
                    (
                        Launch(
                            "decode_layer.looped",
                            (View("x", (3,), (1,), 0, (("i", 3),)), View("y", (3,), (2,), 1)),
                            ("i",),
                        ),
                    ),
                ),
                If("n", (Scalar("k", "add", ("n", 1)),)),
            ),
        ),
    ),
    arena_bytes=128,
    grid=(2, 4),
)
LINES = """\
schedule: 1 kernels, 2 bodies, 128 bytes of working memory on each of 2x4 ranks, format 13
  hbm 0x0000000000 input     f32  2x3                  x
  hbm 0x0000000080 weight    bf16 2x3                  w (part of a rank: 2:12/4)
KERNEL decode_layer.looped    -- model.layers.0 model.py:9
  read   x0: f32[12]
  write  y0: f32[3]
  scalar n
  pipeline p0 for i0 in 0 .. n:
    m = min(n, 2)
    buffer x: f32[3] x2 at sram 0x00000080, 24 bytes
    buffer h: f32[6] x2 at sram 0x000000c0, 48 bytes
    stage load x x2: copy(x0[3 @ 6*i0 + 3*t0], &x[3])
      waits for x
    stage twice x2, 7 PCUs: body.twice(&x[3], &h[3 @ 3*t0] per 2 ahead 1, m)
      waits for x, h
    stage store y0 last: copy(&h[3], y0[3])
      waits for h
ENTRY go(x, n) -> (y, n)
  m = min(n, 2)
  r = lookup(m, 7, 0, -3)
  for i in 0 .. m:
    launch decode_layer.looped(x[3 @ 3*i], y[3 strides 2 @ 1], i)
  if n:
    k = n + 1
BODY body.twice    -- model.layers.0 model.py:7
  read   x0: f32[3]
  write  y0: f32[3]
  scalar s
  local  t0: bf16[2, 3]
  window w0 = t0[3 strides 2 @ 1]
  step 0: vector dims=3 result=v0
    in0 = x0[d0]
    output = w0[d0]
    v0: f32 = addf(in0, in0)
""".splitlines()


def test_every_part_of_the_program_is_listed() -> None:
    lines = [line.rstrip() for line in list_program(PROGRAM).splitlines()]
    for line in LINES:
        assert line in lines, line
    assert any(line.startswith("  step 1: decode_attention query=q new_key=k") for line in lines)


def test_kernels_and_entries_come_before_bodies() -> None:
    """A reader first sees the launches, and last the computation of each body."""
    text = list_program(PROGRAM)
    places = [text.index(heading) for heading in ("MEMORY", "\nKERNEL ", "\nENTRY ", "\nBODY ")]
    assert places == sorted(places)


def test_memory_is_in_order_of_addresses() -> None:
    text = list_program(PROGRAM)
    assert text.index(" x\n") < text.index(" y\n") < text.index(" w (")


def test_the_listing_is_the_same_every_time() -> None:
    assert list_program(PROGRAM) == list_program(PROGRAM)
