"""Artifacts of a tiny model that tests of fleets share."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from sscc.compiler.tools.commands.cli import main
from tests.models.tiny_llama import byte_tokenizer, save_tiny_llama

SHAPE = ("--kv-budget", "64", "--prefill-chunk", "16", "--batch", "4", "--max-context", "1024", "--quiet")


@pytest.fixture(scope="session")
def tiny_rdu(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compiles the tiny model with more options, once each; four slots of 1024 tokens."""
    folder = tmp_path_factory.mktemp("fleet")
    save_tiny_llama(folder / "tiny", tokenizer=byte_tokenizer(), max_position_embeddings=1024)

    @cache
    def compiled(*options: str) -> Path:
        path = folder / f"{'-'.join(('tiny', *options))}.rdu"
        assert main(["compile", str(folder / "tiny"), "-o", str(path), *SHAPE, *options]) == 0
        return path

    return compiled
