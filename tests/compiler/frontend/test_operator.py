"""The attention operator, and what its registration with transformers accepts and refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    PhimoeConfig,
    PreTrainedConfig,
)

from sscc.compiler.frontend import operator
from sscc.compiler.frontend.algorithm import Softmax, causal_attention
from sscc.compiler.frontend.operator import AttentionErrors
from sscc.ir.errors import ErrorKind
from sscc.ir.geometry import Span
from tests.errors import raises

SHAPE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": None,
    "eos_token_id": None,
}


def run(config: PreTrainedConfig, **inputs: Any) -> Tensor:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=operator.IMPLEMENTATION).eval()
    with torch.no_grad():
        logits: Tensor = model(input_ids=torch.arange(9)[None], **{"use_cache": False, **inputs}).logits
    return logits


def test_operator_is_well_formed() -> None:
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 6)
    torch.library.opcheck(operator.attention, (q, k, v, 0, 0.5), test_utils=("test_schema", "test_faketensor"))
    assert torch.ops.sscc.attention(q, k, v, 0, 0.5).shape == (2, 4, 5, 6)


def test_operator_equals_torch() -> None:
    q, k, v = torch.randn(2, 8, 7, 16), torch.randn(2, 2, 7, 16), torch.randn(2, 2, 7, 16)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(operator.attention(q, k, v, 0, 0.3), expected)


def test_observer_replaces_the_operator_inside_its_block() -> None:
    q = torch.randn(1, 2, 3, 4)
    seen: list[tuple[int, float, Span]] = []

    def observer(q: Tensor, k: Tensor, v: Tensor, layer: int, scale: float, window: Span, softmax: Softmax) -> Tensor:
        seen.append((layer, scale, window))
        return torch.zeros_like(q)

    with operator.observing(observer):
        assert not operator.attention(q, q, q, 5, 0.5).any()
        assert not operator.attention(q, q, q, 6, 0.5, 2).any()
    assert seen == [(5, 0.5, Span()), (6, 0.5, Span(2))]
    assert torch.equal(operator.attention(q, q, q, 5, 0.5)[0], causal_attention(q[0], q[0], q[0], 0.5))


def test_a_model_of_its_own_cache_is_refused() -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(LlamaConfig(**SHAPE), attn_implementation="sscc").eval()
    cache = model(input_ids=torch.arange(9)[None], use_cache=True).past_key_values
    with raises(AttentionErrors.OTHER_KEYS, layer=0, queries=1, keys=10):
        model(input_ids=torch.ones(1, 1, dtype=torch.long), past_key_values=cache, use_cache=True)


def test_the_operator_within_a_window_equals_torch() -> None:
    q, k, v = torch.randn(2, 8, 7, 16), torch.randn(2, 2, 7, 16), torch.randn(2, 2, 7, 16)
    back = torch.arange(7)[:, None] - torch.arange(7)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=(back >= 0) & (back < 3), scale=0.3, enable_gqa=True
    )
    torch.testing.assert_close(operator.attention(q, k, v, 0, 0.3, 3), expected)


def test_the_operator_within_chunks_equals_torch() -> None:
    q, k, v = torch.randn(2, 8, 7, 16), torch.randn(2, 2, 7, 16), torch.randn(2, 2, 7, 16)
    query, key = torch.arange(7)[:, None], torch.arange(7)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=(key <= query) & (key // 3 == query // 3), scale=0.3, enable_gqa=True
    )
    torch.testing.assert_close(operator.attention(q, k, v, 0, 0.3, 3, stride=3), expected)


def test_a_window_reaches_the_operator_unless_it_covers_the_context() -> None:
    config = MistralConfig(**SHAPE, sliding_window=4)
    windows: list[Span] = []

    def observer(q: Tensor, k: Tensor, v: Tensor, layer: int, scale: float, window: Span, softmax: Softmax) -> Tensor:
        windows.append(window)
        return torch.zeros_like(q)

    with operator.observing(observer):
        run(config)  # whatever the context may be
        for context in (3, 4, 5):
            with operator.context_limit(context):
                run(config)
    assert [window.size for window in windows] == [4, 4, 0, 0, 0, 0, 4, 4]


@pytest.mark.parametrize("config_class", [MistralConfig, PhimoeConfig], ids=["told by both", "told by the mask"])
def test_the_model_within_a_window_is_transformers_own(config_class: type[PreTrainedConfig]) -> None:
    config = config_class(**SHAPE, sliding_window=4)
    windowed, whole = run(config), run(config_class(**SHAPE, sliding_window=None))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        torch.testing.assert_close(windowed, model(input_ids=torch.arange(9)[None], use_cache=False).logits)
    torch.testing.assert_close(windowed[:, :4], whole[:, :4])  # another mask may be added up in another order
    assert not torch.allclose(windowed[:, 4:], whole[:, 4:])
    with operator.context_limit(4):
        assert torch.equal(run(config), whole)


@pytest.mark.parametrize("window", [0, -1, True, 4.0, "4", (4, 4)])
def test_a_window_that_is_none_is_refused(window: Any) -> None:
    q = torch.randn(1, 2, 3, 4)
    with raises(AttentionErrors.BAD_WINDOW, layer=3, keyword="sliding_window"):
        operator.attention_function(AttentionModule(), q, q, q, None, sliding_window=window)


@pytest.mark.parametrize(
    "config",
    [
        Gemma2Config(**SHAPE, head_dim=8, attn_logit_softcapping=0.02, initializer_range=0.3),
        GptOssConfig(**SHAPE, head_dim=8, num_local_experts=4, initializer_range=1.0),
    ],
    ids=["softcap", "sinks"],
)
def test_caps_and_learned_sinks_are_the_models_own(config: PreTrainedConfig) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad(), operator.context_limit(16):
        torch.testing.assert_close(run(config), model(input_ids=torch.arange(9)[None], use_cache=False).logits)


class AttentionModule(torch.nn.Module):
    """The least an attention module must be."""

    layer_idx = 3
    is_causal = True


@pytest.mark.parametrize(
    ("keywords", "kind", "fields"),
    [
        ({"is_causal": False}, AttentionErrors.KEYWORD, {"keyword": "is_causal", "value": "False"}),
        (
            {"position_bias": torch.zeros(1)},
            AttentionErrors.KEYWORD,
            {"keyword": "position_bias", "value": "a Tensor"},
        ),
        (
            {"cu_seq_lens_q": torch.zeros(1)},
            AttentionErrors.KEYWORD,
            {"keyword": "cu_seq_lens_q", "value": "a Tensor"},
        ),
        ({"softcap": -30.0}, AttentionErrors.BAD_SOFTCAP, {"softcap": -30.0}),
        ({"softcap": torch.ones(1)}, AttentionErrors.BAD_SOFTCAP, {"softcap": "tensor([1.])"}),
        ({"s_aux": torch.zeros(3)}, AttentionErrors.BAD_SINKS, {"sinks": "[3]", "heads": 2}),
        ({"never_heard_of": 1}, AttentionErrors.KEYWORD, {"keyword": "never_heard_of", "value": "1"}),
        ({"attention_mask": torch.zeros(1)}, AttentionErrors.MASK, {}),
        (
            {"attention_mask": operator.WindowMask(4), "sliding_window": 5},
            AttentionErrors.WINDOW_AND_MASK,
            {"window": 5, "mask": 4},
        ),
        ({"dropout": 0.1}, AttentionErrors.DROPOUT, {"dropout": 0.1}),
    ],
)
def test_keywords_that_change_the_result_are_refused(
    keywords: dict[str, Any], kind: ErrorKind, fields: dict[str, Any]
) -> None:
    q = torch.randn(1, 2, 3, 4)
    with raises(kind, layer=3, **fields):
        operator.attention_function(AttentionModule(), q, q, q, **{"attention_mask": None, **keywords})


def test_harmless_keywords_pass_and_the_scale_defaults() -> None:
    q = torch.randn(1, 2, 3, 4)
    keywords: dict[str, Any] = {
        "position_ids": torch.zeros(1),
        "use_cache": False,
        "is_causal": True,
        "softcap": None,
        "s_aux": None,
    }
    out, weights = operator.attention_function(AttentionModule(), q, q, q, None, **keywords)
    assert weights is None
    assert out.shape == (1, 3, 2, 4)
    assert out.is_contiguous()
    assert torch.equal(out.transpose(1, 2)[0], causal_attention(q[0], q[0], q[0], 0.5))


def test_modules_that_are_no_decoder_layers_are_refused() -> None:
    q = torch.randn(1, 2, 3, 4)
    with raises(AttentionErrors.NO_LAYER, type="Linear"):
        operator.attention_function(torch.nn.Linear(1, 1), q, q, q, None)
    encoder = AttentionModule()
    encoder.is_causal = False
    with raises(AttentionErrors.KEYWORD, layer=3, keyword="is_causal", value="False"):
        operator.attention_function(encoder, q, q, q, None)
