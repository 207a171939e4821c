"""PyTorch: transformers' model with a static cache in bf16, eager or compiled.

Types: `bf16` is eager. `bf16-compiled` freezes the weights and uses inductor's max-autotune, which takes a minute for
each batch and context.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from transformers import AutoModelForCausalLM, StaticCache

from benchmarks.peers.protocol import Setup, Stepper, Unsupported, serve, token_ids


class Torch(Stepper):
    def __init__(self, model: Any, compiled: bool) -> None:
        super().__init__()
        self.model = model
        self.compiled = compiled
        self.forward = self._forward
        if compiled:
            import torch._inductor.config as inductor

            inductor.freezing = True
            self.forward = torch.compile(self._forward, mode="max-autotune-no-cudagraphs", dynamic=False)
        self.cache: Any = None
        self.sizes = (0, 0)
        self.tokens = torch.zeros(1, 1, dtype=torch.int64)
        self.length = 0

    def _forward(self, tokens: torch.Tensor, position: torch.Tensor, cache: Any) -> torch.Tensor:
        return self.model(
            input_ids=tokens, position_ids=position[None], past_key_values=cache, use_cache=True, logits_to_keep=1
        ).logits

    def start(self, batch: int, context: int, room: int) -> None:
        """Fill the cache. A cache of the same sizes is reused, because compiled code has its addresses."""
        if self.sizes != (batch, context + room):
            self.cache = None
            torch._dynamo.reset()
            self.cache = StaticCache(config=self.model.config, max_cache_len=context + room)
            self.sizes = (batch, context + room)
        else:
            with self._without_gradients():
                self.cache.reset()
        self.length = 0
        self._feed(torch.tensor([token_ids(context)] * batch), self._forward)
        self.tokens = torch.full((batch, 1), 5)

    def step(self) -> None:
        self._feed(self.tokens, self.forward)

    def prompt(self, tokens: int) -> None:
        if self.compiled:
            raise Unsupported("compiled for decode steps only")
        self.start(1, tokens, 0)

    def _feed(self, tokens: torch.Tensor, forward: Any) -> None:
        count = tokens.shape[1]
        with self._without_gradients():
            forward(tokens, torch.arange(self.length, self.length + count), self.cache)
        self.length += count

    def _without_gradients(self) -> AbstractContextManager[Any]:
        """Return no_grad for compiled code, which freezing requires, and the faster inference mode for eager code."""
        return torch.no_grad() if self.compiled else torch.inference_mode()


def make(setup: Setup) -> tuple[Torch, str]:
    torch.set_num_threads(setup.threads)
    model = AutoModelForCausalLM.from_pretrained(setup.model, dtype=torch.bfloat16, attn_implementation="sdpa").eval()
    return Torch(model, setup.dtype == "bf16-compiled"), torch.__version__


if __name__ == "__main__":
    serve(make)
