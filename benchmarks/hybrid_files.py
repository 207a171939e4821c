"""GGUF files of models with recurrent states, with published shapes and random weights.

    python benchmarks/hybrid_files.py [--files NAME ..]

transformers creates a model from a config in benchmarks/configs, llama.cpp's converter writes it as a bf16 file, and
llama-quantize converts that to the measured file. Granite's model has a quarter of its layers. Files are created once,
in `.peers/models/`, which git ignores.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest import mock

if __package__ is None or __package__ == "":
    sys.path[0] = str(Path(__file__).parents[1])

from benchmarks.gguf_files import SEED, GgufFile, main
from benchmarks.harness import Workload
from benchmarks.models import FOLDER, add_number_tokens, made
from benchmarks.peers.llama import TOOLS
from benchmarks.peers.registry import Precision
from sscc.runtime.timing import ExpertReads

CONFIGS = Path(__file__).parent / "configs"
QUARTER: dict[str, Any] = {
    "num_hidden_layers": 10, "layer_types": ["mamba"] * 5 + ["attention"] + ["mamba"] * 4,
}  # fmt: skip


@dataclass
class Hybrid(GgufFile):
    """A GGUF file with random weights.

    Attributes:
        config: name of the config.
        dtype: target type of llama-quantize.
        state_bytes: bytes of a sequence's recurrent states in f32, which a decode step reads and writes.
        kv_bytes: bytes of K and V of a position in bf16, in all layers.
        changes: replaced fields of the config.
        experts: experts of a layer, and experts per token; (0, 0) without any.
    """

    config: str
    dtype: str
    state_bytes: int
    kv_bytes: int
    changes: Mapping[str, Any] = field(default_factory=dict)
    experts: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        self.name = f"{self.config}{'-10-layers' if self.changes else ''}-{self.dtype}"

    def prepare(self, llama: bool) -> Path:
        """See `Subject`."""
        plain = self.file.with_name(f"{self.name.removesuffix(self.dtype)}BF16.gguf")
        if self.dtype == "BF16":
            return made(plain, lambda path: write_plain(self.config, self.changes, path))
        if self.file.exists():
            return self.file
        existed = plain.exists()
        made(plain, lambda path: write_plain(self.config, self.changes, path))
        made(self.file, lambda path: _quantize(plain, path, self.dtype))
        if not existed:
            plain.unlink()
        return self.file

    def step_bytes(self, workload: Workload, precision: Precision, budget: int = 0) -> float:
        """See `Subject`."""
        weights, stacked = self._weights
        if stacked:
            count, chosen = self.experts
            stacked *= ExpertReads(count, chosen, workload.batch, nbytes=0).mean / count
        return weights + stacked + workload.batch * (2 * self.state_bytes + self.kv_bytes * workload.rows(budget))

    @cached_property
    def _weights(self) -> tuple[float, float]:
        """Bytes of the matrices that every step reads, and of the stacked experts."""
        import gguf

        sizes = {t.name: int(t.n_bytes) for t in gguf.GGUFReader(self.file).tensors if len(t.shape) > 1}
        if "output.weight" in sizes:
            sizes.pop("token_embd.weight")
        experts = sum(size for name, size in sizes.items() if "_exps" in name)
        return sum(sizes.values()) - experts, experts


def _four_bytes(layers: int, *sizes: int) -> int:
    count = 4 * layers
    for size in sizes:
        count *= size
    return count


def _files(dtype: str) -> dict[str, Hybrid]:
    return {
        "qwen3.5-0.8b": Hybrid("qwen3.5-0.8b", dtype, _four_bytes(18, 16, 128, 128), 6 * 2 * 2 * 256 * 2),
        "lfm2-1.2b": Hybrid("lfm2-1.2b", dtype, _four_bytes(10, 2, 2048), 6 * 2 * 8 * 64 * 2),
        "mamba2-370m": Hybrid("mamba2-370m", dtype, _four_bytes(48, 32, 64, 128), 0),
        "granite-4-h-tiny": Hybrid(
            "granite-4-h-tiny", dtype, _four_bytes(9, 48, 64, 128), 2 * 4 * 128 * 2, QUARTER, (64, 6)
        ),
    }


FILES: dict[str, Hybrid] = _files("Q4_K_M") | {
    f"{name}-BF16": file for name, file in _files("BF16").items() if name != "granite-4-h-tiny"
}


def write_plain(config: str, changes: Mapping[str, Any], path: Path) -> None:
    """Write the bf16 file of a config with random weights, using transformers and llama.cpp's converter."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    fields = json.loads((CONFIGS / f"{config}.json").read_text()) | changes
    torch.manual_seed(SEED)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        model = AutoModelForCausalLM.from_config(
            CONFIG_MAPPING[fields["model_type"]].from_dict(fields), dtype=torch.bfloat16
        )
        model.save_pretrained(folder, max_shard_size="100GB")
        del model
        # transformers renames the kinds of layers, but the converter needs the published names.
        published = {name: fields[name] for name in ("layer_types",) if name in fields}
        _convert(Path(folder), published, int(fields["vocab_size"]), path)


def _convert(folder: Path, published: Mapping[str, Any], vocab: int, path: Path) -> None:
    (source,) = TOOLS.parents[1].glob("source/*/vendor/llama.cpp")
    sys.path[:0] = [str(source), str(source / "gguf-py")]
    import gguf
    import torch
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class  # type: ignore

    fields = ModelBase.load_hparams(folder, False) | published
    cls = get_model_class(get_model_architecture(fields, ModelType.TEXT))

    def number_tokens(self: Any) -> None:
        add_number_tokens(self.gguf_writer, vocab)

    with (
        mock.patch.object(cls, "set_vocab", number_tokens),
        mock.patch.object(ModelBase, "no_mtp", True),  # transformers does not save multi-token prediction layers
        torch.inference_mode(),
    ):
        cls(folder, gguf.LlamaFileType.MOSTLY_BF16, path, model_name=path.name, hparams=fields).write()


def _quantize(source: Path, path: Path, dtype: str) -> None:
    command = [TOOLS / "llama-quantize", source, path, dtype]
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main("Create GGUF files of hybrid models to measure.", FILES)
