"""Schedules that are broken on purpose: each is a valid one with one thing wrong, and what a refusal must name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sscc.ir.schedule import (
    Access,
    Body,
    Buffer,
    Entry,
    For,
    If,
    Kernel,
    Launch,
    Pipeline,
    Program,
    Scalar,
    Stage,
    Tensor,
    Vector,
)
from tests.runtime.broken import bases
from tests.runtime.broken.bases import CACHE, CHUNK, FEATURES, KV, LONGEST, TILE, TILES, TOPK, K, M, N
from tests.runtime.broken.build import arg_setting, change, copy_body, port, port_setting, read, setting, update


@dataclass(frozen=True)
class Broken:
    """A schedule that must be refused.

    Attributes:
        base: the valid schedule; `broken` turns it into the one to refuse.
        says: regular expressions that the refusal's message must match: where it is, and what.
    """

    name: str
    base: Callable[[], Program]
    broken: Callable[[Program], Program]
    says: tuple[str, ...]

    def program(self) -> Program:
        return self.broken(self.base())


def _edit(kind: type[Any], name: str, edit: Callable[[Any], Any]) -> Callable[[Program], Program]:
    return lambda program: change(program, kind, name, edit)


def _both(*edits: Callable[[Program], Program]) -> Callable[[Program], Program]:
    def broken(program: Program) -> Program:
        for edit in edits:
            program = edit(program)
        return program

    return broken


def _swapped_ports(stage: Stage) -> Stage:
    first, second, *rest = stage.ports
    views = (
        dataclasses.replace(first.view, tensor=second.view.tensor),
        dataclasses.replace(second.view, tensor=first.view.tensor),
    )
    ports = (dataclasses.replace(first, view=views[0]), dataclasses.replace(second, view=views[1]), *rest)
    return dataclasses.replace(stage, ports=ports)


def _without_wait(name: str) -> Callable[[Stage], Stage]:
    return lambda stage: dataclasses.replace(stage, waits=tuple(wait for wait in stage.waits if wait != name))


def _without_stage(name: str) -> Callable[[Pipeline], Pipeline]:
    return lambda pipeline: dataclasses.replace(pipeline, stages=tuple(s for s in pipeline.stages if s.name != name))


def _shifted_input(step: Vector) -> Vector:
    moved = tuple((*row[:-1], row[-1] + (1 if axis == 0 else 0)) for axis, row in enumerate(step.inputs[0].map))
    return dataclasses.replace(step, inputs=(Access(step.inputs[0].param, moved),))


def _steps(edit: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> Callable[[Body], Body]:
    return lambda body: dataclasses.replace(body, steps=edit(body.steps))


def _param(number: int, **fields: Any) -> Callable[[Any], Any]:
    """An edit of a body or kernel that sets fields of one parameter."""

    def edit(owner: Any) -> Any:
        params = list(owner.params)
        params[number] = dataclasses.replace(params[number], **fields)
        return dataclasses.replace(owner, params=tuple(params))

    return edit


def _peeking(pipeline: Pipeline) -> Pipeline:
    """A stage that reads K while another one writes it, and waits for nothing."""
    scratch = (1, KV, LONGEST, bases.DEPTH)
    stage = Stage("peek", "copy_scratch", (), (port("k_scratch", scratch), port("v_scratch", scratch)), (), ())
    return dataclasses.replace(pipeline, stages=(*pipeline.stages, stage))


def _with_body(body: Body) -> Callable[[Program], Program]:
    return lambda program: dataclasses.replace(program, bodies=(*program.bodies, body))


def _with_tensor(tensor: Tensor) -> Callable[[Program], Program]:
    return lambda program: dataclasses.replace(program, tensors=(*program.tensors, tensor))


def _with_buffer(buffer: Buffer) -> Callable[[Pipeline], Pipeline]:
    return lambda pipeline: dataclasses.replace(pipeline, buffers=(*pipeline.buffers, buffer))


def _two_tiles(program: Program) -> Program:
    """Loads and multiplies one tile of y less, at rates that agree."""
    program = change(program, Stage, "load_w", setting(grid=(TILES - 1,)))
    program = change(program, Stage, "product", setting(grid=(TILES - 1,)))
    program = change(program, Stage, "product", port_setting(0, per=TILES - 1))
    return change(program, Stage, "product", port_setting(2, per=TILES - 1))


_PRODUCT, _LAYERS, _ENCODED = bases.streamed_product, bases.looped_layers, bases.encoded_layers
_PREFILL, _CHAIN = bases.chunked_prefill, bases.chained_launches
_LINE = bases.SIZE * 4

STREAMS = (
    Broken(
        "buffers swapped between ports",
        _PRODUCT,
        _edit(Stage, "product", _swapped_ports),
        ("stage 'product', port 'tile'", "'x_buffer' reaches elements 0 .. 31 of 16"),
    ),
    Broken(
        "reader does not wait",
        _PRODUCT,
        _edit(Stage, "product", _without_wait("w_buffer")),
        ("stage 'product'", r"firing 2 .*reads slot 2 of buffer 'w_buffer' without waiting"),
    ),
    Broken(
        "writer does not wait",
        _PRODUCT,
        _edit(Stage, "load_w", setting(waits=())),
        ("stage 'load_w'", r"firing 2 .*overwrites slot 2 of buffer 'w_buffer'"),
    ),
    Broken(
        "wait that the order of firing hides",
        _LAYERS,
        _edit(Stage, "attention", _without_wait("k")),
        ("stage 'attention'", "'k'"),
    ),
    Broken(
        "wait for a buffer that is not touched",
        _PRODUCT,
        _edit(Stage, "load_x", setting(waits=("x_buffer", "y_buffer"))),
        ("stage 'load_x'", "waits for buffer 'y_buffer'"),
    ),
    Broken(
        "one tile not loaded",
        _PRODUCT,
        _edit(Stage, "load_w", setting(grid=(TILES - 1,))),
        ("buffer 'w_buffer'", "slots per iteration differ: stage 'load_w' fills 2 / 1, stage 'product' reads 3 / 1"),
    ),
    Broken(
        "one tile of the output missing",
        _PRODUCT,
        _two_tiles,
        ("port 'part'", f"2 firings of a slot write 16 of the {M * N} elements of 'y_buffer'"),
    ),
    Broken(
        "tile written twice",
        _PRODUCT,
        _edit(Stage, "product", port_setting(2, {"terms": ()})),
        ("port 'part'", "'y_buffer' more than once"),
    ),
    Broken(
        "tiles of the output overlap",
        _PRODUCT,
        _edit(Stage, "product", port_setting(2, {"terms": (("t0", TILE - 1),)})),
        ("port 'part'", "'y_buffer' more than once"),
    ),
    Broken(
        "slot with a gap",
        _LAYERS,
        _edit(Stage, "load_w", port_setting(1, {"terms": ()})),
        ("stage 'load_w'", "'w_buffer' more than once"),
    ),
    Broken(
        "rates do not agree",
        _PRODUCT,
        _edit(Stage, "product", port_setting(1, per=TILES)),
        ("buffer 'w_buffer'", "slot 1, which stage 'load_w' fills, is never read"),
    ),
    Broken(
        "slot half filled at the end",
        _PRODUCT,
        _edit(Stage, "product", port_setting(2, per=2)),
        ("buffer 'y_buffer'", "'product' fires 3 times in 1 iterations and fills a slot in 2"),
    ),
    Broken(
        "carry with one place",
        _LAYERS,
        _edit(Buffer, "h", setting(depth=1)),
        ("pipeline 'run'", "deadlock in iteration 0", "'residual' waits for slot 1 of buffer 'h'"),
    ),
    Broken(
        "carry read before it is made",
        _LAYERS,
        _edit(Stage, "residual", port_setting(0, lag=1)),
        ("pipeline 'run': deadlock in iteration 0", "'residual' waits for slot 1 of buffer 'h' to be complete"),
    ),
    Broken(
        "carry without a beginning",
        _LAYERS,
        _edit(Pipeline, "run", _without_stage("enter")),
        ("buffer 'h'", "reads slot 0", "no stage fills it"),
    ),
    Broken(
        "carry with two beginnings",
        _LAYERS,
        _edit(Stage, "enter", port_setting(1, lag=1)),
        ("buffer 'h'", "slot 1 is filled by stage 'enter' and by stage 'residual'"),
    ),
    Broken(
        "result of the layer before the last one",
        _LAYERS,
        _edit(Stage, "leave", port_setting(0, lag=1)),
        ("buffer 'h'", "slot 2, which stage 'residual' fills, is never read"),
    ),
    Broken(
        "result of a layer that does not exist",
        _LAYERS,
        _edit(Stage, "leave", port_setting(0, lag=3)),
        ("buffer 'h'", "slot 2, which stage 'residual' fills, is never read"),
    ),
    Broken(
        "buffer that nobody fills",
        _PRODUCT,
        _edit(Pipeline, "stream", _with_buffer(Buffer("idle", (2,), "f32", "sram", 4096, 1))),
        ("buffer 'idle'", "no stage fills it"),
    ),
    Broken(
        "accumulation in a slot",
        _PRODUCT,
        _edit(Body, "multiply", _param(2, access="update")),
        ("port 'part'", "updates buffer 'y_buffer'"),
    ),
)

BOUNDS = (
    Broken(
        "factor of a term too large",
        _PRODUCT,
        _edit(Stage, "load_w", port_setting(0, {"terms": (("t0", TILE * K + 1),)})),
        ("stage 'load_w', port 'x'", f"'w' reaches elements 0 .. {N * K + 1} of {N * K}"),
    ),
    Broken(
        "layer too many",
        _LAYERS,
        _edit(Pipeline, "run", setting(upper=3)),
        ("stage 'load_w'", "'w' reaches elements 0 .. 383 of 256"),
    ),
    Broken(
        "chunk too many",
        _PREFILL,
        _edit(Scalar, "chunks", setting(op="floordiv", args=("length", 3))),
        (
            "pipeline 'chunks_of_layer'",
            "'hidden' reaches elements 128 .. 159 of 128, in entry 'prefill' with .'length': 16",
        ),
    ),
    Broken(
        "ring one row too large",
        _LAYERS,
        _edit(Body, "attend", _steps(lambda s: (dataclasses.replace(s[0], recent=6),))),
        ("body 'attend', step 0", "rows 0 .. 6 of sink 1 and recent 6 are used, the cache has 6 rows"),
    ),
    Broken(
        "compression leaves a row out",
        _PREFILL,
        _edit(Body, "compress_layer", _steps(lambda s: (*s[:3], dataclasses.replace(s[3], dims=(KV, 3)), *s[4:]))),
        ("body 'compress_layer', step 5", "it reads elements of 'index' that no step before it has written"),
    ),
    Broken(
        "access map one row too far",
        _PRODUCT,
        _edit(Body, "copy_w", _steps(lambda s: (_shifted_input(s[0]),))),
        ("body 'copy_w', step 0", "reaches 1 .. 4 of axis 0 of 'x', whose size is 4"),
    ),
    Broken(
        "window outside its parameter",
        _LAYERS,
        _edit(
            Body,
            "project",
            lambda b: dataclasses.replace(
                b,
                windows=tuple(
                    dataclasses.replace(w, view=dataclasses.replace(w.view, offset=w.view.offset + 8))
                    for w in b.windows
                ),
            ),
        ),
        ("body 'project'", "window 'flat_q' reaches elements 8 .. 23 of 'q', which has 16"),
    ),
    Broken(
        "launch on a tensor that is too small",
        _CHAIN,
        _edit(Launch, "spilled_copy", arg_setting(0, offset=1)),
        ("launch 1 of kernel 'spilled_copy', parameter 'x'", "'a' reaches elements 1 .. 32 of 32"),
    ),
    Broken(
        "window of a parameter that is not dense",
        _PRODUCT,
        _edit(Launch, "linear", arg_setting(1, strides=(K - 1, 1))),
        ("stage 'load_w', port '.*'", "it is a window of 'w', which a launch does not show dense and row-major"),
    ),
    Broken(
        "slot that does not exist",
        _PREFILL,
        _edit(Stage, "compress_stage", port_setting(4, {"terms": (("layer", 2 * CACHE // 2), ("slot", CACHE))})),
        (
            "stage 'compress_stage', port 'k_rows'",
            "'k_cache' reaches elements 96 .. 119 of 96, in entry 'prefill' with .'length': 1",
        ),
    ),
)

MEMORY = (
    Broken(
        "buffers overlap",
        _PRODUCT,
        _edit(Buffer, "w_buffer", setting(address=32)),
        ("pipeline 'stream'", "'x_buffer' at 0 .. 63 and 'w_buffer' at 32 overlap"),
    ),
    Broken(
        "too much SRAM",
        _PRODUCT,
        _edit(Buffer, "y_buffer", setting(address=600 << 20)),
        ("kernel 'linear', pipeline 'stream'", "required 600 MB of SRAM, capacity 520 MB", "w_buffer 256 bytes"),
    ),
    Broken(
        "too many PCUs",
        _PRODUCT,
        _edit(Stage, "product", setting(pcus=2000)),
        ("pipeline 'stream'", "required 2003 PCUs, the machine has 1040: largest stages product 2000"),
    ),
    Broken(
        "too much HBM",
        _PRODUCT,
        _with_tensor(Tensor("giant", (1 << 35,), "f32", "weight", "hbm", 4096, ("giant",))),
        ("of HBM, capacity 65536 MB", "giant 131072 MB"),
    ),
    Broken(
        "temporary overwritten by the launch that reads it",
        _CHAIN,
        _edit(Tensor, "b", setting(address=2 * _LINE)),
        ("temporary 'a'", "temporary 'b'", "both alive in entry 'main'"),
    ),
    Broken(
        "temporary overwritten before the next round of a loop",
        _CHAIN,
        _edit(Tensor, "c", setting(address=3 * _LINE)),
        ("temporary 'b'", "temporary 'c'", "launches 1 .. 4 and 3 .. 4"),
    ),
    Broken(
        "temporary over an input",
        _CHAIN,
        _edit(Tensor, "c", setting(address=0)),
        ("input 'x'", "temporary 'c'", "not both are temporary"),
    ),
    Broken(
        "states overlap",
        _LAYERS,
        _edit(Tensor, "v_cache", setting(address=192)),
        ("state '._cache'", "share addresses"),
    ),
    Broken(
        "spilled buffer over a living temporary",
        _CHAIN,
        _edit(Buffer, "through", setting(address=3 * _LINE)),
        ("buffers 'through' of kernel 'spilled_copy'", "temporary 'b'"),
    ),
    Broken(
        "spilled buffer outside the arena",
        _CHAIN,
        _edit(Buffer, "through", setting(address=5 * _LINE)),
        ("buffer 'through'", "the arena has 640 bytes"),
    ),
    Broken(
        "address not aligned",
        _CHAIN,
        _edit(Tensor, "a", setting(address=2 * _LINE + 4)),
        ("tensor 'a'", "address 260, which is no multiple of 64"),
    ),
    Broken(
        "tensor outside the arena",
        _CHAIN,
        lambda program: dataclasses.replace(program, arena_bytes=3 * _LINE),
        ("tensor 'b'", "the arena has 384 bytes"),
    ),
    Broken(
        "temporary read before it is written",
        _CHAIN,
        _edit(Launch, "spilled_copy", arg_setting(0, tensor="c")),
        ("launch 1 of kernel 'spilled_copy'", "reads temporary 'c'"),
    ),
    Broken(
        "half of a temporary written",
        _CHAIN,
        lambda program: dataclasses.replace(
            program,
            tensors=tuple(dataclasses.replace(t, shape=(64,)) if t.name == "a" else t for t in program.tensors),
            entries=tuple(_second_half(entry) for entry in program.entries),
        ),
        ("launch 1 of kernel 'spilled_copy'", "reads elements of temporary 'a' that no launch has written"),
    ),
)

ORDER = (
    Broken(
        "another layer's cache is read",
        _LAYERS,
        _edit(Stage, "attention", port_setting(3, {"offset": CACHE, "terms": (("layer", -CACHE),)})),
        ("pipeline 'run'", "'attention' writes in iteration 0 elements of 'k_cache' that .* reads in iteration 1"),
    ),
    Broken(
        "the first layer's cache is read by all",
        _LAYERS,
        _edit(Stage, "attention", port_setting(3, {"terms": ()})),
        ("stage 'attention'", "port 'k_rows' writes elements of 'k_cache' that port 'keys' shows elsewhere"),
    ),
    Broken(
        "layers' cache regions overlap",
        _LAYERS,
        _both(
            _edit(Stage, "attention", port_setting(3, {"terms": (("layer", CACHE // 2),)})),
            _edit(Stage, "attention", port_setting(5, {"terms": (("layer", CACHE // 2),)})),
        ),
        ("pipeline 'run'", "writes in iteration 0 elements of 'k_cache' that stage 'attention' .* in iteration 1"),
    ),
    Broken(
        "layers' cache regions overlap from loop to loop",
        _PREFILL,
        _edit(Stage, "compress_stage", port_setting(4, {"terms": (("layer", CACHE // 2 - 1), ("slot", CACHE // 2))})),
        ("stage 'compress_stage', port 'k_rows'", "writes elements of 'k_cache' again when 'layer' moves on by 23"),
    ),
    Broken(
        "K and V in one cache",
        _LAYERS,
        _edit(Launch, "layers", arg_setting(3, tensor="k_cache")),
        ("stage 'attention'", "port '._rows' writes elements of '._cache' that port '._rows' writes too"),
    ),
    Broken(
        "K and V overlap by a layer",
        _LAYERS,
        _both(
            _edit(Tensor, "k_cache", setting(shape=(4, 2, 1, 6, 4))),
            _edit(Tensor, "v_cache", setting(address=4096)),
            lambda program: dataclasses.replace(
                program,
                arena_bytes=8192,
                tensors=tuple(dataclasses.replace(t, address=8192) if t.name == "w" else t for t in program.tensors),
            ),
            _edit(Launch, "layers", arg_setting(3, tensor="k_cache", offset=CACHE)),
        ),
        ("pair of parameters 'k_cache' and 'v_cache' shares elements of tensor 'k_cache'",),
    ),
    Broken(
        "memory read while it is written",
        _PREFILL,
        _both(
            _with_body(copy_body("copy_scratch", 1, KV, LONGEST, bases.DEPTH)),
            _edit(Pipeline, "chunks_of_layer", _peeking),
        ),
        (
            "pipeline 'chunks_of_layer'",
            "stage '(peek|attend_stage)' writes in iteration 0 elements of '._scratch'",
            "no stream orders",
        ),
    ),
    Broken(
        "chunk written back to the next one's place",
        _PREFILL,
        _edit(
            Stage,
            "store_chunk",
            port_setting(2, {"offset": (LONGEST - CHUNK) * FEATURES, "terms": (("start", -FEATURES),)}),
        ),
        (
            "pipeline 'chunks_of_layer'",
            "stage 'store_chunk' writes in iteration . elements of 'hidden' that stage 'load_chunk'",
        ),
    ),
    Broken(
        "local read before it is written",
        _LAYERS,
        _edit(Body, "project", _steps(lambda s: (*s[1:], s[0]))),
        ("body 'project', step 0", "reads elements of 'copied' that no step before it has written"),
    ),
    Broken(
        "output not written whole",
        _PRODUCT,
        _both(
            _edit(Kernel, "linear", _param(2, shape=(M, N + 1))),
            _edit(Tensor, "y", setting(shape=(M, N + 1))),
            _edit(Launch, "linear", arg_setting(2, shape=(M, N + 1), strides=(N + 1, 1))),
        ),
        ("kernel 'linear'", "parameter 'y' is declared write, and not every one of its 26 elements is written"),
    ),
)

NAMES = (
    Broken(
        "weight written",
        _LAYERS,
        _edit(Tensor, "k_cache", setting(role="weight", address=1 << 20, sources=("a", "b"))),
        ("launch 0 of kernel 'layers', parameter 'k_cache'", "writes weight 'k_cache'"),
    ),
    Broken(
        "input written",
        _CHAIN,
        _edit(Launch, "spilled_copy", arg_setting(1, tensor="x")),
        ("launch 1", "writes input 'x'"),
    ),
    Broken(
        "body writes what it declares read",
        _PRODUCT,
        _edit(Body, "multiply", _param(2, access="read")),
        ("body 'multiply', step 0", "writes parameter 'part', which is declared read"),
    ),
    Broken(
        "stage writes what the kernel declares read",
        _PRODUCT,
        _edit(Kernel, "linear", _param(2, access="read")),
        ("stage 'store_y', port 'y'", "writes parameter 'y' of the kernel, which is declared read"),
    ),
    Broken(
        "rows updated of what starts undefined",
        _LAYERS,
        _edit(Body, "attend", _param(5, access="write")),
        ("body 'attend', step 0", "updates some elements of 'k_rows', which is declared write"),
    ),
    Broken("two tensors of one name", _CHAIN, _edit(Tensor, "c", setting(name="b")), ("two tensors are called 'b'",)),
    Broken(
        "two stages of one name",
        _PRODUCT,
        _edit(Stage, "load_x", setting(name="load_w")),
        ("pipeline 'stream'", "two stages are called 'load_w'"),
    ),
    Broken(
        "two pipelines of one name",
        _PREFILL,
        _edit(Pipeline, "last_token", setting(name="compress_once")),
        ("kernel 'prefill_layers'", "two pipelines are called 'compress_once'"),
    ),
    Broken(
        "buffer named like a parameter",
        _PRODUCT,
        _edit(Buffer, "x_buffer", setting(name="x")),
        ("pipeline 'stream'", "two buffers or parameters are called 'x'"),
    ),
    Broken(
        "scalar used before it is defined",
        _PREFILL,
        _edit(Scalar, "chunks", setting(name="pieces")),
        ("kernel 'prefill_layers'", "pipeline 'chunks_of_layer' uses scalar 'chunks' before it is defined"),
    ),
    Broken(
        "scalar of a loop used after it",
        _PREFILL,
        _edit(Entry, "prefill", setting(scalar_outputs=("layer",))),
        ("entry 'prefill'", "uses scalar 'layer' before it is defined"),
    ),
    Broken(
        "index that hides another one",
        _PREFILL,
        _edit(Pipeline, "chunks_of_layer", setting(index="layer")),
        ("pipeline 'chunks_of_layer'", "scalar 'layer' is defined twice"),
    ),
    Broken(
        "body that does not exist",
        _PRODUCT,
        _edit(Stage, "product", setting(body="divide")),
        ("stage 'product'", "body 'divide' does not exist"),
    ),
    Broken(
        "kernel that does not exist",
        _CHAIN,
        _edit(Launch, "spilled_copy", setting(kernel="lost")),
        ("launch 1", "kernel 'lost'", "does not exist"),
    ),
    Broken(
        "dtype of a buffer",
        _PRODUCT,
        _edit(Buffer, "x_buffer", setting(dtype="bf16")),
        ("stage 'load_x', port 'y'", "takes f32 .2, 8., the view of 'x_buffer' is bf16"),
    ),
    Broken(
        "shape of an argument",
        _PRODUCT,
        _edit(Launch, "linear", arg_setting(0, shape=(K, M), strides=(M, 1))),
        ("parameter 'x'", "takes f32 .2, 8., the view of 'x' is f32 .8, 2."),
    ),
    Broken(
        "argument missing",
        _CHAIN,
        _edit(Launch, "spilled_copy", lambda launch: dataclasses.replace(launch, args=launch.args[:1])),
        ("launch 1", "passes 1 tensors and 0 scalars, the kernel takes 2 and 0"),
    ),
    Broken(
        "weights of a layer missing",
        _LAYERS,
        _edit(Tensor, "w", setting(sources=("w.0", "w.1", "w.2"))),
        ("tensor 'w'", "has 3 sources"),
    ),
)


def _grid(stage: str, *sizes: int) -> Callable[[Program], Program]:
    return _edit(Stage, stage, setting(grid=sizes))


def _nested(depth: int) -> Callable[[Program], Program]:
    """The kernel's body within so many loops of one iteration."""

    def edit(kernel: Kernel) -> Kernel:
        body = kernel.body
        for level in range(depth):
            body = (For(f"deep{level}", 0, 1, body),)
        return dataclasses.replace(kernel, body=body)

    return _edit(Kernel, "linear", edit)


