"""examples/own_decoder.py, from its source to tokens: export, compile, run, and compare with its own eager run."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import sscc
from sscc.compiler.frontend.capture import CaptureErrors
from sscc.compiler.frontend.eager import EagerSnapStream
from sscc.compiler.frontend.exported import ExportedErrors
from sscc.compiler.tools.commands import cli
from sscc.ir.geometry import Geometry
from sscc.runtime.session.artifact import Artifact
from tests.errors import check, one_line
from tests.torch_session import TorchSession

EXAMPLE = Path(__file__).parents[1] / "examples" / "own_decoder.py"
GEOMETRY = Geometry(sink=2, recent=8, topk=6, obs=4, pool=3, pool_mode="avg", max_context=64)
CACHE = {"kv_sink": 2, "kv_recent": 8, "kv_topk": 6, "kv_obs": 4, "kv_pool": 3, "max_context": 64}
NEW_TOKENS = 16
EXACT = 1e-5  # max abs over logits of size about 1, in f32: two layers' rounding


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("own_decoder", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def model(example: ModuleType) -> nn.Module:
    torch.manual_seed(0)
    decoder: nn.Module = example.Decoder().eval()
    return decoder


@pytest.fixture(scope="module")
def artifact(example: ModuleType, model: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    torch.export.save(example.export(model), folder / "own.pt2")
    result = sscc.compile(
        folder / "own.pt2",
        output=folder / "own.rdu",
        prefill_chunk=8,
        save_golden=True,
        golden_tokens=4,
        **CACHE,
    )
    return result.path


def greedy(model: nn.Module, ids: list[int], count: int) -> list[int]:
    """The model's own greedy continuation, without any cache."""
    ids = list(ids)
    for _ in range(count):
        with torch.no_grad():
            logits = model(torch.tensor([ids]), torch.arange(len(ids))[None])
        ids.append(int(logits[0, -1].argmax()))
    return ids[-count:]


def prompt(length: int) -> list[int]:
    return torch.randint(0, 64, (length,), generator=torch.Generator().manual_seed(1)).tolist()


def test_with_room_for_everything_it_is_the_eager_model(artifact: Path, model: nn.Module) -> None:
    tokens = prompt(5)
    room = GEOMETRY.sink_recent - len(tokens)
    assert list(sscc.load(artifact).generate(tokens, room)) == greedy(model, tokens, room)


def test_beyond_the_budget_it_is_eager_snapstream(artifact: Path, model: nn.Module) -> None:
    tokens = prompt(40)
    session, eager = TorchSession(sscc.load(artifact)), EagerSnapStream(model, GEOMETRY)
    ours, theirs = session.prefill(0, tokens), eager.prefill(tokens)
    for _ in range(NEW_TOKENS):
        assert (ours - theirs).abs().max() < EXACT
        token = int(theirs.argmax())
        ours, theirs = session.decode({0: token})[0], eager.decode(token)
    assert session.kept(0).kept == GEOMETRY.budget


def test_its_layers_are_one_loop(artifact: Path) -> None:
    """Although each layer has rotary tables of its own, computed alike."""
    records = [(record.entry, record.layers, record.looped) for record in Artifact.load(artifact).manifest.looping]
    assert records == [("prefill", 2, True), ("decode", 2, True)]


def test_goldens_replay(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", str(artifact), "--check"]) == 0, capsys.readouterr().err


def test_a_static_export_is_refused_with_a_how_to(
    model: nn.Module, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = torch.zeros(1, 6, dtype=torch.int64)
    torch.export.save(torch.export.export(model, (ids, torch.arange(6)[None])), tmp_path / "static.pt2")
    words = ["compile", str(tmp_path / "static.pt2"), "-o", str(tmp_path / "static.rdu"), "--max-context", "64"]
    error = one_line(words, capsys)
    check(error, ExportedErrors.STATIC, path=tmp_path / "static.pt2", name="ids", dim=0, size=1)
    assert "Dim('s', min=1)" in str(error)
    assert not (tmp_path / "static.rdu").exists()


def test_a_convolution_over_tokens_is_refused(
    example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where no weights are there, so that nothing is compared."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Conv1d(8, 8, 3, padding=2, groups=8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.mix(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
            heads = x.unsqueeze(1)
            attended: torch.Tensor = torch.ops.sscc.attention(heads, heads, heads, 0, 0.5)
            return x + attended.squeeze(1)

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.layers, self.head = nn.Embedding(64, 8), nn.ModuleList([Layer()]), nn.Linear(8, 64)

        def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.head(self.layers[0](self.table(ids) + positions[:, :, None]))
            return logits

    torch.export.save(example.export(Mixed()), tmp_path / "mixed.pt2")
    words = ["compile", str(tmp_path / "mixed.pt2"), "--max-context", "64", "--no-weights"]
    check(one_line(words, capsys), CaptureErrors.CONVOLUTION, module="layers.0.mix", shape=[3])


def test_a_decoder_that_never_calls_the_operator_is_refused(
    example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Bigram(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(64, 64)

        def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.table(ids) + positions[:, :, None]
            return logits

    torch.export.save(example.export(Bigram()), tmp_path / "bigram.pt2")
    words = ["compile", str(tmp_path / "bigram.pt2"), "--max-context", "64"]
    check(one_line(words, capsys), CaptureErrors.PROGRAM_WITHOUT_ATTENTION)
