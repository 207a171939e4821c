"""-O0, -O1 and -O2 compute the same, with the documented numbers of launches.

-O0 stores the result of every operation, -O1 fuses and works in tiles: they agree within rounding. -O2 only loops
over what -O1 launches: it agrees bit for bit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sscc.compiler.driver.driver import compile_model
from sscc.compiler.options.compile_options import CompileOptions
from sscc.compiler.tools.commands import cli
from sscc.ir.geometry import Geometry
from sscc.ir.schedule import launches, pipelines
from sscc.passes.build_entries import BuildEntries
from sscc.passes.pass_pipeline import PIPELINES
from sscc.runtime.session.artifact import Artifact
from tests.families import BATCH, CHUNK, FAMILIES, TWO_KINDS, CompiledModel, Compiler, numbers, random_tokens
from tests.torch_session import TorchSession

LEVELS = (0, 1, 2)
CONTEXT = 64
CACHES = {
    "snapstream": Geometry(sink=2, recent=9, topk=7, obs=4, pool=3, pool_mode="avg", max_context=CONTEXT),
    "max-pooled": Geometry(sink=0, recent=1, topk=5, obs=6, pool=5, pool_mode="max", max_context=CONTEXT),
    "streaming": Geometry(sink=4, recent=12, topk=0, obs=4, pool=3, pool_mode="avg", max_context=CONTEXT),
    "int8": Geometry(2, 9, 7, 4, 3, "avg", CONTEXT, dtype="int8"),
    "full": Geometry(sink=0, recent=CONTEXT, topk=0, obs=4, pool=3, pool_mode="avg", max_context=CONTEXT),
}

SLOW_MEMORY = {"hbm.bandwidth": 1e9}
"""A machine on which even these tiny models are worth cutting: their weights and caches arrive in tiles."""

F32_TOLERANCE = 1e-5
"""||a - b|| / ||b|| of one step's logits: where products are cut into tiles, sums run in another order. Measured 3e-6
at most with tiles, 0 without."""
BF16_TOLERANCE = 2e-2
"""The same in bf16. Measured 0, because products are summed in f32 and rounded once; where a sum lies at the edge, the
rounding may fall the other way, by 2^-8 of that element, and grow through the layers."""
INT8_TOLERANCE = 3e-3
"""The same with int8 rows, where a number at the edge between two codes may take either."""


@dataclass(frozen=True)
class LevelCase:
    """A model and a cache to compile at every level."""

    family: str
    cache: str = "snapstream"
    dtype: str = "f32"
    tiled: bool = False

    def tolerance(self, f32: float) -> float:
        """The tolerance of a difference that is at most `f32` where the cache is plain and of f32."""
        return BF16_TOLERANCE if self.dtype == "bf16" else INT8_TOLERANCE if self.cache == "int8" else f32

    def compiled(self, compiler: Compiler, opt_level: int) -> CompiledModel:
        g, target = CACHES[self.cache], compiler.target(SLOW_MEMORY) if self.tiled else "rdu"
        return compiler(self.family, g, dtype=self.dtype, opt_level=opt_level, target=target)


CASES = {
    "llama3-rope": LevelCase("llama3-rope", tiled=True),
    "gpt2": LevelCase("gpt2", "max-pooled", tiled=True),
    "gpt-neox": LevelCase("gpt-neox", "streaming"),
    "qwen3": LevelCase("qwen3", "full", tiled=True),
    "two-rotary-tables": LevelCase("two-rotary-tables"),
    "taking-turns": LevelCase("taking-turns", tiled=True),
    "two-then-four": LevelCase("two-then-four", "max-pooled"),
    "llama-bf16": LevelCase("llama", dtype="bf16", tiled=True),
    "int8-rows": LevelCase("llama3-rope", "int8", tiled=True),
}


def steps_of(session: TorchSession) -> Iterator[tuple[str, Tensor]]:
    """Run three slots like a server, and yield the logits of every step with its name.

    A prompt in one call; one in calls of a single chunk step, with decode steps of the first slot between them; then
    both decode, one behind the other; a slot that was never used and one that rests beside them; a slot used again.
    """
    yield "prefill of slot 0", session.prefill(0, random_tokens(41))
    session.start_prefill(1, random_tokens(23, seed=1))
    for step, token in enumerate(random_tokens(20, seed=2)):
        if session.step_prefill(1):
            yield "prefill of slot 1", session.prefill_logits
            break
        if step % 3 == 0:
            yield f"slot 0 during prefill, step {step}", session.decode({0: token})[0]
    else:
        session.step_prefill(session.signature.prefill_steps(23))
        yield "prefill of slot 1", session.prefill_logits
    for step, token in enumerate(random_tokens(6, seed=3)):
        slots = {0: token, 1: token + 1} if step % 2 else {1: token}
        yield f"decode step {step} of slots {sorted(slots)}", session.decode(slots)[sorted(slots)]
    yield "slot 0 again", session.prefill(0, random_tokens(5, seed=4))
    yield "decode of slot 0 again", session.decode({0: 7})[0]


@dataclass(frozen=True)
class LevelRun:
    """Logits by step, and the states at the end."""

    logits: dict[str, Tensor]
    states: dict[str, Tensor]


@cache
def run(compiler: Compiler, case: str, opt_level: int) -> LevelRun:
    compiled = CASES[case].compiled(compiler, opt_level)
    session = compiled.session(checked=True)
    logits = {name: value.clone().float() for name, value in steps_of(session)}
    names = ["k_cache", "v_cache", *(["selected"] if compiled.geometry.topk else [])]
    return LevelRun(logits, {name: numbers(session.interpreter.tensor(name).clone()) for name in names})


def difference(a: Tensor, b: Tensor) -> tuple[float, str]:
    """||a - b|| / ||b||, and in words what differs how much."""
    a, b = a.flatten().double(), b.flatten().double()
    normwise = float((a - b).norm() / b.norm())
    correlation = float(torch.corrcoef(torch.stack([a, b]))[0, 1])
    largest = float((a - b).abs().max())
    return normwise, f"normwise {normwise:.2e}, max abs {largest:.2e}, correlation {correlation:.8f}"


# ----------------------------------------------------------------------------------------------------- results


@pytest.mark.parametrize("opt_level", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_optimised_programs_agree_with_the_plain_one(case: str, opt_level: int, compiled: Compiler) -> None:
    plain, optimised = run(compiled, case, 0), run(compiled, case, opt_level)
    tolerance = CASES[case].tolerance(F32_TOLERANCE)
    assert len(plain.logits) > 12
    for step, expected in plain.logits.items():
        normwise, words = difference(optimised.logits[step], expected)
        assert normwise <= tolerance, f"-O{opt_level}, {step}: {words}"


@pytest.mark.parametrize("case", CASES)
def test_looping_changes_no_bit(case: str, compiled: Compiler) -> None:
    """The logits of every step, the caches of all slots, and the rows selected by the last prefill are equal."""
    apart, looped = run(compiled, case, 1), run(compiled, case, 2)
    for step, expected in apart.logits.items():
        assert torch.equal(looped.logits[step], expected), f"{step}: {difference(looped.logits[step], expected)[1]}"
    for name, state in apart.states.items():
        assert torch.equal(looped.states[name], state), name


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_prefill_changes_no_bit(case: str, compiled: Compiler) -> None:
    """At -O2, where one launch goes through all layers, and leaves and enters them again at any chunk."""
    session = CASES[case].compiled(compiled, 2).session(checked=True)
    whole = session.prefill(0, random_tokens(23, seed=1)).clone()
    for steps in (1, 3, 8):
        session.start_prefill(2, random_tokens(23, seed=1))
        while not session.step_prefill(steps):
            pass
        assert torch.equal(session.prefill_logits, whole), steps
        for name in ("k_cache", "v_cache"):
            cache_ = session.interpreter.tensor(name)
            assert torch.equal(cache_[:, 2], cache_[:, 0]), f"{steps} {name}"


# ---------------------------------------------------------------------------------------------------- launches


def counted(compiled: CompiledModel) -> tuple[int, int]:
    """Kernel launches of one decode step and of one prefill call, those in loops once."""
    entries = (compiled.artifact.program.entry(name) for name in ("decode", "prefill"))
    decode, prefill = (len(list(launches(entry.body))) for entry in entries)
    return decode, prefill


@pytest.mark.parametrize("family", ["llama3-rope", "gpt2", "gpt-neox", "qwen3"])
def test_three_launches_per_token(family: str, compiled: Compiler) -> None:
    """-O2 launches embedding, all layers, and head; -O1 launches two and one per layer, -O0 one per operation."""
    case = CASES[family]
    layers = case.compiled(compiled, 2).artifact.signature.layers
    counts = [counted(case.compiled(compiled, level)) for level in LEVELS]
    assert counts[2] == (3, 3)
    assert counts[1] == (2 + layers, 2 + layers)
    assert all(count > 15 * layers for count in counts[0])


def test_a_run_of_equal_layers_is_one_launch(compiled: Compiler) -> None:
    """Two layers of one kind and four of another: two looped kernels; kinds that take turns: one for both."""
    runs, turns = CASES["two-then-four"], CASES["taking-turns"]
    assert [counted(runs.compiled(compiled, level)) for level in (1, 2)] == [(8, 8), (4, 4)]
    assert [counted(turns.compiled(compiled, level)) for level in (1, 2)] == [(8, 8), (3, 3)]


def test_the_manifest_says_what_was_looped(compiled: Compiler) -> None:
    def said(case: str) -> list[tuple[str, int, str]]:
        looping = CASES[case].compiled(compiled, 2).artifact.manifest.looping
        return [(item.entry, item.layers, item.reason) for item in looping]

    assert said("llama3-rope") == [("prefill", 2, ""), ("decode", 2, "")]
    assert sorted(said("two-then-four")) == sorted(
        (entry, layers, "") for entry in ("prefill", "decode") for layers in (2, 4)
    )
    assert [layers for _, layers, _ in said("taking-turns")] == [6, 6]


# ------------------------------------------------------------------------------------------------ sizes of programs

SHAPE = CompileOptions(
    model=Path("unused"),
    weights="none",
    max_context=CONTEXT,
    kv_sink=2,
    kv_recent=9,
    kv_topk=7,
    kv_obs=4,
    kv_pool=3,
    prefill_chunk=7,
)


def of_layers(layers: int, folder: Path) -> Artifact:
    """Return an artifact of a llama with `layers` layers, at -O2, without weights."""
    config = deepcopy(FAMILIES["llama3-rope"])
    config.num_hidden_layers = layers
    model = folder / f"{layers}"
    config.save_pretrained(model)
    options = {**vars(SHAPE), "model": model / "config.json", "output": folder / f"{layers}.rdu"}
    return Artifact.load(compile_model(CompileOptions(**options)).path)


def test_a_looped_program_does_not_grow_with_the_layers(tmp_path: Path) -> None:
    """The same program but for numbers (extents, addresses) and what stacked weights are made of."""
    few, many = of_layers(4, tmp_path).program, of_layers(16, tmp_path).program
    assert len(few.kernels) == len(many.kernels)
    assert len(few.bodies) == len(many.bodies)
    texts = [re.sub(r'"sources":\[[^]]*\]', "", program.to_json()) for program in (few, many)]
    assert abs(len(texts[0]) - len(texts[1])) < len(texts[0]) / 100
    numberless = [re.sub(r"\d+", "#", text) for text in texts]
    assert numberless[0] == numberless[1]
    sources = [len(tensor.sources) for tensor in many.tensors if tensor.role == "weight"]
    assert sources.count(16) >= 9
    assert set(sources) == {1, 16}


# ------------------------------------------------------------------------------------------------------ levels of IR


@pytest.mark.parametrize("opt_level", [0, 2])
def test_every_pass_leaves_what_the_ir_computes(
    opt_level: int, compiled: Compiler, capsys: pytest.CaptureFixture[str]
) -> None:
    """The IR evaluator after every pass of -O0, -O1 and -O2, against the level import: `sscc bisect` ends with 0."""
    model = compiled.checkpoint("taking-turns")
    cache_ = "--kv-sink 2 --kv-recent 8 --kv-topk 6 --kv-obs 4 --kv-pool 3 --max-context 64".split()
    shape = ["--prefill-chunk", str(CHUNK), "--batch", str(BATCH)]
    assert cli.main(["bisect", str(model), f"-O{opt_level}", "--json", "--steps", "2", *cache_, *shape]) == 0
    passes = [json.loads(line)["name"].partition("{")[0] for line in capsys.readouterr().out.splitlines()]
    first = PIPELINES[0].index(BuildEntries())  # entries that can be run are made here
    assert passes == [*(item.name for item in PIPELINES[opt_level][first:]), "schedule"]


@pytest.mark.parametrize("case", [name for name, case in CASES.items() if case.tiled])
def test_tiled_programs_are_tiled(case: str, compiled: Compiler) -> None:
    """Otherwise the tests above would say nothing about tiles. Products and the stages of the caches are cut."""
    program = CASES[case].compiled(compiled, 2).artifact.program
    stages = [stage for kernel in program.kernels for pipeline in pipelines(kernel.body) for stage in pipeline.stages]
    cut = {stage.name for stage in stages if stage.trips > 1 and not stage.name.startswith("load")}
    assert len(cut) >= 5


def test_cases_cover_both_dtypes_and_every_cache() -> None:
    assert {case.dtype for case in CASES.values()} == {"f32", "bf16"}
    assert {case.cache for case in CASES.values()} == set(CACHES)
    assert {case.family for case in CASES.values()} >= set(TWO_KINDS)
