"""Small valid schedules, written by hand."""

from __future__ import annotations

from math import prod

from sscc.ir.operations import ChunkAttention, DecodeAttention, GatherRows, ObservationScores, Observe, Pool, Select
from sscc.ir.schedule import (
    Access,
    Body,
    Buffer,
    Dtype,
    Entry,
    For,
    If,
    Instr,
    Kernel,
    Local,
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
from tests.runtime.broken.build import add_body, launch_of, place, port, product_step, sram
from tests.runtime.schedules import copy_body, read, update, view_of, whole_access, write

# ----------------------------------------------------------------------------------- a product on streamed tiles

M, N, K, TILE = 2, 12, 8, 4
TILES = N // TILE


def streamed_product() -> Program:
    """y = x w^T: tiles of w stream through two places while the product works; y is gathered and stored."""
    tensors, arena = place(
        ("x", (M, K), "f32", "input"), ("y", (M, N), "f32", "output"), ("w", (N, K), "f32", "weight")
    )
    multiply = Body(
        "multiply",
        (read("a", (M, K)), read("tile", (TILE, K)), write("part", (M, TILE))),
        (),
        (),
        (),
        (product_step("a", "tile", "part", M, TILE, K),),
    )
    stages = (
        Stage("load_x", "copy_x", (), (port("x", (M, K)), port("x_buffer", (M, K), 1)), (), ("x_buffer",), pcus=1),
        Stage(
            "load_w",
            "copy_w",
            (TILES,),
            (port("w", (TILE, K), terms=(("t0", TILE * K),)), port("w_buffer", (TILE, K), 1)),
            (),
            ("w_buffer",),
            pcus=1,
        ),
        Stage(
            "product",
            "multiply",
            (TILES,),
            (
                port("x_buffer", (M, K), TILES),
                port("w_buffer", (TILE, K), 1),
                Port(View("y_buffer", (M, TILE), (N, 1), 0, (("t0", TILE),)), TILES),
            ),
            (),
            ("x_buffer", "w_buffer", "y_buffer"),
            pcus=8,
        ),
        Stage("store_y", "copy_y", (), (port("y_buffer", (M, N), 1), port("y", (M, N))), (), ("y_buffer",), pcus=1),
    )
    buffers = sram(("x_buffer", (M, K), 1), ("w_buffer", (TILE, K), 2), ("y_buffer", (M, N), 1))
    pipeline = Pipeline("stream", "i", 0, 1, (), buffers, stages)
    kernel = Kernel("linear", (read("x", (M, K)), read("w", (N, K)), write("y", (M, N))), (), (pipeline,))
    bodies = (multiply, copy_body("copy_x", (M, K)), copy_body("copy_w", (TILE, K)), copy_body("copy_y", (M, N)))
    entry = Entry("main", ("x",), ("y",), (), (), (launch_of(tensors, "linear", "x", "w", "y"),))
    return Program(tensors, bodies, (kernel,), (entry,), arena)


# ------------------------------------------------------------------------------------ layers in one looped kernel

BATCH, HEADS, KV, DEPTH, SINK, RECENT, TOPK = 2, 2, 1, 4, 1, 3, 2
WIDTH, ROWS, OUTPUTS = HEADS * DEPTH, SINK + RECENT + TOPK, (HEADS + 2 * KV) * DEPTH
CACHE = BATCH * KV * ROWS * DEPTH
ENCODED = DEPTH + 4
HALVES = 2


def encoded_layers(layers: int = 2) -> Program:
    """`looped_layers` with caches of encoded rows."""
    return looped_layers(layers, "i8", ENCODED)


def looped_layers(layers: int = 2, stored: Dtype = "f32", width: int = DEPTH) -> Program:
    """Decode layers: the hidden state is carried on chip, stacked weights are prefetched, the caches are in place.

    Rows of the caches have `width` elements of dtype `stored`.
    """
    hidden, cache = (BATCH, WIDTH), (BATCH, KV, ROWS, width)
    caches = (layers, *cache)
    tensors, arena = place(
        ("h_in", hidden, "f32", "input"),
        ("position", (BATCH,), "i64", "input"),
        ("base", (BATCH,), "i64", "input"),
        ("active", (BATCH,), "i1", "input"),
        ("h_out", hidden, "f32", "output"),
        ("k_cache", caches, stored, "state"),
        ("v_cache", caches, stored, "state"),
        ("w", (layers, OUTPUTS, WIDTH), "f32", "weight"),
    )
    params = (
        read("h_in", hidden),
        read("w", (layers, OUTPUTS, WIDTH)),
        update("k_cache", caches, dtype=stored),
        update("v_cache", caches, dtype=stored),
        read("position", (BATCH,), dtype="i64"),
        read("base", (BATCH,), dtype="i64"),
        read("active", (BATCH,), dtype="i1"),
        write("h_out", hidden),
    )
    kernel = Kernel("layers", params, (), (_layer_pipeline(layers, cache),))
    bodies = (
        copy_body("copy_hidden", hidden),
        copy_body("copy_half", (OUTPUTS // HALVES, WIDTH)),
        _project_body(),
        _attend_body(cache, stored),
        add_body("add", hidden, hidden),
    )
    names = ("h_in", "w", "k_cache", "v_cache", "position", "base", "active", "h_out")
    inputs = ("h_in", "position", "base", "active")
    entry = Entry("decode", inputs, ("h_out",), (), (), (launch_of(tensors, "layers", *names),))
    return Program(tensors, bodies, (kernel,), (entry,), arena)


def _project_body() -> Body:
    """q, k and v of one token per sequence, through a local."""
    heads = {"q": (HEADS, 0), "k": (KV, HEADS), "v": (KV, HEADS + KV)}
    windows, steps = [], []
    for name, (count, first) in heads.items():
        rows = (count * DEPTH, WIDTH)
        windows.append(Window(f"w_{name}", view_of("weight", rows, first * DEPTH * WIDTH)))
        windows.append(Window(f"flat_{name}", view_of(name, (BATCH, count * DEPTH))))
        steps.append(product_step("copied", f"w_{name}", f"flat_{name}", BATCH, count * DEPTH, WIDTH))
    params = (
        read("hidden", (BATCH, WIDTH)),
        read("weight", (OUTPUTS, WIDTH)),
        write("q", (BATCH, HEADS, 1, DEPTH)),
        write("k", (BATCH, KV, 1, DEPTH)),
        write("v", (BATCH, KV, 1, DEPTH)),
    )
    copied = Vector((BATCH, WIDTH), (whole_access("hidden", 2),), whole_access("copied", 2), (), "in0")
    return Body("project", params, (), (Local("copied", (BATCH, WIDTH), "f32"),), tuple(windows), (copied, *steps))


def _attend_body(cache: tuple[int, ...], stored: Dtype) -> Body:
    params = (
        read("query", (BATCH, HEADS, 1, DEPTH)),
        read("new_key", (BATCH, KV, 1, DEPTH)),
        read("new_value", (BATCH, KV, 1, DEPTH)),
        read("keys", cache, dtype=stored),
        read("values", cache, dtype=stored),
        update("k_rows", cache, dtype=stored),
        update("v_rows", cache, dtype=stored),
        read("position", (BATCH,), dtype="i64"),
        read("base", (BATCH,), dtype="i64"),
        read("active", (BATCH,), dtype="i1"),
        write("out", (BATCH, HEADS, 1, DEPTH)),
    )
    names = ("query", "new_key", "new_value", "keys", "values", "k_rows", "v_rows", "position", "base", "active")
    step = DecodeAttention(*names, "most", "out", DEPTH**-0.5, SINK, RECENT)
    return Body("attend", params, ("most",), (), (), (step,))


def _layer_pipeline(layers: int, cache: tuple[int, ...]) -> Pipeline:
    hidden = (BATCH, WIDTH)
    half = (OUTPUTS // HALVES, WIDTH)
    q, kv = (BATCH, HEADS, 1, DEPTH), (BATCH, KV, 1, DEPTH)
    layer = (("layer", prod(cache)),)
    stages = (
        Stage("enter", "copy_hidden", (), (port("h_in", hidden), port("h", hidden, 1)), (), ("h",), "first", 1),
        Stage(
            "load_w",
            "copy_half",
            (HALVES,),
            (
                port("w", half, terms=(("layer", OUTPUTS * WIDTH), ("t0", half[0] * WIDTH))),
                port("w_buffer", half, HALVES, terms=(("t0", half[0] * WIDTH),)),
            ),
            (),
            ("w_buffer",),
            pcus=2,
        ),
        Stage(
            "project_qkv",
            "project",
            (),
            (
                port("h", hidden, 1),
                port("w_buffer", (OUTPUTS, WIDTH), 1),
                port("q", q, 1),
                port("k", kv, 1),
                port("v", kv, 1),
            ),
            (),
            ("h", "w_buffer", "q", "k", "v"),
            pcus=8,
        ),
        Stage(
            "attention",
            "attend",
            (),
            (
                port("q", q, 1),
                port("k", kv, 1),
                port("v", kv, 1),
                port("k_cache", cache, terms=layer),
                port("v_cache", cache, terms=layer),
                port("k_cache", cache, terms=layer),
                port("v_cache", cache, terms=layer),
                port("position", (BATCH,)),
                port("base", (BATCH,)),
                port("active", (BATCH,)),
                port("attended", q, 1),
            ),
            (TOPK,),
            ("q", "k", "v", "attended"),
            pcus=8,
        ),
        Stage(
            "residual",
            "add",
            (),
            (port("h", hidden, 1), port("attended", hidden, 1), port("h", hidden, 1, 1)),
            (),
            ("h", "attended"),
            pcus=1,
        ),
        Stage("leave", "copy_hidden", (), (port("h", hidden, 1, layers), port("h_out", hidden)), (), ("h",), "last", 1),
    )
    buffers = sram(
        ("h", hidden, 2), ("w_buffer", (OUTPUTS, WIDTH), 2), ("q", q, 1), ("k", kv, 1), ("v", kv, 1), ("attended", q, 1)
    )
    return Pipeline("run", "layer", 0, layers, (), buffers, stages)


# ------------------------------------------------------------------- a prompt in chunks, layer by layer, one kernel

SLOTS, LAYERS, LONGEST, CHUNK, OBSERVED = 2, 2, 16, 4, 2
FEATURES = HEADS * DEPTH
LAYER_TOPK = (TOPK, TOPK - 1)
RANGES = {"length": (1, LONGEST), "slot": (0, SLOTS - 1)}
SAMPLES = {"prefill": [{"length": length, "slot": 1} for length in (1, CHUNK, CHUNK + 1, LONGEST)]}


def chunked_prefill() -> Program:
    """Each layer: its chunks through attention, hidden states in place; then the cache is compressed into a slot."""
    hidden, scratch = (LONGEST, FEATURES), (1, KV, LONGEST, DEPTH)
    caches, picked = (LAYERS, SLOTS, KV, ROWS, DEPTH), (LAYERS, KV, TOPK)
    observed, sums = (1, HEADS, OBSERVED, DEPTH), (1, HEADS, OBSERVED)
    tensors, arena = place(
        ("prompt", hidden, "f32", "input"),
        ("last_hidden", (1, FEATURES), "f32", "output"),
        ("hidden", hidden, "f32", "state"),
        ("k_scratch", scratch, "f32", "state"),
        ("v_scratch", scratch, "f32", "state"),
        ("observed", observed, "f32", "state"),
        ("sums", sums, "f32", "state"),
        ("k_cache", caches, "f32", "state"),
        ("v_cache", caches, "f32", "state"),
        ("selected", picked, "i64", "state"),
        ("weights", (LAYERS, OUTPUTS, FEATURES), "f32", "weight"),
    )
    params = (
        update("hidden", hidden),
        read("weights", (LAYERS, OUTPUTS, FEATURES)),
        update("k_scratch", scratch),
        update("v_scratch", scratch),
        update("observed", observed),
        update("sums", sums),
        update("k_cache", caches),
        update("v_cache", caches),
        update("selected", picked, dtype="i64"),
        write("last_hidden", (1, FEATURES)),
    )
    finish = If("is_last", (_last_pipeline(),))
    top = Scalar("top", "lookup", ("layer", *LAYER_TOPK))
    layer = For(
        "layer",
        0,
        LAYERS,
        (_chunk_pipeline(), top, _compress_pipeline(), Scalar("is_last", "eq", ("layer", LAYERS - 1)), finish),
    )
    body = (Scalar("chunks", "ceildiv", ("length", CHUNK)), Scalar("row", "sub", ("length", 1)), layer)
    kernel = Kernel("prefill_layers", params, ("length", "slot"), body)
    embed = Kernel("embed", (read("prompt", hidden), write("hidden", hidden)), (), (_embed_pipeline(hidden),))
    bodies = (copy_body("copy_prompt", hidden), *_prefill_bodies())
    launches = (
        launch_of(tensors, "embed", "prompt", "hidden"),
        launch_of(tensors, "prefill_layers", *(param.name for param in params), scalars=("length", "slot")),
    )
    entry = Entry("prefill", ("prompt",), ("last_hidden",), ("length", "slot"), ("length",), launches)
    return Program(tensors, bodies, (kernel, embed), (entry,), arena)


def _embed_pipeline(hidden: tuple[int, ...]) -> Pipeline:
    stage = Stage("embed_stage", "copy_prompt", (), (port("prompt", hidden), port("hidden", hidden)), (), ())
    return Pipeline("embedding", "i", 0, 1, (), (), (stage,))


def _prefill_bodies() -> tuple[Body, ...]:
    q, kv = (1, HEADS, CHUNK, DEPTH), (1, KV, CHUNK, DEPTH)
    scratch, cache = (1, KV, LONGEST, DEPTH), (1, KV, ROWS, DEPTH)
    observed, sums = (1, HEADS, OBSERVED, DEPTH), (1, HEADS, OBSERVED)
    chunk = (CHUNK, FEATURES)
    windows, steps = [], []
    for name, count, first in (("q", HEADS, 0), ("k", KV, HEADS), ("v", KV, HEADS + KV)):
        # [1, count, CHUNK, DEPTH] seen as [CHUNK, count * DEPTH] needs a product per head
        for head in range(count):
            row = (first + head) * DEPTH * FEATURES
            windows.append(Window(f"w_{name}{head}", view_of("weight", (DEPTH, FEATURES), row)))
            windows.append(Window(f"{name}{head}", view_of(name, (CHUNK, DEPTH), head * CHUNK * DEPTH)))
            steps.append(product_step("x", f"w_{name}{head}", f"{name}{head}", CHUNK, DEPTH, FEATURES))
    project = Body(
        "project_chunk",
        (read("x", chunk), read("weight", (OUTPUTS, FEATURES)), write("q", q), write("k", kv), write("v", kv)),
        (),
        (),
        tuple(windows),
        tuple(steps),
    )
    attend = Body(
        "attend_chunk",
        (
            read("q", q),
            read("k", kv),
            read("v", kv),
            update("keys", scratch),
            update("values", scratch),
            write("out", q),
            write("lse", (1, HEADS, CHUNK)),
        ),
        ("start", "length"),
        (),
        (),
        (ChunkAttention("q", "k", "v", "keys", "values", "out", "start", "length", DEPTH**-0.5, "lse"),),
    )
    observe = Body(
        "observe_chunk",
        (read("q", q), read("lse", (1, HEADS, CHUNK)), update("observed", observed), update("sums", sums)),
        ("start", "length"),
        (),
        tuple(Window(f"{name}.rows", view_of(name, (*shape, 1))) for name, shape in (("lse", q[:3]), ("sums", sums))),
        (Observe("observed", "q", "start", "length"), Observe("sums.rows", "lse.rows", "start", "length")),
    )
    compress = Body(
        "compress_layer",
        (
            read("observed", observed),
            read("sums", sums),
            read("keys", scratch),
            read("values", scratch),
            write("k_rows", cache),
            write("v_rows", cache),
            write("picked", (KV, TOPK), dtype="i64"),
        ),
        ("length", "top"),
        (*(Local(name, (KV, LONGEST), "f32") for name in ("scores", "pooled")), Local("index", (KV, ROWS), "i64")),
        (),
        (
            ObservationScores("observed", "keys", "scores", "length", DEPTH**-0.5, RECENT, "sums"),
            Pool("scores", "pooled", "length", 3, "avg"),
            Select("pooled", "picked", "length", "top", SINK, RECENT),
            Vector((KV, ROWS), (), whole_access("index", 2), _written_rows(0), "position"),
            Vector(
                (KV, TOPK),
                (whole_access("picked", 2),),
                Access("index", ((1, 0, 0), (0, 1, SINK))),
                (
                    *_written_rows(SINK),
                    Instr("is_picked", "cmpi_sge", ("in0", 0), "i1"),
                    Instr("kept", "select", ("is_picked", "in0", "position"), "i64"),
                ),
                "kept",
            ),
            GatherRows("keys", "index", "k_rows"),
            GatherRows("values", "index", "v_rows"),
        ),
    )
    return (
        copy_body("copy_chunk", chunk),
        copy_body("copy_row", (1, FEATURES)),
        project,
        attend,
        observe,
        compress,
        add_body("add_chunk", (CHUNK, HEADS, DEPTH), (CHUNK, HEADS, DEPTH)),
    )


def _written_rows(first: int) -> tuple[Instr, ...]:
    """The position in each row from row `first` on, while a prompt fits the cache: -1 behind its last one."""
    return (
        Instr("column", "index", (1,), "i64"),
        Instr("row", "addi", ("column", first), "i64"),
        Instr("is_written", "cmpi_slt", ("row", "length"), "i1"),
        Instr("position", "select", ("is_written", "row", -1), "i64"),
    )


def _chunk_pipeline() -> Pipeline:
    chunk, q, kv = (CHUNK, FEATURES), (1, HEADS, CHUNK, DEPTH), (1, KV, CHUNK, DEPTH)
    scratch, split = (1, KV, LONGEST, DEPTH), (CHUNK, HEADS, DEPTH)
    at_chunk = (("start", FEATURES),)
    stages = (
        Stage("load_chunk", "copy_chunk", (), (port("hidden", chunk, terms=at_chunk), port("x", chunk, 1)), (), ("x",)),
        Stage(
            "project_stage",
            "project_chunk",
            (),
            (
                port("x", chunk, 1),
                port("weights", (OUTPUTS, FEATURES), terms=(("layer", OUTPUTS * FEATURES),)),
                port("q", q, 1),
                port("k", kv, 1),
                port("v", kv, 1),
            ),
            (),
            ("x", "q", "k", "v"),
        ),
        Stage(
            "attend_stage",
            "attend_chunk",
            (),
            (
                port("q", q, 1),
                port("k", kv, 1),
                port("v", kv, 1),
                port("k_scratch", scratch),
                port("v_scratch", scratch),
                port("out", q, 1),
                port("lse", q[:3], 1),
            ),
            ("start", "length"),
            ("q", "k", "v", "out", "lse"),
        ),
        Stage(
            "observe_stage",
            "observe_chunk",
            (),
            (
                port("q", q, 1),
                port("lse", q[:3], 1),
                port("observed", (1, HEADS, OBSERVED, DEPTH)),
                port("sums", (1, HEADS, OBSERVED)),
            ),
            ("start", "length"),
            ("q", "lse"),
        ),
        Stage(
            "store_chunk",
            "add_chunk",
            (),
            (
                port("x", split, 1),
                Port(View("out", split, (DEPTH, CHUNK * DEPTH, 1)), 1),
                port("hidden", split, terms=at_chunk),
            ),
            (),
            ("x", "out"),
        ),
    )
    buffers = sram(("x", chunk, 2), ("q", q, 1), ("k", kv, 1), ("v", kv, 1), ("out", q, 1), ("lse", q[:3], 1))
    start = Scalar("start", "mul", ("chunk", CHUNK))
    return Pipeline("chunks_of_layer", "chunk", 0, "chunks", (start,), buffers, stages)


def _compress_pipeline() -> Pipeline:
    scratch, cache = (1, KV, LONGEST, DEPTH), (1, KV, ROWS, DEPTH)
    rows = KV * ROWS * DEPTH
    here = (("layer", SLOTS * rows), ("slot", rows))
    stage = Stage(
        "compress_stage",
        "compress_layer",
        (),
        (
            port("observed", (1, HEADS, OBSERVED, DEPTH)),
            port("sums", (1, HEADS, OBSERVED)),
            port("k_scratch", scratch),
            port("v_scratch", scratch),
            port("k_cache", cache, terms=here),
            port("v_cache", cache, terms=here),
            port("selected", (KV, TOPK), terms=(("layer", KV * TOPK),)),
        ),
        ("length", "top"),
        (),
    )
    return Pipeline("compress_once", "i", 0, 1, (), (), (stage,))


def _last_pipeline() -> Pipeline:
    row = (1, FEATURES)
    ports = (port("hidden", row, terms=(("row", FEATURES),)), port("last_hidden", row))
    return Pipeline("last_token", "i", 0, 1, (), (), (Stage("pick_last", "copy_row", (), ports, (), ()),))


# ------------------------------------------------------------------------- launches with temporaries, and a spill

SIZE = 32


def chained_launches() -> Program:
    """x -> a -> b, then in a loop b -> y and x -> c -> y. a and c share an address; one copy goes through HBM."""
    line = SIZE * 4
    tensors = (
        Tensor("x", (SIZE,), "f32", "input", "hbm", 0),
        Tensor("y", (SIZE,), "f32", "output", "hbm", line),
        Tensor("a", (SIZE,), "f32", "temporary", "hbm", 2 * line),
        Tensor("b", (SIZE,), "f32", "temporary", "hbm", 3 * line),
        Tensor("c", (SIZE,), "f32", "temporary", "hbm", 2 * line),
    )
    through = Buffer("through", (SIZE,), "f32", "hbm", 4 * line, 1)
    stages = (
        Stage("spill", "copy_line", (), (port("x", (SIZE,)), port("through", (SIZE,), 1)), (), ("through",)),
        Stage("fill", "copy_line", (), (port("through", (SIZE,), 1), port("y", (SIZE,))), (), ("through",)),
    )
    params = (read("x", (SIZE,)), write("y", (SIZE,)))
    spilled = Kernel("spilled_copy", params, (), (Pipeline("both", "i", 0, 1, (), (through,), stages),))
    direct = Stage("direct", "copy_line", (), (port("x", (SIZE,)), port("y", (SIZE,))), (), ())
    plain = Kernel("plain_copy", params, (), (Pipeline("one", "i", 0, 1, (), (), (direct,)),))
    body = (
        launch_of(tensors, "plain_copy", "x", "a"),
        launch_of(tensors, "spilled_copy", "a", "b"),
        For(
            "again",
            0,
            3,
            tuple(launch_of(tensors, "plain_copy", *pair) for pair in (("b", "y"), ("x", "c"), ("c", "y"))),
        ),
    )
    entry = Entry("main", ("x",), ("y",), (), (), body)
    return Program(tensors, (copy_body("copy_line", (SIZE,)),), (spilled, plain), (entry,), 5 * line)
