"""The tiny trained model by `evaluate`: the answer survives in the rows that top-K keeps, and in no others."""

from __future__ import annotations

import json
from pathlib import Path

from sscc.compiler.tools.quality.cells import Selection
from sscc.compiler.tools.quality.eval_options import EvalOptions
from sscc.compiler.tools.quality.runner import evaluate
from tests.models.tiny.task import fixed_queries
from tests.models.tiny.test_tiny import FOLDER

QUERIES = 24
ROWS = 32


def test_accuracy(tmp_path: Path) -> None:
    queries = fixed_queries()[:QUERIES]
    path = tmp_path / "recall.jsonl"
    path.write_text("\n".join(json.dumps({"tokens": q.prompt, "answer_tokens": [q.answer]}) for q in queries))
    options = EvalOptions(
        FOLDER,
        tasks=(),
        files=(path,),
        budgets=(ROWS,),
        methods=("streamingllm", "snapstream"),
        selection=Selection(obs=8, recent=8),
        examples=None,
        threads=1,
    )
    streaming, snapstream = evaluate(options, tmp_path / "results").cells
    assert streaming.mean is not None
    assert snapstream.mean is not None
    assert streaming.mean <= 0.2
    assert snapstream.mean >= 0.85
    assert streaming.kv_bytes == snapstream.kv_bytes
