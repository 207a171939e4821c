"""kv with indexed rows: every operation against the same one over the rows in a cache."""

from __future__ import annotations

import dataclasses

import torch

from sscc.compiler.interpret.cache import CacheUndefinedErrors
from tests.compiler.interpret.test_cache import (
    HKV,
    G,
    _type,
    decode_inputs,
    kv,
    randn,
)
from tests.errors import raises

INDEXED = dataclasses.replace(G, rows="indexed")
T = 24


def test_indexed_attention_is_decode_attention_over_the_same_rows() -> None:
    x = decode_inputs(G)
    sr, topk = G.sink_recent, G.topk
    selected = torch.tensor([[[-1, -1, -1, -1]] * HKV, [[3, 9, -1, -1], [0, 23, -1, -1]], [[5, -1, -1, -1]] * HKV])
    prompts = {name: randn(3, HKV, T, x[name].shape[3], seed=7) for name in ("key", "value")}
    for name, source in prompts.items():
        for b in range(3):
            for h in range(HKV):
                for j, p in enumerate(selected[b, h].tolist()):
                    x[name][b, h, sr + j] = source[b, h, p] if p >= 0 else 0.0
    operands = [x[name] for name in ("query", "new_key", "new_value", "key", "value", "key", "value")]
    last = [x[name] for name in ("position", "prompt_len", "active")]
    out = _type(torch.zeros(3, 4, 1, 4))
    types = [out, *(_type(x[name]) for name in ("key", "value"))]
    want, k, v = kv("decode_attention", [*operands, *last], types, G, present="1" * 10 + "0000000")
    operands = [*operands[:3], *(cache[:, :, :sr].clone() for cache in operands[3:])]
    types = [out, *(_type(x[name][:, :, :sr]) for name in ("key", "value"))]
    operands = [*operands, *last, prompts["key"], prompts["value"], selected]
    result, k_new, v_new = kv("decode_attention", operands, types, INDEXED, present="1" * 10 + "0" + "111000")
    assert selected.shape[2] == topk
    assert torch.equal(result, want)
    assert result[:2].any()
    assert torch.equal(k_new, k[:, :, :sr])
    assert torch.equal(v_new, v[:, :, :sr])
    operands[12] = selected + T
    with raises(CacheUndefinedErrors.SCRATCH_OUT_OF_BOUNDS, row=47, rows=24):
        kv("decode_attention", operands, types, INDEXED, present="1" * 10 + "0" + "111000")
