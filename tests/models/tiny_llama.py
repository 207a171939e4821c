"""Tiny random Llamas as checkpoints, and a tokenizer of bytes for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

END = 256
SIZES = {
    "vocab_size": END + 1,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": None,
    "eos_token_id": END,
}


def byte_tokenizer() -> Tokenizer:
    """Return a tokenizer with one token per byte and one for the end of a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def save_tiny_llama(folder: Path, seed: int = 0, tokenizer: Tokenizer | None = None, **config: Any) -> Path:
    """Save random weights, and the tokenizer, if any.

    Args:
        config: fields of the config, beside or instead of SIZES.

    Returns:
        folder
    """
    torch.manual_seed(seed)
    LlamaForCausalLM(LlamaConfig(**SIZES | config)).save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save(str(folder / "tokenizer.json"))
    return folder
