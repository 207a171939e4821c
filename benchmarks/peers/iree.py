"""IREE: a decode step of a Llama in plain torch, exported by iree-turbine and compiled for this processor, in f32.

K and V are variables of the compiled module, updated in place. There is a module for each batch and context. Prefill is
not exported: K and V are zeros, which take the same time to read.
"""

from __future__ import annotations

import json
from typing import Any

import iree.runtime as rt
import iree.turbine.aot as aot
import numpy as np
import torch
from iree.compiler.version import VERSION
from safetensors.torch import load_file

from benchmarks.peers.protocol import Setup, Stepper, Unsupported, serve

FLAGS = ("--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O3", "--iree-opt-data-tiling=true")


class Step(torch.nn.Module):
    """A decode step: logits [B, V] of one token in each of B sequences at the same position, with a cache update."""

    def __init__(self, config: dict[str, Any], weights: dict[str, torch.Tensor], batch: int, rows: int) -> None:
        super().__init__()
        self.config = config
        self.weights = torch.nn.ParameterDict(
            {name.replace(".", "/"): torch.nn.Parameter(value.float(), False) for name, value in weights.items()}
        )
        self.rows = rows
        heads, width = config["num_key_value_heads"], config["head_dim"]
        for layer in range(config["num_hidden_layers"]):
            for name in ("k", "v"):
                self.register_buffer(f"{name}{layer}", torch.zeros(batch, heads, rows, width))
        frequencies = config["rope_theta"] ** (-torch.arange(0, width, 2).float() / width)
        self.register_buffer("frequencies", torch.cat([frequencies, frequencies]))

    def forward(self, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        angles = position.float() * self.frequencies
        seen = torch.arange(self.rows) <= position
        x = torch.nn.functional.embedding(token, self._weight("model.embed_tokens"))
        for layer in range(self.config["num_hidden_layers"]):
            prefix = f"model.layers.{layer}."
            x = x + self._attention(layer, prefix, self._norm(x, prefix + "input_layernorm"), position, angles, seen)
            y = self._norm(x, prefix + "post_attention_layernorm")
            gate = torch.nn.functional.silu(self._product(y, prefix + "mlp.gate_proj"))
            x = x + self._product(gate * self._product(y, prefix + "mlp.up_proj"), prefix + "mlp.down_proj")
        return self._product(self._norm(x, "model.norm"), "lm_head")

    def _attention(
        self, layer: int, prefix: str, x: torch.Tensor, position: torch.Tensor, angles: torch.Tensor, seen: torch.Tensor
    ) -> torch.Tensor:
        batch, heads, width = x.shape[0], self.config["num_key_value_heads"], self.config["head_dim"]
        query, key, value = (
            self._product(x, f"{prefix}self_attn.{name}_proj").reshape(batch, -1, 1, width) for name in "qkv"
        )
        keys, values = getattr(self, f"k{layer}"), getattr(self, f"v{layer}")
        keys[:, :, position] = _rotated(key, angles)
        values[:, :, position] = value
        grouped = _rotated(query, angles).reshape(batch, heads, -1, width) * width**-0.5
        scores = torch.where(seen, grouped @ keys.transpose(2, 3), float("-inf"))
        return self._product((scores.softmax(-1) @ values).reshape(batch, -1), prefix + "self_attn.o_proj")

    def _weight(self, name: str) -> torch.Tensor:
        return self.weights[name.replace(".", "/") + "/weight"]

    def _product(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return torch.nn.functional.linear(x, self._weight(name))

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"]) * self._weight(name)


def _rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * angles.cos() + torch.cat([-second, first], -1) * angles.sin()


class Iree(Stepper):
    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.config = json.loads((setup.model / "config.json").read_text())
        self.weights = load_file(setup.model / "model.safetensors")
        rt.flags.parse_flags(f"--task_topology_group_count={setup.threads}")
        self.sizes = (0, 0)
        self.call: Any = None
        self.tokens = np.zeros(1, np.int64)
        self.position = 0

    def start(self, batch: int, context: int, room: int) -> None:
        if self.sizes != (batch, context + room):
            self.call = None
            self.call = self._compiled(batch, context + room)
            self.sizes = (batch, context + room)
        self.tokens = np.full(batch, 5, np.int64)
        self.position = context

    def step(self) -> None:
        self.call(self.tokens, np.array([self.position], np.int64)).to_host()
        self.position += 1

    def prompt(self, tokens: int) -> None:
        raise Unsupported("only the decode step is exported")

    def _compiled(self, batch: int, rows: int) -> Any:
        """Return the compiled step with the weights of this process."""
        step = Step(self.config, self.weights, batch, rows)
        arguments = (torch.full((batch,), 5), torch.tensor([0]))
        with torch.no_grad():
            output = aot.export(torch.export.export(step, arguments).run_decompositions({}))
        output.session.set_flags(*FLAGS)
        binary = output.compile(save_to=None, target_backends="llvm-cpu")
        config = rt.Config("local-task")
        modules = rt.load_vm_modules(rt.VmModule.wrap_buffer(config.vm_instance, binary.map_memory()), config=config)
        return modules[0].main


def make(setup: Setup) -> tuple[Iree, str]:
    return Iree(setup), VERSION


if __name__ == "__main__":
    serve(make)
