"""Multi-head latent attention, which caches one latent row for all heads, against transformers: all levels and both
interpreters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from sscc.compiler.driver.driver import compile_model
from sscc.compiler.frontend.eager import EagerQuerySelection, EagerSnapStream
from sscc.compiler.frontend.operator import IMPLEMENTATION
from sscc.compiler.options.compile_options import CompileOptions, cache_options
from sscc.compiler.tools.commands.cli import main
from sscc.compiler.tools.inspection.inspection import inspect_artifact
from sscc.compiler.tools.inspection.inspection_words import described
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.session.golden_replay import replay
from sscc.runtime.session.session import Session
from tests.agreement import NEAR, check_compressed, check_definition, check_generation, check_levels
from tests.families import GEOMETRY, LATENT, Compiler, random_tokens

NEW_TOKENS = 12


@pytest.mark.parametrize("family", LATENT)
def test_while_all_rows_stay_it_is_transformers_own(family: str, compiled: Compiler) -> None:
    """The prompt has two chunks, the second one with padding."""
    program = compiled(family)
    sessions = program.session(checked=True), program.native()
    check_generation(program.model, sessions, random_tokens(10), NEW_TOKENS)


def test_what_is_cached_is_a_latent_row(compiled: Compiler) -> None:
    program, config = compiled("latent-among-experts"), LATENT["latent-among-experts"]
    (group,) = program.artifact.signature.plan
    assert (group.heads, group.kv_heads) == (config.num_attention_heads, 1)
    width = config.kv_lora_rank + config.qk_rope_head_dim
    assert {stream.name: stream.width for stream in group.streams} == {"latent": width}
    assert program.artifact.signature.held_bytes == group.geometry.budget * len(group.layers) * width * 4


def test_every_level_agrees(compiled: Compiler) -> None:
    check_levels("latent-among-experts", compiled)


def test_every_pass_computes_the_same(compiled: Compiler, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = compiled.checkpoint("latent-whole-query")
    cache = ["--kv-budget", "40", "--kv-recent", "10", "--kv-obs", "6", "--kv-pool", "3", "--max-context", "192"]
    assert main(["bisect", str(checkpoint), *cache, "--batch", "2", "--prefill-chunk", "7"]) == 0
    assert capsys.readouterr().out.endswith("all agree within 1e-05\n")


def test_the_golden_knows_that_heads_keep_the_same_positions(compiled: Compiler, tmp_path: Path) -> None:
    checkpoint, output = compiled.checkpoint("latent-whole-query"), tmp_path / "golden.rdu"
    geometry = replace(GEOMETRY, recent=10, topk=26)
    compile_model(
        CompileOptions(checkpoint, output, save_golden=True, batch=2, prefill_chunk=7, **cache_options(geometry))
    )
    artifact = Artifact.load(output)
    golden = artifact.golden()
    assert golden is not None
    names = [name for name in golden.tensors if not name.startswith("logits")]
    assert names == ["latent_cache.0", "selected.0", "latent_cache.1", "selected.1", "prefill_logits"]
    assert golden.tensors["selected.0"].shape == (1, 26)
    replay(Session.from_artifact(artifact), golden).require()
    text = "\n".join(described(inspect_artifact(artifact)))
    assert "deepseek_v3: 2 layers, 4 heads over one latent row of 20, 96 tokens" in text


def test_layers_may_have_budgets_of_their_own(compiled: Compiler) -> None:
    """Their rows lie behind one another in one cache, of one head."""
    geometry = GEOMETRY.with_layers([12, 5])
    program = compiled("latent-whole-query", geometry)
    checkpoint = compiled.checkpoint("latent-whole-query")
    model = AutoModelForCausalLM.from_pretrained(checkpoint, attn_implementation=IMPLEMENTATION)
    definition = EagerSnapStream(model, geometry, latent=(0, 1))
    check_definition(definition, [program.native()], random_tokens(130), random_tokens(4, seed=1))


QUERY = {"rows": "indexed", "policy": "query", "key_bits": 2}


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "int8"},
        {"rows": "indexed"},
        QUERY,
        QUERY | {"dtype": "int8", "fetch": 3},
        QUERY | {"dtype": "int4", "key_bits": 16},
    ],
    ids=["int8", "indexed", "query", "query int8 fetch", "query int4 16 bits"],
)
def test_rows_in_every_form_are_the_definitions(changes: dict[str, Any], compiled: Compiler) -> None:
    """Encoded, indexed, chosen by each step, and brought from a store: prefill and steps, natively."""
    family, geometry = "latent-whole-query", replace(GEOMETRY, **changes)
    program = compiled(family, geometry)
    model = AutoModelForCausalLM.from_pretrained(compiled.checkpoint(family), attn_implementation=IMPLEMENTATION)
    definition = EagerSnapStream(model, geometry, (0, 1))
    if geometry.by_query:
        definition = EagerQuerySelection(model, geometry, geometry.key_bits, geometry.fetch, (0, 1))
    prompt, tokens = random_tokens(130), random_tokens(4, seed=1)
    check_definition(definition, [program.native()], prompt, tokens)
    last = definition.decode(tokens[0])
    with torch.no_grad():
        full = program.model(input_ids=torch.tensor([[*prompt, *tokens, tokens[0]]])).logits[0, -1]
    assert (last - full).abs().max() > 100 * NEAR, "compression changed nothing, so this test shows nothing"


def test_rows_may_be_sinks_and_ring_alone(compiled: Compiler) -> None:
    """There is nothing to select, so the prompt's last queries score nothing."""
    geometry = replace(GEOMETRY, recent=20, topk=0)
    program = compiled("latent-whole-query", geometry)
    checkpoint = compiled.checkpoint("latent-whole-query")
    model = AutoModelForCausalLM.from_pretrained(checkpoint, attn_implementation=IMPLEMENTATION)
    definition = EagerSnapStream(model, geometry, latent=(0, 1))
    check_definition(definition, [program.native()], random_tokens(130), random_tokens(4, seed=1))


@pytest.mark.parametrize("family", LATENT)
def test_with_less_room_it_is_the_independent_snapstream(family: str, compiled: Compiler) -> None:
    """All heads keep the same positions: transformers' own cache has one row for all of them, too."""
    program = compiled(family)
    check_compressed(program, program.session(), 6, tie=1e-4)
