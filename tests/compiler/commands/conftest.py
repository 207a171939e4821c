"""A tiny random Llama with a tokenizer, compiled once by the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from sscc.compiler import cli

END = 256


def byte_tokenizer() -> Tokenizer:
    """One token per byte, and one that ends a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny-0.1b"
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=END + 1,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        bos_token_id=None,
        eos_token_id=END,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="session")
def artifact(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """16 rows: sink 2, recent 8, topk 6; context 128; with goldens."""
    output = tmp_path_factory.mktemp("artifact") / "tiny.rdu"
    cache = ["--kv-sink", "2", "--kv-recent", "8", "--kv-topk", "6", "--kv-obs", "4", "--kv-pool", "3"]
    golden = ["--save-golden", "--golden-tokens", "3"]
    words = ["compile", str(checkpoint), "-o", str(output), *cache, *golden, "--prefill-chunk", "16", "--batch", "2"]
    assert cli.main([*words, "-q", "--traceback"]) == 0
    return output
