"""A decoder that transformers does not know, with one thing wrong that capture must notice.

Registered as architecture "strange". `twist` names what is wrong; its first layer is always a plain Llama layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaDecoderLayer, LlamaModel


class StrangeConfig(LlamaConfig):
    model_type = "strange"
    twist: str = "none"


class Layer(LlamaDecoderLayer):
    """A plain layer. `first`: the embedding's output, `ids`: the token ids; plain layers leave them alone."""

    def forward(self, hidden_states: Tensor, first: Tensor, ids: Tensor, **keywords: Any) -> Tensor:
        out: Tensor = super().forward(hidden_states, **keywords)
        return out


class WithoutAttention(Layer):
    def forward(self, hidden_states: Tensor, first: Tensor, ids: Tensor, **keywords: Any) -> Tensor:
        out: Tensor = hidden_states + self.mlp(self.input_layernorm(hidden_states))
        return out


class WithOwnAttention(Layer):
    """Attends without asking transformers' attention interface."""

    def forward(self, hidden_states: Tensor, first: Tensor, ids: Tensor, **keywords: Any) -> Tensor:
        heads = hidden_states.unflatten(-1, (4, -1)).transpose(1, 2)
        attended = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        return hidden_states + attended.transpose(1, 2).flatten(2)


class WithTwoAttentions(Layer):
    def forward(self, hidden_states: Tensor, first: Tensor, ids: Tensor, **keywords: Any) -> Tensor:
        once = super().forward(hidden_states, first, ids, **keywords)
        return super().forward(once, first, ids, **keywords)


class WithSkipConnection(Layer):
    """Reads the embedding, two stages back."""

    def forward(self, hidden_states: Tensor, first: Tensor, ids: Tensor, **keywords: Any) -> Tensor:
        return super().forward(hidden_states, first, ids, **keywords) + first


class WithTokenIds(Layer):
    """Reads the token ids themselves."""

    def forward(self, hidden_states: Tensor, first: Tensor, ids: Tensor, **keywords: Any) -> Tensor:
        return super().forward(hidden_states, first, ids, **keywords) * (ids % 2)[..., None]


class WithState(Layer):
    """Remembers something from call to call."""

    def __init__(self, config: StrangeConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, hidden_states: Tensor, first: Tensor, ids: Tensor, **keywords: Any) -> Tensor:
        self.calls.add_(1)
        return super().forward(hidden_states, first, ids, **keywords) * self.calls


class DistanceAttention(LlamaAttention):
    """Adds a bias by distance, but on the path of its own eager attention only."""

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **keywords: Any) -> Any:
        if self.config._attn_implementation == "eager" and attention_mask is not None:
            count = hidden_states.shape[1]
            attention_mask = attention_mask + 0.1 * torch.arange(count)
        return super().forward(hidden_states, attention_mask=attention_mask, **keywords)


class WithHiddenBias(Layer):
    def __init__(self, config: StrangeConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.self_attn = DistanceAttention(config, layer_idx)


class WithTokenShift(Layer):
    """Reads the token before, as state-space models do."""

    def forward(self, hidden_states: Tensor, first: Tensor, ids: Tensor, **keywords: Any) -> Tensor:
        shifted = torch.nn.functional.pad(hidden_states, (0, 0, 1, -1))
        return super().forward(hidden_states + 0.5 * shifted, first, ids, **keywords)


class WithWrongShapes(Layer):
    """A layer that torch cannot run; torch logs a traceback before it raises."""

    def forward(self, hidden_states: Tensor, first: Tensor, ids: Tensor, **keywords: Any) -> Tensor:
        return torch.bmm(hidden_states, hidden_states[:, :, 1:])


# Changes of the whole model: the positions that its layers get, and additions to the embedding.
MODEL_TWISTS = ("own-positions", "table-positions", "counting-besides", "no-positions")
TWISTS: dict[str, type[Layer]] = {
    "none": Layer,
    "without-attention": WithoutAttention,
    "own-attention": WithOwnAttention,
    "two-attentions": WithTwoAttentions,
    "skip-connection": WithSkipConnection,
    "token-ids": WithTokenIds,
    "state": WithState,
    "hidden-bias": WithHiddenBias,
    "token-shift": WithTokenShift,
    "wrong-shapes": WithWrongShapes,
    **dict.fromkeys(MODEL_TWISTS, Layer),
}


class StrangeModel(LlamaModel):
    config_class = StrangeConfig

    def __init__(self, config: StrangeConfig) -> None:
        super().__init__(config)
        rest = [TWISTS[config.twist](config, index) for index in range(1, config.num_hidden_layers)]
        self.layers = torch.nn.ModuleList([Layer(config, 0), *rest])
        self.register_buffer("counts", torch.arange(config.max_position_embeddings)[None], persistent=False)
        self.post_init()

    def forward(self, input_ids: Tensor, position_ids: Tensor, **keywords: Any) -> BaseModelOutputWithPast:
        count = input_ids.shape[1]
        hidden = self.embed_tokens(input_ids)
        if self.config.twist == "own-positions":
            position_ids = torch.arange(count, device=input_ids.device)[None]
        elif self.config.twist == "table-positions":
            position_ids = self.counts[:, :count]
        elif self.config.twist == "no-positions":
            position_ids = torch.zeros_like(position_ids)
        elif self.config.twist == "counting-besides":
            hidden = hidden + 0.1 * torch.arange(count, device=hidden.device)[:, None]
        first = hidden
        tables = self.rotary_emb(hidden, position_ids=position_ids)
        mask = None
        if self.config._attn_implementation == "eager":
            mask = torch.full((count, count), torch.finfo(hidden.dtype).min).triu(1)[None, None]
        for layer in self.layers:
            hidden = layer(hidden, first=first, ids=input_ids, position_embeddings=tables, attention_mask=mask)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(hidden))


class StrangeForCausalLM(LlamaForCausalLM):
    config_class = StrangeConfig

    def __init__(self, config: StrangeConfig) -> None:
        super().__init__(config)
        self.model = StrangeModel(config)
        self.post_init()


AutoConfig.register("strange", StrangeConfig, exist_ok=True)
AutoModelForCausalLM.register(StrangeConfig, StrangeForCausalLM, exist_ok=True)
