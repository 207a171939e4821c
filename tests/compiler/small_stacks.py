"""Shared parts of the tests of layer stacks: tiny models, their artifacts, and sessions that are fed tokens."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, PreTrainedConfig, PreTrainedModel

from sscc.compiler.driver.driver import compile_model
from sscc.compiler.frontend import operator
from sscc.compiler.frontend.eager import EagerQuerySelection, EagerSnapStream
from sscc.compiler.frontend.stateful import OPERATORS
from sscc.compiler.options.compile_options import CompileOptions, cache_options
from sscc.compiler.tools.commands import cli
from sscc.compiler.tools.inspection.inspection import inspect_artifact
from sscc.ir.geometry import Geometry
from sscc.runtime.artifact.golden import Golden
from sscc.runtime.backends.backend import Conditions
from sscc.runtime.backends.collectives.group import Group, run_ranks, thread_groups
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.session.session import Session, interpreter_of
from tests.families import adapted, random_tokens
from tests.native import native_interpreter

CONTEXT, BATCH, CHUNK = 64, 2, 7
SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
WINDOW = 10
GEMMA3 = Gemma3TextConfig(
    **SHAPE, num_hidden_layers=5, head_dim=8, sliding_window_pattern=2, sliding_window=WINDOW
)
"""Layers 1 and 3 attend to everything, the others within a window: two periods, and a layer that is left. All tests of
windows among other layers use this one, so that it is exported once."""
ROW = 2 * 8 * 2 * 4
"""Bytes of a position in a layer: K and V of two KV heads of 8 in f32."""

EVERYTHING = Geometry(sink=0, recent=CONTEXT, topk=0, obs=4, pool=3, pool_mode="avg", max_context=CONTEXT)
SMALL = Geometry(sink=2, recent=9, topk=5, obs=4, pool=3, pool_mode="avg", max_context=CONTEXT)
CACHES = {
    "everything": EVERYTHING,
    "small": SMALL,
    "indexed": replace(SMALL, rows="indexed"),
    "int8": replace(SMALL, dtype="int8"),
    "spare": replace(SMALL, spare=3),
    "query": replace(SMALL, rows="indexed", policy="query", key_bits=2),
}
"""Ways to keep rows, by name."""

Artifacts = Callable[..., Path]


def random_model(config: PreTrainedConfig, attention: str, dtype: str = "f32") -> PreTrainedModel:
    """Of `dtype` "f32", "bf16", or "rounded": in f32, with the weights of bf16."""
    torch.manual_seed(1)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation=attention)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
            if dtype == "rounded":
                parameter.copy_(parameter.bfloat16())
    return model.to(torch.bfloat16 if dtype == "bf16" else torch.float32).requires_grad_(False).eval()


@cache
def eager_model(model: Callable[..., PreTrainedModel], family: str) -> PreTrainedModel:
    """Return a model that calls our operators, with the weights of the one that is compiled.

    Args:
        model: of a family and an attention implementation.
    """
    ours = model(family, attention=operator.IMPLEMENTATION)
    ours.load_state_dict(model(family).state_dict())
    for each in OPERATORS:
        each.recognise(ours)
    return ours


def artifacts_in(
    folder: Path, model: Callable[[str, str], PreTrainedModel], geometry: Callable[[str, str], Geometry], first: str
) -> Artifacts:
    """Return `artifacts(family, way, opt_level, dtype)`, which compiles each artifact once.

    `folder` also gets the checkpoint, FAMILY.DTYPE, and the dump of level graph, FAMILY.WAY.DTYPE.graph.mlir.

    Args:
        model: returns the model of a family and a dtype.
        geometry: returns the geometry of a family and a way to keep rows. A model is captured once, for the `first`
            way, and lowered once for each way.
    """

    @cache
    def checkpoint(family: str, dtype: str) -> Path:
        model(family, dtype).save_pretrained(folder / f"{family}.{dtype}")
        return folder / f"{family}.{dtype}"

    @cache
    def captured(family: str, dtype: str, drafted: int) -> Path:
        file = folder / f"{family}.{dtype}.{drafted}.import.mlir"
        shape = cache_options(geometry(family, first)) | {"batch": BATCH, "prefill_chunk": CHUNK, "verify": drafted}
        compile_model(CompileOptions(checkpoint(family, dtype), file, compile_to="import", **shape))
        return file

    @cache
    def graph(family: str, way: str, dtype: str) -> Path:
        start, file = (folder / f"{family}.{way}.{dtype}.{end}" for end in ("mlir", "graph.mlir"))
        adapted(captured(family, dtype, geometry(family, way).spare), start, geometry(family, way))
        compile_model(CompileOptions(start, file, compile_from="import", compile_to="graph"))
        return file

    @cache
    def compiled(family: str, way: str = first, opt_level: int = 2, dtype: str = "f32") -> Path:
        out = folder / f"{family}.{way}.{opt_level}.{dtype}.rdu"
        options = {"compile_from": "graph", "checkpoint": checkpoint(family, dtype), "opt_level": opt_level}
        compile_model(CompileOptions(graph(family, way, dtype), out, native_code=False, **options))
        return out

    return compiled


@cache
def loaded(path: Path) -> Artifact:
    """Read and proved once."""
    return Artifact.load(path)


def opened(path: Path, interpreter: str = "native") -> Session:
    artifact = loaded(path)
    if interpreter == "native":
        return Session(artifact.signature, native_interpreter(artifact))
    return Session.from_artifact(artifact, interpreter=interpreter)


def fed(session: Session, prompt: list[int], tokens: list[int], slot: int = 0) -> np.ndarray:
    """The logits of a prompt, and of each token after it."""
    rows = [session.prefill(slot, prompt).copy(), *(session.decode({slot: token})[slot].copy() for token in tokens)]
    return np.stack(rows)


def generated(model: PreTrainedModel, length: int, new: int) -> list[int]:
    """Return the tokens that transformers generates after a random prompt of `length` tokens."""
    prompt = torch.tensor([random_tokens(length)])
    seen = torch.ones_like(prompt)  # otherwise tokens 0 of the prompt count as padding
    out = model.generate(prompt, attention_mask=seen, max_new_tokens=new, do_sample=False, pad_token_id=0)
    return [int(token) for token in out[0, length:]]


def decoded_side_by_side(session: Session, lengths: Sequence[int], new: int) -> list[list[int]]:
    """Return the tokens that slots 0, 1, .. decode greedily, step by step together, after random prompts of these
    lengths."""
    tokens_of = [[int(session.prefill(slot, random_tokens(n)).argmax())] for slot, n in enumerate(lengths)]
    for _ in range(new - 1):
        logits = session.decode({slot: tokens[-1] for slot, tokens in enumerate(tokens_of)})
        for slot, tokens in enumerate(tokens_of):
            tokens.append(int(logits[slot].argmax()))
    return tokens_of


def decoded_by_ranks(artifact: Artifact, ranks: int, length: int, new: int) -> list[list[int]]:
    """Return the tokens that each rank decodes greedily in slot 0 after a random prompt of `length` tokens."""

    def decode(group: Group) -> list[int]:
        session = Session(artifact.signature, interpreter_of(artifact, Conditions(group=group), "native"))
        (tokens,) = decoded_side_by_side(session, [length], new)
        return tokens

    return run_ranks(thread_groups(ranks), decode)


def errors_in_bf16(
    session: Session, model: Callable[[str], PreTrainedModel], prompt: list[int], tokens: list[int]
) -> tuple[float, float, float]:
    """Return root mean squares of logits, of the last token of a prompt and of tokens behind it: of our error, of that
    of transformers' own bf16 run, both against f32 arithmetic on the same bf16 weights, and of the exact logits.

    Args:
        model: of a dtype, as `random_model` has them.
    """
    ours = fed(session, prompt, tokens)
    theirs, exact = (
        model(dtype)(torch.tensor([prompt + tokens]), use_cache=False).logits[0].float().numpy()
        for dtype in ("bf16", "rounded")
    )
    rows = slice(len(prompt) - 1, None)
    of_ours, of_theirs, whole = (
        float(np.sqrt(np.square(x).mean())) for x in (ours - exact[rows], theirs[rows] - exact[rows], exact[rows])
    )
    return of_ours, of_theirs, whole


def check_levels(
    artifacts: Artifacts, family: str, kept: str, eager: EagerSnapStream | EagerQuerySelection, prompt: list[int],
    tokens: list[int], looped: bool = True,
) -> None:  # fmt: skip
    """-O2 loops over what -O1 launches, bit for bit; -O0, on the reference, and eager PyTorch round elsewhere.

    Args:
        looped: False where another way to keep rows has the same loops: then nothing is compiled at -O1.
    """
    by_level = {
        level: fed(opened(artifacts(family, kept, level), interpreter), prompt, tokens, slot=1)
        for level, interpreter in enumerate(("reference", "native", "native"))
        if level != 1 or looped
    }
    assert np.array_equal(by_level.get(1, by_level[2]), by_level[2])
    rows = [eager.prefill(prompt), *(eager.decode(token) for token in tokens)]
    expected, tolerance = torch.stack(rows).numpy(), 1e-2 if kept == "int8" else 1e-4
    for logits in (by_level[0], by_level[2]):
        assert np.linalg.norm(logits - expected) <= tolerance * np.linalg.norm(expected)


def check_loops(path: Path, layers: int) -> None:
    """All layers loop in one launch, as periods where they differ."""
    artifact = loaded(path)
    for entry in ("prefill", "decode"):
        (record,) = [record for record in artifact.manifest.looping if record.entry == entry]
        assert (record.looped, record.layers) == (True, layers)
    assert inspect_artifact(artifact).launches_per_token == 3  # embedding, the layers, head


def met_golden(artifacts: Artifacts, family: str, kept: str, out: Path) -> Golden:
    """Compile a family on from its dump with golden outputs, check that a run meets them, and return them."""
    beside = artifacts(family, kept).with_name
    graph, checkpoint = str(beside(f"{family}.{kept}.f32.graph.mlir")), str(beside(f"{family}.f32"))
    words = ["--compile-from", "graph", "--checkpoint", checkpoint, "--save-golden", "--golden-tokens", "14"]
    assert cli.main(["compile", graph, "-o", str(out), *words, "-q", "--traceback"]) == 0
    golden = Artifact.load(out).golden()
    assert golden is not None
    assert cli.main(["run", str(out), "--check"]) == 0
    return golden


def check_company(session: Session) -> None:
    """A slot has the bits of a slot alone: beside one that decodes in its steps, and beside one that decodes alone."""
    prompt, tokens = random_tokens(19), random_tokens(9, seed=2)
    alone = fed(session, prompt, tokens, slot=0)
    session.prefill(1, random_tokens(30, seed=3))
    session.prefill(0, prompt)
    for number, token in enumerate(tokens):
        assert np.array_equal(session.decode({0: token, 1: number})[0], alone[number + 1])
    expected = fed(session, prompt, tokens, slot=1)
    session.prefill(1, prompt)
    session.prefill(0, random_tokens(3))
    session.decode({0: 4})  # which leaves the state of slot 1 alone
    assert all(np.array_equal(session.decode({1: t})[1], row) for t, row in zip(tokens, expected[1:], strict=True))


def check_copied(session: Session, second: Session, file: Path) -> None:
    """Check that a slot continues equally from a snapshot in another slot and from a file in another session."""
    prompt, tokens = random_tokens(23), random_tokens(13, seed=2)
    session.prefill(1, prompt)
    snapshot = session.snapshot(1)
    session.save_slot(1, file)
    expected = [session.decode({1: token})[1].copy() for token in tokens]
    session.prefill(0, random_tokens(40, seed=3))
    session.decode({0: 5})
    session.restore(0, snapshot)
    assert all(np.array_equal(session.decode({0: t})[0], row) for t, row in zip(tokens, expected, strict=True))
    second.load_slot(0, file)
    assert all(np.array_equal(second.decode({0: t})[0], row) for t, row in zip(tokens, expected, strict=True))


def check_in_pieces(session: Session) -> None:
    """A prompt that is read in pieces, between steps of another slot, has the logits of the whole."""
    prompt = random_tokens(33)
    expected = session.prefill(0, prompt).copy()
    session.prefill(1, random_tokens(5))
    session.start_prefill(0, prompt)
    while not session.step_prefill(3):
        session.decode({1: 7})
    assert np.array_equal(session.prefill_logits, expected)


def check_continued(session: Session, kept_chunks: Sequence[int], new: int) -> None:
    """Check that a prompt that continues from kept rows has the logits of the whole prompt, bit for bit: its own, and
    those of `new` tokens after it.

    Args:
        kept_chunks: numbers of first chunks whose rows are kept; the largest possible number is checked, too.
    """
    chunk = session.signature.prefill_chunk
    prompt, tokens = random_tokens(5 * chunk + 3), random_tokens(new, seed=2)
    expected = fed(session, prompt, tokens)
    chunks = {number: session.empty_chunk() for number in range(5)}
    session.start_prefill(1, prompt, fill=chunks)
    while not session.step_prefill(4):
        pass
    assert np.array_equal(session.prefill_logits, expected[0])
    rows = session.rows.copies[chunks[0].number]
    assert sum(part.nbytes for part in rows.values()) == chunks[0].nbytes
    sums = [part.nbytes for name, part in rows.items() if name.startswith("log_sum_exp")]  # which not every program has
    assert chunks[0].nbytes - sum(sums) == session.signature.chunk_bytes + session.signature.carried_bytes
    for count in (*kept_chunks, session.reusable_chunks(len(prompt))):
        session.prefill(0, random_tokens(4 * chunk + 1, seed=3))  # leaves rows of another prompt in slot and scratch
        session.start_prefill(0, prompt, [chunks[number] for number in range(count)])
        while not session.step_prefill(5):
            pass
        rows = [session.prefill_logits, *(session.decode({0: token})[0].copy() for token in tokens)]
        assert np.array_equal(np.stack(rows), expected)
