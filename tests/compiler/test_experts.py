"""Decoders with experts, compiled, against transformers: all levels, both interpreters, in chunks and in company."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from sscc.compiler.driver.driver import compile_model
from sscc.compiler.frontend.checkpoint import open_checkpoint
from sscc.compiler.frontend.checkpoint_tensors import to_arrays
from sscc.compiler.frontend.eager import make_golden
from sscc.compiler.frontend.untouched_model import load_model
from sscc.compiler.options.compile_options import CompileOptions, cache_options
from sscc.ir.weight_formats.registry import format_named
from sscc.runtime.artifact.golden import Golden
from sscc.runtime.backends.cpu.plan.weights import packed_weights
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.session.golden_replay import replay
from sscc.runtime.session.session import Session
from tests.agreement import check_generation, check_levels
from tests.families import BATCH, CHUNK, EXPERTS, GEOMETRY, Compiler, feed, random_tokens
from tests.torch_session import TorchSession

NEW_TOKENS = 12
WEIGHTS = {name: format_named(name) for name in ("int8:16", "int4:16:zero-point")}


@pytest.mark.parametrize("family", EXPERTS)
def test_experts_are_transformers_own(family: str, compiled: Compiler) -> None:
    """A prompt of two chunks, the second one partly padding."""
    program = compiled(family)
    check_generation(program.model, (program.session(), program.native()), random_tokens(10), NEW_TOKENS)


def test_every_level_agrees(compiled: Compiler) -> None:
    check_levels("experts-in-groups", compiled)


def test_the_model_of_goldens_has_the_biases_of_routers(compiled: Compiler) -> None:
    """They are buffers that a checkpoint holds. Without them other experts would be chosen."""
    program = compiled("experts-in-groups")
    model = load_model(open_checkpoint(compiled.checkpoint("experts-in-groups")), torch.float32)
    state = program.model.state_dict()
    assert any(name.endswith("e_score_correction_bias") for name in state)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    prompt, tokens, tensors = make_golden(model, program.geometry, random_tokens(100), 2)
    report = replay(program.native().session, Golden(tuple(prompt), tuple(tokens), to_arrays(tensors)))
    report.require()
    assert {"k_cache.2", "selected.2"} <= {check.name for check in report.checks}


def test_company_changes_no_bit(compiled: Compiler) -> None:
    """Slots whose tokens go to the same experts share a block of rows."""
    program = compiled("experts-softmax")
    session, alone = program.native(), program.native()
    prompts = [random_tokens(9, seed=seed) for seed in range(3)]
    for slot, prompt in enumerate(prompts):
        session.prefill(slot, prompt)
    for slot, prompt in enumerate(prompts):
        alone.prefill(slot, prompt)
        together = session.decode(dict.fromkeys(range(3), 5))[slot].clone()
        assert torch.equal(alone.decode({slot: 5})[slot], together)
        for other, again in enumerate(prompts):
            session.prefill(other, again)


@pytest.mark.parametrize("text", WEIGHTS)
def test_quantized_experts(text: str, compiled: Compiler, tmp_path: Path) -> None:
    """Codes of a matrix per expert, multiplied as they are stored: every level and interpreter agrees, within the
    rounding of a row to integers."""
    checkpoint, sessions = compiled.checkpoint("experts-softmax"), []
    for level in (0, 2):
        output = tmp_path / f"{level}.rdu"
        options = cache_options(GEOMETRY) | {"batch": BATCH, "prefill_chunk": CHUNK, "weight_format": WEIGHTS[text]}
        compile_model(CompileOptions(checkpoint, output, opt_level=level, **options))
        artifact = Artifact.load(output)
        ours = (Session.from_artifact(artifact, interpreter=name) for name in ("reference", "native"))
        sessions += map(TorchSession, ours)
    encoded = {tensor.name.rpartition(".")[2] for tensor in artifact.program.tensors if "experts" in tensor.name}
    assert encoded == {"values", "scales"} | ({"zeros"} if WEIGHTS[text].zeros else set())
    packed = packed_weights(artifact.program)
    assert all(packed[tensor.name].quantized for tensor in artifact.program.tensors if ".values" in tensor.name)
    prompt, tokens = random_tokens(10), random_tokens(4, seed=1)
    first, *others = (feed(session, prompt, tokens) for session in sessions)
    for other in others:
        assert (other - first).norm() / first.norm() < 2e-3


@pytest.mark.parametrize("family", EXPERTS)
def test_routers_are_not_quantized(family: str, compiled: Compiler, tmp_path: Path) -> None:
    """A router is recognised by the selection that reads its products, not by its name."""
    options = cache_options(GEOMETRY) | {"batch": BATCH, "prefill_chunk": CHUNK}
    options["weight_format"] = format_named("int8:16")
    output = tmp_path / "graph.mlir"
    compile_model(CompileOptions(compiled.checkpoint(family), output, compile_to="graph", **options))
    named = set(re.findall(r'sscc\.weight = "([^"]+)"', output.read_text()))
    routers = {name for name in named if re.search(r"\.(gate|router|router\.layer|gate\.wg)\.weight(\.|$)", name)}
    assert routers, named
    assert all(name.endswith(".weight") for name in routers), routers
    assert any(name.endswith("q_proj.weight.values") for name in named)
