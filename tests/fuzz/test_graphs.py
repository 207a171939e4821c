"""The targets `graphs` and `near-misses` on their first seeds, in process; and that they find what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sscc.compiler.emit import bodies
from sscc.runtime.backends.cpu.codegen.bodies import NativeBodyErrors
from tests.fuzz import lowering
from tests.fuzz.graphs import Graphs
from tests.fuzz.harness import Finding, Target
from tests.fuzz.near_misses import NearMisses


@pytest.mark.parametrize("target", [Graphs, NearMisses], ids=lambda target: target.name)
def test_first_seeds(target: type[Target], tmp_path: Path) -> None:
    cases = target(tmp_path)
    outcomes = [cases.run(seed) for seed in range(12)]
    assert outcomes.count("agrees") >= 6


@pytest.mark.parametrize("target", [Graphs, NearMisses], ids=lambda target: target.name)
def test_a_wrong_compiler_is_found(
    target: type[Target], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler drops transpositions in bodies, or does not write concatenated rows or flags of rows."""
    monkeypatch.setattr(bodies, "transposed", lambda view, permutation: view)
    for name in ("tensor.concat", "kv.validity"):
        monkeypatch.setitem(bodies._STEPS, name, lambda e, op: e.written(op.results[0]))
    cases = target(tmp_path)
    with pytest.raises(Finding, match=r"-O\d"):  # noqa: PT012 - any of them
        for seed in range(60):
            cases.run(seed)


@pytest.mark.parametrize("target", [Graphs, NearMisses], ids=lambda target: target.name)
def test_what_native_code_refuses_is_an_outcome(
    target: type[Target], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> Any:
        raise NativeBodyErrors.STEP(body="b", cause="it is too hard")

    monkeypatch.setattr(lowering, "execute", refused)
    cases = target(tmp_path)
    outcomes = {cases.run(seed) for seed in range(4)}
    assert any(outcome.startswith("refused: the native interpreter cannot run body 'b'") for outcome in outcomes)
