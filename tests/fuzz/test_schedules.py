"""The target of mutated schedules notices what it is there for."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from sscc.ir.errors import InputError
from sscc.ir.schedule import Program
from tests.fuzz import schedules
from tests.fuzz.execution import ROUNDING, OtherOrder, RunResult, run_native
from tests.fuzz.harness import Finding
from tests.fuzz.mutation import Mutator, places
from tests.runtime.broken import bases

BASE = schedules.hand_written()[4]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> schedules.Schedules:
    return schedules.Schedules(tmp_path_factory.mktemp("target"))


def _one_more(outcome: RunResult) -> RunResult:
    return replace(outcome, tensors=tuple({k: v + np.float32(0.1) for k, v in t.items()} for t in outcome.tensors))


def _nan(outcome: RunResult) -> RunResult:
    return replace(outcome, tensors=tuple({k: v * np.float32(np.nan) for k, v in t.items()} for t in outcome.tensors))


def _refused(outcome: RunResult) -> RunResult:
    return RunResult("an index that a tensor holds is outside")


def _other_scalars(outcome: RunResult) -> RunResult:
    return replace(outcome, scalars=((7,), (7,)))


@pytest.mark.parametrize("change", [_one_more, _nan, _refused, _other_scalars])
def test_an_interpreter_that_does_something_else_is_noticed(
    target: schedules.Schedules, monkeypatch: pytest.MonkeyPatch, change: Callable[[RunResult], RunResult]
) -> None:
    assert target.judged(BASE.program, BASE.situation) == "agrees"
    monkeypatch.setattr(schedules, "run_native", lambda *arguments: change(run_native(*arguments)))
    with pytest.raises(Finding, match=r"differs from reference|alone refuses"):
        target.judged(BASE.program, BASE.situation)


def test_products_that_are_wrong_are_noticed(target: schedules.Schedules, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums in another order do not excuse them."""
    base = schedules.hand_written()[0]
    monkeypatch.setattr(schedules, "run_native", lambda *arguments: _one_more(run_native(*arguments)))
    with pytest.raises(Finding, match=r"differs from reference: call 0 \(main\): 'y'"):
        target.judged(base.program, base.situation)


def test_sums_in_another_order_differ_by_their_rounding() -> None:
    a, b = torch.rand(4, 50) - 0.5, torch.rand(50, 6) - 0.5
    sizes = a.abs() @ b.abs()
    plain = a @ b
    with OtherOrder(0):
        products = [a @ b, torch.mm(a, b), torch.bmm(a[None], b[None])[0], torch.mm(a, b, out=torch.empty(4, 6))]
    for product in products:
        error = (product - plain).abs()
        assert bool((error > 0.2 * ROUNDING * sizes).any())
        assert bool((error <= 1.5 * ROUNDING * sizes).all())


def test_both_refusing_is_no_finding(target: schedules.Schedules, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("run_native", "run_reference"):
        monkeypatch.setattr(schedules, name, lambda *_: RunResult("no"))
    assert target.judged(BASE.program, BASE.situation) == "both refused"


def test_mutants_share_what_they_do_not_change_and_are_the_same_every_time() -> None:
    data = json.loads(bases.looped_layers().to_json())
    before = json.dumps(data)
    mutator = Mutator(data)
    kinds = set()
    for seed in range(300):
        mutant, changes = mutator.mutated(random.Random(seed))
        again, _ = Mutator(json.loads(before)).mutated(random.Random(seed)) if seed < 5 else (mutant, changes)
        assert json.dumps(mutant) == json.dumps(again)
        assert 1 <= len(changes) <= 3
        assert json.dumps(mutant) != before
        kinds |= {str(change.path[-1]) for change in changes}
    assert json.dumps(data) == before
    assert {"when", "lag", "per", "depth", "address", "tensor", "stages", "access"} <= kinds


def test_decoding_the_changed_part_is_decoding_the_whole() -> None:
    prepared = schedules._Prepared(bases.looped_layers())
    refusals = 0
    for seed in range(200):
        data, _ = prepared.mutator.mutated(random.Random(seed))
        try:
            whole = Program.from_json(json.dumps(data))
        except InputError:
            refusals += 1
            with pytest.raises(InputError):
                prepared.decode(data)
        else:
            assert prepared.decode(data).to_json() == whole.to_json()
    assert 0 < refusals < 200


def test_every_field_has_a_group() -> None:
    data = json.loads(bases.chunked_prefill().to_json())
    groups = {place.group: value for place, value in places(data)}
    assert groups["Stage.when"] == "each"
    assert isinstance(groups["View.terms[][]"], int | str)
    assert {"If.condition", "For.upper", "Scalar.op", "Pool.width", "Buffer.depth", "Entry.outputs"} <= groups.keys()
