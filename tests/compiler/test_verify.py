"""Steps of several tokens: after any sequence of accepted and rejected tokens, a slot is as if its tokens had been fed
one by one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    DeepseekV3Config,
    Gemma4TextConfig,
    GptOssConfig,
    Lfm2Config,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
)

from sscc.compiler.driver.driver import compile_model
from sscc.compiler.driver.dumps import read_dump
from sscc.compiler.frontend import operator
from sscc.compiler.frontend.capture import config_constants
from sscc.compiler.frontend.checkpoint_tensors import to_arrays
from sscc.compiler.frontend.construction import build_model
from sscc.compiler.interpret.module import module_session, stored_layout
from sscc.compiler.options.compile_options import CompileOptions, cache_options
from sscc.compiler.tools.commands import cli
from sscc.ir.context import mlir
from sscc.ir.geometry import Geometry, GeometryErrors
from sscc.runtime.artifact.tensor_files import reading, stack_tensors
from sscc.runtime.backends.backend import Conditions
from sscc.runtime.backends.collectives.group import Group, run_ranks, thread_groups
from sscc.runtime.backends.reference.arrays import to_tensors
from sscc.runtime.serving.engine import Engine, Request
from sscc.runtime.session.draft_model import DraftModel, DraftModelErrors
from sscc.runtime.session.drafting import Drafter, PromptLookup
from sscc.runtime.session.sampling import Sampling
from sscc.runtime.session.session import Session, interpreter_of
from sscc.runtime.session.session_errors import SessionErrors
from sscc.runtime.session.speculation import Speculation
from tests.compiler import small_stacks
from tests.compiler.small_stacks import CONTEXT, SHAPE, SMALL, Artifacts, loaded, opened
from tests.compiler.test_chunked_layers import LLAMA4
from tests.compiler.test_learned_indexes import CONFIGS as INDEXED
from tests.compiler.test_recurrent_states import CONFIGS as RECURRENT
from tests.errors import check, raises, reported
from tests.families import random_tokens

DRAFTED = 3
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SHAPE, num_hidden_layers=2),
    "gemma3": small_stacks.GEMMA3,
    "latent": DeepseekV3Config(
        **(SHAPE | {"num_key_value_heads": 4}), num_hidden_layers=2, q_lora_rank=None, kv_lora_rank=16,
        qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=6, n_routed_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=16, n_shared_experts=1, n_group=2, topk_group=1, first_k_dense_replace=1,
    ),
    "chunked": LLAMA4,
    "shared": Gemma4TextConfig(
        **SHAPE, num_hidden_layers=4, head_dim=8, global_head_dim=8, hidden_size_per_layer_input=6,
        vocab_size_per_layer_input=96, layer_types=["sliding_attention", "full_attention"] * 2, sliding_window=10,
        num_kv_shared_layers=2,
    ),
    "convolution": Lfm2Config(
        **SHAPE, num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"], conv_L_cache=3
    ),
    "sinks": GptOssConfig(
        **SHAPE, num_hidden_layers=2, head_dim=8, sliding_window=10, num_local_experts=3, num_experts_per_tok=2
    ),
    **RECURRENT,
    **{f"index {name}": config for name, config in INDEXED.items()},
}  # fmt: skip
SPARE = replace(SMALL, spare=DRAFTED)
WAYS: dict[str, Geometry] = {
    "small": SPARE,
    "int8": replace(SPARE, dtype="int8"),
    "indexed": replace(SPARE, rows="indexed"),
    "budgets": SPARE.with_layers((5, 1)),
    "query": replace(SPARE, rows="indexed", policy="query", key_bits=2),
    "query exact": replace(SPARE, rows="indexed", policy="query", key_bits=16, dtype="int8"),
}


def geometry(family: str, way: str = "small") -> Geometry:
    """`alone`: for programs without steps of several tokens."""
    alone = way.endswith(" alone")
    return replace(WAYS[way.removesuffix(" alone")], spare=0) if alone else WAYS[way]


@cache
def random_model(family: str, dtype: str = "f32") -> PreTrainedModel:
    return small_stacks.random_model(CONFIGS[family], operator.IMPLEMENTATION, dtype)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    return small_stacks.artifacts_in(tmp_path_factory.mktemp("verify"), random_model, geometry, "small")


def check_verified(session: Session, lengths: tuple[int, ...], tolerance: float = 0.0, steps: int = 12) -> None:
    """Feed random tokens to all slots one by one, and then in steps of random numbers of right and wrong tokens."""
    random = np.random.default_rng(sum(lengths))
    prompts = [random_tokens(length, seed=slot) for slot, length in enumerate(lengths)]
    room = CONTEXT - max(lengths)
    right = {slot: random.integers(0, 96, room).tolist() for slot in range(len(prompts))}
    for slot, prompt in enumerate(prompts):
        session.prefill(slot, prompt)
    expected = [session.decode({slot: right[slot][at] for slot in right}).copy() for at in range(room)]
    for slot, prompt in enumerate(prompts):
        session.prefill(slot, prompt)
    done = dict.fromkeys(right, 0)
    for _ in range(steps):
        most = {slot: min(DRAFTED + 1, room - count) for slot, count in done.items()}
        fed: dict[int, list[int]] = {}
        accepted = np.zeros(len(prompts), np.int64)
        for slot, count in done.items():
            if not most[slot] or random.random() < 0.1:
                continue
            accepted[slot] = random.integers(0, most[slot] + 1)
            wrong = random.integers(0, 96, most[slot] - accepted[slot]).tolist()
            fed[slot] = [*right[slot][count : count + accepted[slot]], *wrong]
        logits = session.verify(fed)
        session.accept(accepted)
        for slot, rows in logits.items():
            for at in range(accepted[slot]):
                one = expected[done[slot] + at][slot]
                assert np.linalg.norm(rows[at] - one) <= tolerance * np.linalg.norm(one)
            done[slot] += int(accepted[slot])
        if random.random() < 0.3:  # steps of both kinds mix
            alone = [slot for slot, count in done.items() if count < room]
            rows = session.decode({slot: right[slot][done[slot]] for slot in alone})
            for slot in alone:
                one = expected[done[slot]][slot]
                assert np.linalg.norm(rows[slot] - one) <= tolerance * np.linalg.norm(one)
                done[slot] += 1


@pytest.mark.parametrize(
    ("family", "way"),
    [("llama", "small"), ("llama", "indexed"), ("llama", "budgets"), ("gemma3", "int8"), ("latent", "small"),
     ("chunked", "small"), ("shared", "small"), ("sinks", "small"), ("convolution", "small"),
     ("delta", "small"), ("mamba", "small"), ("gated units", "small"), ("side by side", "small"),
     ("index latent", "small"), ("index blocks", "small"),
     ("llama", "query"), ("latent", "query"), ("shared", "query"), ("sinks", "query"), ("llama", "query exact")],
)  # fmt: skip
def test_several_tokens_are_as_if_fed_one_by_one(family: str, way: str, artifacts: Artifacts) -> None:
    """Prompts that overflow the budget, fill the ring partly, and nearly nothing; bit for bit on the native one."""
    session = opened(artifacts(family, way))
    for lengths in ((30, 5), (12, 21)):
        check_verified(session, lengths)


@pytest.mark.parametrize(
    ("family", "way"),
    [("llama", "indexed"), ("gemma3", "int8"), ("convolution", "small"), ("index blocks", "small"),
     ("llama", "query"), ("delta", "small"), ("mamba", "small")],
)
def test_bits_do_not_depend_on_the_number_of_drafted_tokens(family: str, way: str, artifacts: Artifacts) -> None:
    for length in (30, 12):
        prompt, tokens = random_tokens(length), random_tokens(CONTEXT - length, seed=1)
        several = small_stacks.fed(opened(artifacts(family, way)), prompt, tokens)
        assert np.array_equal(several, small_stacks.fed(opened(artifacts(family, f"{way} alone")), prompt, tokens))


@pytest.mark.parametrize(("way", "level"), [("small", 0), ("small", 1), ("query", 0)])
def test_levels_agree(way: str, level: int, artifacts: Artifacts) -> None:
    check_verified(opened(artifacts("llama", way, level)), (30, 5))


@pytest.mark.parametrize(
    ("family", "way"),
    [*((family, "small") for family in ("llama", "convolution", "delta", "index latent")), ("llama", "query")],
)  # fmt: skip
def test_the_reference_interpreter_agrees(family: str, way: str, artifacts: Artifacts) -> None:
    """The results are not bit-identical: it computes products of several rows in another order."""
    check_verified(opened(artifacts(family, way), "reference"), (30, 5), tolerance=5e-5)


@pytest.mark.parametrize(
    ("family", "way"), [("llama", "small"), ("delta", "small"), ("llama", "query")]
)
def test_the_unfused_algorithm_agrees(family: str, way: str, artifacts: Artifacts) -> None:
    folder = artifacts(family, way).parent
    with mlir():
        module = read_dump(folder / f"{family}.{way}.f32.graph.mlir")
        layout = {**stored_layout(module, "weight"), **stored_layout(module, "constant")}
        constants = config_constants(build_model(CONFIGS[family], torch.float32), CONTEXT)
        known = random_model(family).state_dict() | constants
        tensors = stack_tensors(layout, reading(to_arrays(known), "the model"))
        session = module_session(module, to_tensors(tensors))
    check_verified(session, (30, 5), tolerance=5e-5, steps=5)


@pytest.mark.parametrize("family", ["llama", "delta"])
def test_in_bf16_the_bits_are_the_same(family: str, artifacts: Artifacts) -> None:
    check_verified(opened(artifacts(family, "small", dtype="bf16")), (30, 5))


@pytest.mark.parametrize(
    ("family", "way", "ranks"), [("llama", "small", 4), ("delta", "small", 2), ("llama", "query", 4)]
)
def test_ranks_agree(family: str, way: str, ranks: int, artifacts: Artifacts, tmp_path: Path) -> None:
    """Pairs of four ranks share a KV head, and each has the rows of one slot."""
    checkpoint = artifacts(family, way).with_name(f"{family}.f32")
    shape = cache_options(WAYS[way]) | {"batch": 2, "prefill_chunk": small_stacks.CHUNK}
    compile_model(CompileOptions(checkpoint, tmp_path / "cut.rdu", tp=ranks, native_code=False, **shape))
    artifact = loaded(tmp_path / "cut.rdu")

    def run(group: Group) -> None:
        session = Session(artifact.signature, interpreter_of(artifact, Conditions(group=group), "native"))
        check_verified(session, (30, 5), steps=5)

    run_ranks(thread_groups(ranks), run)


@pytest.mark.parametrize("family", ["delta", "mamba"])
def test_slots_with_rejected_tokens_are_filled_again(family: str, artifacts: Artifacts, tmp_path: Path) -> None:
    """A slot is restored from a snapshot, a file, or kept chunks of a prompt."""
    file = artifacts(family)
    session, second = (Session.from_artifact(loaded(file), interpreter="native") for _ in range(2))
    for each in (session, second):
        for slot in range(2):
            each.prefill(slot, random_tokens(20 + slot))
            each.verify({slot: [1, 2, 3, 4]})
            each.accept(np.where(np.arange(2) == slot, 3, 0))
    small_stacks.check_copied(session, second, tmp_path / "slot")
    small_stacks.check_continued(session, [2], 5)


def test_a_session_refuses_what_a_step_cannot_take(artifacts: Artifacts) -> None:
    session = opened(artifacts("llama"))
    session.prefill(0, random_tokens(CONTEXT - 2))
    with raises(SessionErrors.TOO_MANY_TOKENS, slot=0, tokens=5, most=4):
        session.verify({0: [1] * 5})
    with raises(SessionErrors.NO_ROOM, slot=0, tokens=3, room=2):
        session.verify({0: [1] * 3})
    with raises(SessionErrors.SLOT_EMPTY, slot=1):
        session.verify({1: [1]})
    with raises(SessionErrors.TOKEN, token=96, slot=0, last=95):
        session.verify({0: [1, 96]})
    session.verify({0: [1, 2]})
    with raises(SessionErrors.ACCEPTED, slot=0, tokens=3, fed=2):
        session.accept(np.array([3, 0]))
    session.accept(np.array([1, 0]))
    session.accept(np.array([1, 0]))
    with raises(SessionErrors.ACCEPTED, slot=0, tokens=1, fed=0):
        session.accept(np.array([1, 0]))
    with raises(SessionErrors.SLOT_FULL, slot=0, tokens=CONTEXT):
        session.verify({0: [1]})


def test_tokens_are_forgotten_as_far_as_rows_are_kept(artifacts: Artifacts) -> None:
    session = opened(artifacts("llama"))
    prompt, tokens = random_tokens(30), random_tokens(9, seed=1)
    session.prefill(1, random_tokens(3))
    expected = small_stacks.fed(session, prompt, tokens)
    session.prefill(0, prompt)
    for token in (*tokens[:5], 1, 2, 3, 4):
        session.decode({0: token})
    session.rewind(np.array([DRAFTED + 1, 0]))
    assert session.position(0) == 35
    rows = [session.decode({0: token})[0] for token in tokens[5:7]]
    assert np.array_equal(rows, expected[6:8])
    with raises(SessionErrors.REWIND, slot=0, tokens=3, fed=7):  # two rows beyond these were written
        session.rewind(np.array([3, 0]))
    with raises(SessionErrors.REWIND, slot=1, tokens=1, fed=0):
        session.rewind(np.array([0, 1]))
    session.rewind(np.array([2, 0]))
    assert np.array_equal(session.decode({0: tokens[5]})[0], expected[6])


def test_a_recurrent_state_goes_back_over_the_latest_step_of_several(artifacts: Artifacts) -> None:
    session = opened(artifacts("delta"))
    prompt, tokens = random_tokens(30), random_tokens(9, seed=1)
    session.prefill(1, random_tokens(3))
    expected = small_stacks.fed(session, prompt, tokens)
    session.prefill(0, prompt)
    session.verify({0: tokens[:4]})
    session.accept(np.array([4, 0]))
    session.rewind(np.array([3, 0]))
    assert np.array_equal(session.decode({0: tokens[1]})[0], expected[2])
    for count in (1, 2):  # a step of one token, and those before it
        with raises(SessionErrors.REWIND, slot=0, tokens=count, fed=2):
            session.rewind(np.array([count, 0]))
    assert np.array_equal(session.verify({0: tokens[2:5]})[0], expected[3:6])
    session.accept(np.array([2, 0]))
    session.rewind(np.array([2, 0]))
    assert np.array_equal(session.decode({0: tokens[2]})[0], expected[3])


DRAFTERS: dict[str, Callable[[Session, Session], Drafter]] = {
    "lookup": lambda session, draft: PromptLookup.of(session.signature),
    "model": lambda session, draft: DraftModel(draft, session.signature),
}


def requests(count: int) -> list[Request]:
    """Random prompts, half of them with repetitions, with all kinds of sampling."""
    random = np.random.default_rng(5)
    made = []
    for number in range(count):
        length = int(random.integers(1, 40))
        prompt = random.integers(0, 96, length).tolist()
        sampling = Sampling(
            temperature=float(random.choice([0, 0.4, 1.0])),
            seed=number,
            top_k=int(random.choice([0, 5])),
            frequency_penalty=float(random.choice([0, 0.6])),
            logit_bias=((7, 2.0),) if number % 4 == 0 else (),
        )
        made.append(
            Request(
                prompt=tuple((prompt[:5] * 8)[:length] if number % 2 else prompt),
                max_new_tokens=int(random.integers(1, CONTEXT - length)),
                sampling=sampling,
                logprobs=2 if number % 3 == 0 else None,
                eos=frozenset({5}) if number % 5 == 0 else frozenset(),
                min_tokens=1 if number % 5 == 0 else 0,
                allowed_tokens=tuple(range(3, 40)) if number % 7 == 0 else None,
                predicted=tuple(random.integers(0, 96, 9).tolist()) if number % 4 == 1 else (),
            )
        )
    return made


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize(("family", "always"), [("llama", True), ("llama", False), ("delta", True)])
def test_answers_are_those_of_plain_decoding(drafter: str, family: str, always: bool, artifacts: Artifacts) -> None:
    plain, speculative, draft = (opened(artifacts(family)) for _ in range(3))
    asked = requests(40)
    with Engine(plain) as engine:
        expected = [handle.result() for handle in [engine.submit(request) for request in asked]]
    speculation = Speculation(plain.signature, DRAFTERS[drafter](speculative, draft), always=always)
    with Engine(speculative, speculation=speculation) as engine:
        answers = [handle.result() for handle in [engine.submit(request) for request in asked]]
        metrics = engine.metrics()
    for ours, theirs in zip(answers, expected, strict=True):
        assert (ours.tokens, ours.logprobs, ours.finish) == (theirs.tokens, theirs.logprobs, theirs.finish)
        assert 0 <= ours.accepted_tokens <= ours.drafted_tokens
        assert ours.accepted_tokens < max(1, len(ours.tokens))
    assert sum(answer.drafted_tokens for answer in answers) == metrics.drafted_tokens
    assert sum(answer.accepted_tokens for answer in answers) == metrics.accepted_tokens == speculation.accepted
    assert metrics.verify_steps <= metrics.decode_steps
    if always:
        assert metrics.accepted_tokens > 0
    sequence = asked[3]
    session = opened(artifacts(family))
    made = session.generate(list(sequence.prompt), sequence.max_new_tokens, sequence.sampling, eos=())
    with_drafts = plain.generate(
        list(sequence.prompt), sequence.max_new_tokens, sequence.sampling, eos=(),
        speculation=Speculation(plain.signature, PromptLookup.of(plain.signature), always=True),
    )  # fmt: skip
    assert list(made) == list(with_drafts)


@pytest.mark.parametrize("family", ["llama", "mamba2"])
def test_a_model_accepts_all_that_it_drafts_itself(family: str, artifacts: Artifacts) -> None:
    session, draft = opened(artifacts(family)), opened(artifacts(family))
    speculation = Speculation(session.signature, DraftModel(draft, session.signature), always=True)
    with Engine(session, speculation=speculation) as engine:
        lengths = (30, 9, 17)
        handles = [engine.submit(Request(tuple(random_tokens(n)), 20, eos=frozenset())) for n in lengths]
        answers = [handle.result() for handle in handles]
    assert all(answer.accepted_tokens == answer.drafted_tokens > 0 for answer in answers)
    assert speculation.steps < 20


def test_what_cannot_be_drafted_is_refused(artifacts: Artifacts) -> None:
    session, plain = opened(artifacts("llama")), opened(artifacts("llama", "indexed alone"))
    with raises(SessionErrors.NO_VERIFY):
        Speculation(plain.signature, PromptLookup.of(plain.signature))
    with raises(SessionErrors.NO_VERIFY):
        plain.verify({0: [1]})
    with raises(DraftModelErrors.SLOTS, draft=2, slots=3):
        DraftModel(session, replace(session.signature, batch=3))
    with raises(DraftModelErrors.SPARE, draft=0, drafted=DRAFTED):
        DraftModel(plain, session.signature)
    with raises(DraftModelErrors.VOCABULARY, draft=96, tokens=97):
        DraftModel(session, replace(session.signature, vocab_size=97))


def printed(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    """The JSON object that a command prints."""
    assert cli.main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_commands_know_steps_of_several_tokens(artifacts: Artifacts, capsys: pytest.CaptureFixture[str]) -> None:
    path = artifacts("llama")
    sizes = ("-p", 0, "-n", 3, "-d", 20, "-b", 2, "-r", 1)
    measured = printed(capsys, "bench", path, *sizes)["results"]
    assert [(result["test"], result["tokens"], result["slots"]) for result in measured] == [
        ("decode", 3, 2), ("verify", 3, 2)
    ]  # fmt: skip
    inspected = printed(capsys, "inspect", path)
    assert inspected["verify"]["launches"] == inspected["decode"]["launches"] == 3
    assert inspected["spare_kv_bytes"] == 2 * DRAFTED * small_stacks.ROW
    prompt = ",".join(map(str, random_tokens(9) * 3))
    words = ("run", path, "--token-ids", prompt, "--max-new-tokens", 30, "--ignore-eos")
    plain, drafted = (printed(capsys, *words, *more) for more in ((), ("--speculate", "lookup")))
    assert plain["tokens"] == drafted["tokens"]
    assert plain["verify_steps"] == 0 < drafted["drafted_tokens"]
    error = reported(["run", str(artifacts("llama", "indexed alone")), "--token-ids", "1", "--speculate", "lookup"])
    check(error, SessionErrors.NO_VERIFY)


def test_geometries_that_cannot_reject_tokens_are_refused() -> None:
    with raises(GeometryErrors.SPARE_FETCH, spare=DRAFTED, fetch=2):
        replace(WAYS["query"], fetch=2)
    with raises(GeometryErrors.SPARE_RECENT, recent=9, spare=9):
        replace(WAYS["query"], spare=9)
    replace(SPARE, spare=9)
