"""A tiny random Llama with a tokenizer, compiled once by the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from sscc.compiler.tools.commands import cli
from tests.models.tiny_llama import byte_tokenizer, save_tiny_llama


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny-0.1b"
    return save_tiny_llama(folder, tokenizer=byte_tokenizer(), max_position_embeddings=128)


@pytest.fixture(scope="session")
def artifact(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """16 rows: sink 2, recent 8, topk 6; context 128; with goldens. Beside it, in `ir`, are the dumps."""
    output = tmp_path_factory.mktemp("artifact") / "tiny.rdu"
    cache = ["--kv-sink", "2", "--kv-recent", "8", "--kv-topk", "6", "--kv-obs", "4", "--kv-pool", "3"]
    golden = ["--save-golden", "--golden-tokens", "3", "--dump-ir-dir", str(output.parent / "ir")]
    words = ["compile", str(checkpoint), "-o", str(output), *cache, *golden, "--prefill-chunk", "16", "--batch", "2"]
    assert cli.main([*words, "-q", "--traceback"]) == 0
    return output
