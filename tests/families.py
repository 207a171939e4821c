"""Tiny random decoders, one per feature of a family of models, and the options that compile and run them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    CohereCompassTextConfig,
    DeepseekV3Config,
    Gemma2Config,
    Gemma3nTextConfig,
    Gemma3TextConfig,
    Gemma4TextConfig,
    Glm4MoeConfig,
    GPT2Config,
    GPTNeoXConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    Phi3Config,
    PhimoeConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    SmolLM3Config,
    Starcoder2Config,
)

from sscc.compiler.driver.driver import compile_model
from sscc.compiler.driver.dumps import read_dump
from sscc.compiler.options.compile_options import CompileOptions, cache_options
from sscc.ir.context import mlir, print_module
from sscc.ir.geometry import Geometry
from sscc.ir.kv_rows import decode
from sscc.ir.levels import get_facts, set_facts, set_target
from sscc.ir.target import load_target
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.session.session import Session
from tests import tiny_configs
from tests.native import native_session
from tests.oracles.independent import IndependentSnapStream
from tests.targets import described
from tests.tiny_configs import CONTEXT, SIZES, VOCABULARY
from tests.torch_session import TorchSession

SHAPE: dict[str, Any] = {
    **{name: SIZES[name] for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")},
    **{name: SIZES[name] for name in ("num_attention_heads", "max_position_embeddings")},
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 48}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0, 1.1, 1.3, 1.6],
    "long_factor": [4.0, 5.0, 6.0, 7.0],
    "original_max_position_embeddings": CONTEXT,
}
# GQA ratios: 1 (tied, gpt-neox, gpt2), 2, 4 (llama, qwen3) and 8 (wide heads, whose width is not hidden / heads).
FAMILIES: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SHAPE, num_key_value_heads=1),
    "llama-tied-biased": LlamaConfig(
        **SHAPE, num_key_value_heads=4, tie_word_embeddings=True, attention_bias=True, mlp_bias=True
    ),
    "llama-wide-heads": LlamaConfig(**(SHAPE | {"num_attention_heads": 8}), num_key_value_heads=1, head_dim=6),
    "llama3-rope": LlamaConfig(**SHAPE, num_key_value_heads=2, tie_word_embeddings=True, rope_parameters=LLAMA3_ROPE),
    "yarn-rope": LlamaConfig(**SHAPE, num_key_value_heads=2, rope_parameters=YARN_ROPE),
    "linear-rope": LlamaConfig(
        **SHAPE, num_key_value_heads=2, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    ),
    "mistral": MistralConfig(**SHAPE, num_key_value_heads=2, sliding_window=None),
    "mistral-inert-window": MistralConfig(**SHAPE, num_key_value_heads=2, sliding_window=CONTEXT),
    "qwen2": Qwen2Config(**SHAPE, num_key_value_heads=2),
    "qwen3": Qwen3Config(**SHAPE, num_key_value_heads=1, head_dim=10, tie_word_embeddings=True),
    "phi3": Phi3Config(**SHAPE, num_key_value_heads=2),
    "phi3-longrope": Phi3Config(
        **(SHAPE | {"max_position_embeddings": 2 * CONTEXT}),
        num_key_value_heads=2,
        rope_parameters=LONGROPE,
        original_max_position_embeddings=CONTEXT,
    ),
    "olmo2": Olmo2Config(**SHAPE, num_key_value_heads=2),
    "gpt-neox": GPTNeoXConfig(**SHAPE, rotary_pct=0.5),
    "gpt-neox-sequential": GPTNeoXConfig(**SHAPE, rotary_pct=1.0, use_parallel_residual=False),
    "gpt2": GPT2Config(**SHAPE),
    "starcoder2": Starcoder2Config(**SHAPE, num_key_value_heads=2, sliding_window=None),
}

# Layers of two kinds, with and without rotary embedding, or with two of them: what kernel looping meets besides one run
# of equal layers.
TWO_KINDS: dict[str, PreTrainedConfig] = {
    "two-then-four": SmolLM3Config(
        **(SHAPE | {"num_hidden_layers": 6}), num_key_value_heads=2, no_rope_layers=[1] * 2 + [0] * 4
    ),
    "taking-turns": SmolLM3Config(
        **(SHAPE | {"num_hidden_layers": 6}), num_key_value_heads=2, no_rope_layers=[1, 0] * 3
    ),
    "two-rotary-tables": CohereCompassTextConfig(
        **SHAPE,
        num_key_value_heads=2,
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=CONTEXT,
        rope_parameters={
            kind: {"rope_type": "default", "rope_theta": theta, "mrope_section": [2, 1, 1]}
            for kind, theta in (("sliding_attention", 1e4), ("full_attention", 1e5))
        },
    ),
}

# All layers or some have a sliding window: one shorter than a chunk, and one that spans parts of three chunks.
WINDOWED: dict[str, PreTrainedConfig] = {
    "windows-alone": MistralConfig(**SHAPE, num_key_value_heads=2, sliding_window=5),
    "windows-among-others": Gemma3TextConfig(
        **(SHAPE | {"num_hidden_layers": 3}),
        num_key_value_heads=2,
        head_dim=8,
        sliding_window_pattern=2,
        sliding_window=10,
    ),
}

# Layers that choose among experts: by softmax, renormalised or not, with a shared expert that has a gate; by sigmoid
# with a bias and in groups, scaled, behind a dense layer; by masked softmax, one expert after the other.
_CHOOSING: dict[str, Any] = {"num_key_value_heads": 2, "num_experts_per_tok": 2}
EXPERTS: dict[str, PreTrainedConfig] = {
    "experts-softmax": MixtralConfig(**SHAPE, **_CHOOSING, num_local_experts=5),
    "experts-shared": Qwen2MoeConfig(
        **(SHAPE | {"num_hidden_layers": 1}),
        **_CHOOSING,
        num_experts=6,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    ),
    "experts-in-groups": Glm4MoeConfig(
        **(SHAPE | {"num_hidden_layers": 3}),
        **_CHOOSING,
        head_dim=8,
        n_routed_experts=8,
        moe_intermediate_size=16,
        n_group=4,
        topk_group=2,
        first_k_dense_replace=1,
        routed_scaling_factor=1.5,
    ),
    "experts-one-by-one": PhimoeConfig(**(SHAPE | {"num_hidden_layers": 1}), **_CHOOSING, num_local_experts=4),
}

# Multi-head latent attention, whose values have another width than its keys: with a low-rank query, interleaved rotary
# pairs and experts; with a whole query and dense layers.
LATENT: dict[str, PreTrainedConfig] = {
    "latent-among-experts": DeepseekV3Config(
        **(SHAPE | {"num_hidden_layers": 3}),
        num_key_value_heads=4,
        q_lora_rank=12,
        kv_lora_rank=16,
        qk_nope_head_dim=8,
        qk_rope_head_dim=4,
        v_head_dim=6,
        n_routed_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        n_shared_experts=1,
        n_group=4,
        topk_group=2,
        first_k_dense_replace=1,
        routed_scaling_factor=1.5,
    ),
    "latent-whole-query": DeepseekV3Config(
        **SHAPE,
        num_key_value_heads=4,
        q_lora_rank=None,
        kv_lora_rank=16,
        qk_nope_head_dim=8,
        qk_rope_head_dim=4,
        v_head_dim=10,
        first_k_dense_replace=2,
        rope_interleave=False,
        rope_parameters=YARN_ROPE | {"mscale_all_dim": 0.7},
    ),
}

# Other weights of products: scores that are capped, and heads with learned sinks. The windows cover every context.
SCORED: dict[str, PreTrainedConfig] = {
    "capped-scores": Gemma2Config(
        **SHAPE,
        num_key_value_heads=2,
        head_dim=8,
        query_pre_attn_scalar=8,
        sliding_window=CONTEXT,
        attn_logit_softcapping=3.0,
        tie_word_embeddings=False,
    ),
    "learned-sinks": GptOssConfig(
        **(SHAPE | {"num_hidden_layers": 1}), **_CHOOSING, head_dim=8, sliding_window=CONTEXT, num_local_experts=3
    ),
}

# Layers that attend to the K and V of earlier ones, and layers with inputs of their own: windows and full attention in
# turns, of which the last ones share; full attention alone, with a prompt that selects; several hidden states.
SHARING: dict[str, PreTrainedConfig] = {
    "shared-in-turns": Gemma4TextConfig(
        **(SHAPE | {"num_hidden_layers": 6}),
        num_key_value_heads=2,
        head_dim=8,
        global_head_dim=8,
        hidden_size_per_layer_input=6,
        vocab_size_per_layer_input=VOCABULARY,
        layer_types=["sliding_attention", "full_attention"] * 3,
        sliding_window=10,
        num_kv_shared_layers=4,
    ),
    "shared-alone": Gemma4TextConfig(
        **(SHAPE | {"num_hidden_layers": 4}),
        num_key_value_heads=2,
        head_dim=8,
        global_head_dim=8,
        hidden_size_per_layer_input=6,
        vocab_size_per_layer_input=VOCABULARY,
        layer_types=["full_attention"] * 4,
        num_kv_shared_layers=2,
    ),
    "several-hidden-states": Gemma3nTextConfig(
        **(SHAPE | {"num_hidden_layers": 4, "intermediate_size": [48] * 4}),
        num_key_value_heads=2,
        head_dim=8,
        laurel_rank=4,
        hidden_size_per_layer_input=6,
        vocab_size_per_layer_input=VOCABULARY,
        activation_sparsity_pattern=[0.9, 0.0, 0.0, 0.0],
        layer_types=["sliding_attention", "full_attention"] * 2,
        sliding_window=10,
        num_kv_shared_layers=2,
    ),
}

# SR = 76 rows hold a prompt of 12 and 64 new tokens; a prompt of 130 overflows all 88.
GEOMETRY = Geometry(sink=4, recent=72, topk=12, obs=6, pool=3, pool_mode="avg", max_context=CONTEXT)
# A chunk divides neither prompts nor context. Where any shape will do it is this one, so that tests share exports.
BATCH, CHUNK = 3, 7


@cache
def random_model(family: str, dtype: torch.dtype = torch.float32, exact: bool = False) -> PreTrainedModel:
    """The untouched transformers model with its own eager attention; no parameter is left at its neutral value.

    With `exact` its weights are rounded to `dtype`, but it computes in f32.
    """
    model = tiny_configs.random_model((FAMILIES | TWO_KINDS | WINDOWED | EXPERTS | LATENT | SCORED | SHARING)[family])
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype).to(torch.float32 if exact else dtype)
    return model


def random_tokens(count: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(1000 * count + seed)
    tokens: list[int] = torch.randint(0, VOCABULARY, (count,), generator=generator).tolist()
    return tokens


@dataclass(frozen=True)
class CompiledModel:
    """A compiled program, and the model it was compiled from."""

    model: PreTrainedModel
    artifact: Artifact

    @property
    def geometry(self) -> Geometry:
        return self.artifact.signature.geometry

    def session(self, *, checked: bool = False, precision: str = "f32") -> TorchSession:
        return TorchSession(
            Session.from_artifact(self.artifact, interpreter="reference", checked=checked, precision=precision)
        )

    def native(self) -> TorchSession:
        return native_session(self.artifact)

    def oracle(self) -> IndependentSnapStream:
        g = self.geometry
        return IndependentSnapStream(
            self.model, sink=g.sink, recent=g.recent, topk=g.topk, obs=g.obs, pool=g.pool, pool_mode=g.pool_mode
        )


Compile = Callable[..., CompiledModel]


class Compiler:
    """Compiles families, each with each set of options once.

    Captures take most of the time, so one serves all geometries and machines; and all `-O` levels begin with the same
    graph. Processes that test side by side share the files: each is written under a name of its
    own, and then takes the name of what it holds.

    Args:
        folder: where checkpoints, dumps and artifacts go.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._done: dict[tuple[object, ...], CompiledModel] = {}

    def __call__(
        self,
        family: str,
        geometry: Geometry = GEOMETRY,
        *,
        batch: int = BATCH,
        chunk: int = CHUNK,
        dtype: str = "f32",
        opt_level: int = 2,
        target: str = "rdu",
    ) -> CompiledModel:
        key = (family, geometry, batch, chunk, dtype, opt_level, target)
        if key not in self._done:
            self._done[key] = self._compile(*key)
        return self._done[key]

    def target(self, figures: Mapping[str, float]) -> str:
        """A target like "rdu", with other figures."""
        data = described(figures)
        data["name"] = "-".join(f"{name}-{value:g}" for name, value in figures.items())
        file = self._once(f"{data['name']}.json", lambda file: file.write_text(json.dumps(data)))
        return f"rdu:{file}"

    def checkpoint(self, family: str, dtype: str = "f32") -> Path:
        """A Hugging Face folder with the family's random weights."""
        return self._once(f"{family}.{dtype}", random_model(family, _dtype(dtype)).save_pretrained)

    def _compile(
        self, family: str, g: Geometry, batch: int, chunk: int, dtype: str, opt_level: int, target: str
    ) -> CompiledModel:
        checkpoint = self.checkpoint(family, dtype)

        def write(output: Path) -> None:
            graph = self._graph(checkpoint, g, batch, chunk, dtype, target)
            options = CompileOptions(graph, output, compile_from="graph", checkpoint=checkpoint, opt_level=opt_level)
            compile_model(options)

        name = _file_name(family, g, batch, chunk, dtype, opt_level, target)
        return CompiledModel(random_model(family, _dtype(dtype)), Artifact.load(self._once(f"{name}.rdu", write)))

    def _graph(self, checkpoint: Path, g: Geometry, batch: int, chunk: int, dtype: str, target: str) -> Path:
        """The dump of level graph, whatever the `-O` level: made once."""

        def write(file: Path) -> None:
            start = file.with_suffix(".import.mlir")
            adapted(self._import(checkpoint, g, batch, chunk, dtype), start, g, target)
            compile_model(CompileOptions(start, file, compile_from="import", compile_to="graph"))

        return self._once(f"{_file_name(checkpoint.name, g, batch, chunk, dtype, target)}.graph.mlir", write)

    def _import(self, checkpoint: Path, g: Geometry, batch: int, chunk: int, dtype: str) -> Path:
        """The dump that a capture gives: made once for all geometries with the same spare rows. No window lies between
        their contexts, so that none is inert in one of them alone."""
        context = max(g.max_context, CONTEXT)

        def write(file: Path) -> None:
            captured = replace(g, max_context=context)
            shape = cache_options(captured) | {"batch": batch, "prefill_chunk": chunk, "dtype": dtype}
            compile_model(CompileOptions(checkpoint, file, compile_to="import", **shape))

        return self._once(f"{_file_name(checkpoint.name, context, g.spare, batch, chunk, dtype)}.captured.mlir", write)

    def _once(self, name: str, write: Callable[[Path], object]) -> Path:
        """Return the file or folder of a name, which `write` writes if no process of this run did."""
        path = self._folder / name
        if not path.exists():
            own = self._folder / f"{os.getpid()}.{name}"
            write(own)
            try:
                own.replace(path)
            except OSError:  # another process has written the same folder
                if not path.is_dir():
                    raise
        return path


