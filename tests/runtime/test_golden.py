"""Comparison of tensors, and replay of a golden: equal results, tolerated differences, and the named tensor."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sscc.ir.errors import ErrorKind
from sscc.runtime.artifact.artifact_files import ArtifactFileErrors
from sscc.runtime.artifact.golden import Golden, GoldenErrors
from sscc.runtime.artifact.manifest import Manifest, WeightsRecord
from sscc.runtime.artifact.writer import ArtifactWriter
from sscc.runtime.session.golden_replay import GoldenReplayErrors, compare, replay
from tests.errors import raises
from tests.runtime.fake import SIGNATURE, FakeInterpreter, fake_session

PROMPT, NEW = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10), (0, 1)


def record() -> Golden:
    """The fake interpreter's golden: ten tokens of a prompt use 2 + 3 + 4 rows of the cache."""
    interpreter = FakeInterpreter()
    tensors = {}
    for layer in range(SIGNATURE.layers):
        for kind in ("k_cache", "v_cache"):
            tensors[f"{kind}.{layer}"] = interpreter.states[kind][layer, 0].copy()
        tensors[f"selected.{layer}"] = interpreter.states["selected"][layer].copy()
    for name, token in (("prefill_logits", PROMPT[-1]), ("logits.0", NEW[0]), ("logits.1", NEW[1])):
        tensors[name] = interpreter._logits(token)
    return Golden(PROMPT, NEW, tensors)


def changed(golden: Golden, name: str, index: tuple[int, ...], value: float) -> Golden:
    tensors = {key: array.copy() for key, array in golden.tensors.items()}
    tensors[name][index] = value
    return replace(golden, tensors=tensors)


def test_an_equal_run_passes() -> None:
    report = replay(fake_session(), record())
    assert report.passed
    assert [check.name for check in report.checks] == list(record().tensors)
    assert "9 golden tensors agree" in report.summary()
    report.require()


@pytest.mark.parametrize(
    ("name", "index"),
    [("k_cache.0", (1, 8, 2)), ("v_cache.1", (0, 0, 0)), ("prefill_logits", (3,)), ("logits.1", (0,))],
)
def test_the_first_diverging_tensor_is_named(name: str, index: tuple[int, ...]) -> None:
    report = replay(fake_session(), changed(changed(record(), "logits.1", (5,), 9.0), name, index, 9.0))
    assert report.first_failure is not None
    assert report.first_failure.name == name
    logits = name == "prefill_logits" or name.startswith("logits")
    kind = GoldenReplayErrors.LOGITS_DIFFER if logits else GoldenReplayErrors.CACHE_DIFFERS
    where = {} if logits else {"layer": int(name[-1])}
    with raises(kind, tensors=9, tensor=name, dtype="f32", tolerance=1e-4, **where) as caught:
        report.require()
    difference = report.first_failure.difference
    fields = caught.value.fields
    assert fields["max_abs"] == difference.max_abs > 0.5
    assert (fields["max_rel"], fields["correlation"]) == (difference.max_rel, difference.correlation)
    assert fields["rowwise"] == difference.rowwise > 1e-4


def test_rows_that_are_not_valid_are_not_compared() -> None:
    short = replace(record(), prompt=(1, 2, 3), new_tokens=())
    tensors = {name: t for name, t in short.tensors.items() if "cache" in name}
    spoiled = changed(replace(short, tensors=tensors), "k_cache.0", (0, 3, 0), 99.0)
    assert replay(fake_session(), spoiled).passed
    assert not replay(fake_session(), changed(spoiled, "k_cache.0", (0, 2, 0), 99.0)).passed


def test_a_near_tie_is_excused_counted_and_its_rows_adopted() -> None:
    golden = changed(record(), "selected.0", (1, 0), 2)  # ours picked 3 instead
    golden = changed(golden, "k_cache.0", (1, 2, 0), 5.0)  # and so the row differs
    interpreter = FakeInterpreter()
    report = replay(fake_session(interpreter), golden)
    assert report.passed
    assert report.excused == 1
    assert "1 near ties excused" in report.summary()
    assert np.array_equal(interpreter.states["k_cache"][0, 0], golden.tensors["k_cache.0"])


def test_picks_are_matched_by_position_when_one_shifts_the_rows() -> None:
    """Golden picks (3, 4, 5) where ours are (2, 4, 5) and rows of 4 and 5 must agree wherever they stand."""
    golden = record()
    tensors = {name: array.copy() for name, array in golden.tensors.items()}
    tensors["selected.0"][0] = [4, 5, 6]  # ours: 2, 4, 5
    for kind in ("k_cache.0", "v_cache.0"):
        tensors[kind][0, 2:4] = tensors[kind][0, 3:5].copy()
        tensors[kind][0, 4] = 77.0
    report = replay(fake_session(), replace(golden, tensors=tensors))
    assert report.passed
    assert report.excused == 1


