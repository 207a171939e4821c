"""The smallest schedule that a session can run: every launch fills a tensor with ones, and the cursor moves on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sscc.ir.schedule import (
    Body,
    Entry,
    Instr,
    Item,
    Kernel,
    Launch,
    Pipeline,
    Program,
    Scalar,
    Stage,
    Tensor,
    Vector,
)
from sscc.ir.sizes import align
from sscc.runtime.artifact.signature import Signature
from tests.runtime.broken.build import port
from tests.runtime.schedules import view_of, whole_access, write

ROLES = {"prefill_logits": "output", "logits": "output"}
INPUTS = {
    "prefill": ("tokens", "position_ids"),
    "decode": ("token", "position_id", "position", "base", "active"),
}
SCALARS = ("length", "slot", "phase", "chunk", "steps", "reused")


def session_program(
    signature: Signature,
    *,
    tensors: Sequence[Tensor] = (),
    bodies: Sequence[Body] = (),
    kernels: Sequence[Kernel] = (),
    decode: Sequence[Item] = (),
) -> Program:
    """Prefill fills its logits, what a prompt is kept in and the caches, decode its logits and the caches.

    Args:
        tensors: more tensors; addresses of weights count from the end of the arena.
        bodies, kernels: more of them; `decode`: what decode does after it has filled everything.
    """
    own = _tensors(signature)
    arena = own[-1].address + align(own[-1].nbytes)
    fills = {tensor.name: _fill(tensor) for tensor in own if tensor.role != "input"}
    launches = {name: Launch(f"fill.{name}", (view_of(name, kernel.params[0].shape),))
                for name, (_, kernel) in fills.items()}  # fmt: skip
    decoded = ("logits", "k_cache", "v_cache")
    prefill = (*_cursor(signature), *(launch for name, launch in launches.items() if name != "logits"))
    score = (Entry("score", (), ("logits",), ("first",), (), (launches["logits"],)),)
    entries = (
        *(score if signature.scores_prompts else ()),
        Entry("prefill", INPUTS["prefill"], ("prefill_logits",), SCALARS, ("phase_after", "chunk_after"), prefill),
        Entry("decode", INPUTS["decode"], ("logits",), (), (), (*(launches[name] for name in decoded), *decode)),
    )
    return Program(
        (*own, *(_moved(tensor, arena) for tensor in tensors)),
        (*(body for body, _ in fills.values()), *bodies),
        (*(kernel for _, kernel in fills.values()), *kernels),
        entries,
        arena,
    )


def _moved(tensor: Tensor, by: int) -> Tensor:
    fields: dict[str, Any] = {**vars(tensor), "address": tensor.address + by}
    return Tensor(**fields)


def _tensors(s: Signature) -> tuple[Tensor, ...]:
    g = s.geometry
    main = s.plan.main
    key, value = (stream.width for stream in main.streams)
    slots = (s.batch, main.kv_heads)
    cache = (*slots, g.packed_rows) if g.packed else (s.layers, *slots, g.cache_rows)
    scratch = (1, main.kv_heads, s.scratch_tokens)
    shapes: dict[str, tuple[Any, tuple[int, ...]]] = {
        **dict.fromkeys(INPUTS["prefill"], ("i64", (1, s.scratch_tokens))),
        **dict.fromkeys(("token", "position_id"), ("i64", (s.batch, 1))),
        "position": ("i64", (s.batch,)),
        "base": ("i64", (s.batch,)),
        "active": ("i1", (s.batch,)),
        "prefill_logits": (s.dtype, (1, s.vocab_size)),
        "logits": (s.dtype, (s.batch, s.vocab_size)),
        "k_cache": (s.dtype, (*cache, key)),
        "v_cache": (s.dtype, (*cache, value)),
        "k_scratch": (s.dtype, (*scratch, key)),
        "v_scratch": (s.dtype, (*scratch, value)),
        "observed": (s.dtype, (1, main.heads, g.obs, key)),
        "selected": ("i64", (s.layers, main.kv_heads, g.topk)),
    }
    placed: list[Tensor] = []
    address = 0
    inputs = {name for names in INPUTS.values() for name in names}
    for name, (dtype, shape) in shapes.items():
        role: Any = "input" if name in inputs else ROLES.get(name, "state")
        placed.append(Tensor(name, shape, dtype, role, "hbm", address))
        address += align(placed[-1].nbytes)
    return tuple(placed)


def _fill(tensor: Tensor) -> tuple[Body, Kernel]:
    one: Any = 1 if tensor.dtype == "i64" else 1.0
    program = (Instr("one", "const", (one,), tensor.dtype),)
    step = Vector(tensor.shape, (), whole_access("y", len(tensor.shape)), program, "one")
    name, param = f"fill.{tensor.name}", write("y", tensor.shape, dtype=tensor.dtype)
    stage = Stage("fill", name, (), (port("y", tensor.shape),), (), ())
    body = Body(name, (param,), (), (), (), (step,))
    return body, Kernel(name, (param,), (), (Pipeline("p", "i", 0, 1, (), (), (stage,)),))


def _cursor(s: Signature) -> tuple[Scalar, ...]:
    return (
        Scalar("all_chunks", "ceildiv", ("length", s.prefill_chunk)),
        Scalar("others", "sub", ("all_chunks", "reused")),
        Scalar("chunks", "max", ("others", 1)),
        Scalar("phases", "mul", ("phase", "chunks")),
        Scalar("begin", "add", ("phases", "chunk")),
        Scalar("before_head", "mul", ("chunks", s.layers + 1)),
        Scalar("total", "add", ("before_head", 1)),
        Scalar("beyond", "add", ("begin", "steps")),
        Scalar("end", "min", ("beyond", "total")),
        Scalar("finished", "eq", ("end", "total")),
        Scalar("reached", "floordiv", ("end", "chunks")),
        Scalar("whole", "mul", ("reached", "chunks")),
        Scalar("inside", "sub", ("end", "whole")),
        Scalar("phase_after", "select", ("finished", s.layers + 2, "reached")),
        Scalar("chunk_after", "select", ("finished", 0, "inside")),
    )
