"""Schedules that are broken on purpose: each is a valid one with one thing wrong, and the error that it must raise."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sscc.ir.errors import ErrorKind
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
from sscc.runtime.validator.bodies import BodyProofErrors
from sscc.runtime.validator.entries import EntryProofErrors
from sscc.runtime.validator.failure import NumberProofErrors
from sscc.runtime.validator.firing_counts import FiringProofErrors
from sscc.runtime.validator.hazards import HazardProofErrors
from sscc.runtime.validator.kernels import KernelProofErrors
from sscc.runtime.validator.linear import ScalarProofErrors
from sscc.runtime.validator.pipelines import PipelineProofErrors
from sscc.runtime.validator.placement import PlacementProofErrors
from sscc.runtime.validator.samples import SampleProofErrors
from sscc.runtime.validator.steps import StepProofErrors
from sscc.runtime.validator.streams import StreamProofErrors
from sscc.runtime.validator.validate import ProgramProofErrors
from tests.runtime.broken import bases
from tests.runtime.broken.bases import CACHE, CHUNK, FEATURES, KV, LONGEST, TILE, TILES, TOPK, K, M, N
from tests.runtime.broken.build import arg_setting, change, port, port_setting, setting
from tests.runtime.schedules import copy_body, read, update


@dataclass(frozen=True)
class Broken:
    """A schedule that must be refused.

    Attributes:
        base: the valid schedule; `broken` turns it into the one to refuse.
        kind: the kind of the error.
        fields: fields of the error: where in the schedule it is, and the names and numbers at fault.
    """

    name: str
    base: Callable[[], Program]
    broken: Callable[[Program], Program]
    kind: ErrorKind
    fields: Mapping[str, Any]

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
        PipelineProofErrors.VIEW_OUT_OF_RANGE, {
            "where": "kernel 'linear', pipeline 'stream', stage 'product', port 'tile'", "tensor": "x_buffer",
            "low": 0, "high": 31, "elements": 16,
        },
    ),
    Broken(
        "reader does not wait",
        _PRODUCT,
        _edit(Stage, "product", _without_wait("w_buffer")),
        FiringProofErrors.READS_INCOMPLETE, {
            "where": "kernel 'linear', pipeline 'stream', stage 'product'", "firing": 2, "slot": 2,
            "buffer": "w_buffer", "fired": 2,
        },
    ),
    Broken(
        "writer does not wait",
        _PRODUCT,
        _edit(Stage, "load_w", setting(waits=())),
        FiringProofErrors.OVERWRITES, {
            "where": "kernel 'linear', pipeline 'stream', stage 'load_w'", "firing": 2, "slot": 2,
            "buffer": "w_buffer",
        },
    ),
    Broken(
        "wait that the order of firing hides",
        _LAYERS,
        _edit(Stage, "attention", _without_wait("k")),
        StreamProofErrors.WAIT_MISSING, {"where": "kernel 'layers', pipeline 'run', stage 'attention'", "buffer": "k"},
    ),
    Broken(
        "wait for a buffer that is not touched",
        _PRODUCT,
        _edit(Stage, "load_x", setting(waits=("x_buffer", "y_buffer"))),
        StreamProofErrors.WAIT_IDLE, {
            "where": "kernel 'linear', pipeline 'stream', stage 'load_x'", "buffer": "y_buffer"
        },
    ),
    Broken(
        "one tile not loaded",
        _PRODUCT,
        _edit(Stage, "load_w", setting(grid=(TILES - 1,))),
        StreamProofErrors.RATES, {
            "where": "kernel 'linear', pipeline 'stream', buffer 'w_buffer'",
            "rates": ["stage 'load_w' fills 2 / 1", "stage 'product' reads 3 / 1"],
        },
    ),
    Broken(
        "one tile of the output missing",
        _PRODUCT,
        _two_tiles,
        StreamProofErrors.WRITTEN_IN_PART, {
            "where": "kernel 'linear', pipeline 'stream', stage 'product', port 'part'", "per": 2, "written": 16,
            "elements": 24, "buffer": "y_buffer",
        },
    ),
    Broken(
        "tile written twice",
        _PRODUCT,
        _edit(Stage, "product", port_setting(2, {"terms": ()})),
        StreamProofErrors.WRITTEN_TWICE, {
            "where": "kernel 'linear', pipeline 'stream', stage 'product', port 'part'", "buffer": "y_buffer"
        },
    ),
    Broken(
        "tiles of the output overlap",
        _PRODUCT,
        _edit(Stage, "product", port_setting(2, {"terms": (("t0", TILE - 1),)})),
        StreamProofErrors.WRITTEN_TWICE, {
            "where": "kernel 'linear', pipeline 'stream', stage 'product', port 'part'", "buffer": "y_buffer"
        },
    ),
    Broken(
        "slot with a gap",
        _LAYERS,
        _edit(Stage, "load_w", port_setting(1, {"terms": ()})),
        StreamProofErrors.WRITTEN_TWICE, {
            "where": "kernel 'layers', pipeline 'run', stage 'load_w', port 'y'", "buffer": "w_buffer"
        },
    ),
    Broken(
        "rates do not agree",
        _PRODUCT,
        _edit(Stage, "product", port_setting(1, per=TILES)),
        StreamProofErrors.SLOT_UNREAD, {
            "where": "kernel 'linear', pipeline 'stream', buffer 'w_buffer'", "slot": 1, "stage": "load_w"
        },
    ),
    Broken(
        "slot half filled at the end",
        _PRODUCT,
        _edit(Stage, "product", port_setting(2, per=2)),
        StreamProofErrors.FILLED_IN_PART, {
            "where": "kernel 'linear', pipeline 'stream', buffer 'y_buffer'", "stage": "product", "firings": 3,
            "iterations": 1, "per": 2,
        },
    ),
    Broken(
        "carry with one place",
        _LAYERS,
        _edit(Buffer, "h", setting(depth=1)),
        FiringProofErrors.DEADLOCK, {
            "where": "kernel 'layers', pipeline 'run'", "iteration": 0,
            "stages": ["project_qkv", "attention", "residual", "leave"],
        },
    ),
    Broken(
        "carry read before it is made",
        _LAYERS,
        _edit(Stage, "residual", port_setting(0, lag=1)),
        FiringProofErrors.DEADLOCK, {
            "where": "kernel 'layers', pipeline 'run'", "iteration": 0,
            "stages": ["project_qkv", "attention", "residual", "leave"],
        },
    ),
    Broken(
        "carry without a beginning",
        _LAYERS,
        _edit(Pipeline, "run", _without_stage("enter")),
        StreamProofErrors.SLOT_UNFILLED, {"where": "kernel 'layers', pipeline 'run', buffer 'h'", "slot": 0},
    ),
    Broken(
        "carry with two beginnings",
        _LAYERS,
        _edit(Stage, "enter", port_setting(1, lag=1)),
        StreamProofErrors.FILLED_TWICE, {
            "where": "kernel 'layers', pipeline 'run', buffer 'h'", "slot": 1, "one": "enter", "other": "residual"
        },
    ),
    Broken(
        "result of the layer before the last one",
        _LAYERS,
        _edit(Stage, "leave", port_setting(0, lag=1)),
        StreamProofErrors.SLOT_UNREAD, {
            "where": "kernel 'layers', pipeline 'run', buffer 'h'", "slot": 2, "stage": "residual"
        },
    ),
    Broken(
        "result of a layer that does not exist",
        _LAYERS,
        _edit(Stage, "leave", port_setting(0, lag=3)),
        StreamProofErrors.SLOT_UNREAD, {
            "where": "kernel 'layers', pipeline 'run', buffer 'h'", "slot": 2, "stage": "residual"
        },
    ),
    Broken(
        "buffer that nobody fills",
        _PRODUCT,
        _edit(Pipeline, "stream", _with_buffer(Buffer("idle", (2,), "f32", "sram", 4096, 1))),
        StreamProofErrors.NEVER_FILLED, {"where": "kernel 'linear', pipeline 'stream', buffer 'idle'"},
    ),
    Broken(
        "accumulation in a slot",
        _PRODUCT,
        _edit(Body, "multiply", _param(2, access="update")),
        PipelineProofErrors.UPDATES_BUFFER, {
            "where": "kernel 'linear', pipeline 'stream', stage 'product', port 'part'", "name": "y_buffer"
        },
    ),
)

BOUNDS = (
    Broken(
        "factor of a term too large",
        _PRODUCT,
        _edit(Stage, "load_w", port_setting(0, {"terms": (("t0", TILE * K + 1),)})),
        PipelineProofErrors.VIEW_OUT_OF_RANGE, {
            "where": "kernel 'linear', pipeline 'stream', stage 'load_w', port 'x'", "tensor": "w", "low": 0,
            "high": 97, "elements": 96,
        },
    ),
    Broken(
        "layer too many",
        _LAYERS,
        _edit(Pipeline, "run", setting(upper=3)),
        PipelineProofErrors.VIEW_OUT_OF_RANGE, {
            "where": "kernel 'layers', pipeline 'run', stage 'load_w', port 'x'", "tensor": "w", "low": 0, "high": 383,
            "elements": 256,
        },
    ),
    Broken(
        "chunk too many",
        _PREFILL,
        _edit(Scalar, "chunks", setting(op="floordiv", args=("length", 3))),
        SampleProofErrors.VIEW_OUT_OF_RANGE, {
            "where": "kernel 'prefill_layers', pipeline 'chunks_of_layer', stage 'load_chunk', port 'x'",
            "tensor": "hidden", "low": 128, "high": 159, "elements": 128,
            "sample": "entry 'prefill' with {'length': 16, 'slot': 1}: "
            "entry 'prefill', launch 1 of kernel 'prefill_layers'",
        },
    ),
    Broken(
        "ring one row too large",
        _LAYERS,
        _edit(Body, "attend", _steps(lambda s: (dataclasses.replace(s[0], recent=6),))),
        StepProofErrors.RING_TOO_LARGE, {
            "where": "body 'attend', step 0 (decode_attention)", "last": 6, "sink": 1, "recent": 6, "rows": 6
        },
    ),
    *(
        Broken(
            f"decode with {topk} kept rows between sinks and ring",
            _LAYERS,
            _edit(Stage, "attention", setting(scalars=(topk,))),
            PipelineProofErrors.SCALAR_OUT_OF_RANGE, {
                "where": "kernel 'layers', pipeline 'run', stage 'attention'", "scalar": "decode_attention topk",
                "low": topk, "high": topk, "least": 0, "most": TOPK,
            },
        )
        for topk in (-1, TOPK + 1)
    ),
    Broken(
        "compression leaves a row out",
        _PREFILL,
        _edit(Body, "compress_layer", _steps(lambda s: (*s[:3], dataclasses.replace(s[3], dims=(KV, 5)), *s[4:]))),
        BodyProofErrors.READ_BEFORE_WRITTEN, {"where": "body 'compress_layer', step 5 (gather_rows)", "name": "index"},
    ),
    Broken(
        "access map one row too far",
        _PRODUCT,
        _edit(Body, "copy_w", _steps(lambda s: (_shifted_input(s[0]),))),
        BodyProofErrors.MAP_OUT_OF_RANGE, {
            "where": "body 'copy_w', step 0 (vector)", "low": 1, "high": 4, "axis": 0, "name": "x", "size": 4
        },
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
        BodyProofErrors.WINDOW_OUT_OF_RANGE, {
            "where": "body 'project'", "window": "flat_q", "low": 8, "high": 23, "tensor": "q", "elements": 16
        },
    ),
    Broken(
        "launch on a tensor that is too small",
        _CHAIN,
        _edit(Launch, "spilled_copy", arg_setting(0, offset=1)),
        PipelineProofErrors.VIEW_OUT_OF_RANGE, {
            "where": "entry 'main', launch 1 of kernel 'spilled_copy', parameter 'x'", "tensor": "a", "low": 1,
            "high": 32, "elements": 32,
        },
    ),
    Broken(
        "window of a parameter that is not dense",
        _PRODUCT,
        _edit(Launch, "linear", arg_setting(1, strides=(K - 1, 1))),
        KernelProofErrors.WINDOW_NOT_DENSE, {
            "where": "kernel 'linear', pipeline 'stream', stage 'load_w', port 'x'", "name": "w"
        },
    ),
    Broken(
        "slot that does not exist",
        _PREFILL,
        _edit(Stage, "compress_stage", port_setting(4, {"terms": (("layer", 2 * CACHE // 2), ("slot", CACHE))})),
        SampleProofErrors.VIEW_OUT_OF_RANGE, {
            "where": "kernel 'prefill_layers', pipeline 'compress_once', stage 'compress_stage', port 'k_rows'",
            "tensor": "k_cache", "low": 96, "high": 119, "elements": 96,
            "sample": "entry 'prefill' with {'length': 1, 'slot': 1}: "
            "entry 'prefill', launch 1 of kernel 'prefill_layers'",
        },
    ),
)

MEMORY = (
    Broken(
        "buffers overlap",
        _PRODUCT,
        _edit(Buffer, "w_buffer", setting(address=32)),
        KernelProofErrors.BUFFERS_OVERLAP, {
            "where": "kernel 'linear', pipeline 'stream'", "one": "x_buffer", "low": 0, "high": 63,
            "other": "w_buffer", "address": 32,
        },
    ),
    Broken(
        "too much SRAM",
        _PRODUCT,
        _edit(Buffer, "y_buffer", setting(address=600 << 20)),
        KernelProofErrors.TOO_LARGE, {
            "where": "kernel 'linear', pipeline 'stream'", "required": 629145696, "memory": "SRAM",
            "capacity": 545259520, "largest": ["w_buffer 256 bytes", "y_buffer 96 bytes", "x_buffer 64 bytes"],
        },
    ),
    Broken(
        "too many PCUs",
        _PRODUCT,
        _edit(Stage, "product", setting(pcus=2000)),
        KernelProofErrors.TOO_MANY_PCUS, {
            "where": "kernel 'linear', pipeline 'stream'", "required": 2003, "available": 1040,
            "largest": ["product 2000", "load_x 1", "load_w 1"],
        },
    ),
    Broken(
        "too much HBM",
        _PRODUCT,
        _with_tensor(Tensor("giant", (1 << 35,), "f32", "weight", "hbm", 4096, ("giant",))),
        PlacementProofErrors.CAPACITY, {
            "where": "memory", "required": 137438954016, "tier": "HBM", "capacity": 68719476736,
            "largest": ["giant 131072 MB", "w 384 bytes", "y 96 bytes"],
        },
    ),
    Broken(
        "temporary overwritten by the launch that reads it",
        _CHAIN,
        _edit(Tensor, "b", setting(address=2 * _LINE)),
        PlacementProofErrors.ALIVE_TOGETHER, {
            "where": "temporary 'a' at 256 .. 383 and temporary 'b' at 256 .. 383", "entry": "main"
        },
    ),
    Broken(
        "temporary overwritten before the next round of a loop",
        _CHAIN,
        _edit(Tensor, "c", setting(address=3 * _LINE)),
        PlacementProofErrors.ALIVE_TOGETHER, {
            "where": "temporary 'b' at 384 .. 511 and temporary 'c' at 384 .. 511", "first": 1, "last": 4,
            "other_first": 3, "other_last": 4,
        },
    ),
    Broken(
        "temporary over an input",
        _CHAIN,
        _edit(Tensor, "c", setting(address=0)),
        PlacementProofErrors.KEPT_OVERLAP, {"where": "input 'x' at 0 .. 127 and temporary 'c' at 0 .. 127"},
    ),
    Broken(
        "states overlap",
        _LAYERS,
        _edit(Tensor, "v_cache", setting(address=192)),
        PlacementProofErrors.KEPT_OVERLAP, {"where": "input 'active' at 192 .. 193 and state 'v_cache' at 192 .. 575"},
    ),
    Broken(
        "spilled buffer over a living temporary",
        _CHAIN,
        _edit(Buffer, "through", setting(address=3 * _LINE)),
        PlacementProofErrors.ALIVE_TOGETHER, {
            "where": "temporary 'b' at 384 .. 511 and buffers 'through' of kernel 'spilled_copy' at 384 .. 511"
        },
    ),
    Broken(
        "spilled buffer outside the arena",
        _CHAIN,
        _edit(Buffer, "through", setting(address=5 * _LINE)),
        PlacementProofErrors.OUTSIDE_ARENA, {
            "where": "kernel 'spilled_copy', pipeline 'both', buffer 'through'", "low": 640, "arena": 640
        },
    ),
    Broken(
        "address not aligned",
        _CHAIN,
        _edit(Tensor, "a", setting(address=2 * _LINE + 4)),
        PlacementProofErrors.UNALIGNED, {"where": "tensor 'a'", "address": 260, "alignment": 64},
    ),
    Broken(
        "tensor outside the arena",
        _CHAIN,
        lambda program: dataclasses.replace(program, arena_bytes=3 * _LINE),
        PlacementProofErrors.OUTSIDE_ARENA, {"where": "tensor 'b'", "low": 384, "arena": 384},
    ),
    Broken(
        "temporary read before it is written",
        _CHAIN,
        _edit(Launch, "spilled_copy", arg_setting(0, tensor="c")),
        EntryProofErrors.NEVER_WRITTEN, {
            "where": "entry 'main', launch 1 of kernel 'spilled_copy'", "role": "temporary", "tensor": "c"
        },
    ),
    Broken(
        "half of a temporary written",
        _CHAIN,
        lambda program: dataclasses.replace(
            program,
            tensors=tuple(dataclasses.replace(t, shape=(64,)) if t.name == "a" else t for t in program.tensors),
            entries=tuple(_second_half(entry) for entry in program.entries),
        ),
        EntryProofErrors.WRITTEN_IN_PART, {
            "where": "entry 'main', launch 1 of kernel 'spilled_copy'", "role": "temporary", "tensor": "a"
        },
    ),
)

ORDER = (
    Broken(
        "another layer's cache is read",
        _LAYERS,
        _edit(Stage, "attention", port_setting(3, {"offset": CACHE, "terms": (("layer", -CACHE),)})),
        HazardProofErrors.ITERATIONS_OVERLAP, {
            "where": "kernel 'layers', pipeline 'run'", "stage": "attention", "iteration": 0, "tensor": "k_cache",
            "other": "attention", "does": "reads", "other_iteration": 1,
        },
    ),
    Broken(
        "the first layer's cache is read by all",
        _LAYERS,
        _edit(Stage, "attention", port_setting(3, {"terms": ()})),
        HazardProofErrors.PORTS_OVERLAP, {
            "where": "kernel 'layers', pipeline 'run', stage 'attention'", "port": "k_rows", "tensor": "k_cache",
            "other": "keys",
        },
    ),
    Broken(
        "layers' cache regions overlap",
        _LAYERS,
        _both(
            _edit(Stage, "attention", port_setting(3, {"terms": (("layer", CACHE // 2),)})),
            _edit(Stage, "attention", port_setting(5, {"terms": (("layer", CACHE // 2),)})),
        ),
        HazardProofErrors.ITERATIONS_OVERLAP, {
            "where": "kernel 'layers', pipeline 'run'", "stage": "attention", "iteration": 0, "tensor": "k_cache",
            "other": "attention", "other_iteration": 1,
        },
    ),
    Broken(
        "layers' cache regions overlap from loop to loop",
        _PREFILL,
        _edit(Stage, "compress_stage", port_setting(4, {"terms": (("layer", CACHE // 2 - 1), ("slot", CACHE // 2))})),
        KernelProofErrors.LOOP_REWRITES, {
            "where": "kernel 'prefill_layers', pipeline 'compress_once', stage 'compress_stage', port 'k_rows'",
            "tensor": "k_cache", "loop": "layer", "factor": 23,
        },
    ),
    Broken(
        "K and V in one cache",
        _LAYERS,
        _edit(Launch, "layers", arg_setting(3, tensor="k_cache")),
        HazardProofErrors.PORTS_WRITE_TWICE, {
            "where": "kernel 'layers', pipeline 'run', stage 'attention'", "port": "k_rows", "tensor": "k_cache",
            "other": "v_rows",
        },
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
        EntryProofErrors.ARGUMENTS_OVERLAP, {
            "where": "entry 'decode', launch 0 of kernel 'layers'", "one": "k_cache", "other": "v_cache",
            "tensor": "k_cache",
        },
    ),
    Broken(
        "memory read while it is written",
        _PREFILL,
        _both(
            _with_body(copy_body("copy_scratch", (1, KV, LONGEST, bases.DEPTH))),
            _edit(Pipeline, "chunks_of_layer", _peeking),
        ),
        HazardProofErrors.ITERATIONS_NOT_ORDERED, {
            "where": "kernel 'prefill_layers', pipeline 'chunks_of_layer'", "stage": "attend_stage", "iteration": 0,
            "other": "peek", "other_iteration": 0,
        },
    ),
    Broken(
        "chunk written back to the next one's place",
        _PREFILL,
        _edit(
            Stage,
            "store_chunk",
            port_setting(2, {"offset": (LONGEST - CHUNK) * FEATURES, "terms": (("start", -FEATURES),)}),
        ),
        HazardProofErrors.ITERATIONS_NOT_ORDERED, {
            "where": "kernel 'prefill_layers', pipeline 'chunks_of_layer'", "stage": "store_chunk", "tensor": "hidden",
            "other": "load_chunk",
        },
    ),
    Broken(
        "local read before it is written",
        _LAYERS,
        _edit(Body, "project", _steps(lambda s: (*s[1:], s[0]))),
        BodyProofErrors.READ_BEFORE_WRITTEN, {"where": "body 'project', step 0 (product)", "name": "copied"},
    ),
    Broken(
        "output not written whole",
        _PRODUCT,
        _both(
            _edit(Kernel, "linear", _param(2, shape=(M, N + 1))),
            _edit(Tensor, "y", setting(shape=(M, N + 1))),
            _edit(Launch, "linear", arg_setting(2, shape=(M, N + 1), strides=(N + 1, 1))),
        ),
        KernelProofErrors.NOT_WRITTEN_WHOLE, {"where": "kernel 'linear'", "name": "y", "elements": 26},
    ),
)

NAMES = (
    Broken(
        "weight written",
        _LAYERS,
        _edit(Tensor, "k_cache", setting(role="weight", address=1 << 20, sources=("a", "b"))),
        EntryProofErrors.WRITES_FIXED, {
            "where": "entry 'decode', launch 0 of kernel 'layers', parameter 'k_cache'", "role": "weight",
            "tensor": "k_cache",
        },
    ),
    Broken(
        "input written",
        _CHAIN,
        _edit(Launch, "spilled_copy", arg_setting(1, tensor="x")),
        EntryProofErrors.WRITES_FIXED, {
            "where": "entry 'main', launch 1 of kernel 'spilled_copy', parameter 'y'", "role": "input", "tensor": "x"
        },
    ),
    Broken(
        "body writes what it declares read",
        _PRODUCT,
        _edit(Body, "multiply", _param(2, access="read")),
        BodyProofErrors.WRITES_READ_ONLY, {"where": "body 'multiply', step 0 (product)", "name": "part"},
    ),
    Broken(
        "stage writes what the kernel declares read",
        _PRODUCT,
        _edit(Kernel, "linear", _param(2, access="read")),
        PipelineProofErrors.WRITES_READ_ONLY, {
            "where": "kernel 'linear', pipeline 'stream', stage 'store_y', port 'y'", "name": "y"
        },
    ),
    Broken(
        "rows updated of what starts undefined",
        _LAYERS,
        _edit(Body, "attend", _param(5, access="write")),
        BodyProofErrors.UPDATES_UNDEFINED, {
            "where": "body 'attend', step 0 (decode_attention)", "name": "k_rows", "access": "write"
        },
    ),
    Broken(
        "two tensors of one name", _CHAIN, _edit(Tensor, "c", setting(name="b")), ProgramProofErrors.TENSOR_TWICE,
        {"where": "program", "name": "b"},
    ),
    Broken(
        "two stages of one name",
        _PRODUCT,
        _edit(Stage, "load_x", setting(name="load_w")),
        PipelineProofErrors.STAGE_TWICE, {"where": "kernel 'linear', pipeline 'stream'", "name": "load_w"},
    ),
    Broken(
        "two pipelines of one name",
        _PREFILL,
        _edit(Pipeline, "last_token", setting(name="compress_once")),
        KernelProofErrors.PIPELINE_TWICE, {"where": "kernel 'prefill_layers'", "pipeline": "compress_once"},
    ),
    Broken(
        "buffer named like a parameter",
        _PRODUCT,
        _edit(Buffer, "x_buffer", setting(name="x")),
        PipelineProofErrors.REGION_TWICE, {"where": "kernel 'linear', pipeline 'stream'", "name": "x"},
    ),
    Broken(
        "scalar used before it is defined",
        _PREFILL,
        _edit(Scalar, "chunks", setting(name="pieces")),
        ScalarProofErrors.UNDEFINED, {
            "where": "kernel 'prefill_layers'", "user": "pipeline 'chunks_of_layer'", "scalar": "chunks"
        },
    ),
    Broken(
        "scalar of a loop used after it",
        _PREFILL,
        _edit(Entry, "prefill", setting(scalar_outputs=("layer",))),
        ScalarProofErrors.UNDEFINED, {"where": "entry 'prefill'", "scalar": "layer"},
    ),
    Broken(
        "index that hides another one",
        _PREFILL,
        _edit(Pipeline, "chunks_of_layer", setting(index="layer")),
        ScalarProofErrors.DEFINED_TWICE, {
            "where": "kernel 'prefill_layers', pipeline 'chunks_of_layer'", "scalar": "layer"
        },
    ),
    Broken(
        "body that does not exist",
        _PRODUCT,
        _edit(Stage, "product", setting(body="divide")),
        PipelineProofErrors.UNKNOWN_BODY, {
            "where": "kernel 'linear', pipeline 'stream', stage 'product'", "body": "divide"
        },
    ),
    Broken(
        "kernel that does not exist",
        _CHAIN,
        _edit(Launch, "spilled_copy", setting(kernel="lost")),
        EntryProofErrors.UNKNOWN_KERNEL, {"where": "entry 'main', launch 1 of kernel 'lost'"},
    ),
    Broken(
        "dtype of a buffer",
        _PRODUCT,
        _edit(Buffer, "x_buffer", setting(dtype="bf16")),
        PipelineProofErrors.PORT_TYPE, {
            "where": "kernel 'linear', pipeline 'stream', stage 'load_x', port 'y'", "dtype": "f32",
            "tensor": "x_buffer", "actual": "bf16", "shape": [2, 8], "actual_shape": [2, 8],
        },
    ),
    Broken(
        "shape of an argument",
        _PRODUCT,
        _edit(Launch, "linear", arg_setting(0, shape=(K, M), strides=(M, 1))),
        EntryProofErrors.ARGUMENT_TYPE, {
            "where": "entry 'main', launch 0 of kernel 'linear', parameter 'x'", "dtype": "f32", "shape": [2, 8],
            "tensor": "x", "actual": "f32", "actual_shape": [8, 2],
        },
    ),
    Broken(
        "argument missing",
        _CHAIN,
        _edit(Launch, "spilled_copy", lambda launch: dataclasses.replace(launch, args=launch.args[:1])),
        EntryProofErrors.ARGUMENT_COUNT, {
            "where": "entry 'main', launch 1 of kernel 'spilled_copy'", "tensors": 1, "scalars": 0, "params": 2,
            "kernel_scalars": 0,
        },
    ),
    Broken(
        "weights of a layer missing",
        _LAYERS,
        _edit(Tensor, "w", setting(sources=("w.0", "w.1", "w.2"))),
        PlacementProofErrors.SOURCES, {"where": "tensor 'w'", "count": 3},
    ),
)


def _grid(stage: str, *sizes: int) -> Callable[[Program], Program]:
    return _edit(Stage, stage, setting(grid=sizes))


def _nested(depth: int) -> Callable[[Program], Program]:
    """Put the kernel's body into `depth` nested loops of one iteration."""

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
        StreamProofErrors.SLOT_UNFILLED, {"where": "kernel 'layers', pipeline 'run', buffer 'h'"},
    ),
    Broken(
        "store before the product",
        _PRODUCT,
        _edit(Stage, "store_y", setting(when="first")),
        StreamProofErrors.READ_BEFORE_FILLED, {
            "where": "kernel 'linear', pipeline 'stream', buffer 'y_buffer'", "stage": "store_y", "writer": "product",
            "turn": "in each iteration",
        },
    ),
    Broken(
        "load after the product",
        _PRODUCT,
        _edit(Stage, "load_x", setting(when="last")),
        StreamProofErrors.READ_BEFORE_FILLED, {
            "where": "kernel 'linear', pipeline 'stream', buffer 'x_buffer'", "stage": "product", "writer": "load_x",
            "turn": "last",
        },
    ),
    Broken(
        "prologue that needs the place of an iteration",
        lambda: bases.looped_layers(3),
        _both(
            _edit(Stage, "residual", port_setting(2, lag=3)),
            _grid("enter", 3),
            _edit(Stage, "leave", setting(grid=(3,))),
        ),
        StreamProofErrors.PLACE_IN_USE, {
            "where": "kernel 'layers', pipeline 'run', buffer 'h'", "stage": "enter", "user": "project_qkv",
            "turn": "in each iteration",
        },
    ),
    Broken(
        "iterations wait for a place that the epilogue has",
        lambda: bases.looped_layers(3),
        _both(
            _edit(Stage, "leave", setting(grid=(4,))),
            _edit(Stage, "leave", port_setting(0, lag=0)),
        ),
        StreamProofErrors.PLACE_IN_USE, {
            "where": "kernel 'layers', pipeline 'run', buffer 'h'", "stage": "residual", "user": "leave",
            "turn": "last",
        },
    ),
    Broken(
        "firings of an iteration that read each other's rows",
        _CHAIN,
        _both(
            _with_body(copy_body("copy_half", (_HALF,))),
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
        HazardProofErrors.BETWEEN_FIRINGS, {
            "where": "kernel 'plain_copy', pipeline 'one', stage 'direct'", "port": "y", "tensor": "y", "other": "x",
            "does": "reads",
        },
    ),
    Broken(
        "a row that every firing updates",
        _CHAIN,
        _both(
            _with_body(
                dataclasses.replace(copy_body("refresh", (_HALF,)), params=(read("x", (_HALF,)), update("y", (_HALF,))))
            ),
            _edit(Kernel, "plain_copy", _param(1, access="update")),
            _edit(
                Stage,
                "direct",
                setting(
                    body="refresh", grid=(2,), ports=(port("x", (_HALF,), terms=(("t0", _HALF),)), port("y", (_HALF,)))
                ),
            ),
        ),
        HazardProofErrors.FIRINGS_WRITE_TWICE, {
            "where": "kernel 'plain_copy', pipeline 'one', stage 'direct', port 'y'", "firings": 2, "tensor": "y"
        },
    ),
)

