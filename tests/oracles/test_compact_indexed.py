"""Oracle (l): the place of the selected rows changes no bit of a program's results once attention is fused; at -O0
its sums have another order.

The same captured model becomes two programs that differ in nothing but `--kv-rows`. Both meet the same calls: slots of
different lengths, a prefill in pieces with decode steps of other slots between them, steps that wrap the ring.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from sscc.compiler.emit.emit import _tables
from sscc.compiler.frontend.checkpoint_tensors import to_arrays
from sscc.compiler.interpret.module import module_session, stored_layout
from sscc.ir.context import mlir
from sscc.ir.geometry import Geometry
from sscc.ir.operations import CachedAttention, DecodeAttention, GatherRows
from sscc.ir.schedule import Program
from sscc.runtime.artifact.tensor_files import reading, stack_tensors
from sscc.runtime.backends.reference.arrays import to_tensors
from tests.compiler.interpret.models import weights
from tests.families import random_tokens
from tests.oracles import lowering
from tests.oracles.lowering import BATCH, CONTEXT, FAMILY, lowered
from tests.torch_session import TorchSession

GEOMETRY = Geometry(sink=2, recent=5, topk=6, obs=4, pool=3, pool_mode="avg", max_context=CONTEXT)
NO_SINK = replace(GEOMETRY, sink=0, recent=3, topk=9, pool_mode="max")
PROMPTS = (4, 10, 30)  # shorter than sinks and kept rows, than all rows, and longer than the cache
BOTH = ("compact", "indexed")


def compiled(rows: str, opt_level: int, dtype: str = "f32", g: Geometry = GEOMETRY) -> tuple[Program, TorchSession]:
    """A validated program and a session on it, in checked mode; made once."""
    return lowering.compiled(replace(g, rows=rows), opt_level, dtype)


def outputs(session: TorchSession) -> list[Tensor]:
    """Every logit that a caller sees."""
    session.reset()
    short, middle, long = (random_tokens(length) for length in PROMPTS)
    outputs = [session.prefill(0, short), session.prefill(1, middle)]
    session.start_prefill(2, long)
    step = 0
    while not session.step_prefill(3):  # other slots go on meanwhile
        outputs.append(session.decode({0: 3 + step, 1: 5 + 2 * step})[:2])
        step += 1
    outputs.append(session.prefill_logits)
    outputs += [session.decode({0: token, 1: token + 1, 2: token + 2}) for token in range(9)]  # almost two laps
    session.release(0)
    outputs.append(session.prefill(0, long[:21]))  # a slot that held another prompt
    outputs += [session.decode({0: token, 2: token + 2})[[0, 2]] for token in range(3)]
    return [item.clone() for item in outputs]


def assert_equal(sessions: list[TorchSession], tolerance: float = 0.0) -> None:
    compact, indexed = (outputs(session) for session in sessions)
    assert len(compact) == len(indexed) > 16
    for number, (a, b) in enumerate(zip(compact, indexed, strict=True)):
        assert a.isfinite().all()
        assert torch.allclose(a, b, tolerance, tolerance), f"call {number} differs by {(a - b).abs().max()}"


@pytest.mark.parametrize(("opt_level", "dtype"), [(1, "f32"), (2, "f32"), (2, "bf16")])
def test_compact_and_indexed_rows_give_the_same_bits(opt_level: int, dtype: str) -> None:
    assert_equal([compiled(rows, opt_level, dtype)[1] for rows in BOTH])


@pytest.mark.parametrize(("dtype", "tolerance"), [("f32", 1e-5), ("bf16", 0.05)])
def test_they_agree_where_attention_is_not_fused(dtype: str, tolerance: float) -> None:
    assert_equal([compiled(rows, 0, dtype)[1] for rows in BOTH], tolerance)


def test_without_sinks_too() -> None:
    assert_equal([compiled(rows, 2, g=NO_SINK)[1] for rows in BOTH])


def test_the_cache_holds_what_the_other_holds_but_for_selected_rows() -> None:
    sessions = [compiled(rows, 2)[1] for rows in BOTH]
    for session in sessions:
        outputs(session)
    compact, indexed = (session.interpreter for session in sessions)
    kept = slice(GEOMETRY.sink, GEOMETRY.sink + GEOMETRY.topk)
    picks = indexed.tensor("selected")[:, 2]
    assert picks.min() >= GEOMETRY.sink
    assert (indexed.tensor("selected")[:, 1] == -1).all(), "a prompt that fits"
    for kind in "kv":
        rows, cache = (interpreter.tensor(f"{kind}_cache") for interpreter in (compact, indexed))
        assert torch.equal(rows[:, 1], cache[:, 1])
        prompt, selected = indexed.tensor(f"{kind}_store")[:, 2], rows[:, 2, :, kept]
        assert torch.equal(prompt.gather(2, picks[..., None].expand(-1, -1, -1, prompt.shape[3])), selected)
        assert not cache[:, 2, :, kept].any(), "they are not copied"
        others = [row for row in range(GEOMETRY.budget) if not kept.start <= row < kept.stop]
        assert torch.equal(rows[:, 2, :, others], cache[:, 2, :, others])


def test_decode_changes_no_prompt_and_no_index() -> None:
    _, session = compiled("indexed", 2)
    session.reset()
    session.prefill(1, random_tokens(30))
    names = ("k_store", "v_store", "selected")
    before = [session.interpreter.tensor(name).clone() for name in names]
    assert all(state[:, 1].any() and not state[:, [0, 2]].any() for state in before), "only the slot's own part"
    for token in range(12):
        session.decode({1: token})
    assert all(torch.equal(session.interpreter.tensor(name), state) for name, state in zip(names, before, strict=True))


def test_rows_that_decode_reads_by_index_are_not_gathered() -> None:
    def steps(opt_level: int, kind: Any) -> list[Any]:
        bodies = compiled("indexed", opt_level)[0].bodies
        return [step for body in bodies for step in body.steps if isinstance(step, kind)]

    assert {len(step.segments) for step in steps(0, CachedAttention)} == {2}
    assert not steps(0, DecodeAttention)
    for opt_level in (1, 2):
        assert {len(step.segments) for step in steps(opt_level, DecodeAttention)} == {1}
        assert not steps(opt_level, CachedAttention)
        bodies = [body for body in compiled("indexed", opt_level)[0].bodies if isinstance(body.steps[0], GatherRows)]
        gathered = {param.shape[2] for body in bodies for param in body.params if param.access != "read"}
        assert gathered == {GEOMETRY.budget}, "at the end of a prompt, zeros for selected rows"
    for opt_level in (0, 1, 2):
        tables = _tables(compiled("indexed", opt_level)[0])
        assert {"k_store", "v_store"} <= tables, "what DDR may hold: a step fetches few of its rows"
        assert not {"k_cache", "v_cache", "selected"} & tables
    program, _ = compiled("indexed", 2)
    tensors = {tensor.name: tensor.shape for tensor in program.tensors}
    assert tensors["k_cache"] == (2, BATCH, 2, GEOMETRY.budget, 8)
    assert tensors["k_store"] == tensors["v_store"] == (2, BATCH, 2, CONTEXT, 8)
    assert tensors["selected"] == (2, BATCH, 2, GEOMETRY.topk)
    assert not {"k_scratch", "v_scratch"} & tensors.keys(), "prefill appends to the prompt itself"


def evaluated(rows: str) -> list[Tensor]:
    """Return the results of level graph, computed by the definition of every operation."""
    with mlir():
        module = lowered(replace(GEOMETRY, rows=rows), "f32", "graph", 0)
        layout = {**stored_layout(module, "weight"), **stored_layout(module, "constant")}
        tensors = stack_tensors(layout, reading(to_arrays(weights(FAMILY)), "the model"))
        session = module_session(module, to_tensors(tensors))
    return outputs(TorchSession(session))


def test_the_ir_itself_computes_the_same_too() -> None:
    for a, b, c in zip(evaluated("compact"), evaluated("indexed"), outputs(compiled("indexed", 2)[1]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(c, b, rtol=1e-3, atol=1e-4)
