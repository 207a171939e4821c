"""Nobody but the state of a layer asks which kind it is: flags of a geometry are read in its home alone."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOME = ("ir/geometry.py", "ir/layer_state")
FLAGS = frozenset(
    "indexed by_query selects observes encoded encodes_prompts packed rule fetch fetch_rows window "
    "window_stride layer_topk key_bits policy dtype rows sees row_format".split()
)
MOST = 15
"""Reads of flags elsewhere, of 230 once; what is left goes as its reader comes to ask the state."""


def _is_geometry(node: ast.expr) -> bool:
    if isinstance(node, ast.Name):
        return node.id in ("g", "geometry")
    return isinstance(node, ast.Attribute) and node.attr == "geometry"


def flags_read(source: str) -> int:
    return sum(
        isinstance(node, ast.Attribute) and node.attr in FLAGS and _is_geometry(node.value)
        for node in ast.walk(ast.parse(source))
    )


def test_flags_are_counted() -> None:
    source = "def f(g, a):\n    return g.indexed or a.geometry.window and self.geometry.sink and a.indexed"
    assert flags_read(source) == 2


def test_flags_of_a_geometry_are_read_in_its_home() -> None:
    found: Counter[str] = Counter()
    for folder in ("compiler", "ir", "passes", "runtime"):
        for path in (ROOT / folder).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            if not name.startswith(HOME):
                found[name] += flags_read(path.read_text())
    assert found.total() <= MOST, found.most_common(10)