def _file_name(*key: object) -> str:
    return f"{key[0]}.{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}"


def adapted(captured: Path, file: Path, geometry: Geometry, target: str = "rdu") -> None:
    """Rewrite a dump of level import for another geometry and machine, which do not affect captured operations."""
    with mlir():
        module = read_dump(captured)
        set_facts(module, get_facts(module)[0], geometry)
        set_target(module, load_target(target))
        file.write_text(print_module(module))


def _dtype(name: str) -> torch.dtype:
    return {"f32": torch.float32, "bf16": torch.bfloat16}[name]


# ------------------------------------------------------------------------------------------------------- running


def feed(session: TorchSession, prompt: Sequence[int], tokens: Sequence[int], slot: int = 0) -> Tensor:
    """Return the logits [1 + len(tokens), V] after the prompt and after each of `tokens`, which are fed without
    sampling."""
    rows = [session.prefill(slot, prompt)]
    rows += [session.decode({slot: token})[slot].clone() for token in tokens]
    return torch.stack(rows)


def greedy(session: TorchSession, prompt: Sequence[int], count: int, slot: int = 0) -> tuple[list[int], Tensor]:
    """`count` tokens chosen greedily, and the logits [count, V] that they were chosen by."""
    rows = [session.prefill(slot, prompt)]
    tokens = [int(rows[-1].argmax())]
    while len(tokens) < count:
        rows.append(session.decode({slot: tokens[-1]})[slot].clone())
        tokens.append(int(rows[-1].argmax()))
    return tokens, torch.stack(rows)


