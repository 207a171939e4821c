"""Layers that attend and have a short convolution too: each keeps a state for each of its operators."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, pad, scaled_dot_product_attention, silu

from sscc.compiler.driver.driver import compile_model
from sscc.compiler.frontend import stateful  # noqa: F401 - registers the operators
from sscc.compiler.frontend.capture import CaptureErrors
from sscc.compiler.frontend.eager import EagerQuerySelection, EagerSnapStream
from sscc.compiler.options.compile_options import CompileOptions, cache_options
from sscc.compiler.tools.commands import cli
from sscc.runtime.backends.backend import Conditions
from sscc.runtime.backends.collectives.group import Group, run_ranks, thread_groups
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.session.session import Session, interpreter_of
from tests.compiler import small_stacks
from tests.compiler.small_stacks import BATCH, CHUNK, CONTEXT, EVERYTHING, SMALL, fed, loaded, opened
from tests.errors import check, one_line
from tests.families import adapted, random_tokens

TAPS, VOCAB, HIDDEN, HEADS, KV_HEADS = 3, 96, 32, 4, 2
DIM = HIDDEN // HEADS
CACHES = small_stacks.CACHES | {
    "fetch": replace(SMALL, rows="indexed", policy="query", key_bits=2, fetch=2),
    "budgets": replace(SMALL, layer_topk=(5, 3, 4, 2)),
}


@dataclass(frozen=True)
class Kind:
    """A layer: whether it attends, and how many channels its convolution has, or 0; its window."""

    attends: bool
    channels: int = 0
    window: int = 0


STACK = (Kind(True, 32), Kind(True, 32), Kind(True), Kind(False, 32), Kind(True, 48))
WINDOWED = (Kind(True, 32, 10), Kind(True, 32), Kind(True, 32, 10), Kind(True, 32))


class Layer(nn.Module):
    def __init__(self, index: int, kind: Kind) -> None:
        super().__init__()
        self.index, self.kind = index, kind
        self.norm = nn.RMSNorm(HIDDEN)
        if kind.attends:
            self.qkv = nn.Linear(HIDDEN, (HEADS + 2 * KV_HEADS) * DIM, bias=False)
            self.out = nn.Linear(HIDDEN, HIDDEN, bias=False)
        if kind.channels:
            self.into, self.back = nn.Linear(HIDDEN, kind.channels), nn.Linear(kind.channels, HIDDEN, bias=False)
            self.weight = nn.Parameter(torch.randn(kind.channels, 1, TAPS))
        self.up, self.down = nn.Linear(HIDDEN, 2 * HIDDEN), nn.Linear(2 * HIDDEN, HIDDEN)

    def forward(self, x: Tensor, plain: bool) -> Tensor:
        b, s, _ = x.shape
        y, more = self.norm(x), x
        if self.kind.attends:
            qkv = self.qkv(y).view(b, s, -1, DIM).transpose(1, 2)
            q, k, v = qkv.split([HEADS, KV_HEADS, KV_HEADS], dim=1)
            attend = self._attended if plain else self._attention
            more = more + self.out(attend(q, k, v).transpose(1, 2).reshape(b, s, HIDDEN))
        if self.kind.channels:
            z = self.into(y).transpose(1, 2)
            if plain:
                z = conv1d(pad(z, (TAPS - 1, 0)), self.weight, groups=self.kind.channels)
            else:
                z = torch.ops.sscc.short_convolution(z, self.weight, None, self.index)
            more = more + self.back(silu(z).transpose(1, 2))
        return more + self.down(silu(self.up(more)))

    def _attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = torch.ops.sscc.attention(q, k, v, self.index, DIM**-0.5, self.kind.window)
        return out

    def _attended(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        at = torch.arange(q.shape[2])
        far = at[:, None] - at
        seen = (far >= 0) & (far < (self.kind.window or len(at)))
        return scaled_dot_product_attention(q, k, v, seen, scale=DIM**-0.5, enable_gqa=True)


class Decoder(nn.Module):
    """Calls our operators, or where `plain` is set torch's own over the whole text."""

    def __init__(self, kinds: tuple[Kind, ...]) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList(Layer(index, kind) for index, kind in enumerate(kinds))
        self.norm, self.head = nn.RMSNorm(HIDDEN), nn.Linear(HIDDEN, VOCAB, bias=False)
        self.plain = False

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        x = self.embed(ids) + torch.sin(positions[..., None] * 0.3 + torch.arange(HIDDEN))
        for layer in self.layers:
            x = layer(x, self.plain)
        logits: Tensor = self.head(self.norm(x))
        return logits


