"""Schedules that the compiler has made of tiny random decoders, kept so that a case does not depend on the compiler.

``python -m tests.fuzz.corpus`` writes the file again, which is needed when the schedule's format changes; other changes
of the compiler do not matter. Models are the smallest ones with all features: two layers (three if each keeps another
number of rows, because two numbers are always a progression), two heads, and for some a machine with slow memory, so
that weights and caches arrive in tiles.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sscc.ir.choices import FIRST, RANK, REUSED, SCORE
from sscc.ir.geometry import Geometry
from sscc.ir.schedule import Program
from tests.runtime.signatures import altered, uniform
from tests.targets import described

FILE = Path(__file__).with_name("corpus.json.gz")

BATCH, CONTEXT, CHUNK, VOCABULARY, LAYERS, LENGTH = 2, 16, 4, 11, 2, 9
GEOMETRY = Geometry(sink=1, recent=4, topk=3, obs=2, pool=3, pool_mode="avg", max_context=CONTEXT)
SIGNATURE = uniform(
    GEOMETRY, BATCH, CHUNK, "f32", LAYERS, heads=2, kv_heads=1, head_dim=4, value_dim=4, vocab_size=VOCABULARY
)
"""The signature of the whole programs of the corpus."""

PREFILL = {
    "length": LENGTH, "slot": 1, "phase": 0, "chunk": 0, "steps": SIGNATURE.prefill_steps(LENGTH), REUSED: 0
}  # fmt: skip
"""One call that takes a prompt through all phases."""


@dataclass(frozen=True)
class CorpusProgram:
    """A compiled program, or a slice of one, and the scalars to call its entries with."""

    name: str
    program: Program
    scalars: dict[str, dict[str, int]]

    @property
    def whole(self) -> bool:
        return "prefill" in self.scalars


@dataclass(frozen=True)
class _Recipe:
    family: str = "llama"
    opt_level: int = 2
    dtype: str = "f32"
    slow: bool = True
    whole: bool = False
    layers: int = LAYERS
    kv_heads: int = 1
    options: dict[str, Any] = field(default_factory=dict)


_RECIPES = {
    "O0": _Recipe(opt_level=0, slow=False),
    "O1": _Recipe(opt_level=1, whole=True),
    "O2": _Recipe(whole=True),
    "bf16": _Recipe(dtype="bf16"),
    "int8-rows": _Recipe(options={"kv_dtype": "int8"}),
    "int8-rows-O0": _Recipe(opt_level=0, slow=False, options={"kv_dtype": "int8"}),
    "int4-rows": _Recipe(options={"kv_dtype": "int4"}),
    "indexed": _Recipe(options={"kv_rows": "indexed"}),
    "query": _Recipe(options={"kv_policy": "query"}),
    "int8-weights": _Recipe(opt_level=1, options={"weights": "int8:4"}),
    "int4-weights": _Recipe(options={"weights": "int4:4:zero-point"}),
    "f16-scales": _Recipe(options={"weights": "int4:4:minimum:f16"}),
    "per-layer": _Recipe(layers=3, options={"kv_topk": None, "kv_topk_per_layer": "3,1,2"}),
    "ranks": _Recipe(slow=False, kv_heads=2, options={"tp": 2}),
    "ranks-share-heads": _Recipe(slow=False, options={"tp": 2}),
    "gpt2-max-pooled": _Recipe("gpt2", opt_level=1, options={"kv_pool_mode": "max"}),
}


def load_corpus() -> Iterator[CorpusProgram]:
    """Whole programs and slices."""
    for item in json.loads(gzip.decompress(FILE.read_bytes())):
        yield CorpusProgram(item["name"], Program.from_json(json.dumps(item["program"])), item["scalars"])


def make_corpus() -> bytes:
    """The file's contents: for every recipe the slices of its program, and for some the program too."""
    from tests.fuzz.slices import ENTRY, slices

    items: list[dict[str, Any]] = []
    programs: set[str] = set()

    def add(name: str, program: Program, scalars: object) -> None:
        text = program.to_json()
        if text not in programs:
            programs.add(text)
            items.append({"name": name, "program": json.loads(text), "scalars": scalars})

    with tempfile.TemporaryDirectory() as folder:
        for name, recipe in _RECIPES.items():
            program = _compile(recipe, Path(folder) / name)
            steps = altered(SIGNATURE, layers=recipe.layers).prefill_steps(LENGTH)
            rank = {RANK: 0} if program.grid else {}
            calls = {"prefill": {**PREFILL, **rank, "steps": steps}, "decode": rank, SCORE: {FIRST: 1}}
            if recipe.whole:
                add(name, program, calls)
            for number, piece in enumerate(slices(program, calls)):
                add(f"{name}/{number}", piece.program, {ENTRY: dict(piece.scalars)})
    text = json.dumps(items, sort_keys=True, separators=(",", ":"))
    return gzip.compress(text.encode(), mtime=0)


def _compile(recipe: _Recipe, folder: Path) -> Program:
    import torch
    from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

    import sscc
    from sscc.runtime.session.artifact import Artifact

    shape: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 8, "num_hidden_layers": recipe.layers}
    shape |= {"num_attention_heads": 2, "max_position_embeddings": 24, "bos_token_id": None, "eos_token_id": None}
    llama = LlamaConfig(**shape, intermediate_size=12, num_key_value_heads=recipe.kv_heads)
    torch.manual_seed(0)
    config = llama if recipe.family == "llama" else GPT2Config(**shape, n_inner=12)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    machine = described({"hbm.bandwidth": 2e8} if recipe.slow else {})
    (folder / "machine.json").write_text(json.dumps({**machine, "name": "tiny"}))
    rows = {f"kv_{name}": getattr(GEOMETRY, name) for name in ("sink", "recent", "topk", "obs", "pool")}
    defaults = {"batch": BATCH, "max_context": CONTEXT, "prefill_chunk": CHUNK, "dtype": recipe.dtype, **rows}
    target = f"rdu:{folder / 'machine.json'}"
    options = {**defaults, "opt_level": recipe.opt_level, "target": target, **recipe.options}
    return Artifact.load(sscc.compile(folder, output=folder / "out.rdu", **options).path).program


if __name__ == "__main__":
    FILE.write_bytes(make_corpus())
