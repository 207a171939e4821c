"""Keys of a small norm stay (arXiv 2406.11430): no query is asked."""

import torch

import sscc


class KeyNorm(sscc.Policy):
    obs = 1  # no query is read, and one is the least that a program keeps

    def scores(self, prompt: sscc.Prompt) -> torch.Tensor:
        return -prompt.keys.norm(dim=-1)
