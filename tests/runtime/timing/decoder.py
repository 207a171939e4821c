"""A decoder in the proportions of Llama-3.1-8B, as fused layers and looped: only sizes, one token of one sequence."""

from __future__ import annotations

from math import prod

from sscc.ir.schedule import (
    Access,
    Body,
    Buffer,
    Kernel,
    Launch,
    Param,
    Pipeline,
    Port,
    Product,
    Program,
    Stage,
    Tensor,
    Vector,
    View,
)
from sscc.ir.sizes import dense_strides
from tests.runtime.schedules import view_of
from tests.runtime.timing.programs import program

LAYERS, HIDDEN, VOCABULARY = 32, 4096, 128256
LAYER_ELEMENTS = 4096 * (4096 + 2 * 1024 + 4096 + 3 * 14336)  # q, k, v, o, gate, up, down
CACHE_ELEMENTS = 2 * 8 * 4096 * 128  # K and V of 4096 rows
TRIPS, WIDTH = 64, HIDDEN // 64


def _bodies(name: str, rows: int) -> tuple[Body, Body]:
    """Return the bodies: one loads a tile, one multiplies a part of the input by a tile into a part of the result."""
    shape = (rows, WIDTH)
    same = ((1, 0, 0), (0, 1, 0))
    copy = Vector(shape, (Access("x", same),), Access("y", same), (), "in0")
    ports = (Param("x", shape, "bf16", "read"), Param("y", shape, "bf16", "write"))
    params = (
        Param("x", (WIDTH,), "bf16", "read"),
        Param("w", (rows, WIDTH), "bf16", "read"),
        Param("y", (HIDDEN,), "bf16", "write"),
    )
    maps = (((0, 1, 0),), ((1, 0, 0), (0, 1, 0)), ((0, 0, 0),))
    step = Product((rows, WIDTH), (0, 1), Access("x", maps[0]), Access("w", maps[1]), Access("y", maps[2]))
    return (
        Body(f"load_{name}", ports, (), (), (), (copy,)),
        Body(f"multiply_{name}", params, (), (), (), (step,)),
    )


def _kernel(name: str, rows: int, layers: int) -> Kernel:
    """Streams `layers` weights [TRIPS, rows, WIDTH] past the hidden state, which stays on chip between layers."""
    size = TRIPS * rows * WIDTH
    params = (Param("w", (layers, TRIPS, rows, WIDTH), "bf16", "read"), Param("h", (HIDDEN,), "bf16", "update"))
    buffers = (
        Buffer("tiles", (rows, WIDTH), "bf16", "sram", 0, 2),
        Buffer("hidden", (HIDDEN,), "bf16", "sram", 2 * rows * WIDTH * 2, 2),
    )
    tile = View("w", (rows, WIDTH), (WIDTH, 1), 0, (("i", size), ("t0", rows * WIDTH)))
    h, hidden = view_of("h", (HIDDEN,)), view_of("hidden", (HIDDEN,))
    slot = Port(view_of("tiles", (rows, WIDTH)), per=1)
    stages = (
        Stage("begin", "copy_hidden", (), (Port(h), Port(hidden, per=1)), (), ("hidden",), "first"),
        Stage("load", f"load_{name}", (TRIPS,), (Port(tile), slot), (), ("tiles",)),
        Stage("multiply", f"multiply_{name}", (TRIPS,),
              (Port(View("hidden", (WIDTH,), (1,), 0, (("t0", WIDTH),)), per=TRIPS),
               slot, Port(hidden, per=TRIPS, lag=1)),
              (), ("hidden", "tiles"), "each", 1040),
        Stage("end", "copy_hidden", (), (Port(hidden, per=1, lag=layers), Port(h)), (), ("hidden",), "last"),
    )  # fmt: skip
    return Kernel(name, params, (), (Pipeline(name, "i", 0, layers, (), buffers, stages),), "")


def decoder(looped: bool, layers: int = LAYERS) -> Program:
    """Return a program with a launch per layer, or one for all layers, and one for the head."""
    rows = (LAYER_ELEMENTS + CACHE_ELEMENTS) // HIDDEN
    copy = Vector((HIDDEN,), (Access("x", ((1, 0),)),), Access("y", ((1, 0),)), (), "in0")
    hidden = (Param("x", (HIDDEN,), "bf16", "read"), Param("y", (HIDDEN,), "bf16", "write"))
    bodies = (
        Body("copy_hidden", hidden, (), (), (), (copy,)),
        *_bodies("layer", rows),
        *_bodies("head", VOCABULARY),
    )
    layer, head = _kernel("layer", rows, layers if looped else 1), _kernel("head", VOCABULARY, 1)
    shape = (layers, TRIPS, rows, WIDTH)
    tensors = (
        Tensor("layers", shape, "bf16", "weight", "hbm", 0, ("layers",)),
        Tensor("head", (1, TRIPS, VOCABULARY, WIDTH), "bf16", "weight", "hbm", 0, ("head",)),
        Tensor("h", (HIDDEN,), "bf16", "state", "hbm", 0),
    )
    h = view_of("h", (HIDDEN,))
    size = prod(shape[1:])
    launches = [
        Launch("layer", (View("layers", layer.params[0].shape, dense_strides(layer.params[0].shape), i * size), h))
        for i in range(1 if looped else layers)
    ]
    launches.append(Launch("head", (view_of("head", head.params[0].shape), h)))
    return program((layer, head), bodies, tuple(launches), tensors=tensors)
