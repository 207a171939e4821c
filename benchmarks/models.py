"""Models to measure: Llama and Qwen3-MoE shapes with seeded random weights, as Hugging Face folders and GGUF files.

    python benchmarks/models.py [--models NAME ..]

Speed depends on the shapes and not on the values of the weights, so no trained model is needed. All files of a model
have the same bf16 weights. They are created once, in `.peers/models/`, which git ignores.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if __package__ is None or __package__ == "":
    sys.path[0] = str(Path(__file__).parents[1])

from benchmarks.harness import Subject, Workload
from benchmarks.peers.registry import Precision
from sscc.runtime.timing import ExpertReads

if TYPE_CHECKING:
    import gguf
    import torch

FOLDER = Path(__file__).parents[1] / ".peers" / "models"
SEED = 20_261_101
DEVIATION = 0.02


@dataclass(frozen=True)
class LlamaShape:
    """Sizes of a Llama with separate embedding and head."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int = 32_000
    context: int = 32_768

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    def weights_per_step(self, batch: int) -> float:
        """Return the matrix elements that a decode step of `batch` tokens reads: all layers and the head. It reads only
        one row of the embedding per token."""
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * self.kv_heads * self.head_dim
        return self.layers * (attention + self._feed_forward(batch)) + self.hidden * self.vocab

    def _feed_forward(self, batch: int) -> float:
        """Return the elements of a layer's feed-forward matrices that a step reads."""
        return 3 * self.hidden * self.ffn

    @property
    def kv_per_row(self) -> int:
        """Elements of K and V per cached position, over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    def config(self) -> dict[str, object]:
        """Return the fields of config.json."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.ffn,
            "vocab_size": self.vocab,
            "max_position_embeddings": self.context,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10_000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "attention_bias": False,
            "mlp_bias": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "torch_dtype": "bfloat16",
        }


@dataclass(frozen=True)
class ExpertShape(LlamaShape):
    """Sizes of a Qwen3-MoE: each layer has `experts` feed-forward networks of width `ffn`, `chosen` of them per
    token."""

    experts: int = 0
    chosen: int = 0

    def _feed_forward(self, batch: int) -> float:
        """Return the elements of the router and of the mean number of distinct experts of `batch` random tokens."""
        read = ExpertReads(self.experts, self.chosen, batch, nbytes=0).mean
        return self.hidden * self.experts + read * super()._feed_forward(batch)

    def config(self) -> dict[str, object]:
        return super().config() | {
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "moe_intermediate_size": self.ffn,
            "num_experts": self.experts,
            "num_experts_per_tok": self.chosen,
            "norm_topk_prob": True,  # as llama.cpp always does
        }


MODELS = {
    "m125": LlamaShape(hidden=768, layers=12, heads=12, kv_heads=4, ffn=2048),
    "m125-long": LlamaShape(hidden=768, layers=12, heads=12, kv_heads=4, ffn=2048, context=131_072),
    "m1b": LlamaShape(hidden=2048, layers=16, heads=32, kv_heads=8, ffn=8192),
    "moe1b": ExpertShape(hidden=1024, layers=12, heads=16, kv_heads=4, ffn=384, experts=64, chosen=8),
}


class RandomModel(Subject):
    """A model of MODELS."""

    def __init__(self, name: str) -> None:
        self.name = name

    def prepare(self, llama: bool) -> Path:
        if llama:
            gguf_file(self.name)
        return checkpoint(self.name)

    def step_bytes(self, workload: Workload, precision: Precision, budget: int = 0) -> float:
        shape = MODELS[self.name]
        weights = shape.weights_per_step(workload.batch) * precision.weight_bits
        rows = workload.batch * workload.rows(budget)
        return (weights + rows * shape.kv_per_row * precision.kv_bits) / 8


def checkpoint(name: str, folder: Path = FOLDER) -> Path:
    """Return the Hugging Face folder of a model, created if missing: config, bf16 safetensors, a tokenizer of numbers.

    Raises KeyError for a name that is not in MODELS, and OSError if the files cannot be written.
    """
    return made(folder / name, lambda path: write_checkpoint(MODELS[name], path))


def gguf_file(name: str, folder: Path = FOLDER) -> Path:
    """Return a GGUF file with the same weights (BF16, norms F32), created if missing."""
    source = checkpoint(name, folder)
    return made(folder / f"{name}.gguf", lambda path: write_gguf(MODELS[name], source, path))


def made(path: Path, write: Callable[[Path], None]) -> Path:
    """Return a path, created if missing. The path exists only after `write` has finished."""
    if not path.exists():
        partial = path.with_name(path.name + ".partial")
        if partial.is_dir():
            shutil.rmtree(partial)
        path.parent.mkdir(parents=True, exist_ok=True)
        write(partial)
        partial.rename(path)
    return path


