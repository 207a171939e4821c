"""A schedule that is cut over ranks: the validator proves it, and the ranks compute together what one does, at every
-O level."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from torch_mlir import ir

from sscc.compiler.emit.emit import emit_program
from sscc.compiler.frontend.checkpoint_tensors import to_arrays
from sscc.compiler.interpret.module import signature_of
from sscc.ir.context import mlir, parse_module
from sscc.ir.levels import set_target
from sscc.ir.operations import DecodeAttention
from sscc.ir.schedule import Program
from sscc.ir.target import Target, load_target
from sscc.passes.base import run_passes
from sscc.passes.pass_pipeline import pipeline_of
from sscc.passes.shard import Shard
from sscc.runtime.artifact.contract import prove
from sscc.runtime.artifact.signature import ProgramIdentity, Signature
from sscc.runtime.artifact.tensor_files import Array, layout_of, reading, stack_tensors
from sscc.runtime.backends.backend import Conditions
from sscc.runtime.backends.collectives.group import ALONE, Group, run_ranks, thread_groups
from sscc.runtime.backends.cpu.interpreter import NativeInterpreter
from sscc.runtime.backends.cpu.plan.library import make_code
from sscc.runtime.backends.interpreter import Interpreter
from sscc.runtime.backends.reference.backend import Reference
from sscc.runtime.serving.ranks.crew import simulated
from sscc.runtime.session.kept_rows import KeptRowErrors
from sscc.runtime.session.session import Session
from tests.compiler.interpret.models import PROMPT, SLOT, TOKENS, weights
from tests.errors import raises
from tests.passes.test_shard import imported
from tests.targets import changed


@cache
def compiled(
    family: str, ranks: int, opt_level: int, dtype: str = "f32", machine: Target | None = None
) -> tuple[Program, Signature]:
    with mlir():
        module: ir.Module = parse_module(imported(family, dtype), family)
        if machine is not None:
            set_target(module, machine)
        run_passes(module, pipeline_of(opt_level, shard=Shard(ranks)))
        program, signature = emit_program(module), signature_of(module)
    prove(program, signature)
    return program, signature


def stored(program: Program, family: str, group: Group, dtype: str = "f32") -> dict[str, Array]:
    """Return a rank's part of the weights of a family."""
    layout = {**layout_of(program, "weight", group.rank), **layout_of(program, "constant", group.rank)}
    return stack_tensors(layout, reading(to_arrays(weights(family, dtype)), "the model"))


def session(family: str, ranks: int, opt_level: int, group: Group = ALONE) -> Session:
    program, signature = compiled(family, ranks, opt_level)
    parts = stored(program, family, group)
    return Session(signature, Reference(program).open(parts, Conditions(checked=True, group=group)))


def logits(run: Session) -> np.ndarray:
    rows = [np.array(run.prefill(SLOT, PROMPT))]
    rows += [np.array(run.decode({SLOT: token})[SLOT]) for token in TOKENS]
    return np.stack(rows)


@cache
def of_one(family: str) -> np.ndarray:
    return logits(session(family, 1, 2))


@pytest.mark.parametrize(
    ("family", "ranks", "opt_level"),
    [("qwen2", 2, 0), ("experts-softmax", 2, 1), ("learned-sinks", 4, 2)],
)
def test_ranks_run_what_one_does(family: str, ranks: int, opt_level: int) -> None:
    expected = of_one(family)
    groups = thread_groups(ranks)
    sessions = [session(family, ranks, opt_level, group) for group in groups]
    by_rank = run_ranks(groups, lambda group: logits(sessions[group.rank]))
    _check(by_rank, expected)
    program, signature = compiled(family, ranks, opt_level)
    parts = [stored(program, family, group) for group in groups]
    code = make_code(program, optimise=0)

    def on_native(group: Group) -> np.ndarray:
        interpreter = NativeInterpreter(program, parts[group.rank], code=code, threads=2, group=group)
        return logits(Session(signature, interpreter))

    _check(run_ranks(thread_groups(ranks), on_native), expected)


