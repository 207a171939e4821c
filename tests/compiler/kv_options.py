"""Shared parts of the tests of options for cache rows: a small cache, and a model compiled with it in two ways."""

from __future__ import annotations

from pathlib import Path

from sscc.compiler.tools.commands import cli
from sscc.ir.geometry import Geometry

CACHE = "--kv-sink 2 --kv-recent 5 --kv-topk 6 --kv-obs 4 --kv-pool 3 --max-context 48".split()
CACHE += "--batch 2 --prefill-chunk 10".split()
G = Geometry(sink=2, recent=5, topk=6, obs=4, pool=3, pool_mode="avg", max_context=48)


def compile_each(model: Path, folder: Path, option: str, plain: str, other: str, *words: str) -> dict[str, Path]:
    """Value of the option -> the model compiled with it and `words`; with the `other` value it has goldens."""
    for value in (plain, other):
        golden = ["--save-golden", "--golden-tokens", "9"] if value == other else []
        command = ["compile", str(model), "-o", str(folder / value), *CACHE, *words, option, value, *golden]
        assert cli.main([*command, "-q", "--traceback"]) == 0
    return {value: folder / value for value in (plain, other)}