@cache
def decoder(kinds: tuple[Kind, ...], plain: bool = False) -> Decoder:
    torch.manual_seed(3)
    model = Decoder(kinds).requires_grad_(False).eval()
    model.plain = plain
    return model


def export(model: nn.Module, path: Path) -> Path:
    ids, dynamic = torch.zeros(2, 6, dtype=torch.int64), {axis: torch.export.Dim(f"d{axis}", min=1) for axis in (0, 1)}
    program = torch.export.export(model, (ids, torch.arange(6).repeat(2, 1)), dynamic_shapes=(dynamic, dynamic))
    torch.export.save(program, path)
    return path


Artifacts = Callable[..., Path]


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    """`artifacts(kinds, kept, opt_level)`: compiled once. Beside it lies the program, own.pt2."""
    folder = tmp_path_factory.mktemp("several")

    @cache
    def captured(kinds: tuple[Kind, ...]) -> Path:
        own = folder / str(abs(hash(kinds)))
        own.mkdir()
        file, shape = own / "import.mlir", {"batch": BATCH, "prefill_chunk": CHUNK}
        path = export(decoder(kinds), own / "own.pt2")
        compile_model(CompileOptions(path, file, compile_to="import", **cache_options(EVERYTHING), **shape))
        return file

    @cache
    def compiled(kinds: tuple[Kind, ...], kept: str = "everything", opt_level: int = 2) -> Path:
        file = captured(kinds)
        start, out = (file.with_name(f"{kept}.{opt_level}.{end}") for end in ("mlir", "rdu"))
        adapted(file, start, CACHES[kept])
        options = {"compile_from": "import", "checkpoint": file.with_name("own.pt2"), "opt_level": opt_level}
        compile_model(CompileOptions(start, out, native_code=False, **options))
        return out

    return compiled


def rows_of(kinds: tuple[Kind, ...], prompt: list[int], tokens: list[int]) -> np.ndarray:
    """Return the logits of a prompt and of each token after it, computed by torch's own functions over the whole
    text."""
    ids = torch.tensor([prompt + tokens])
    return decoder(kinds, plain=True)(ids, torch.arange(ids.shape[1])[None])[0, len(prompt) - 1 :].numpy()


def close(logits: np.ndarray, expected: np.ndarray, tolerance: float = 1e-4) -> bool:
    return bool(np.linalg.norm(logits - expected) <= tolerance * np.linalg.norm(expected))


@pytest.mark.parametrize(
    ("kinds", "interpreter", "opt_level"),
    [(STACK, "reference", 0), (STACK, "native", 2), (WINDOWED, "reference", 2), (WINDOWED, "native", 0)],
)
def test_logits_are_those_of_the_whole_text(
    kinds: tuple[Kind, ...], interpreter: str, opt_level: int, artifacts: Artifacts
) -> None:
    session = opened(artifacts(kinds, "everything", opt_level), interpreter)
    for length in (1, 7, 23):
        prompt, tokens = random_tokens(length), random_tokens(14, seed=1)
        assert close(fed(session, prompt, tokens, slot=1), rows_of(kinds, prompt, tokens))


@pytest.mark.parametrize("length", [23, 1])
@pytest.mark.parametrize("kept", ["int8", "fetch", "budgets"])
def test_levels_agree_with_each_other_and_with_eager_pytorch(kept: str, length: int, artifacts: Artifacts) -> None:
    """-O1 and -O2 in one way to keep rows: the others have the same loops."""
    prompt, tokens, g = random_tokens(length), random_tokens(16, seed=1), CACHES[kept]
    by_level = [
        fed(opened(artifacts(STACK, kept, level), interpreter), prompt, tokens, slot=1)
        for level, interpreter in ((0, "reference"), (2, "native"), (1, "native"))
        if level != 1 or kept == "budgets"
    ]
    assert np.array_equal(by_level[1], by_level[-1])
    eager: EagerSnapStream = EagerSnapStream(decoder(STACK), g)
    if g.by_query:
        fetch = g.fetch if kept == "fetch" else None
        eager = EagerQuerySelection(decoder(STACK), g, g.key_bits, fetch)
    expected = torch.stack([eager.prefill(prompt), *(eager.decode(token) for token in tokens)]).numpy()
    assert all(close(logits, expected, 1e-2 if kept == "int8" else 1e-4) for logits in by_level)