CONTROL = (
    Broken(
        "loops nested without an end", _PRODUCT, _nested(17), KernelProofErrors.TOO_DEEP, {
            "where": "kernel 'linear'", "levels": 16
        }
    ),
    Broken(
        "branch that is never taken", _PREFILL, _edit(If, "if", setting(condition=0)), KernelProofErrors.NEVER_TAKEN, {
            "where": "kernel 'prefill_layers'", "condition": 0
        }
    ),
    Broken(
        "pipeline without an iteration", _LAYERS, _edit(
            Pipeline, "run", setting(upper=0)
        ), KernelProofErrors.NO_ITERATION, {
            "where": "kernel 'layers', pipeline 'run'"
        }
    ),
    Broken(
        "scalar beyond 64 bits",
        _PREFILL,
        _edit(Scalar, "row", setting(op="mul", args=("length", 1 << 62))),
        ScalarProofErrors.BEYOND_64_BITS, {"where": "kernel 'prefill_layers'", "scalar": "row", "op": "mul"},
    ),
    Broken(
        "scalar of two operands and three arguments",
        _PREFILL,
        _edit(Scalar, "row", setting(args=("length", 1, 1))),
        ScalarProofErrors.ARGUMENT_COUNT, {
            "where": "kernel 'prefill_layers'", "scalar": "row", "op": "sub", "count": 3
        },
    ),
    Broken(
        "operation that does not exist",
        _PREFILL,
        _edit(Scalar, "row", setting(op="pow")),
        ScalarProofErrors.ARGUMENT_COUNT, {
            "where": "kernel 'prefill_layers'", "scalar": "row", "op": "pow", "count": 2
        },
    ),
    Broken(
        "division by what may be 0",
        _PREFILL,
        _edit(Scalar, "row", setting(op="floordiv", args=("length", "slot"))),
        ScalarProofErrors.MAY_DIVIDE_BY_ZERO, {
            "where": "kernel 'prefill_layers'", "scalar": "row", "op": "floordiv", "divisor": "1*slot"
        },
    ),
    Broken(
        "division by 0",
        _PREFILL,
        _edit(Scalar, "row", setting(op="mod", args=("length", 0))),
        ScalarProofErrors.MAY_DIVIDE_BY_ZERO, {
            "where": "kernel 'prefill_layers'", "scalar": "row", "op": "mod", "divisor": "0"
        },
    ),
    Broken(
        "table without a number for the last layer",
        _PREFILL,
        _edit(Scalar, "top", setting(args=("layer", TOPK))),
        ScalarProofErrors.MAY_LEAVE_TABLE, {
            "where": "kernel 'prefill_layers'", "scalar": "top", "index": "1*layer", "size": 1
        },
    ),
    Broken(
        "table that is looked into before its first number",
        _PREFILL,
        _both(
            _edit(Scalar, "top", setting(args=("before", TOPK, TOPK))),
            _before("prefill_layers", Scalar("before", "sub", ("slot", 1))),
        ),
        ScalarProofErrors.MAY_LEAVE_TABLE, {
            "where": "kernel 'prefill_layers'", "scalar": "top", "index": "1*slot + -1", "size": 2
        },
    ),
    Broken(
        "table with a number that is none",
        _PREFILL,
        _edit(Scalar, "top", setting(args=("layer", TOPK, "slot"))),
        ScalarProofErrors.TABLE_NOT_CONSTANT, {"where": "kernel 'prefill_layers'", "scalar": "top"},
    ),
    Broken(
        "table of nothing",
        _PREFILL,
        _edit(Scalar, "top", setting(args=("layer",))),
        ScalarProofErrors.ARGUMENT_COUNT, {
            "where": "kernel 'prefill_layers'", "scalar": "top", "op": "lookup", "count": 1
        },
    ),
    Broken(
        "layer that selects more than there is room for",
        _PREFILL,
        _edit(Scalar, "top", setting(args=("layer", TOPK, TOPK + 1))),
        SampleProofErrors.SCALAR_OUT_OF_RANGE, {
            "where": "kernel 'prefill_layers', pipeline 'compress_once', stage 'compress_stage'"
        },
    ),
    Broken(
        "pipeline in an entry",
        _CHAIN,
        _entry_items(lambda body: (*body, Pipeline("loose", "i", 0, 1, (), (), ()))),
        EntryProofErrors.PIPELINE_OUTSIDE, {"where": "entry 'main'", "pipeline": "loose"},
    ),
    Broken(
        "launch in a kernel",
        _PRODUCT,
        _before("linear", Launch("linear", ())),
        KernelProofErrors.LAUNCH_INSIDE, {"where": "kernel 'linear'", "kernel": "linear"},
    ),
    Broken(
        "written only where a branch is taken",
        _CHAIN,
        _both(
            _edit(Entry, "main", setting(scalar_inputs=("some",))),
            _entry_items(lambda body: (If("some", body[:1]), *body[1:])),
        ),
        EntryProofErrors.NEVER_WRITTEN, {
            "where": "entry 'main', launch 1 of kernel 'spilled_copy'", "role": "temporary", "tensor": "a"
        },
    ),
    Broken(
        "written only where a loop runs",
        _CHAIN,
        _both(
            _edit(Entry, "main", setting(scalar_inputs=("some",))),
            _entry_items(lambda body: (For("n", 0, "some", body[:1]), *body[1:])),
        ),
        EntryProofErrors.NEVER_WRITTEN, {
            "where": "entry 'main', launch 1 of kernel 'spilled_copy'", "role": "temporary", "tensor": "a"
        },
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
        EntryProofErrors.WRITTEN_IN_PART, {
            "where": "entry 'main', launch 2 of kernel 'plain_copy'", "role": "temporary", "tensor": "a"
        },
    ),
    Broken(
        "input of no entry",
        _CHAIN,
        _edit(Entry, "main", setting(inputs=())),
        EntryProofErrors.NOT_OF_ENTRY, {
            "where": "entry 'main', launch 0 of kernel 'plain_copy', parameter 'x'", "role": "input", "tensor": "x"
        },
    ),
    Broken(
        "input that is a state",
        _LAYERS,
        _edit(Entry, "decode", setting(inputs=("h_in", "position", "base", "active", "k_cache"))),
        EntryProofErrors.ROLE, {"where": "entry 'decode'", "role": "input", "tensor": "k_cache", "actual": "state"},
    ),
    Broken(
        "input given twice", _CHAIN, _edit(Entry, "main", setting(inputs=("x", "x"))), EntryProofErrors.NAMED_TWICE,
        {"where": "entry 'main'", "role": "input"},
    ),
    Broken(
        "tensor that does not exist",
        _CHAIN,
        _edit(Launch, "spilled_copy", arg_setting(0, tensor="lost")),
        EntryProofErrors.UNKNOWN_TENSOR, {"where": "entry 'main'", "tensor": "lost"},
    ),
    Broken(
        "written view that shows elements twice",
        _CHAIN,
        _edit(Launch, "spilled_copy", arg_setting(1, strides=(0,))),
        EntryProofErrors.SHOWN_TWICE, {
            "where": "entry 'main', launch 1 of kernel 'spilled_copy', parameter 'y'", "tensor": "b"
        },
    ),
    Broken(
        "view that walks backwards",
        _CHAIN,
        _edit(Launch, "spilled_copy", arg_setting(0, strides=(-1,), offset=31)),
        PipelineProofErrors.VIEW_FORM, {
            "where": "entry 'main', launch 1 of kernel 'spilled_copy', parameter 'x'", "tensor": "a", "shape": [32],
            "strides": [-1],
        },
    ),
    Broken(
        "two parameters of one name",
        _CHAIN,
        _edit(Kernel, "plain_copy", _param(1, name="x")),
        KernelProofErrors.PARAMETER_TWICE, {"where": "kernel 'plain_copy'", "name": "x"},
    ),
    Broken(
        "kernel's parameter without elements",
        _PRODUCT,
        _edit(Kernel, "linear", _param(0, shape=(0, K))),
        EntryProofErrors.ARGUMENT_TYPE, {
            "where": "entry 'main', launch 0 of kernel 'linear', parameter 'x'", "dtype": "f32", "tensor": "x",
            "actual": "f32",
        },
    ),
)