def _before(kernel: str, *items: Any) -> Callable[[Program], Program]:
    return _edit(Kernel, kernel, lambda k: dataclasses.replace(k, body=(*items, *k.body)))


def _entry_items(edit: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> Callable[[Program], Program]:
    return _edit(Entry, "main", lambda entry: dataclasses.replace(entry, body=edit(entry.body)))


def _encoded_weight(encoding: str, **fields: Any) -> Callable[[Program], Program]:
    return _edit(Tensor, "w", setting(encoding=encoding, **fields))


_HALF = bases.SIZE // 2

ORDER_OF_TURNS = (
    Broken(
        "prologue that reads what iterations make",
        _LAYERS,
        _edit(Stage, "residual", setting(when="first")),
        ("pipeline 'run', buffer '(h|attended)'",),
    ),
    Broken(
        "store before the product",
        _PRODUCT,
        _edit(Stage, "store_y", setting(when="first")),
        ("buffer 'y_buffer'", "stage 'store_y' reads a slot that stage 'product' fills which fires in each iteration"),
    ),
    Broken(
        "load after the product",
        _PRODUCT,
        _edit(Stage, "load_x", setting(when="last")),
        ("buffer 'x_buffer'", "stage 'product' reads a slot that stage 'load_x' fills which fires last"),
    ),
    Broken(
        "prologue that needs the place of an iteration",
        lambda: bases.looped_layers(3),
        _both(
            _edit(Stage, "residual", port_setting(2, lag=3)),
            _grid("enter", 3),
            _edit(Stage, "leave", setting(grid=(3,))),
        ),
        (
            "buffer 'h'",
            "stage 'enter' fills a place again that stage '(residual|project_qkv)', which fires in each iteration",
        ),
    ),
    Broken(
        "iterations wait for a place that the epilogue has",
        lambda: bases.looped_layers(3),
        _both(
            _edit(Stage, "leave", setting(grid=(4,))),
            _edit(Stage, "leave", port_setting(0, lag=0)),
        ),
        ("buffer 'h'", "stage 'residual' fills a place again that stage 'leave', which fires last, still has to use"),
    ),
    Broken(
        "firings of an iteration that read each other's rows",
        _CHAIN,
        _both(
            _with_body(copy_body("copy_half", _HALF)),
            _edit(Kernel, "plain_copy", _param(1, access="update")),
            _edit(
                Stage,
                "direct",
                setting(
                    body="copy_half",
                    grid=(2,),
                    ports=(port("y", (_HALF,)), port("y", (_HALF,), terms=(("t0", _HALF),))),
                ),
            ),
            _edit(Stage, "direct", port_setting(0, {"offset": _HALF, "terms": (("t0", -_HALF),)})),
        ),
        (
            "stage 'direct'",
            "port 'y' writes elements of 'y' in one firing of an iteration that port 'x' reads in another",
        ),
    ),
    Broken(
        "a row that every firing updates",
        _CHAIN,
        _both(
            _with_body(dataclasses.replace(copy_body("refresh", _HALF), params=(read("x", _HALF), update("y", _HALF)))),
            _edit(Kernel, "plain_copy", _param(1, access="update")),
            _edit(
                Stage,
                "direct",
                setting(
                    body="refresh", grid=(2,), ports=(port("x", (_HALF,), terms=(("t0", _HALF),)), port("y", (_HALF,)))
                ),
            ),
        ),
        ("stage 'direct', port 'y'", "the 2 firings of an iteration write elements of 'y' more than once"),
    ),
)

CONTROL = (
    Broken(
        "loops nested without an end", _PRODUCT, _nested(17), ("more than 16 loops and branches stand in each other",)
    ),
    Broken(
        "branch that is never taken", _PREFILL, _edit(If, "if", setting(condition=0)), ("a branch on 0 is never taken",)
    ),
    Broken(
        "pipeline without an iteration", _LAYERS, _edit(Pipeline, "run", setting(upper=0)), ("it has no iteration",)
    ),
    Broken(
        "scalar beyond 64 bits",
        _PREFILL,
        _edit(Scalar, "row", setting(op="mul", args=("length", 1 << 62))),
        ("scalar 'row' = mul may be .*, beyond 64 bits",),
    ),
    Broken(
        "scalar of two operands and three arguments",
        _PREFILL,
        _edit(Scalar, "row", setting(args=("length", 1, 1))),
        ("scalar 'row' is 'sub' of 3 arguments",),
    ),
    Broken(
        "operation that does not exist",
        _PREFILL,
        _edit(Scalar, "row", setting(op="pow")),
        ("scalar 'row' is 'pow' of 2 arguments",),
    ),
    Broken(
        "division by what may be 0",
        _PREFILL,
        _edit(Scalar, "row", setting(op="floordiv", args=("length", "slot"))),
        (r"scalar 'row' = floordiv divides by 1\*slot, which may be 0",),
    ),
    Broken(
        "division by 0",
        _PREFILL,
        _edit(Scalar, "row", setting(op="mod", args=("length", 0))),
        ("scalar 'row' = mod divides by 0, which may be 0",),
    ),
    Broken(
        "table without a number for the last layer",
        _PREFILL,
        _edit(Scalar, "top", setting(args=("layer", TOPK))),
        (r"scalar 'top' = lookup takes 1\*layer as index into 1 numbers",),
    ),
    Broken(
        "table that is looked into before its first number",
        _PREFILL,
        _both(
            _edit(Scalar, "top", setting(args=("before", TOPK, TOPK))),
            _before("prefill_layers", Scalar("before", "sub", ("slot", 1))),
        ),
        (r"scalar 'top' = lookup takes 1\*slot \+ -1 as index into 2 numbers",),
    ),
    Broken(
        "table with a number that is none",
        _PREFILL,
        _edit(Scalar, "top", setting(args=("layer", TOPK, "slot"))),
        ("scalar 'top' = lookup is of a table with numbers that are not constant",),
    ),
    Broken(
        "table of nothing",
        _PREFILL,
        _edit(Scalar, "top", setting(args=("layer",))),
        ("scalar 'top' is 'lookup' of 1 arguments",),
    ),
    Broken(
        "layer that selects more than there is room for",
        _PREFILL,
        _edit(Scalar, "top", setting(args=("layer", TOPK, TOPK + 1))),
        ("compress_stage", "top"),
    ),
    Broken(
        "pipeline in an entry",
        _CHAIN,
        _entry_items(lambda body: (*body, Pipeline("loose", "i", 0, 1, (), (), ()))),
        ("entry 'main'", "pipeline 'loose' stands in an entry"),
    ),
    Broken(
        "launch in a kernel",
        _PRODUCT,
        _before("linear", Launch("linear", ())),
        ("kernel 'linear'", "it launches 'linear': launches stand in entries only"),
    ),
    Broken(
        "written only where a branch is taken",
        _CHAIN,
        _both(
            _edit(Entry, "main", setting(scalar_inputs=("some",))),
            _entry_items(lambda body: (If("some", body[:1]), *body[1:])),
        ),
        ("launch 1 of kernel 'spilled_copy'", "reads temporary 'a', which no launch of the entry has written before"),
    ),
    Broken(
        "written only where a loop runs",
        _CHAIN,
        _both(
            _edit(Entry, "main", setting(scalar_inputs=("some",))),
            _entry_items(lambda body: (For("n", 0, "some", body[:1]), *body[1:])),
        ),
        ("launch 1 of kernel 'spilled_copy'", "reads temporary 'a', which no launch of the entry has written before"),
    ),
    Broken(
        "read a second time beyond what is written",
        _CHAIN,
        _both(
            _edit(Tensor, "a", setting(shape=(64,))),
            _edit(Tensor, "b", setting(address=4 * _LINE)),
            _edit(Tensor, "c", setting(address=5 * _LINE)),
            _edit(Buffer, "through", setting(address=6 * _LINE)),
            lambda program: dataclasses.replace(program, arena_bytes=7 * _LINE),
            _entry_items(lambda body: (*body[:2], arg_setting(0, tensor="a", offset=bases.SIZE)(body[2].body[0]))),
        ),
        ("launch 2 of kernel 'plain_copy'", "reads elements of temporary 'a' that no launch has written before"),
    ),
    Broken(
        "input of no entry",
        _CHAIN,
        _edit(Entry, "main", setting(inputs=())),
        ("launch 0 of kernel 'plain_copy', parameter 'x'", "input 'x' is none of this entry"),
    ),
    Broken(
        "input that is a state",
        _LAYERS,
        _edit(Entry, "decode", setting(inputs=("h_in", "position", "prompt_len", "active", "k_cache"))),
        ("entry 'decode'", "input 'k_cache' is a tensor of role state"),
    ),
    Broken("input given twice", _CHAIN, _edit(Entry, "main", setting(inputs=("x", "x"))), ("an input is named twice",)),
    Broken(
        "tensor that does not exist",
        _CHAIN,
        _edit(Launch, "spilled_copy", arg_setting(0, tensor="lost")),
        ("it names tensor 'lost', which does not exist",),
    ),
    Broken(
        "written view that shows elements twice",
        _CHAIN,
        _edit(Launch, "spilled_copy", arg_setting(1, strides=(0,))),
        ("parameter 'y'", "the view of 'b' shows an element more than once, and is written"),
    ),
    Broken(
        "view that walks backwards",
        _CHAIN,
        _edit(Launch, "spilled_copy", arg_setting(0, strides=(-1,), offset=31)),
        ("parameter 'x'", r"view of 'a' has shape \[32\] and strides \[-1\]"),
    ),
    Broken(
        "two parameters of one name",
        _CHAIN,
        _edit(Kernel, "plain_copy", _param(1, name="x")),
        ("kernel 'plain_copy'", "two parameters are called 'x'"),
    ),
    Broken(
        "kernel's parameter without elements",
        _PRODUCT,
        _edit(Kernel, "linear", _param(0, shape=(0, K))),
        ("(parameter 'x' has shape|takes f32 .0, 8.)",),
    ),
)

SIZES = (
    Broken(
        "arena beyond what lies in it",
        _CHAIN,
        lambda program: dataclasses.replace(program, arena_bytes=1 << 45),
        ("memory: the arena has 35184372088832 bytes, what lies in it ends at 640",),
    ),
    Broken(
        "tensor of a negative size",
        _CHAIN,
        _edit(Tensor, "a", setting(shape=(-1,))),
        (r"tensor 'a': it has shape \[-1\]",),
    ),
    Broken(
        "tensor beyond all memory",
        _CHAIN,
        _edit(Tensor, "a", setting(shape=(1 << 50,))),
        ("tensor 'a': it has the number",),
    ),
    Broken(
        "weight inside the arena",
        _PRODUCT,
        _edit(Tensor, "w", setting(address=0)),
        ("weight 'w': address 0 is inside the arena",),
    ),
    Broken(
        "local of terabytes",
        _LAYERS,
        _edit(
            Body,
            "project",
            lambda b: dataclasses.replace(
                b, locals=(*b.locals, dataclasses.replace(b.locals[0], name="z", shape=(1 << 40,)))
            ),
        ),
        ("body 'project': 'z' takes 4.1943e\\+06 MB, all there may keep 1024 MB",),
    ),
    Broken(
        "buffer of very many slots",
        _PRODUCT,
        _both(_edit(Buffer, "y_buffer", setting(depth=1 << 32))),
        ("kernel 'linear', pipeline 'stream'", "(SRAM|may keep)"),
    ),
    Broken(
        "buffer in DDR", _CHAIN, _edit(Buffer, "through", setting(tier="ddr")), ("buffer 'through' of f32 is in DDR",)
    ),
    Broken(
        "buffer between elements",
        _PRODUCT,
        _edit(Buffer, "y_buffer", setting(address=4098)),
        ("buffer 'y_buffer' of f32 is in SRAM at 4098",),
    ),
    Broken(
        "buffer before the beginning",
        _PRODUCT,
        _edit(Buffer, "x_buffer", setting(address=-64)),
        ("buffer 'x_buffer' is at address -64",),
    ),
    Broken(
        "buffer without a slot",
        _PRODUCT,
        _edit(Buffer, "y_buffer", setting(depth=0)),
        ("buffer 'y_buffer' has depth 0",),
    ),
    Broken(
        "port with numbers beyond all memory",
        _PRODUCT,
        _edit(Stage, "load_x", port_setting(1, lag=1 << 48)),
        ("the port on 'x_buffer' has the number",),
    ),
    Broken(
        "view with a factor beyond all memory",
        _PRODUCT,
        _edit(Stage, "load_x", port_setting(0, {"terms": (("i", 1 << 60),)})),
        ("view of 'x' has the number 1152921504606846976",),
    ),
    Broken("grid without a firing", _PRODUCT, _grid("load_x", 0), (r"it has grid \[0\] and 1 PCUs",)),
    Broken("grid beyond all numbers", _PRODUCT, _grid("load_w", 1 << 30, 1 << 30), ("its grid has the number",)),
    Broken("negative compute units", _PRODUCT, _edit(Stage, "load_x", setting(pcus=-1)), ("and -1 PCUs",)),
    Broken("ports missing", _PRODUCT, _edit(Stage, "load_x", setting(ports=())), ("it gives 0 ports and 0 scalars",)),
    Broken(
        "wait for no buffer", _PRODUCT, _edit(Stage, "load_x", setting(waits=("lost",))), ("it waits for .'lost'.",)
    ),
    Broken(
        "port on nothing",
        _PRODUCT,
        _edit(Stage, "load_x", port_setting(0, {"tensor": "lost"})),
        ("it names 'lost', which is no parameter of the kernel and no buffer",),
    ),
    Broken(
        "window on a parameter that is not dense",
        _LAYERS,
        _edit(Stage, "project_qkv", port_setting(1, {"strides": (bases.WIDTH + 1, 1)})),
        ("(a window needs 'weight' dense|reaches elements)",),
    ),
    Broken(
        "spilled buffers overlap",
        _CHAIN,
        _both(
            _edit(
                Pipeline,
                "both",
                lambda p: dataclasses.replace(
                    p, buffers=(*p.buffers, dataclasses.replace(p.buffers[0], name="more", address=4 * _LINE))
                ),
            ),
        ),
        ("(buffer 'more'|overlap at address 512)",),
    ),
    Broken(
        "parts of a state",
        _CHAIN,
        _edit(Tensor, "a", setting(encoding="int8:32/values")),
        ("cannot be 'int8:32/values'",),
    ),
    Broken(
        "parts of another dtype",
        _PRODUCT,
        _encoded_weight("int8:8/values"),
        ("a weight of f32 .12, 8. cannot be 'int8:8/values'",),
    ),
)

_FLOAT_ROWS = (bases.BATCH, KV, bases.ROWS, bases.DEPTH)

ROWS = (
    Broken(
        "encoded rows without room for the scale",
        _ENCODED,
        _edit(Body, "attend", _param(3, shape=_FLOAT_ROWS)),
        (
            r"body 'attend', step 0 \(decode_attention\)",
            "rows must be encoded alike: 'keys' is int4, 'values' is int8",  # four numbers of 4 bits take 4 bytes
        ),
    ),
    Broken(
        "K encoded and V not",
        _ENCODED,
        _both(*(_edit(Body, "attend", _param(n, shape=_FLOAT_ROWS, dtype="f32")) for n in (4, 6))),
        (
            "body 'attend', step 0",
            "rows must be all encoded, or all floats: 'keys' is i8, 'values' is f32, 'k_rows' is i8",
        ),
    ),
    Broken(
        "cache encoded and its copy not",
        _ENCODED,
        _both(*(_edit(Body, "attend", _param(n, shape=_FLOAT_ROWS, dtype="f32")) for n in (3, 4))),
        ("body 'attend', step 0", "rows must be all encoded, or all floats: 'keys' is f32"),
    ),
    Broken(
        "new row encoded before it is attended to",
        _ENCODED,
        _edit(Body, "attend", _param(1, shape=(bases.BATCH, KV, 1, bases.ENCODED), dtype="i8")),
        ("body 'attend', step 0", r"new_key must be float \[B, Hkv, 1, D\] with .*'new_key' is i8 \[2, 1, 1, 8\]"),
    ),
    Broken(
        "rows of another integer dtype",
        _ENCODED,
        _both(*(_edit(Body, "attend", _param(n, dtype="i64")) for n in (3, 4, 5, 6))),
        ("body 'attend', step 0", r"key must be float .* or i8 .*'keys' is i64"),
    ),
    Broken(
        "float rows in an encoded cache",
        _ENCODED,
        _both(
            *(_edit(Body, "attend", _param(n, shape=_FLOAT_ROWS, dtype="f32")) for n in (3, 4, 5, 6)),
            *(
                _edit(Stage, "attention", port_setting(n, {"shape": _FLOAT_ROWS, "strides": (24, 24, 4, 1)}))
                for n in (3, 4, 5, 6)
            ),
        ),
        ("stage 'attention', port 'keys'", r"takes f32 \[2, 1, 6, 4\], the view of 'k_cache' is i8"),
    ),
    Broken(
        "layers' encoded caches overlap by the scales",
        _ENCODED,
        _both(*(_edit(Stage, "attention", port_setting(n, {"terms": (("layer", CACHE),)})) for n in (3, 5))),
        ("pipeline 'run'", "writes in iteration 0 elements of 'k_cache' that stage 'attention' .* in iteration 1"),
    ),
)


def _second_half(entry: Entry) -> Entry:
    """The first copy writes the first half of `a`, the second one reads the other half."""
    first, second, *rest = entry.body
    return dataclasses.replace(entry, body=(first, arg_setting(0, offset=bases.SIZE)(second), *rest))


BROKEN = (*STREAMS, *BOUNDS, *MEMORY, *ORDER, *ORDER_OF_TURNS, *CONTROL, *SIZES, *NAMES, *ROWS)
