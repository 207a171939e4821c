"""Makes `kvpress_goldens.safetensors` and `.json`: what kvpress's SnapKV scores and keeps on tiny random Llamas.

    python tests/oracles/kvpress_goldens.py [VENV]

Run by hand, with Python 3.11, when kvpress or a case changes; `test_kvpress.py` reads the files and needs no kvpress.
kvpress wants another transformers than sscc, so the script makes an environment of its own (in VENV, else in a folder
that is deleted) and runs itself again inside it. It stops before pip downloads a torch with CUDA: set
PIP_EXTRA_INDEX_URL to PyTorch's CPU wheels (https://download.pytorch.org/whl/cpu) where that happens.

A case is one prefill of one model with one published `SnapKVPress`, untouched. Its files hold, per case and layer,

    {case}.queries [L, H, window, D]    the last queries as the model's attention got them, after RoPE
    {case}.keys    [L, Hkv, n, D]       the keys, after RoPE
    {case}.scores  [L, Hkv, n - window] `SnapKVPress.score` without the window, whose scores mean nothing
    {case}.kept    [L, Hkv, topk] i32   ascending positions that `SnapKVPress.compress` kept, without the window

all f32 unless said otherwise, and for the cases with `"model": true` the ids and the weights as well, under
`{case}.ids` [n] i32 and `{case}.weight.{name}`.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
PACKAGES = ("torch==2.13.0", "kvpress==0.5.5", "transformers==5.2.0", "numpy==2.4.6")
INSIDE = "SSCC_KVPRESS_INSIDE"
VOCABULARY = 64


@dataclass(frozen=True)
class PrefillCase:
    """One prefill: sizes of the model and of the press; `topk` counts positions outside the window."""

    seed: int
    length: int
    window: int
    kernel: int
    topk: int
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    layers: int = 1
    model: bool = False

    @property
    def name(self) -> str:
        group = self.heads // self.kv_heads
        return f"n{self.length}-w{self.window}-k{self.kernel}-g{group}-t{self.topk}"


CASES = (
    PrefillCase(1, 30, 4, 3, 8, kv_heads=4),
    PrefillCase(2, 30, 8, 5, 21),
    PrefillCase(3, 31, 16, 7, 5, kv_heads=1),
    PrefillCase(4, 47, 16, 3, 12),
    PrefillCase(5, 64, 4, 7, 20, kv_heads=1),
    PrefillCase(6, 65, 8, 7, 1),
    PrefillCase(7, 96, 16, 5, 40, kv_heads=4, head_dim=8),
    PrefillCase(8, 100, 4, 5, 32, head_dim=24),
    PrefillCase(9, 128, 8, 3, 64, kv_heads=1),
    PrefillCase(10, 150, 16, 7, 48, heads=8),
    PrefillCase(11, 200, 8, 7, 56, kv_heads=1, head_dim=32),
    PrefillCase(12, 200, 16, 5, 100),
    PrefillCase(13, 90, 8, 7, 24, layers=2, model=True),
    PrefillCase(14, 70, 16, 5, 20, kv_heads=1, layers=2, model=True),
)


# ------------------------------------------------------------------------------------ an environment of its own


def outside(venv: Path) -> None:
    """Makes the environment in `venv`, or takes the one that is there, and runs this file inside."""
    python = venv / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    install = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    report = subprocess.run(
        [*install, "--dry-run", "--report", "-", *PACKAGES], check=True, stdout=subprocess.PIPE, text=True
    )
    packages = [item["metadata"]["name"] for item in json.loads(report.stdout)["install"]]
    if any(name.startswith("nvidia") for name in packages):
        sys.exit("pip would fetch CUDA packages: set PIP_EXTRA_INDEX_URL, see the head of this file")
    if packages:
        subprocess.run([*install, *PACKAGES], check=True)
    subprocess.run([str(python), __file__], check=True, env={**os.environ, INSIDE: "1"})


# ------------------------------------------------------------------------------------------- inside, with kvpress


def inside() -> None:
    """Runs every case and writes the two files beside this one."""
    import kvpress
    import safetensors
    import torch
    import transformers
    from safetensors.torch import save_file

    torch.set_num_threads(1)
    tensors: dict[str, Any] = {}
    for case in CASES:
        tensors.update({f"{case.name}.{name}": value for name, value in run(case).items()})
    save_file(tensors, str(FOLDER / "kvpress_goldens.safetensors"))
    versions = {"python": platform.python_version(), "kvpress": package_version("kvpress")}
    versions |= {module.__name__: module.__version__ for module in (torch, transformers, safetensors)}
    assert kvpress.SnapKVPress.__module__ == "kvpress.presses.snapkv_press"
    index = {"versions": versions, "cases": {case.name: describe(case) for case in CASES}}
    (FOLDER / "kvpress_goldens.json").write_text(json.dumps(index, indent=1) + "\n")


def package_version(name: str) -> str:
    from importlib.metadata import version

    return version(name)


def describe(case: PrefillCase) -> dict[str, Any]:
    return {**asdict(case), "config": config(case)} if case.model else asdict(case)


def config(case: PrefillCase) -> dict[str, Any]:
    """A Llama whose random weights are large enough for attention to be far from uniform."""
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": case.layers,
        "num_attention_heads": case.heads,
        "num_key_value_heads": case.kv_heads,
        "head_dim": case.head_dim,
        "max_position_embeddings": 256,
        "initializer_range": 0.3,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def run(case: PrefillCase) -> dict[str, Any]:
    """The tensors of one case, by their names without the case."""
    import torch
    from kvpress import SnapKVPress
    from transformers import AttentionInterface, DynamicCache, LlamaConfig, LlamaForCausalLM
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    scored: list[torch.Tensor] = []

    def recording_attention(module: Any, query: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append((query[0, :, -case.window :].clone(), key[0].clone()))
        return sdpa_attention_forward(module, query, key, *args, **kwargs)

    class ScoreRecorder(SnapKVPress):
        """Keeps what the published `score` returns."""

        def score(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            result: torch.Tensor = super().score(*args, **kwargs)
            scored.append(result[0, :, : -case.window].clone())
            return result

    AttentionInterface.register("recording", recording_attention)
    torch.manual_seed(case.seed)
    model = LlamaForCausalLM(LlamaConfig(**config(case), attn_implementation="recording")).eval()
    ids = torch.randint(0, VOCABULARY, (case.length,))
    # `compress` keeps int(n * (1 - ratio)) positions, including the window.
    ratio = 1 - (case.topk + case.window + 0.5) / case.length
    press = ScoreRecorder(compression_ratio=ratio, window_size=case.window, kernel_size=case.kernel)
    cache = DynamicCache()
    with torch.no_grad(), press(model):
        model(ids[None], past_key_values=cache)
    kept = [positions(layer.keys[0], keys) for layer, (_, keys) in zip(cache.layers, seen, strict=True)]
    result = {
        "queries": torch.stack([queries for queries, _ in seen]),
        "keys": torch.stack([keys for _, keys in seen]),
        "scores": torch.stack(scored),
        "kept": torch.stack(kept)[..., : case.topk].int().contiguous(),
    }
    assert result["kept"].shape[-1] == case.topk
    assert all(torch.equal(rows[0, -case.window :], torch.arange(case.length)[-case.window :]) for rows in kept)
    if case.model:
        result["ids"] = ids.int()
        state = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}  # tied
        result |= {f"weight.{name}": value.clone() for name, value in state.items()}
    return result


def positions(compressed: Any, keys: Any) -> Any:
    """Return the positions in `keys` [Hkv, n, D] of the rows of `compressed` [Hkv, m, D]: [Hkv, m], ascending."""
    import torch

    same = (compressed[:, :, None] == keys[:, None]).all(-1)
    assert bool((same.sum(-1) == 1).all()), "two keys are equal: their positions cannot be told apart"
    return torch.sort(same.int().argmax(-1), dim=1).values


if __name__ == "__main__":
    if INSIDE in os.environ:
        inside()
    elif len(sys.argv) > 1:
        outside(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as scratch:
            outside(Path(scratch) / "venv")
