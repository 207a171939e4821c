"""What of a `.gguf` is read, what it is digested as, and what transformers would drop in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from transformers.integrations.gguf.utils import GGUF_ARCHS
from transformers.modeling_gguf_pytorch_utils import get_gguf_hf_weights_map, load_gguf_checkpoint

from sscc.compiler.frontend import gguf_file
from sscc.compiler.frontend.checkpoint import open_checkpoint
from sscc.compiler.frontend.gguf_file import GgufErrors, GgufFile
from sscc.ir.errors import ErrorKind
from tests.compiler.frontend.test_checkpoint import K_PROJ, gguf_tensors, tiny_llama, write_gguf
from tests.errors import raises

NORM = "blk.0.attn_norm.weight"


@pytest.fixture(scope="module")
def model() -> transformers.LlamaForCausalLM:
    return tiny_llama()


def test_every_stored_type_is_read_as_f32(model: transformers.LlamaForCausalLM, tmp_path: Path) -> None:
    stored = gguf_tensors(model)["blk.0.ffn_up.weight"]
    write_gguf(tmp_path / "m.gguf", model, {"blk.0.ffn_up.weight": stored.astype(np.float16)})
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    assert {dtype for _, dtype in checkpoint.names().values()} == {torch.float32}
    assert {name: shape for name, (shape, _) in checkpoint.names().items()} == {
        name: tuple(tensor.shape) for name, tensor in model.state_dict().items()
    }
    up = checkpoint.tensor("model.layers.0.mlp.up_proj.weight")
    assert up.dtype == torch.float32
    assert up.equal(torch.from_numpy(stored).half().float())
    for name in (K_PROJ, "lm_head.weight"):
        tensor = checkpoint.tensor(name)
        assert tensor.is_contiguous()
        tensor.add_(1)  # of its own, though the file is mapped


def test_a_digest_covers_names_types_and_bytes(model: transformers.LlamaForCausalLM, tmp_path: Path) -> None:
    norm = gguf_tensors(model)[NORM]
    variants = {
        "same": {NORM: norm},
        "value": {NORM: norm + np.float32(1)},
        "other": {NORM.replace("0", "1"): norm + np.float32(1)},
        "type": {NORM: norm.astype(np.float16)},
    }
    digests = {}
    for kind, tensors in variants.items():
        write_gguf(tmp_path / f"{kind}.gguf", model, tensors)
        digests[kind] = open_checkpoint(tmp_path / f"{kind}.gguf").digest
    write_gguf(tmp_path / "again.gguf", model)
    assert open_checkpoint(tmp_path / "again.gguf").digest == digests["same"]
    assert len(set(digests.values())) == len(variants), digests


def test_the_last_byte_counts(model: transformers.LlamaForCausalLM, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, model)
    header = GgufFile(path).header
    end = header.data_start + max(info.offset + info.nbytes for info in header.tensors)
    data = path.read_bytes()
    path.write_bytes(data[:end])
    assert open_checkpoint(path).has_weights
    path.write_bytes(data[: end - 1])
    with raises(GgufErrors.TRUNCATED, end=end, size=end - 1):
        open_checkpoint(path)


def test_a_table_of_rope_factors(model: transformers.LlamaForCausalLM, tmp_path: Path) -> None:
    """All ones change nothing; transformers would drop any other."""
    path, factors = tmp_path / "m.gguf", np.ones(4, np.float32)
    write_gguf(path, model, {"rope_freqs.weight": factors})
    assert "rope_freqs.weight" not in open_checkpoint(path).names()
    factors[2] = 0.5
    write_gguf(path, model, {"rope_freqs.weight": factors})
    with raises(GgufErrors.ROPE_SCALING, scaling=["rope_freqs.weight"]):
        open_checkpoint(path)


def test_a_file_is_opened_by_its_header_alone(
    model: transformers.LlamaForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No tensor is read for the config, and nothing in it says where the file lay."""
    asked: list[dict[str, Any]] = []

    def noting(path: str, **options: Any) -> Any:
        asked.append(options)
        return load_gguf_checkpoint(path, **options)

    monkeypatch.setattr(gguf_file, "load_gguf_checkpoint", noting)
    write_gguf(tmp_path / "m.gguf", model)
    config = open_checkpoint(tmp_path / "m.gguf").config
    assert asked == [{"return_tensors": False}]
    assert str(tmp_path) not in str(vars(config))