def tensors(shape: LlamaShape) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield names and bf16 tensors of the checkpoint: normally distributed with deviation 0.02, the norms' weights
    1."""
    import torch

    generator = torch.Generator().manual_seed(SEED)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=generator) * DEVIATION).bfloat16()

    one = torch.ones(shape.hidden, dtype=torch.bfloat16)
    kv = shape.kv_heads * shape.head_dim
    yield "model.embed_tokens.weight", matrix(shape.vocab, shape.hidden)
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", one.clone()
        yield prefix + "self_attn.q_proj.weight", matrix(shape.hidden, shape.hidden)
        yield prefix + "self_attn.k_proj.weight", matrix(kv, shape.hidden)
        yield prefix + "self_attn.v_proj.weight", matrix(kv, shape.hidden)
        yield prefix + "self_attn.o_proj.weight", matrix(shape.hidden, shape.hidden)
        yield prefix + "post_attention_layernorm.weight", one.clone()
        modules = ["mlp."]
        if isinstance(shape, ExpertShape):
            yield prefix + "self_attn.q_norm.weight", one[: shape.head_dim].clone()
            yield prefix + "self_attn.k_norm.weight", one[: shape.head_dim].clone()
            yield prefix + "mlp.gate.weight", matrix(shape.experts, shape.hidden)
            modules = [f"mlp.experts.{expert}." for expert in range(shape.experts)]
        for module in modules:
            yield prefix + module + "gate_proj.weight", matrix(shape.ffn, shape.hidden)
            yield prefix + module + "up_proj.weight", matrix(shape.ffn, shape.hidden)
            yield prefix + module + "down_proj.weight", matrix(shape.hidden, shape.ffn)
    yield "model.norm.weight", one.clone()
    yield "lm_head.weight", matrix(shape.vocab, shape.hidden)


def write_checkpoint(shape: LlamaShape, path: Path) -> None:
    """Write the Hugging Face folder of a shape."""
    from safetensors.torch import save_file
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    path.mkdir(parents=True)
    save_file(dict(tensors(shape)), path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(shape.config(), indent=2) + "\n")
    tokenizer = Tokenizer(WordLevel({str(token): token for token in range(shape.vocab)}, unk_token="0"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(path / "tokenizer.json"))
    words = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "1", "eos_token": "2", "unk_token": "0"}
    (path / "tokenizer_config.json").write_text(json.dumps(words, indent=2) + "\n")


def write_gguf(shape: LlamaShape, source: Path, path: Path) -> None:
    """Write the weights of a Hugging Face folder as a GGUF file for llama.cpp's architecture `llama` or `qwen3moe`,
    like llama.cpp's converter: norms and routers in F32, the matrices of a layer's experts stacked."""
    import gguf
    import torch
    from safetensors import safe_open

    experts = isinstance(shape, ExpertShape)
    architecture = gguf.MODEL_ARCH.QWEN3MOE if experts else gguf.MODEL_ARCH.LLAMA
    writer = gguf.GGUFWriter(str(path), gguf.MODEL_ARCH_NAMES[architecture])
    writer.add_name(source.name)
    add_sizes(writer, shape)
    writer.add_rope_dimension_count(shape.head_dim)
    if isinstance(shape, ExpertShape):
        writer.add_key_length(shape.head_dim)
        writer.add_value_length(shape.head_dim)
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(shape.chosen)
        writer.add_expert_feed_forward_length(shape.ffn)
    writer.add_rope_freq_base(10_000.0)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    add_number_tokens(writer, shape.vocab)
    names = gguf.get_tensor_name_map(architecture, shape.layers)
    with safe_open(source / "model.safetensors", framework="pt") as file:
        for name, parts in _stacked(file.keys()).items():
            target = names.get_name(name, try_suffixes=(".weight",))
            tensors = [file.get_tensor(part) for part in parts]
            tensor = torch.stack(tensors) if len(tensors) > 1 else tensors[0]
            if tensor.ndim == 1 or name.endswith("mlp.gate.weight"):
                writer.add_tensor(target, tensor.float().numpy())
                continue
            if not experts and name.endswith(("q_proj.weight", "k_proj.weight")):
                tensor = _interleaved(tensor, shape.head_dim)
            data = tensor.contiguous().view(torch.uint8).numpy()
            writer.add_tensor(target, data, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Sizes(Protocol):
    """Sizes of every architecture."""

    @property
    def hidden(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def ffn(self) -> int: ...
    @property
    def vocab(self) -> int: ...
    @property
    def context(self) -> int: ...


def add_sizes(writer: gguf.GGUFWriter, sizes: Sizes) -> None:
    """Add the sizes and the norms' epsilon to the metadata."""
    writer.add_context_length(sizes.context)
    writer.add_embedding_length(sizes.hidden)
    writer.add_block_count(sizes.layers)
    writer.add_feed_forward_length(sizes.ffn)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(sizes.vocab)


def add_number_tokens(writer: gguf.GGUFWriter, vocab: int) -> None:
    """Add a tokenizer of numbers, because llama.cpp's server does not start without a vocabulary."""
    import gguf

    writer.add_tokenizer_model("llama")
    writer.add_token_list([str(token) for token in range(vocab)])
    writer.add_token_scores([-float(token) for token in range(vocab)])
    writer.add_token_types([int(gguf.TokenType.NORMAL)] * vocab)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def _stacked(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the tensors that are stacked to one tensor of the GGUF file, in the order of experts, by their name
    without the number of the expert."""
    numbered: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        module, found, rest = name.partition(".experts.")
        number, _, matrix = rest.partition(".")
        numbered.setdefault(module + found + matrix, []).append((int(number or 0), name))
    return {name: [part for _, part in sorted(parts)] for name, parts in numbered.items()}


def _interleaved(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Return the rows of a weight in llama.cpp's order, in which rotary pairs are adjacent. In Hugging Face's order
    they are half a head apart."""
    return weight.reshape(-1, 2, head_dim // 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def main() -> None:
    parser = argparse.ArgumentParser(description="Create models to measure.")
    parser.add_argument("--models", nargs="+", default=["m125"], choices=MODELS, metavar="NAME", help=", ".join(MODELS))
    for name in parser.parse_args().models:
        print(checkpoint(name))
        print(gguf_file(name))


if __name__ == "__main__":
    main()