def test_sums_in_parts_are_the_sums() -> None:
    """Each part is rounded on the rank that sums it; the gathered parts equal the sum, bit for bit."""
    machine = load_target("rdu:sn40l-16")
    quick = changed({"socket.latency": 1e-15}, machine)
    kinds, answers = [], []
    for target in (machine, quick):
        program, signature = compiled("experts-softmax", 2, 2, "bf16", target)
        parts = [stored(program, "experts-softmax", group, "bf16") for group in thread_groups(2)]
        code = make_code(program, optimise=0)

        def on_native(group: Group) -> np.ndarray:
            interpreter = NativeInterpreter(program, parts[group.rank], code=code, group=group)  # noqa: B023
            return logits(Session(signature, interpreter))  # noqa: B023

        def on_reference(group: Group) -> np.ndarray:
            conditions = Conditions(checked=True, group=group)
            return logits(Session(signature, Reference(program).open(parts[group.rank], conditions)))  # noqa: B023

        kinds.append({step.kind for body in program.bodies for step in body.steps})
        answers.append([run_ranks(thread_groups(2), run) for run in (on_native, on_reference)])
    assert kinds[1] - kinds[0] == {"reduce_scatter"}
    for whole, in_parts in zip(*answers, strict=True):
        assert all(np.array_equal(rows, whole[0]) for rows in (*whole, *in_parts))


def test_ranks_have_slots_of_their_own() -> None:
    """Two ranks share a KV head and two slots: each attends to one of them, with all heads that read it, fused."""
    program, signature = compiled("learned-sinks", 4, 2)
    assert [group.slots for group in signature.plan] == [1]
    tensors = {tensor.name: tensor.shape for tensor in program.tensors}
    (step,) = [step for body in program.bodies for step in body.steps if isinstance(step, DecodeAttention)]
    (body,) = [body for body in program.bodies if step in body.steps]
    shapes = {param.name: param.shape for param in body.params}
    assert (shapes[step.query][:2], tensors["k_cache"][:3]) == ((1, 2), (1, 1, 1))


def test_a_slot_is_copied_into_one_that_another_rank_has() -> None:
    """And, bit for bit, into the one that it was in. A rank by itself knows nothing of the others' slots."""
    program, signature = compiled("learned-sinks", 4, 2)
    parts = [stored(program, "learned-sinks", group) for group in thread_groups(4)]
    interpreters: dict[int, Interpreter] = {}

    def opened(group: Group) -> Interpreter:
        interpreters[group.rank] = Reference(program).open(parts[group.rank], Conditions(checked=True, group=group))
        return interpreters[group.rank]

    run = Session(signature, simulated(thread_groups(4), opened), identity=lambda: ProgramIdentity("a" * 64, "b" * 64))
    run.prefill(0, PROMPT)
    snapshot = run.snapshot(0)
    data = b"".join(run.slot_format.pieces(run.message(snapshot)))
    moved = run.adopt(run.slot_format.read(data, "it"))
    assert [list(part) for part in run.message(moved).parts].count([]) == 2, "two ranks have no part of it"
    rows = sum(part.nbytes for part in run.rows.copies[snapshot.rows.number].values())
    assert snapshot.nbytes == run.snapshot_bytes(0) == 2 * rows, "two of four ranks have a part each"
    expected = np.stack([run.decode({0: token})[0] for token in TOKENS])
    # torch may add up another row of a batch in another order, as some CPUs have it.
    near = 1e-5 * np.abs(expected).max()
    for slot, restored, away in ((1, snapshot, near), (0, moved, 0.0)):
        run.prefill(slot, PROMPT[:3])
        run.restore(slot, restored)
        got = np.stack([run.decode({slot: token})[slot] for token in TOKENS])
        np.testing.assert_allclose(got, expected, rtol=0, atol=away)
    run.close()
    with raises(KeptRowErrors.RANKS_MISSING, present=1, ranks=2):
        Session(signature, interpreters[0]).rows.slot_bytes(len(PROMPT))


def _check(by_rank: list[np.ndarray], expected: np.ndarray) -> None:
    np.testing.assert_allclose(by_rank[0], expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
    for rows in by_rank:
        assert np.array_equal(rows, by_rank[0])
