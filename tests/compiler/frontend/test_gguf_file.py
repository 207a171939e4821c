"""What of a `.gguf` is read, what it is digested as, and what transformers would drop in silence."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from transformers.integrations.gguf.utils import GGUF_ARCHS

from sscc.compiler.frontend.checkpoint import open_checkpoint
from sscc.compiler.frontend.gguf_file import GgufFile
from sscc.ir.errors import InputError, UnsupportedError
from tests.compiler.frontend.test_checkpoint import K_PROJ, gguf_tensors, tiny_llama, write_gguf

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
    with pytest.raises(InputError, match=rf"is truncated: its tensors end at byte {end}, the file has {end - 1}"):
        open_checkpoint(path)


def test_a_table_of_rope_factors(model: transformers.LlamaForCausalLM, tmp_path: Path) -> None:
    """All ones change nothing; transformers would drop any other."""
    path, factors = tmp_path / "m.gguf", np.ones(4, np.float32)
    write_gguf(path, model, {"rope_freqs.weight": factors})
    assert "rope_freqs.weight" not in open_checkpoint(path).names()
    factors[2] = 0.5
    write_gguf(path, model, {"rope_freqs.weight": factors})
    with pytest.raises(UnsupportedError, match=r"drops the rope scaling of a GGUF file \(rope_freqs.weight\)"):
        open_checkpoint(path)


def test_a_tensor_without_a_place(model: transformers.LlamaForCausalLM, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", model, {"blk.0.attn_sinks.weight": np.ones(4, np.float32)})
    with pytest.raises(
        UnsupportedError, match=r"1 tensors have no place in transformers' llama: blk.0.attn_sinks.weight"
    ):
        open_checkpoint(tmp_path / "m.gguf")
    assert not open_checkpoint(tmp_path / "m.gguf", weights=False).has_weights


def test_rows_that_do_not_divide_into_heads(model: transformers.LlamaForCausalLM, tmp_path: Path) -> None:
    keys = gguf_tensors(model)["blk.0.attn_k.weight"]
    write_gguf(tmp_path / "m.gguf", model, {"blk.0.attn_k.weight": np.concatenate([keys, keys[:1]])})
    with pytest.raises(InputError, match=r"tensor 'blk.0.attn_k.weight' of shape \[\d+, \d+\]: cannot reshape"):
        open_checkpoint(tmp_path / "m.gguf").names()


def test_metadata_that_changes_nothing(model: transformers.LlamaForCausalLM, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(
        path, model, llama__tensor_data_layout="x", llama__rope__scaling__type="none", llama__novelty="", other__key="x"
    )
    assert open_checkpoint(path).has_weights


@pytest.mark.parametrize(
    ("architecture", "words"), [("nosuch", "nosuch"), (sorted(GGUF_ARCHS)[0], "layers that are not full attention")]
)
def test_architectures_that_are_refused(architecture: str, words: str, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(str(tmp_path / "m.gguf"), architecture)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedError, match=words):
        open_checkpoint(tmp_path / "m.gguf")
