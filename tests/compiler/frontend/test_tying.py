"""Heads that a config ties to the embedding: what a checkpoint stores counts, as in transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, BioGptConfig, GPTNeoXConfig, LlamaConfig, PreTrainedConfig

import sscc
from sscc.compiler.driver.loading import open_interpreter
from sscc.compiler.frontend import tying
from sscc.compiler.frontend.checkpoint import CheckpointErrors, CheckpointWarnings, open_checkpoint, pack
from sscc.compiler.frontend.sources import DictSource
from sscc.compiler.frontend.tying import TyingErrors, TyingWarnings, differ
from sscc.compiler.options.warning import collecting
from sscc.compiler.tools.commands import cli
from sscc.ir.errors import InputError, SsccError
from sscc.runtime.session.artifact import Artifact
from tests.errors import check, raises
from tests.tiny_configs import random_model

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
SHAPE: dict[str, Any] = {"max_context": 64, "prefill_chunk": 8, "batch": 2}
PROMPT, NEW = [3, 5, 7, 11, 2, 9, 1, 4, 8, 20], 12
FORMS = ["safetensors", "bin", "pt"]

Stored = Callable[..., Path]


def write(folder: Path, config: PreTrainedConfig, state: dict[str, torch.Tensor], form: str = "safetensors") -> Path:
    if form == "pt":
        torch.save({"config": config.to_dict(), "state_dict": state}, folder / "model.pt")
        return folder / "model.pt"
    config.save_pretrained(folder)
    if form == "bin":
        torch.save(state, folder / "pytorch_model.bin")
    else:
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """Return `stored(head, ..)`, which stores a Llama whose head has other values than the embedding ("other"), equal
    ones ("equal"), or is missing (""), or is stored in place of the embedding."""

    def stored(head: str, *, tied: bool = True, embedding: bool = True, form: str = "safetensors") -> Path:
        config = LlamaConfig(**SIZES, num_key_value_heads=2, tie_word_embeddings=tied)
        state = {name: tensor.clone() for name, tensor in random_model(config).state_dict().items()}
        other = torch.randn(state[EMBEDDING].shape, generator=torch.Generator().manual_seed(1))
        values = {"other": other, "equal": state[EMBEDDING].clone()}
        state = {name: tensor for name, tensor in state.items() if name not in (HEAD, EMBEDDING)[: 2 - embedding]}
        state |= {HEAD: values[head]} if head else {}
        return write(tmp_path_factory.mktemp("stored"), config, state, form)

    return stored


@pytest.fixture(scope="module")
def own_head(stored: Stored) -> Path:
    return stored("other")


@pytest.fixture(scope="module")
def untied_program(own_head: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = sscc.compile(own_head, output=tmp_path_factory.mktemp("untied") / "model.rdu", save_golden=True, **SHAPE)
    check(warned_of(result.warnings), TyingWarnings.NOT_TIED, head=HEAD, embedding=EMBEDDING)
    return result.path


@pytest.fixture(scope="module")
def tied_program(stored: Stored, tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = sscc.compile(stored("equal"), output=tmp_path_factory.mktemp("tied") / "model.rdu", **SHAPE)
    assert warned_of(result.warnings) is None
    return result.path


def warned_of(warnings: Any) -> SsccError | None:
    return next((warning for warning in warnings if warning.kind is TyingWarnings.NOT_TIED), None)


def sources(program: Path) -> set[str]:
    return {source for stack in Artifact.load(program).layout.values() for source in stack.sources}


def answer(program: Path, **options: Any) -> list[int]:
    return list(sscc.load(program, **options).generate(PROMPT, NEW, eos=()))


def transformers_answer(folder: Path) -> list[int]:
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokens = model.generate(
        torch.tensor([PROMPT]), max_new_tokens=NEW, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    return [int(token) for token in tokens[0, len(PROMPT) :]]


# ---------------------------------------------------------------------------------------------------- opening


@pytest.mark.parametrize("form", FORMS)
def test_a_stored_head_of_other_values_is_used(stored: Stored, form: str, tmp_path: Path) -> None:
    with collecting() as warnings:
        checkpoint = open_checkpoint(stored("other", form=form))
    check(warned_of(warnings), TyingWarnings.NOT_TIED, head=HEAD, embedding=EMBEDDING, path=str(checkpoint.path))
    assert checkpoint.config is not None
    assert not checkpoint.config.tie_word_embeddings
    assert checkpoint.whole is checkpoint.config
    assert not torch.equal(checkpoint.tensor(HEAD), checkpoint.tensor(EMBEDDING))
    pack(checkpoint, tmp_path / "packed.pt")
    with collecting() as warnings:
        packed = open_checkpoint(tmp_path / "packed.pt")
    assert packed.digest == checkpoint.digest
    assert warned_of(warnings) is None


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("head", ["equal", ""])
def test_an_equal_head_stays_tied(stored: Stored, form: str, head: str) -> None:
    with collecting() as warnings:
        checkpoint = open_checkpoint(stored(head, form=form))
    assert checkpoint.config is not None
    assert checkpoint.config.tie_word_embeddings
    assert not warnings


def test_a_head_that_is_stored_alone_is_the_embedding(stored: Stored) -> None:
    folder = stored("other", embedding=False)
    checkpoint = open_checkpoint(folder)
    assert EMBEDDING in checkpoint.names()
    assert HEAD not in checkpoint.names()
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert torch.equal(checkpoint.tensor(EMBEDDING), model.model.embed_tokens.weight)


def test_an_untied_head_that_is_not_stored_is_refused(stored: Stored, tmp_path: Path) -> None:
    """transformers fills it with random numbers."""
    with raises(CheckpointErrors.PARAMETERS_MISSING, names=[HEAD]):
        sscc.compile(stored("", tied=False), output=tmp_path / "model.rdu", **SHAPE)


OTHER_NAMES = {
    "biogpt": (BioGptConfig(**SIZES, tie_word_embeddings=True), "output_projection.weight", "output_projection.weight"),
    "gpt_neox": (GPTNeoXConfig(**SIZES, tie_word_embeddings=True), "embed_out.weight", HEAD),
}


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_heads_of_other_names(name: str, tmp_path: Path) -> None:
    config, head, known = OTHER_NAMES[name]
    state = {key: value.clone() for key, value in random_model(config).state_dict().items() if key != known}
    shape = (SIZES["vocab_size"], SIZES["hidden_size"])
    with collecting() as warnings:
        checkpoint = open_checkpoint(write(tmp_path, config, state | {head: torch.ones(shape)}))
    check(warned_of(warnings), TyingWarnings.NOT_TIED, head=known)
    assert torch.equal(checkpoint.tensor(known), torch.ones(shape))


def test_tensors_are_compared_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tying, "COMPARED_ELEMENTS", 10)
    one = torch.randn(7, 4).to(torch.bfloat16)
    last = one.clone()
    last[6, 3] += 1
    names = {"one": one, "same": one.clone(), "wide": one.float(), "last": last, "short": one[:6], "shared": one}
    source = DictSource(names)
    assert [name for name in names if differ(source, "one", name)] == ["last", "short"]
    assert not differ(source, "one", "absent")


# --------------------------------------------------------------------------------------------------- programs


def test_programs_compute_what_transformers_does(own_head: Path, untied_program: Path, tied_program: Path) -> None:
    assert {HEAD, EMBEDDING} <= sources(untied_program)
    assert HEAD not in sources(tied_program)
    assert EMBEDDING in sources(tied_program)
    assert answer(untied_program) == transformers_answer(own_head) != answer(tied_program)
    assert answer(untied_program, checkpoint=own_head) == answer(untied_program)


def test_a_model_in_memory(own_head: Path, untied_program: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(own_head)
    result = sscc.compile(model, output=tmp_path / "model.rdu", **SHAPE)
    assert answer(result.path) == answer(untied_program)
    check(warned_of(result.warnings), TyingWarnings.NOT_TIED, head=HEAD)


def test_weights_by_reference(
    own_head: Path, untied_program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSCC_CACHE", str(tmp_path / "cache"))
    result = sscc.compile(own_head, output=tmp_path / "model.rdu", weights="reference", **SHAPE)
    assert answer(result.path) == answer(untied_program)


def test_quantized_weights(own_head: Path, tmp_path: Path) -> None:
    """The head has its own codes, and a golden of eager PyTorch with the dequantized values holds."""
    options = {"weights": "int8", "save_golden": True, "golden_tokens": 4}
    program = sscc.compile(own_head, output=tmp_path / "model.rdu", **SHAPE, **options).path
    stacks = Artifact.load(program).layout.values()
    assert [stack.encoding != "" for stack in stacks if EMBEDDING in stack.sources] == [False]
    assert {stack.encoding.split("/")[0] for stack in stacks if HEAD in stack.sources} == {"int8:32"}
    assert cli.main(["run", str(program), "--check", "--interpreter", "reference", "--threads", "1"]) == 0


def test_two_ranks(own_head: Path, untied_program: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program = sscc.compile(own_head, output=tmp_path / "model.rdu", tp=2, **SHAPE).path
    capfd.readouterr()
    words = ["--token-ids", ",".join(map(str, PROMPT)), "--max-new-tokens", str(NEW)]
    assert cli.main(["run", str(program), *words]) == 0
    assert [int(word) for word in capfd.readouterr().out.split()] == answer(untied_program)


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_program_refuses_a_checkpoint_with_its_own_head(stored: Stored, tied_program: Path, tied: bool) -> None:
    """Its one weight would be the embedding, and the stored head would be lost."""
    artifact = Artifact.load(tied_program)
    with raises(TyingErrors.PROGRAM_IS_TIED, head=HEAD, embedding=EMBEDDING):
        open_interpreter(artifact, stored("other", tied=tied))
    open_interpreter(artifact, stored("equal", tied=tied))
    open_interpreter(artifact, stored("other", embedding=False))


class Summed(torch.nn.Module):
    """A module with the parameters of a model under their own names, which torch.export captures quickly."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.lm_head = model.model, model.lm_head

    def forward(self, start: torch.Tensor) -> torch.Tensor:
        return sum((parameter.sum() for parameter in self.parameters()), start)


