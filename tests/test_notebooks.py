"""The notebooks of examples/ run from top to bottom, and print what stands in them.

    make pytest PYTEST_ARGS="tests/test_notebooks.py --update-goldens"

writes what they print into them.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def printed(source: str, namespace: dict[str, Any]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as text:
        exec(compile(source, "<cell>", "exec"), namespace)
    return text.getvalue()


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.name)
def test_a_notebook_prints_what_stands_in_it(
    path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(sys, "path", [*sys.path])
    notebook = json.loads(path.read_text())
    assert notebook["nbformat"] == 4
    namespace: dict[str, Any] = {"__name__": "__main__"}
    update = request.config.getoption("--update-goldens")
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            text = printed("".join(cell["source"]), namespace)
            outputs = [{"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}]
            if update:
                cell["outputs"] = outputs if text else []
            assert cell["outputs"] == (outputs if text else []), "".join(cell["source"])
    if update:
        path.write_text(f"{json.dumps(notebook, indent=1)}\n")