def test_a_tokenizer_is_converted_without_asking_anybody(
    model: transformers.LlamaForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder with nothing else in it, by no code that a hub or the file brings."""
    write_gguf(tmp_path / "m.gguf", model)
    (tmp_path / "tokenizer_config.json").write_text("a neighbour's")
    asked: list[dict[str, Any]] = []

    class Converted:
        def save_pretrained(self, folder: Path) -> None:
            folder.mkdir()
            for name in ("b", "a"):
                (folder / name).write_text(name)

    def from_pretrained(folder: str, **options: Any) -> Converted:
        (only,) = Path(folder).iterdir()
        assert only.read_bytes() == (tmp_path / "m.gguf").read_bytes()
        asked.append(options | {"only": only.name})
        if len(asked) > 1:
            raise KeyError
        return Converted()

    monkeypatch.setattr(transformers.TokenizersBackend, "from_pretrained", from_pretrained)
    checkpoint = open_checkpoint(tmp_path / "m.gguf", weights=False)
    assert checkpoint.tokenizer == {"a": b"a", "b": b"b"}
    assert asked[0].pop("only") == asked[0]["gguf_file"]
    assert asked == [{"gguf_file": "model.gguf", "local_files_only": True}]
    with raises(GgufErrors.TOKENIZER):
        open_checkpoint(tmp_path / "m.gguf", weights=False).load_tokenizer()


def test_a_tokenizers_class_is_the_one_that_transformers_chooses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which `AutoTokenizer` finds by the config that it parses anew."""
    asked: list[type] = []

    def from_pretrained(kind: type, *args: object, **options: object) -> None:
        asked.append(kind)
        raise KeyError

    monkeypatch.setattr(transformers.PreTrainedTokenizerBase, "from_pretrained", classmethod(from_pretrained))
    for architecture in ("llama", "mistral", "qwen2", "qwen3", "phi3", "gpt2", "starcoder2", "gemma2", "stablelm"):
        writer = gguf.GGUFWriter(str(tmp_path / "m.gguf"), architecture)
        writer.add_array("tokenizer.ggml.tokens", ["a"])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with raises(GgufErrors.TOKENIZER):
            GgufFile(tmp_path / "m.gguf").tokenizer()
        with pytest.raises(KeyError):
            transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf", local_files_only=True)
        ours, theirs = asked[-2:]
        assert ours is theirs, architecture
    assert len(set(asked)) > 2


def test_names_that_transformers_has_no_table_for(
    model: transformers.LlamaForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise NotImplementedError("Unknown gguf model_type")

    monkeypatch.setattr(gguf_file, "get_gguf_hf_weights_map", refuse)
    write_gguf(tmp_path / "m.gguf", model)
    with raises(GgufErrors.NAMES, model_type="llama"):
        open_checkpoint(tmp_path / "m.gguf")


def test_names_that_only_fit_without_a_prefix(
    model: transformers.LlamaForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers finds them in the submodules, which is slow: only where the flat names lack some."""
    descended: list[bool] = []
    lacking: set[str] = set()

    def noting(module: Any, processor: Any) -> dict[str, str]:
        descended.append(isinstance(module, torch.nn.Module))
        names: dict[str, str] = get_gguf_hf_weights_map(module, processor)
        return {name: names[name] for name in names if descended[-1] or name not in lacking}

    monkeypatch.setattr(gguf_file, "get_gguf_hf_weights_map", noting)
    write_gguf(tmp_path / "m.gguf", model, {"rope_freqs.weight": np.ones(4, np.float32)})
    for names, calls in ((set(), [False]), ({NORM}, [False, True])):
        lacking.update(names)
        descended.clear()
        assert set(open_checkpoint(tmp_path / "m.gguf").names()) == set(model.state_dict())
        assert descended[: len(calls)] == calls
        assert names or len(descended) == 1


def test_metadata_that_transformers_cannot_read(
    model: transformers.LlamaForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(tmp_path / "m.gguf", model)
    for error, kind in (
        (ValueError("GGUF model with architecture x is not supported yet."), GgufErrors.UNSUPPORTED),
        (ValueError("a  b"), GgufErrors.CONFIG),
        (ValueError("x" * 200), GgufErrors.CONFIG),
        (ValueError("x" * 201), GgufErrors.CONFIG),
    ):

        def fail(*args: object, error: Exception = error, **words: object) -> None:
            raise error

        monkeypatch.setattr(gguf_file, "load_gguf_checkpoint", fail)
        with raises(kind):
            open_checkpoint(tmp_path / "m.gguf")


def test_a_tensor_without_a_place(model: transformers.LlamaForCausalLM, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", model, {"blk.0.attn_sinks.weight": np.ones(4, np.float32)})
    with raises(GgufErrors.NO_PLACE, count=1, model_type="llama", names=["blk.0.attn_sinks.weight"]):
        open_checkpoint(tmp_path / "m.gguf")
    assert not open_checkpoint(tmp_path / "m.gguf", weights=False).has_weights


def test_rows_that_do_not_divide_into_heads(model: transformers.LlamaForCausalLM, tmp_path: Path) -> None:
    keys = gguf_tensors(model)["blk.0.attn_k.weight"]
    write_gguf(tmp_path / "m.gguf", model, {"blk.0.attn_k.weight": np.concatenate([keys, keys[:1]])})
    with raises(GgufErrors.SHAPE, tensor="blk.0.attn_k.weight"):
        open_checkpoint(tmp_path / "m.gguf").names()


def test_metadata_that_changes_nothing(model: transformers.LlamaForCausalLM, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(
        path, model, llama__tensor_data_layout="x", llama__rope__scaling__type="none", llama__novelty="", other__key="x"
    )
    assert open_checkpoint(path).has_weights


@pytest.mark.parametrize(
    ("architecture", "kind"), [("nosuch", GgufErrors.UNSUPPORTED), (sorted(GGUF_ARCHS)[0], GgufErrors.HYBRID)]
)
def test_architectures_that_are_refused(architecture: str, kind: ErrorKind, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(str(tmp_path / "m.gguf"), architecture)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with raises(kind):
        open_checkpoint(tmp_path / "m.gguf")
