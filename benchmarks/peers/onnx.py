"""onnxruntime-genai: a model written by its builder, run token by token by its generator.

Types: f32, int4 (weights in blocks of 32, its default).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime_genai as og

from benchmarks.peers.protocol import Setup, Stepper, serve, token_ids

PRECISION = {"f32": "fp32", "int4": "int4"}


class Onnx(Stepper):
    def __init__(self, model: og.Model) -> None:
        super().__init__()
        self.model = model
        self.generator: og.Generator | None = None

    def start(self, batch: int, context: int, room: int) -> None:
        self.generator = None  # frees the cache before another is allocated
        search = og.GeneratorParams(self.model)
        length = context + room + 1
        search.set_search_options(min_length=length, max_length=length, batch_size=batch, do_sample=False)
        self.generator = og.Generator(self.model, search)
        self.generator.append_tokens(np.tile(np.array(token_ids(context), np.int32), (batch, 1)))

    def step(self) -> None:
        """Run the model on the last token and choose the next greedily. The first call only chooses."""
        if self.generator is None:
            raise RuntimeError("no sequence was started")
        self.generator.generate_next_token()

    def prompt(self, tokens: int) -> None:
        self.start(1, tokens, 0)


def export(setup: Setup) -> Path:
    """Return the folder with the builder's ONNX model, written once. Its genai_config.json sets `setup.threads`."""
    if not setup.exported.exists():
        partial = setup.exported.with_name(setup.exported.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(setup.model), "-o", str(partial)]
        command += ["-p", PRECISION[setup.dtype], "-e", "cpu", "-c", str(setup.exported.parent / "onnx-cache")]
        subprocess.run(command, check=True, stdout=2, env=os.environ | {"HF_HUB_OFFLINE": "1"})
        partial.rename(setup.exported)
    path = setup.exported / "genai_config.json"
    config = json.loads(path.read_text())
    config["model"]["decoder"]["session_options"]["intra_op_num_threads"] = setup.threads
    path.write_text(json.dumps(config, indent=4))
    return setup.exported


def make(setup: Setup) -> tuple[Onnx, str]:
    return Onnx(og.Model(str(export(setup)))), og.__version__


if __name__ == "__main__":
    serve(make)
