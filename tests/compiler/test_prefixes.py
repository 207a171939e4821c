"""Prompts that continue others, in programs of each kind of rows: the same bits as from nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sscc
from sscc.ir.geometry import Geometry
from sscc.runtime.session.session import Session
from tests.compiler.small_stacks import check_continued, opened
from tests.families import Compiler
from tests.native import native_interpreter

TINY = Path(__file__).parents[1] / "models" / "tiny"
SMALL = Geometry(2, 5, 4, 4, 3, "avg", 64)
CASES = {
    "shared rows": ("shared-in-turns", SMALL),
    "shared rows by query": ("shared-in-turns", replace(SMALL, rows="indexed", policy="query", key_bits=2)),
    "several hidden states": ("several-hidden-states", SMALL),
    "latent rows": ("latent-among-experts", SMALL),
    "latent rows of codes": ("latent-among-experts", replace(SMALL, dtype="int8")),
    "no selection": ("llama3-rope", replace(SMALL, topk=0)),
    "all queries observe": ("llama3-rope", replace(SMALL, obs=64)),
    "all queries observe, indexed": ("llama3-rope", replace(SMALL, obs=64, rows="indexed")),
}


@pytest.mark.parametrize(
    ("case", "opt_level"),
    [
        *((case, 2) for case in CASES),
        ("shared rows by query", 0),
        ("latent rows of codes", 0),
        ("all queries observe", 0),
    ],
)
def test_a_prompt_continues_another_bit_for_bit(case: str, opt_level: int, compiled: Compiler) -> None:
    family, geometry = CASES[case]
    program = compiled(family, geometry, opt_level=opt_level)
    session = Session(program.artifact.signature, native_interpreter(program.artifact))
    if "all queries" in case:
        assert session.reusable_chunks(50) == 7, "the queries of chunks are kept with their rows"
    check_continued(session, (1, 3), 9)


@pytest.mark.parametrize("opt_level", [0, 2])
def test_a_rule_that_scores_by_all_queries(opt_level: int, tmp_path: Path) -> None:
    shape: dict[str, Any] = {"kv_budget": 24, "kv_sink": 2, "max_context": 128, "prefill_chunk": 16, "batch": 2}
    rule = Path(__file__).parents[2] / "examples" / "rules" / "accumulated_mass.py"
    sscc.compile(TINY, output=tmp_path / "a.rdu", kv_policy=rule, opt_level=opt_level, native_code=False, **shape)
    session = opened(tmp_path / "a.rdu")
    assert session.reusable_chunks(83) == 5
    check_continued(session, (1, 4), 9)


def test_layers_with_budgets_of_their_own(tmp_path: Path) -> None:
    shape: dict[str, Any] = {"kv_topk_per_layer": "12,5", "kv_sink": 2, "kv_recent": 8, "kv_obs": 8}
    more: dict[str, Any] = {"max_context": 128, "prefill_chunk": 16, "batch": 2, "native_code": False}
    sscc.compile(TINY, output=tmp_path / "a.rdu", **shape, **more)
    check_continued(opened(tmp_path / "a.rdu"), (1, 4), 9)
