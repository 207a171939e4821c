"""OpenVINO: a stateful model exported by optimum-intel, run step by step with an inference request.

Types: bf16 (weights and arithmetic), int8 and int4 (weights). Activations quantized in groups and a u8 KV cache are
OpenVINO's defaults.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import openvino as ov

from benchmarks.peers.protocol import Setup, Stepper, serve, token_ids


class OpenVino(Stepper):
    def __init__(self, model: ov.CompiledModel) -> None:
        super().__init__()
        self.request = model.create_infer_request()
        self.tokens = np.zeros((1, 1), np.int64)
        self.length = 0

    def start(self, batch: int, context: int, room: int) -> None:
        self.request.reset_state()
        self.length = 0
        self._feed(np.tile(np.array(token_ids(context), np.int64), (batch, 1)))
        self.tokens = np.full((batch, 1), 5, np.int64)

    def step(self) -> None:
        self._feed(self.tokens)

    def prompt(self, tokens: int) -> None:
        self.start(1, tokens, 0)

    def _feed(self, tokens: np.ndarray) -> None:
        batch, count = tokens.shape
        positions = np.arange(self.length, self.length + count, dtype=np.int64)
        self.length += count
        inputs = {
            "input_ids": tokens,
            "attention_mask": np.ones((batch, self.length), np.int64),
            "position_ids": np.tile(positions, (batch, 1)),
            "beam_idx": np.arange(batch, dtype=np.int32),
        }
        self.request.start_async(inputs, share_inputs=True)
        self.request.wait()


def export(setup: Setup) -> Path:
    """Return the folder with OpenVINO's form of the model, written once."""
    if not setup.exported.exists():
        from optimum.exporters.openvino import main_export
        from optimum.intel import OVConfig, OVWeightQuantizationConfig

        config = OVConfig(dtype="bf16")
        if setup.dtype != "bf16":
            bits = int(setup.dtype.removeprefix("int"))
            config = OVConfig(quantization_config=OVWeightQuantizationConfig(bits=bits, sym=bits == 4))
        partial = setup.exported.with_name(setup.exported.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        main_export(
            str(setup.model), partial, task="text-generation-with-past", ov_config=config, convert_tokenizer=False
        )
        partial.rename(setup.exported)
    return setup.exported


def make(setup: Setup) -> tuple[OpenVino, str]:
    settings: dict[str, object] = {
        "INFERENCE_NUM_THREADS": setup.threads,
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
    }
    if setup.dtype == "bf16":
        settings["INFERENCE_PRECISION_HINT"] = "bf16"
    model = ov.Core().compile_model(export(setup) / "openvino_model.xml", "CPU", settings)
    return OpenVino(model), ov.__version__


if __name__ == "__main__":
    serve(make)