def test_the_states_stand_beside_each_other(artifacts: Artifacts, capsys: pytest.CaptureFixture[str]) -> None:
    """Convolutions of layers that attend too are in groups of their own, beside the group of the rows."""
    path = artifacts(STACK, "small")
    groups = json.loads((path / "manifest.json").read_text())["groups"]
    assert [(group["layers"], group.get("beside", False)) for group in groups] == [
        ([0, 1, 2, 4], False), ([0, 1], True), ([3], False), ([4], True)
    ]  # fmt: skip
    artifact = loaded(path)
    assert Artifact.load(path).signature == artifact.signature
    assert artifact.signature.layers == 5
    assert {(record.layers, record.looped) for record in artifact.manifest.looping} >= {(2, True)}
    assert cli.main(["inspect", str(path)]) == 0
    assert "2 of 5 layers: the last 2 inputs of a convolution of 32 channels\n" in capsys.readouterr().out


@pytest.mark.parametrize("length", [1, 23])
def test_a_slot_is_copied_and_sent(length: int, artifacts: Artifacts, tmp_path: Path) -> None:
    path, tokens = artifacts(STACK, "small"), random_tokens(13, seed=2)
    session, other = (Session.from_artifact(loaded(path), interpreter="reference") for _ in range(2))
    session.prefill(1, random_tokens(length))
    snapshot = session.snapshot(1)
    session.save_slot(1, tmp_path / "slot")
    expected = [session.decode({1: token})[1].copy() for token in tokens]
    session.prefill(0, random_tokens(40, seed=3))
    session.restore(0, snapshot)
    assert all(np.array_equal(session.decode({0: t})[0], row) for t, row in zip(tokens, expected, strict=True))
    other.load_slot(0, tmp_path / "slot")
    assert all(np.array_equal(other.decode({0: t})[0], row) for t, row in zip(tokens, expected, strict=True))


def test_kept_positions_are_those_of_the_rows(artifacts: Artifacts) -> None:
    session = opened(artifacts(STACK, "small"))
    session.prefill(0, random_tokens(40))
    kept = session.kept(0)
    assert [len(layer.positions(0)) for layer in kept.layers] == [16, 16, 16, 2, 16]


def test_goldens_are_met(artifacts: Artifacts, tmp_path: Path) -> None:
    program = artifacts(STACK, "small").with_name("own.pt2")
    words = [f"--{name.replace('_', '-')}={value}" for name, value in cache_options(SMALL).items()]
    words += ["--batch=2", "--prefill-chunk=7", "--save-golden", "--golden-tokens=14", "-q"]
    assert cli.main(["compile", str(program), "-o", str(tmp_path / "a.rdu"), *words, "--traceback"]) == 0
    golden = Artifact.load(tmp_path / "a.rdu").golden()
    assert golden is not None
    assert {name for name in golden.tensors if "cache" in name} == {
        *(f"{side}_cache.{layer}" for side in "kv" for layer in (0, 1, 2, 4)),
        *(f"inputs_cache.{layer}" for layer in (0, 1, 3, 4)),
    }
    assert cli.main(["run", str(tmp_path / "a.rdu"), "--check"]) == 0


def test_the_program_is_cut_over_ranks(artifacts: Artifacts, tmp_path: Path) -> None:
    program, out = artifacts(STACK, "everything").with_name("own.pt2"), tmp_path / "cut.rdu"
    shape: dict[str, Any] = cache_options(EVERYTHING) | {"batch": BATCH, "prefill_chunk": CHUNK}
    compile_model(CompileOptions(program, out, tp=2, native_code=False, **shape))
    artifact = Artifact.load(out)
    shapes = {tensor.name: tensor.shape for tensor in artifact.program.tensors if tensor.role == "state"}
    assert shapes["k_cache"] == (4, BATCH, 1, CONTEXT, DIM)
    assert shapes["inputs_cache.convolution"] == (2, BATCH, 1, 2, 16)
    prompt, tokens = random_tokens(21), random_tokens(9, seed=1)

    def logits(group: Group) -> np.ndarray:
        session = Session(artifact.signature, interpreter_of(artifact, Conditions(group=group), "native"))
        return fed(session, prompt, tokens)

    assert all(close(each, rows_of(STACK, prompt, tokens)) for each in run_ranks(thread_groups(2), logits))


def test_an_operator_is_called_once_in_a_layer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Twice(Layer):
        def forward(self, x: Tensor, plain: bool) -> Tensor:
            more = torch.ops.sscc.short_convolution(x.transpose(1, 2), self.weight, None, self.index)
            return super().forward(x + more.transpose(1, 2), plain)

    model = Decoder((Kind(True, HIDDEN),)).requires_grad_(False)
    model.layers[0] = Twice(0, Kind(True, HIDDEN))
    path = export(model.eval(), tmp_path / "twice.pt2")
    error = one_line(["compile", str(path), "-o", str(tmp_path / "x.rdu"), "--max-context", "64"], capsys)
    check(error, CaptureErrors.LAYERS_ATTEND_TWICE, total=1, layers=[0], calls=2)