def test_a_checkpoint_without_a_config_is_warned_of(own_head: Path, tied_program: Path, tmp_path: Path) -> None:
    """A .pt2 does not say that its head was tied; the head that the tied program does not read is named."""
    path = tmp_path / "weights.pt2"
    model = Summed(AutoModelForCausalLM.from_pretrained(own_head))
    torch.export.save(torch.export.export(model, (torch.ones(()),)), path)
    with collecting() as warnings:
        open_interpreter(Artifact.load(tied_program), path)
    (warning,) = warnings
    check(warning, CheckpointWarnings.UNUSED, path=str(path), count=1, names=HEAD)


def test_an_untied_program_refuses_a_checkpoint_without_a_head(stored: Stored, untied_program: Path) -> None:
    with pytest.raises(InputError) as caught:
        open_interpreter(Artifact.load(untied_program), stored(""))
    assert HEAD in str(caught.value)


def test_a_dump_of_a_tied_program_refuses_a_checkpoint_with_its_own_head(
    own_head: Path, stored: Stored, tmp_path: Path
) -> None:
    dump = sscc.compile(stored(""), output=tmp_path / "tied.mlir", compile_to="import", **SHAPE).path
    with raises(TyingErrors.PROGRAM_IS_TIED, head=HEAD):
        sscc.compile(dump, output=tmp_path / "model.rdu", compile_from="import", checkpoint=own_head)
