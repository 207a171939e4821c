"""Selection of the keys with the smallest norm (arXiv 2406.11430), independent of the queries."""

import torch

import sscc


class KeyNorm(sscc.Policy):
    obs = 1  # no query is read; a program keeps at least one

    def scores(self, prompt: sscc.Prompt) -> torch.Tensor:
        return -prompt.keys.norm(dim=-1)