def test_of_a_prompt_that_fits_the_cache_nothing_is_selected() -> None:
    """All of its rows are compared where they stand, and a position that is selected all the same is no near tie."""
    interpreter = FakeInterpreter()
    interpreter.states["selected"].fill(-1)
    golden = replace(record(), prompt=PROMPT[:9], new_tokens=())
    tensors = {name: t for name, t in golden.tensors.items() if "cache" in name}
    tensors |= {f"selected.{layer}": interpreter.states["selected"][layer].copy() for layer in range(2)}
    golden = replace(golden, tensors=tensors)
    assert replay(fake_session(interpreter), golden).passed
    for row in range(9):
        assert not replay(fake_session(interpreter), changed(golden, "k_cache.0", (1, row, 0), 5.0)).passed
    interpreter.states["selected"][1, 0, 0] = 4
    report = replay(fake_session(interpreter), golden)
    assert report.first_failure is not None
    assert (report.first_failure.name, report.excused) == ("selected.1", 0)


def test_too_many_differing_picks_are_no_near_ties() -> None:
    golden = record()
    for index, value in (((0, 0), 5), ((0, 1), 6), ((0, 2), 7)):
        golden = changed(golden, "selected.1", index, value)
    report = replay(fake_session(), golden)
    assert report.first_failure is not None
    assert report.first_failure.name == "selected.1"
    with raises(GoldenReplayErrors.SELECTION_DIFFERS, layer=1, tensor="selected.1", differing=3, selected=6, allowed=2):
        report.require()


def test_a_golden_of_another_program_is_refused() -> None:
    golden = record()
    with raises(GoldenReplayErrors.UNKNOWN_TENSORS, unknown=["k_cache.7"]):
        replay(fake_session(), replace(golden, tensors={**golden.tensors, "k_cache.7": np.zeros(1)}))
    with raises(GoldenReplayErrors.SHAPE_DIFFERS, tensor="prefill_logits", shape=[5], computed=[11]):
        replay(fake_session(), replace(golden, tensors={**golden.tensors, "prefill_logits": np.zeros(5)}))


def test_compare_gives_textbook_numbers() -> None:
    b = np.array([[3.0, 4.0], [0.0, 5.0]])
    difference = compare(b + np.array([[0.0, 0.4], [0.1, 0.0]]), b)
    assert difference.max_abs == pytest.approx(0.4)
    assert difference.max_rel == pytest.approx(0.1 / 0.005)
    assert difference.normwise == pytest.approx(math.sqrt(0.17) / math.sqrt(50))
    assert difference.rowwise == pytest.approx(0.4 / 5)
    assert difference.correlation == pytest.approx(0.9967, abs=2e-3)
    same = compare(b, b)
    assert (same.max_abs, same.max_rel, same.correlation, same.normwise, same.rowwise) == (0, 0, pytest.approx(1), 0, 0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_is_not_finite_never_passes(value: float) -> None:
    assert compare(np.array([1.0, value]), np.array([1.0, 2.0])).rowwise == math.inf
    assert compare(np.array([1.0, 2.0]), np.array([1.0, value])).rowwise == math.inf
    assert compare(np.array([1.0, math.inf]), np.array([1.0, math.inf])).rowwise == 0.0


def test_zeros_and_empty_tensors_compare() -> None:
    assert compare(np.zeros(3), np.zeros(3)).rowwise == 0.0
    assert compare(np.ones(3), np.zeros(3)).rowwise == math.inf
    assert compare(np.zeros((0, 4)), np.zeros((0, 4))).rowwise == 0.0


def test_a_folder_without_a_golden_is_refused(tmp_path: Path) -> None:
    with raises(ArtifactFileErrors.CANNOT_READ):
        Golden.load(tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("prompt", ["1"], GoldenErrors.PARTS_DIFFER),
        ("tensors", [{}], GoldenErrors.PARTS_DIFFER),
        ("tensors", ["other"], GoldenErrors.PARTS_DIFFER),
        ("tensors", 1, GoldenErrors.DAMAGED),
        (None, [], GoldenErrors.DAMAGED),
        (None, {"x" * 10**5: 1}, GoldenErrors.DAMAGED),
    ],
)
def test_a_damaged_golden_is_refused(tmp_path: Path, field: str | None, value: object, kind: ErrorKind) -> None:
    with ArtifactWriter(tmp_path / "m.rdu") as writer:
        record().save(writer)
        writer.finish(Manifest("0.1", {}, "rdu", {}, SIGNATURE, WeightsRecord("reference", "")))
    path = tmp_path / "m.rdu" / "golden" / "golden.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps(value if field is None else {**data, field: value}))
    with raises(kind, path=path) as refused:
        Golden.load(path.parent)
    assert len(str(refused.value)) < 1000
    path.write_text("[" * 10**5)
    with raises(GoldenErrors.DAMAGED):
        Golden.load(path.parent)
