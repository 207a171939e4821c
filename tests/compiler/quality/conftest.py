"""A tiny random Llama with a tokenizer of bytes, long enough for a prompt with a key in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from sscc.compiler.tools.quality.prompts import PromptFormat
from tests.models.tiny_llama import byte_tokenizer, save_tiny_llama

CONTEXT = 512


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return byte_tokenizer()


@pytest.fixture(scope="session")
def plain(tokenizer: Tokenizer) -> PromptFormat:
    """Text to be continued."""
    return PromptFormat(tokenizer)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a checkpoint without tokens that end a text."""
    folder = tmp_path_factory.mktemp("quality") / "tiny"
    config = {"max_position_embeddings": CONTEXT, "initializer_range": 0.3, "eos_token_id": None}
    return save_tiny_llama(folder, 7, byte_tokenizer(), **config)
