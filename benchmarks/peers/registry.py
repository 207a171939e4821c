"""The peers with their types, packages and Python environments (`.peers/NAME`).

install.py installs exactly the pinned versions, so that tables can be reproduced.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".peers"


@dataclass(frozen=True)
class Precision:
    """Formats of weights and cache, one row of a peer in a table.

    Attributes:
        dtype: name for the runner.
        weight_bits: bits per weight, including scales.
        kv_bits: bits per element of K and V.
    """

    dtype: str
    weight_bits: float
    kv_bits: float


@dataclass(frozen=True)
class Peer:
    """A program to measure.

    Attributes:
        name: name in tables.
        environment: folder in `.peers` that install.py creates; "" for this Python.
        module: module of the runner.
        precisions: formats to measure.
        packages: packages for pip.
        bare: packages for pip without their dependencies.
        models: models that it can load; empty for all.
    """

    name: str
    environment: str
    module: str
    precisions: tuple[Precision, ...]
    packages: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()
    models: tuple[str, ...] = ()

    @property
    def python(self) -> Path:
        return FOLDER / self.environment / "bin" / "python" if self.environment else Path(sys.executable)

    def missing(self) -> str:
        """Return the reason why the peer cannot be measured, with the command that installs it; "" if it can."""
        if not self.environment or (FOLDER / self.environment / "installed").exists():
            return ""
        return f"{self.name} is not installed: python benchmarks/peers/install.py {self.environment}"


BF16 = Precision("bf16", 16, 16)

AS_STORED = Precision("as stored", 0, 16)
"""The types of a quantized file, whose size is that of its weights."""
INT8_ACTIVATIONS = replace(AS_STORED, dtype="as stored, int8 activations")
"""The same, with `--interpreter native-int8`."""

PEERS = (
    Peer(
        "sscc",
        "",
        "benchmarks.ours",
        (
            BF16,
            Precision("bf16-kv8", 16, 8.5),
            Precision("int8", 8.5, 16),
            Precision("int8-kv8", 8.5, 8.5),
            Precision("int4", 4.5, 16),
        ),
    ),
    Peer(
        "llama.cpp",
        "llama",
        "benchmarks.peers.llama",
        (Precision("BF16", 16, 16), Precision("Q8_0", 8.5, 16), Precision("Q4_0", 4.5, 16)),
        ("llama-cpp-python==0.3.36",),
    ),
    Peer(
        "OpenVINO",
        "openvino",
        "benchmarks.peers.openvino",
        (BF16, Precision("int8", 8, 8), Precision("int4", 4.5, 8)),
        ("openvino==2026.4.1", "nncf==3.4.0", "transformers==4.57.6", "torch==2.13.0", "safetensors"),
        ("optimum==2.3.0", "optimum-intel==2.2.0"),
    ),
    Peer(
        "onnxruntime-genai",
        "onnx",
        "benchmarks.peers.onnx",
        (Precision("f32", 32, 32), Precision("int4", 5, 32)),
        (
            "onnxruntime-genai==0.18.0",
            "onnxruntime==1.31.1",
            "onnx==1.23.2",
            "onnx-ir==1.1.0",
            "transformers==5.23.0",
            "torch==2.13.0",
        ),
    ),
    Peer("torch", "", "benchmarks.peers.torch", (BF16, Precision("bf16-compiled", 16, 16))),
    Peer(
        "kvpress SnapKV",
        "kvpress",
        "benchmarks.peers.kvpress",
        (BF16,),
        ("kvpress==0.5.5", "transformers==5.2.0", "torch==2.13.0"),
    ),
    Peer(
        "IREE",
        "iree",
        "benchmarks.peers.iree",
        (Precision("f32", 32, 32),),
        (
            "iree-base-compiler==3.13.0",
            "iree-base-runtime==3.13.0",
            "iree-turbine==3.9.0",
            "safetensors==0.8.0",
            "torch==2.13.0",
        ),
        models=("m125",),  # weights are constants of the module, whose compilation takes several times their memory
    ),
)
