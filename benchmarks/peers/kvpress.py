"""kvpress's SnapKV on transformers, eager, bf16. It keeps BUDGET rows of a prompt with more tokens.

kvpress's cache grows by a row with every new token, while sscc's has a fixed size.
"""

from __future__ import annotations

from contextlib import nullcontext
from importlib.metadata import version
from typing import Any

import torch
from kvpress import SnapKVPress
from transformers import AutoModelForCausalLM, DynamicCache

from benchmarks.peers.protocol import Setup, Stepper, serve, token_ids

BUDGET = 1024
WINDOW = 32
KERNEL = 7


class SnapKv(Stepper):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.cache: Any = None
        self.tokens = torch.zeros(1, 1, dtype=torch.int64)
        self.length = 0

    def start(self, batch: int, context: int, room: int) -> None:
        self.cache = DynamicCache()
        self.length = 0
        press = nullcontext()
        if context > BUDGET:
            ratio = 1 - BUDGET / context
            press = SnapKVPress(compression_ratio=ratio, window_size=WINDOW, kernel_size=KERNEL)(self.model)
        with press:
            self._feed(torch.tensor([token_ids(context)] * batch))
        self.tokens = torch.full((batch, 1), 5)

    def step(self) -> None:
        self._feed(self.tokens)

    def prompt(self, tokens: int) -> None:
        self.start(1, tokens, 0)

    def _feed(self, tokens: torch.Tensor) -> None:
        count = tokens.shape[1]
        positions = torch.arange(self.length, self.length + count)[None]
        with torch.inference_mode():
            self.model(
                input_ids=tokens, position_ids=positions, past_key_values=self.cache, use_cache=True, logits_to_keep=1
            )
        self.length += count


def make(setup: Setup) -> tuple[SnapKv, str]:
    torch.set_num_threads(setup.threads)
    model = AutoModelForCausalLM.from_pretrained(setup.model, dtype=torch.bfloat16, attn_implementation="sdpa").eval()
    return SnapKv(model), version("kvpress")


if __name__ == "__main__":
    serve(make)
