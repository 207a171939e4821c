"""Selection of heavy hitters, as in H2O (arXiv 2306.14048): attention of all prompt queries, summed per position.

H2O continues during decode: each step adds its query's attention, and the position with the smallest sum is evicted.
Here the selection is made once, at the end of the prompt, and new tokens pass through the ring (docs/policies.md).
"""

import torch

import sscc


class AccumulatedMass(sscc.Policy):
    obs = sscc.WHOLE_PROMPT

    def scores(self, prompt: sscc.Prompt) -> torch.Tensor:
        return prompt.attention_mass()
