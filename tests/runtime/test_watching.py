"""Results of stages, read while they run: natively the same as on the reference interpreter, at every -O level."""

from __future__ import annotations

import numpy as np
import pytest

from sscc.runtime.backends.cpu.plan.plan import decode_plan
from sscc.runtime.session.observing import WatchingErrors
from sscc.runtime.session.session import Session
from sscc.runtime.session.session_errors import SessionErrors
from tests.errors import raises
from tests.families import BATCH, Compiler, random_tokens
from tests.runtime.fake import fake_session

PROMPT = random_tokens(20)


def sessions(compiled: Compiler, family: str = "llama", **options: object) -> tuple[Session, Session]:
    artifact = compiled(family, **options).artifact  # type: ignore[arg-type]
    made = [Session.from_artifact(artifact, interpreter=name, threads=2) for name in ("native", "reference")]
    return made[0], made[1]


@pytest.mark.parametrize(
    ("family", "opt_level", "layers"), [("llama", 2, {0, 1}), ("llama", 1, {0, 1}), ("two-then-four", 2, {*range(6)})]
)
def test_both_interpreters_show_the_same(compiled: Compiler, family: str, opt_level: int, layers: set[int]) -> None:
    native, reference = sessions(compiled, family, opt_level=opt_level)
    for entry in ("prefill", "decode"):
        seen = []
        for session in (native, reference):
            with session.watching() as watching:
                session.prefill(1, PROMPT) if entry == "prefill" else session.decode({1: 5})
            seen.append({})
            count: dict[object, int] = {}
            for each in watching:
                key = (each.stage, each.layer, each.loops)
                count[key] = count.get(key, 0) + 1
                seen[-1][key, count[key]] = each
        assert {*seen[0]} <= {*seen[1]}
        assert {each.layer for each in seen[0].values()} - {None} == layers
        compared = 0
        for key, ours in seen[0].items():
            assert {*ours.buffers} == {*seen[1][key].buffers}
            for name, array in ours.buffers.items():
                theirs = seen[1][key].buffers[name]
                assert (array.shape, array.dtype) == (theirs.shape, theirs.dtype)
                if entry == "decode":  # of a chunk's last positions, padding is undefined
                    np.testing.assert_allclose(array, theirs, rtol=1e-3, atol=1e-4 * max(1.0, np.abs(theirs).max()))
                    compared += 1
        assert entry == "prefill" or compared > 8 * len(layers)


def test_tiles_come_together(compiled: Compiler) -> None:
    """With slow memory, weights are read in tiles, and a stage fills its buffer in several firings."""
    target = compiled.target({"hbm.bandwidth": 1e9})
    native, reference = sessions(compiled, target=target)
    values = []
    for session in (native, reference):
        session.prefill(0, PROMPT)
        with session.watching("*_proj", layer=1) as seen:
            session.decode({0: 5})
        values.append({each.stage: each.value for each in seen})
    assert len(values[0]) >= 4
    for name, value in values[0].items():
        np.testing.assert_allclose(value, values[1][name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", [0, 1])
def test_names_layers_and_what_is_shown(compiled: Compiler, kind: int) -> None:
    session = sessions(compiled)[kind]
    before = session.prefill(0, PROMPT)
    with session.watching("q_proj", layer=1) as seen:
        logits = session.decode({0: 5})[0]
    (one,) = seen
    assert one.layer == 1
    assert one.stage.startswith("decode.layer.0.x2.p0.q_proj")
    assert repr(one) == f"Observation({one.stage}, layer 1, q_proj {list(one.value.shape)} float32)"
    by_module: list[object] = []
    with session.watching("layers.0.mlp", call=by_module.append):
        session.decode({0: 6})
    assert [each.layer for each in by_module] == [0, 1]  # type: ignore[attr-defined]
    session.decode({0: 7})
    assert len(seen) == 1  # nobody looks any more
    assert np.array_equal(session.prefill(0, PROMPT), before)
    assert np.array_equal(session.decode({0: 5})[0], logits)  # and looking changed nothing
    with raises(WatchingErrors.NO_STAGE, pattern="q_prj"):
        session.watching("q_prj")
    with pytest.raises(ZeroDivisionError), session.watching("q_proj", call=lambda stage: 1 // 0):
        session.decode({0: 5})
    assert np.isfinite(session.decode({0: 5})[0]).all()


@pytest.mark.parametrize("kind", [0, 1])
def test_stepping(compiled: Compiler, kind: int) -> None:
    session = sessions(compiled)[kind]
    session.prefill(0, PROMPT)
    snapshot = session.snapshot(0)
    expected = session.decode({0: 5})[0]
    session.restore(0, snapshot)
    sums, last = [], None
    for stage in session.steps({0: 9}):  # another token, and so other rows than those that are there
        sums.append(float(session.interpreter.tensor("k_cache").sum()))
        last = stage
    assert last is not None
    assert len({*sums}) == 3  # before the first layer's row is there, then before the second's
    assert session.position(0) == len(PROMPT) + 1
    session.restore(0, snapshot)
    for stage in session.steps({0: 5}, "lm_head"):
        logits = stage.value.reshape(BATCH, -1)[0]
        break  # and the step runs to its end
    assert np.array_equal(logits, expected)
    assert session.position(0) == len(PROMPT) + 1
    with raises(SessionErrors.SLOT_EMPTY, slot=1):
        list(session.steps({1: 5}))
    with raises(WatchingErrors.NO_STAGE):
        session.steps({0: 5}, "nothing")


def test_what_has_no_stages() -> None:
    with raises(SessionErrors.NO_STAGES):
        fake_session().watching()


def test_a_plan_is_read_back(compiled: Compiler) -> None:
    session, _ = sessions(compiled)
    plan = session.interpreter._code.plan  # type: ignore[attr-defined]
    assert decode_plan(plan).encode() == plan
