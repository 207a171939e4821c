"""Oracle (m): the algorithm is edited in a dump of level graph, and every -O level compiles the edited program.

Dump and edits are text. The evaluator computes the edited text operation by operation; the compiled programs give the
same results at every level and on both interpreters, whether a fusion still
recognises anything or not. An edit that says the same in another order computes the same, and other edits do not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from sscc.compiler.emit.emit import emit_program
from sscc.compiler.frontend.checkpoint_tensors import to_arrays
from sscc.compiler.interpret.module import module_session, signature_of, stored_layout
from sscc.ir.context import mlir, parse_module, print_module
from sscc.ir.geometry import Geometry
from sscc.ir.levels import passes_done
from sscc.ir.schedule import Program
from sscc.passes.base import run_passes
from sscc.passes.pass_pipeline import passes_between
from sscc.runtime.artifact.tensor_files import Array, layout_of, reading, stack_tensors
from sscc.runtime.backends.backend import Conditions
from sscc.runtime.backends.cpu.codegen.features import Features
from sscc.runtime.backends.cpu.interpreter import NativeInterpreter
from sscc.runtime.backends.cpu.plan.library import make_code
from sscc.runtime.backends.interpreter import Interpreter
from sscc.runtime.backends.reference.arrays import to_tensors
from sscc.runtime.backends.reference.backend import Reference
from sscc.runtime.session.session import Session
from tests.compiler.interpret.models import weights
from tests.oracles.test_compact_indexed import FAMILY, GEOMETRY, NO_SINK, lowered, outputs
from tests.torch_session import TorchSession

COMPACT, INDEXED = GEOMETRY, replace(GEOMETRY, rows="indexed")
FUSED = {"decode_attention", "chunk_attention"}


@cache
def dump(g: Geometry) -> str:
    with mlir():
        return print_module(lowered(g, "f32", "graph", 0))


def statement(text: str, name: str) -> re.Match[str]:
    """The first statement that applies the operation `name`."""
    found = re.search(rf'\n *(%\w+(?::\d+)?) = "?{re.escape(name)}"?[( ][^\n]*', text)
    assert found is not None, name
    return found


def in_functions(text: str, holds: str, edit: Callable[[str], str]) -> str:
    """Return `text` with every function edited that contains `holds`; there must be at least one."""
    parts = re.split(r"(?=\n  func\.func )", text)
    assert any(holds in part for part in parts)
    return "".join(edit(part) if holds in part else part for part in parts)


# ------------------------------------------------------------------------------------------------------ the edits


def as_it_is(text: str) -> str:
    return text


def without_pooling(text: str) -> str:
    """Let readers of pooled scores read the scores, so that neighbours have no influence."""

    def edit(function: str) -> str:
        pooled = statement(function, "kv.pool")
        scores = re.search(r"\((%\w+),", pooled.group(0))
        assert scores is not None
        function = function.replace(pooled.group(0), "")
        return re.sub(rf"{pooled.group(1)}\b", scores.group(1), function)

    return in_functions(text, '"kv.pool"', edit)


def with_another_pooling(text: str) -> str:
    """Keep the positions with the lowest scores: a linalg.generic replaces the pooling."""

    def edit(function: str) -> str:
        pooled = statement(function, "kv.pool")
        name, type_ = pooled.group(1), re.findall(r"tensor<\w+>", pooled.group(0))[-1]
        scores = re.search(r"\((%\w+),", pooled.group(0))
        assert scores is not None
        same = "affine_map<(d0, d1) -> (d0, d1)>"
        generic = f"""
    %made_by_hand = tensor.empty() : {type_}
    {name} = linalg.generic {{indexing_maps = [{same}, {same}], iterator_types = ["parallel", "parallel"]}}
      ins({scores.group(1)} : {type_}) outs(%made_by_hand : {type_}) {{
    ^bb0(%score: f32, %old: f32):
      %less = arith.negf %score : f32
      linalg.yield %less : f32
    }} -> {type_}"""
        return function.replace(pooled.group(0), generic)

    return in_functions(text, '"kv.pool"', edit)


def in_another_order(text: str) -> str:
    """Write V before K, and compute the valid rows first."""

    def edit(function: str) -> str:
        row, valid, key = (statement(function, name).group(0) for name in ("kv.row", "kv.validity", "kv.update"))
        value = statement(function.replace(key, ""), "kv.update").group(0)
        for item in (row, valid, key):
            function = function.replace(item, "", 1)
        return function.replace(value, f"{valid}{row}{value}{key}", 1)

    return in_functions(text, '"kv.update"', edit)


def one_segment_alone(text: str) -> str:
    """Attention to sinks and ring, and to nothing that was selected."""

    def edit(function: str) -> str:
        attention = statement(function, "kv.cached_attention").group(0)
        operands, types = re.search(r"\(([^)]*)\)", attention), re.search(r": \(([^)]*)\)", attention)
        assert operands is not None
        assert types is not None
        given, kinds = operands.group(1).split(", "), types.group(1).split(", ")
        assert len(given) == len(kinds) == 8
        alone = attention.replace(operands.group(1), ", ".join(given[:4])).replace(types.group(1), ", ".join(kinds[:4]))
        alone = re.sub(r"array<i32: [^>]*>", "array<i32: 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0>", alone)
        return function.replace(attention, alone)

    return in_functions(text, '"kv.cached_attention"', edit)


def segments_turned_round(text: str) -> str:
    """Exchange the segments, so that the selected rows come first."""

    def edit(function: str) -> str:
        attention = statement(function, "kv.cached_attention").group(0)
        turned = attention
        for pattern in (r"\(([^)]*)\)", r": \(([^)]*)\)"):
            found = re.search(pattern, attention)
            assert found is not None
            items = found.group(1).split(", ")
            turned = turned.replace(found.group(1), ", ".join([items[0], *items[4:], *items[1:4]]))
        turned = re.sub(r"array<i32: [^>]*>", "array<i32: 1, 0, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0>", turned)
        return function.replace(attention, turned)

    return in_functions(text, '"kv.cached_attention"', edit)


def half_of_the_rows(text: str) -> str:
    """Replace the validity: only valid rows with an even number are attended to."""

    def edit(function: str) -> str:
        valid = statement(function, "kv.validity")
        name, type_ = valid.group(1), re.findall(r"tensor<\w+>", valid.group(0))[-1]
        same = "affine_map<(d0, d1) -> (d0, d1)>"
        half = f"""
    %made_by_hand = tensor.empty() : {type_}
    %even = linalg.generic {{indexing_maps = [{same}, {same}], iterator_types = ["parallel", "parallel"]}}
      ins({name} : {type_}) outs(%made_by_hand : {type_}) {{
    ^bb0(%flag: i1, %old: i1):
      %two = arith.constant 2 : index
      %none = arith.constant 0 : index
      %number = linalg.index 1 : index
      %odd = arith.remsi %number, %two : index
      %is_even = arith.cmpi eq, %odd, %none : index
      %both = arith.andi %flag, %is_even : i1
      linalg.yield %both : i1
    }} -> {type_}"""
        head, tail = function.split(valid.group(0))
        return head + valid.group(0) + half + re.sub(rf"{name}\b", "%even", tail)

    return in_functions(text, '"kv.validity"', edit)


EDITS: dict[str, tuple[Geometry, Callable[[str], str], bool, set[str]]] = {
    "as it is": (COMPACT, as_it_is, True, FUSED),
    "without pooling": (COMPACT, without_pooling, False, FUSED),
    "another pooling": (NO_SINK, with_another_pooling, False, FUSED),
    "in another order": (COMPACT, in_another_order, True, FUSED),
    "half of the rows": (COMPACT, half_of_the_rows, False, {"chunk_attention"}),
    "indexed, as it is": (INDEXED, as_it_is, True, FUSED),
    "segments turned round": (INDEXED, segments_turned_round, True, FUSED),
    "one segment alone": (INDEXED, one_segment_alone, False, {"chunk_attention"}),
    "indexed, without pooling": (INDEXED, without_pooling, False, FUSED),
    "indexed, half of the rows": (INDEXED, half_of_the_rows, False, {"chunk_attention"}),
}
"""Name -> geometry, edit, True if the program keeps its meaning, and the operations that are fused nevertheless."""


LEVELS = {0: "reference", 1: "reference", 2: "native"}
"""By -O level, what runs the program: each run is compared with the evaluator."""


@cache
def tensors_of_model() -> dict[str, Array]:
    return to_arrays(weights(FAMILY))


def program_of(text: str, opt_level: int) -> tuple[Program, TorchSession]:
    """The edited dump compiled onward, on the interpreter of its level."""
    with mlir():
        module = parse_module(text, "the dump")
        run_passes(module, passes_between(passes_done(module), "schedule", opt_level))
        program, signature = emit_program(module), signature_of(module)
    layout = {**layout_of(program, "weight"), **layout_of(program, "constant")}
    given = stack_tensors(layout, reading(tensors_of_model(), "the model"))
    interpreter: Interpreter
    if LEVELS[opt_level] == "reference":
        interpreter = Reference(program).open(given, Conditions(checked=True))
    else:
        interpreter = NativeInterpreter(program, given, code=make_code(program, Features.of_host(), 0), threads=2)
    return program, TorchSession(Session(signature, interpreter))


@cache
def evaluated(text: str) -> list[Tensor]:
    with mlir():
        module = parse_module(text, "the dump")
        layout = {**stored_layout(module, "weight"), **stored_layout(module, "constant")}
        given = stack_tensors(layout, reading(tensors_of_model(), "the model"))
        session = module_session(module, to_tensors(given))
    return outputs(TorchSession(session))


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_dump_is_what_runs_at_every_level(name: str) -> None:
    g, edit, same, fused = EDITS[name]
    text = edit(dump(g))
    want = evaluated(text)
    differs = any(not torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in zip(want, evaluated(dump(g)), strict=True))
    assert differs is not same
    for opt_level in LEVELS:
        program, session = program_of(text, opt_level)
        kinds = {step.kind for body in program.bodies for step in body.steps}
        assert kinds & FUSED == (fused if opt_level else set()), f"-O{opt_level}"
        for number, (got, wanted) in enumerate(zip(outputs(session), want, strict=True)):
            torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4, msg=lambda m: f"{number}: {m}")  # noqa: B023
