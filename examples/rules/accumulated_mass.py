"""Heavy hitters as H2O has them (arXiv 2306.14048), of the prompt: what all of its queries paid a position, in all.

H2O goes on in decode: each step adds what its query pays, and the position that has least goes. Here the choice is made
once, at the end of the prompt: what is picked stays, and new tokens pass through the ring (docs/policies.md).
"""

import torch

import sscc


class AccumulatedMass(sscc.Policy):
    obs = sscc.WHOLE_PROMPT

    def scores(self, prompt: sscc.Prompt) -> torch.Tensor:
        return prompt.attention_mass()
