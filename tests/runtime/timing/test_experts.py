"""Experts that a decode step reads, in a program with and without codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from sscc.compiler.driver.driver import compile_model
from sscc.compiler.options.compile_options import CompileOptions, cache_options
from sscc.compiler.tools.inspection.inspection import inspect_artifact, time_decode
from sscc.compiler.tools.inspection.inspection_words import described
from sscc.ir.weight_formats.registry import format_named
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.timing import ExpertReads
from tests.families import CHUNK, GEOMETRY, Compiler

X, K, LAYERS, HIDDEN, WIDTH = 5, 2, 2, 32, 48


def test_counts_of_experts() -> None:
    """The mean over all choices, by hand: one token uses 2 of 3 experts; two tokens use 2 in 3 of 9 cases, otherwise
    3."""
    assert (ExpertReads(3, 2, 1, 30).mean, ExpertReads(3, 2, 1, 30).most) == (pytest.approx(2), 2)
    assert ExpertReads(3, 2, 2, 30).mean == pytest.approx((3 * 2 + 6 * 3) / 9)
    assert (ExpertReads(8, 2, 3, 80).most, ExpertReads(8, 2, 5, 80).most) == (6, 8)
    assert ExpertReads(8, 2, 3, 80).bytes_of(6) == 60


@pytest.mark.parametrize("text", ["", "int4:16"])
def test_a_step_moves_the_experts_that_it_may_name(text: str, compiled: Compiler, tmp_path: Path) -> None:
    options = cache_options(GEOMETRY) | {"batch": 1, "prefill_chunk": CHUNK}
    weight_format = format_named(text) if text else None
    output = tmp_path / "x.rdu"
    checkpoint = compiled.checkpoint("experts-softmax")
    compile_model(CompileOptions(checkpoint, output, weight_format=weight_format, **options))
    artifact = Artifact.load(output)
    inspection = inspect_artifact(artifact)
    (reads,) = inspection.experts
    elements = LAYERS * X * 3 * HIDDEN * WIDTH
    assert (reads.experts, reads.chosen, reads.tokens) == (X, K, 1)
    assert reads.nbytes == (elements // 2 + elements // 16 * 2 if text else elements * 4)
    moved = time_decode(artifact, artifact.target).tensor_bytes
    assert sum(nbytes for name, nbytes in moved.items() if ".experts." in name) == reads.bytes_of(K)
    line = next(line for line in described(inspection) if line.startswith("experts"))
    assert "2 of 5 per token; a step reads 2.0 per layer on average" in line