def replay(session: TorchSession, prompt: Sequence[int], slot: int = 0) -> Tensor:
    """Logits [V] of the last prompt token fed once more, at its own position, over the cache that prefill left."""
    batch = session.signature.batch
    only = torch.arange(batch) == slot
    inputs = {
        "token": torch.where(only, prompt[-1], 0)[:, None],
        "position_id": torch.where(only, len(prompt) - 1, 0)[:, None],
        "position": torch.where(only, len(prompt) - 1, 0),
        "base": torch.where(only, session.signature.geometry.base(len(prompt)), 0),
        "active": only,
    }
    outputs, _ = session.interpreter.run("decode", inputs)
    return outputs["logits"][slot]


def caches(session: TorchSession, slot: int = 0) -> Tensor:
    """Return a copy of a slot's K and V, [2, L, Hkv, R, D]; encoded rows are dequantized."""
    return torch.stack([numbers(session.interpreter.tensor(name)[:, slot]) for name in ("k_cache", "v_cache")])


def numbers(state: Tensor) -> Tensor:
    """Return a state; encoded rows are dequantized."""
    return torch.from_numpy(decode(state.numpy())) if state.dtype is torch.int8 else state


def selected(session: TorchSession) -> list[Tensor]:
    """Per layer [Hkv, topk] i64: what the last prefill selected."""
    return list(session.interpreter.tensor("selected").clone())