SIZES = (
    Broken(
        "arena beyond what lies in it",
        _CHAIN,
        lambda program: dataclasses.replace(program, arena_bytes=1 << 45),
        PlacementProofErrors.ARENA, {"where": "memory", "arena": 35184372088832, "end": 640},
    ),
    Broken(
        "tensor of a negative size",
        _CHAIN,
        _edit(Tensor, "a", setting(shape=(-1,))),
        PlacementProofErrors.NEGATIVE_SHAPE, {"where": "tensor 'a'", "shape": [-1]},
    ),
    Broken(
        "tensor beyond all memory",
        _CHAIN,
        _edit(Tensor, "a", setting(shape=(1 << 50,))),
        NumberProofErrors.TOO_LARGE, {"where": "tensor 'a'", "subject": "it"},
    ),
    Broken(
        "weight inside the arena",
        _PRODUCT,
        _edit(Tensor, "w", setting(address=0)),
        PlacementProofErrors.INSIDE_ARENA, {"where": "weight 'w'", "address": 0},
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
        PlacementProofErrors.TOO_LARGE, {
            "where": "body 'project'", "name": "z", "size": 4398046511104, "room": 1073741824
        },
    ),
    Broken(
        "buffer of very many slots",
        _PRODUCT,
        _both(_edit(Buffer, "y_buffer", setting(depth=1 << 32))),
        KernelProofErrors.TOO_LARGE, {"where": "kernel 'linear', pipeline 'stream'", "memory": "SRAM"},
    ),
    Broken(
        "buffer in DDR", _CHAIN, _edit(Buffer, "through", setting(tier="ddr")), StreamProofErrors.BUFFER_PLACE, {
            "where": "kernel 'spilled_copy', pipeline 'both'", "buffer": "through", "dtype": "f32", "tier": "DDR"
        }
    ),
    Broken(
        "buffer between elements",
        _PRODUCT,
        _edit(Buffer, "y_buffer", setting(address=4098)),
        StreamProofErrors.BUFFER_PLACE, {
            "where": "kernel 'linear', pipeline 'stream'", "buffer": "y_buffer", "dtype": "f32", "tier": "SRAM",
            "address": 4098,
        },
    ),
    Broken(
        "buffer before the beginning",
        _PRODUCT,
        _edit(Buffer, "x_buffer", setting(address=-64)),
        KernelProofErrors.NEGATIVE_ADDRESS, {
            "where": "kernel 'linear', pipeline 'stream'", "buffer": "x_buffer", "address": -64
        },
    ),
    Broken(
        "buffer without a slot",
        _PRODUCT,
        _edit(Buffer, "y_buffer", setting(depth=0)),
        StreamProofErrors.BUFFER_FORM, {
            "where": "kernel 'linear', pipeline 'stream'", "buffer": "y_buffer", "depth": 0
        },
    ),
    Broken(
        "port with numbers beyond all memory",
        _PRODUCT,
        _edit(Stage, "load_x", port_setting(1, lag=1 << 48)),
        NumberProofErrors.TOO_LARGE, {
            "where": "kernel 'linear', pipeline 'stream', stage 'load_x', port 'y'",
            "subject": "the port on 'x_buffer'",
        },
    ),
    Broken(
        "view with a factor beyond all memory",
        _PRODUCT,
        _edit(Stage, "load_x", port_setting(0, {"terms": (("i", 1 << 60),)})),
        NumberProofErrors.TOO_LARGE, {
            "where": "kernel 'linear', pipeline 'stream', stage 'load_x', port 'x'", "subject": "view of 'x'",
            "number": 1152921504606846976,
        },
    ),
    Broken(
        "grid without a firing", _PRODUCT, _grid("load_x", 0), PipelineProofErrors.STAGE_FORM,
        {"where": "kernel 'linear', pipeline 'stream', stage 'load_x'", "grid": [0], "pcus": 1},
    ),
    Broken(
        "grid beyond all numbers", _PRODUCT, _grid("load_w", 1 << 30, 1 << 30), NumberProofErrors.TOO_LARGE,
        {"where": "kernel 'linear', pipeline 'stream', stage 'load_w'", "subject": "its grid"},
    ),
    Broken(
        "negative compute units", _PRODUCT, _edit(Stage, "load_x", setting(pcus=-1)), PipelineProofErrors.STAGE_FORM,
        {"where": "kernel 'linear', pipeline 'stream', stage 'load_x'", "pcus": -1},
    ),
    Broken(
        "ports missing", _PRODUCT, _edit(Stage, "load_x", setting(ports=())), PipelineProofErrors.PORT_COUNT,
        {"where": "kernel 'linear', pipeline 'stream', stage 'load_x'", "ports": 0, "scalars": 0, "body_scalars": 0},
    ),
    Broken(
        "wait for no buffer", _PRODUCT, _edit(Stage, "load_x", setting(waits=("lost",))), PipelineProofErrors.WAITS, {
            "where": "kernel 'linear', pipeline 'stream', stage 'load_x'", "waits": ["lost"]
        }
    ),
    Broken(
        "port on nothing",
        _PRODUCT,
        _edit(Stage, "load_x", port_setting(0, {"tensor": "lost"})),
        PipelineProofErrors.UNKNOWN_REGION, {
            "where": "kernel 'linear', pipeline 'stream', stage 'load_x', port 'x'", "name": "lost"
        },
    ),
    Broken(
        "window on a parameter that is not dense",
        _LAYERS,
        _edit(Stage, "project_qkv", port_setting(1, {"strides": (bases.WIDTH + 1, 1)})),
        PipelineProofErrors.WINDOW_NOT_DENSE, {
            "where": "kernel 'layers', pipeline 'run', stage 'project_qkv', port 'weight'", "name": "weight"
        },
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
        StreamProofErrors.NEVER_FILLED, {"where": "kernel 'spilled_copy', pipeline 'both', buffer 'more'"},
    ),
    Broken(
        "parts of a state",
        _CHAIN,
        _edit(Tensor, "a", setting(encoding="int8:32/values")),
        PlacementProofErrors.ENCODING, {"where": "tensor 'a'", "shape": [32], "encoding": "int8:32/values"},
    ),
    Broken(
        "parts of another dtype",
        _PRODUCT,
        _encoded_weight("int8:8/values"),
        PlacementProofErrors.ENCODING, {
            "where": "tensor 'w'", "role": "weight", "dtype": "f32", "encoding": "int8:8/values"
        },
    ),
)

