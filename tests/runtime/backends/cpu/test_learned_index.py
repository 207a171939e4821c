"""Choices by a learned index, and attention to them, as native code, against the reference interpreter in f64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sscc.ir.operations import AttendChosen, ChooseByIndex
from sscc.runtime.backends.cpu.attention.decode_attention import lower_attend_chosen
from sscc.runtime.backends.cpu.attention.learned_index import lower_choose_by_index
from sscc.runtime.backends.cpu.codegen.features import Features
from sscc.runtime.backends.reference import learned_index as index
from tests.runtime.backends.cpu.cpus import CPUS
from tests.runtime.backends.cpu.harness_prefill import CompiledStages, check_pieces, like

# Slots, tokens, heads of the index, numbers of a key, rows, chosen positions, block, local blocks, weights.
CHOICES: dict[str, tuple[int, int, int, int, int, int, int, int, bool]] = {
    "a step": (3, 1, 5, 24, 700, 33, 1, 0, True),
    "a step of one slot": (1, 1, 64, 128, 2100, 64, 1, 0, True),
    "a chunk": (1, 37, 6, 16, 300, 20, 1, 0, True),
    "blocks": (2, 1, 2, 16, 333, 24, 8, 1, False),
    "blocks of a chunk": (1, 19, 4, 8, 90, 12, 4, 2, False),
    "all positions": (2, 1, 3, 8, 60, 60, 1, 0, True),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("features", CPUS)
@pytest.mark.parametrize("kind", CHOICES)
def test_a_choice_is_the_references(kind: str, features: Features, dtype: torch.dtype) -> None:
    slots, tokens, heads, depth, rows, topk, block, local, weighed = CHOICES[kind]
    torch.manual_seed(len(kind))
    start = 0 if tokens == 1 else rows - tokens - 3
    first = torch.randint(0, rows, (slots, 1)) if tokens == 1 else torch.arange(start, start + tokens)[None]
    first[-1, -1] = -1  # a slot that is not active, or a token behind the prompt's end
    tensors = {
        "query": torch.randn(slots, tokens, heads, depth).to(dtype),
        "new_key": torch.randn(slots, 1, tokens, depth).to(dtype),
        "keys": torch.randn(slots, 1, rows, depth).to(dtype),
        "position": first,
        "chosen": torch.full((slots, 1 if weighed else heads, tokens, topk), 7),
    } | ({"weight": torch.randn(slots, tokens, heads)} if weighed else {})
    names = {name: name for name in tensors}
    step: Any = ChooseByIndex(**names, start="start", block=block, local=local)
    numbers = {"start": start if tokens > 1 else rows - 1}
    compiled = CompiledStages(step, lower_choose_by_index, tensors, ["start"], features)
    got = check_pieces(compiled, {name: like(x) for name, x in tensors.items()}, numbers, ["chosen", "keys"])
    want = torch.full_like(tensors["chosen"], 7)
    wide = {name: x.double() if x.is_floating_point() else x for name, x in tensors.items()}
    index.choose_by_index(
        **{"weight": None, **wide, "chosen": want}, **numbers, block=block, local=local, wide=torch.float64
    )
    assert torch.equal(got["chosen"], want)
    assert torch.equal(got["keys"].double(), wide["keys"])


# Slots, tokens, query heads, KV heads, choices, numbers of a key and of a value, rows, chosen rows.
ATTENTIONS: dict[str, tuple[int, int, int, int, int, int, int, int, int]] = {
    "latent rows": (2, 1, 16, 1, 1, 40, 24, 500, 300),
    "latent rows of a chunk": (1, 9, 16, 1, 1, 40, 24, 120, 30),
    "a choice for each KV head": (2, 1, 6, 3, 3, 16, 16, 200, 40),
    "a choice for two KV heads": (1, 5, 8, 4, 2, 8, 12, 70, 5),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("features", CPUS)
@pytest.mark.parametrize("kind", ATTENTIONS)
def test_attention_to_chosen_rows_is_the_references(kind: str, features: Features, dtype: torch.dtype) -> None:
    slots, tokens, heads, kv_heads, choices, depth, width, rows, topk = ATTENTIONS[kind]
    torch.manual_seed(len(kind))
    latent = kind.startswith("latent")
    chosen = torch.stack([torch.randperm(rows)[:topk].sort().values for _ in range(slots * choices * tokens)])
    chosen = chosen.reshape(slots, choices, tokens, topk)
    chosen[..., topk - 3 :] = -1
    chosen[-1, :, -1] = -1  # a token that attends to nothing
    tensors = {
        "query": torch.randn(slots, heads, tokens, depth).to(dtype),
        "new_key": torch.randn(slots, kv_heads, tokens, depth).to(dtype),
        "k_store": torch.randn(slots, kv_heads, rows, depth).to(dtype),
        "position": torch.randint(0, rows, (slots, 1)) + torch.arange(tokens) - tokens,
        "chosen": chosen,
        "out": torch.full((slots, heads, tokens, width), 9.0, dtype=dtype),
        "sink_logits": torch.randn(heads).to(dtype),
    }
    if not latent:
        tensors.pop("sink_logits")
        shapes = {"new_value": tokens, "v_store": rows}
        tensors |= {name: torch.randn(slots, kv_heads, n, width).to(dtype) for name, n in shapes.items()}
    step: Any = AttendChosen(**{"new_value": "", "v_store": "", **{name: name for name in tensors}}, scale=0.3)
    compiled = CompiledStages(step, lower_attend_chosen, tensors, [], features)
    got = check_pieces(compiled, {name: like(x) for name, x in tensors.items()}, {}, ["out", "k_store"])
    wide = {name: x.double() if x.is_floating_point() else x for name, x in tensors.items()}
    index.attend_chosen(
        **{"new_value": None, "v_store": None, "sink_logits": None, **wide}, scale=0.3, softcap=None, wide=torch.float64
    )
    bound = 3e-6 if dtype is torch.float32 else 2e-2
    assert (got["out"].double() - wide["out"]).abs().max() <= bound * wide["out"].abs().max()
    assert torch.equal(got["k_store"].double(), wide["k_store"])