_FLOAT_ROWS = (bases.BATCH, KV, bases.ROWS, bases.DEPTH)

ROWS = (
    Broken(
        "encoded rows without room for the scale",
        _ENCODED,
        _edit(Body, "attend", _param(3, shape=_FLOAT_ROWS)),
        BodyProofErrors.ROW_FORMATS, {
            "where": "body 'attend', step 0 (decode_attention)", "formats": ["int4", "int8", "int8", "int8"],
            "names": ["keys", "values", "k_rows", "v_rows"],
        },
    ),
    Broken(
        "K encoded and V not",
        _ENCODED,
        _both(*(_edit(Body, "attend", _param(n, shape=_FLOAT_ROWS, dtype="f32")) for n in (4, 6))),
        BodyProofErrors.MIXED_ROWS, {
            "where": "body 'attend', step 0 (decode_attention)", "encoded": ["keys", "k_rows"],
            "floats": ["values", "v_rows"],
        },
    ),
    Broken(
        "cache encoded and its copy not",
        _ENCODED,
        _both(*(_edit(Body, "attend", _param(n, shape=_FLOAT_ROWS, dtype="f32")) for n in (3, 4))),
        BodyProofErrors.MIXED_ROWS, {
            "where": "body 'attend', step 0 (decode_attention)", "encoded": ["k_rows", "v_rows"],
            "floats": ["keys", "values"],
        },
    ),
    Broken(
        "new row encoded before it is attended to",
        _ENCODED,
        _edit(Body, "attend", _param(1, shape=(bases.BATCH, KV, 1, bases.ENCODED), dtype="i8")),
        BodyProofErrors.OPERAND, {
            "where": "body 'attend', step 0 (decode_attention)", "operand": "new_key",
            "pattern": "float [Q, Hkv, 1, D]", "name": "new_key", "dtype": "i8", "shape": [2, 1, 1, 8],
        },
    ),
    Broken(
        "rows of another integer dtype",
        _ENCODED,
        _both(*(_edit(Body, "attend", _param(n, dtype="i64")) for n in (3, 4, 5, 6))),
        BodyProofErrors.OPERAND, {
            "where": "body 'attend', step 0 (decode_attention)", "operand": "key", "name": "keys", "dtype": "i64"
        },
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
        PipelineProofErrors.PORT_TYPE, {
            "where": "kernel 'layers', pipeline 'run', stage 'attention', port 'keys'", "dtype": "f32",
            "shape": [2, 1, 6, 4], "tensor": "k_cache", "actual": "i8", "actual_shape": [2, 1, 6, 4],
        },
    ),
    Broken(
        "layers' encoded caches overlap by the scales",
        _ENCODED,
        _both(*(_edit(Stage, "attention", port_setting(n, {"terms": (("layer", CACHE),)})) for n in (3, 5))),
        HazardProofErrors.ITERATIONS_OVERLAP, {
            "where": "kernel 'layers', pipeline 'run'", "stage": "attention", "iteration": 0, "tensor": "k_cache",
            "other": "attention", "other_iteration": 1,
        },
    ),
)


def _second_half(entry: Entry) -> Entry:
    """The first copy writes the first half of `a`, the second one reads the other half."""
    first, second, *rest = entry.body
    return dataclasses.replace(entry, body=(first, arg_setting(0, offset=bases.SIZE)(second), *rest))


BROKEN = (*STREAMS, *BOUNDS, *MEMORY, *ORDER, *ORDER_OF_TURNS, *CONTROL, *SIZES, *NAMES, *ROWS)
