"""Modules run by a session: compared with eager PyTorch and across levels, with their states; and refusals."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch_mlir import ir

from sscc.compiler.interpret.build import NotEvaluatedErrors
from sscc.compiler.interpret.module import (
    EvaluatedModuleErrors,
    ModuleInterpreter,
    is_runnable,
    module_session,
    signature_of,
    stored_layout,
)
from sscc.compiler.interpret.types import EvaluatedTypeErrors
from sscc.ir.builders import SOURCES
from sscc.ir.context import mlir, parse_module
from sscc.ir.levels import get_facts
from sscc.ir.rewriting import functions
from sscc.passes.base import Pass, run_passes
from sscc.passes.merge_equal_kernels import MergeEqualKernels
from sscc.passes.outline_kernels import OutlineKernels
from tests.compiler.interpret.models import BATCH, GEOMETRY, PROMPT, SLOT, TOKENS, eager, graph, weights
from tests.errors import raises
from tests.families import feed
from tests.torch_session import TorchSession

FAMILY = "llama"


@pytest.fixture(autouse=True)
def _context() -> Iterator[None]:
    with mlir():
        yield


@pytest.fixture
def module() -> ir.Module:
    return parse_module(graph(FAMILY, "f32"), "graph")


def session_of(family: str, dtype: str = "f32", precision: str = "f32") -> TorchSession:
    module = parse_module(graph(family, dtype), "graph")
    return TorchSession(module_session(module, weights(family, dtype), precision=precision))


def session_on(module: ir.Module) -> TorchSession:
    return TorchSession(module_session(module, weights(FAMILY)))


def error(logits: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest normwise error of a row."""
    logits, expected = logits.double(), expected.double()
    return float(((logits - expected).norm(dim=1) / expected.norm(dim=1)).max())


@pytest.mark.parametrize(
    ("family", "dtype", "tolerance"),
    [("llama", "f32", 5e-6), ("gpt2", "bf16", 5e-2)],
)
def test_it_agrees_with_eager_pytorch(family: str, dtype: str, tolerance: float) -> None:
    expected = eager(family, dtype)
    rows = [expected.prefill(PROMPT)]
    after_prefill = (expected.k_cache, expected.v_cache, expected.selected)
    keys, values, selected = (torch.stack(tensors) for tensors in after_prefill)
    rows += [expected.decode(token) for token in TOKENS]
    session = session_of(family, dtype)
    first = session.prefill(SLOT, PROMPT).clone()
    for name, tensor in (("k_cache", keys), ("v_cache", values)):
        held = session.interpreter.tensor(name)[:, SLOT]
        assert error(held.flatten(0, 2), tensor.flatten(0, 2)) < tolerance
    assert torch.equal(session.interpreter.tensor("selected"), selected)
    decoded = [session.decode({SLOT: token})[SLOT] for token in TOKENS]
    assert error(torch.stack([first, *decoded]), torch.stack(rows)) < tolerance


@pytest.mark.parametrize("passes", [[OutlineKernels()], [OutlineKernels(), MergeEqualKernels()]])
def test_kernels_compute_the_same_to_the_bit(module: ir.Module, passes: list[Pass]) -> None:
    expected = feed(session_on(module), PROMPT, TOKENS, SLOT)
    run_passes(module, passes)
    logits = feed(session_on(module), PROMPT, TOKENS, SLOT)
    assert torch.equal(logits, expected)


def test_a_session_outlives_its_module(module: ir.Module) -> None:
    expected = feed(session_on(module), PROMPT, TOKENS)
    session = session_on(module)
    for function in list(functions(module)):
        function.operation.erase()
    assert torch.equal(feed(session, PROMPT, TOKENS), expected)


def test_prefill_can_be_interrupted_by_decode_of_another_slot() -> None:
    session = session_of(FAMILY)
    alone = feed(session, PROMPT, TOKENS, 0)
    session.reset()
    other = session.prefill(1, PROMPT[:5]).clone()
    session.start_prefill(0, PROMPT)
    done = False
    for token in TOKENS:
        done = done or session.step_prefill(2)
        session.decode({1: token})
    while not done:
        done = session.step_prefill(3)
    rows = [session.prefill_logits.clone(), *(session.decode({0: token})[0].clone() for token in TOKENS)]
    assert torch.equal(torch.stack(rows), alone)
    assert not torch.equal(other, alone[0])


def test_reset_zeroes_the_states() -> None:
    session = session_of(FAMILY)
    session.prefill(0, PROMPT)
    assert session.interpreter.tensor("k_cache").any()
    session.reset()
    assert not session.interpreter.tensor("k_cache").any()


def test_in_f64_nothing_is_rounded_to_the_types_of_the_module() -> None:
    narrow = feed(session_of("gpt2", "bf16"), PROMPT, TOKENS)
    wide = feed(session_of("gpt2", "bf16", precision="f64"), PROMPT, TOKENS)
    assert wide.dtype is torch.float64
    assert not torch.equal(wide, wide.bfloat16().double())
    assert 1e-4 < error(narrow, wide) < 0.2


def test_the_signature_is_read_off_the_entries(module: ir.Module) -> None:
    signature, (facts, geometry) = signature_of(module), get_facts(module)
    assert (signature.geometry, geometry) == (GEOMETRY, GEOMETRY)
    assert (signature.batch, signature.layers, signature.vocab_size) == (BATCH, facts.layers, facts.vocab_size)
    assert (signature.plan.main.heads, signature.plan.main.kv_heads, signature.plan.main.key.width) == (4, 1, 8)


def test_what_a_program_stores_is_read_off_the_entries(module: ir.Module) -> None:
    held = stored_layout(module, "weight")
    name = "model.layers.1.mlp.up_proj.weight"
    assert (held[name].spec.shape, held[name].spec.dtype, held[name].sources) == ((48, 32), "f32", (name,))
    assert not held.keys() & stored_layout(module, "constant").keys()


def test_a_stack_names_the_tensors_that_it_is_made_of() -> None:
    described = f'{{sscc.weight = "w", {SOURCES} = ["layers.0.w", "layers.1.w"]}}'
    text = f"module {{ func.func public @decode(%w: tensor<2x3xbf16> {described}) {{ return }} }}"
    stack = stored_layout(parse_module(text, "test"), "weight")["w"]
    assert stack.sources == ("layers.0.w", "layers.1.w")
    assert (stack.part.shape, stack.part.dtype) == ((3,), "bf16")


def test_a_module_without_entries_is_not_runnable(module: ir.Module) -> None:
    assert is_runnable(module)
    next(f for f in functions(module) if f.name.value == "decode").operation.erase()
    assert not is_runnable(module)


# ---------------------------------------------------------------------------------------------------- refusals


def test_a_weight_that_is_missing_is_refused(module: ir.Module) -> None:
    tensors = weights(FAMILY)
    del tensors["model.norm.weight"]
    with raises(EvaluatedModuleErrors.NO_WEIGHT, role="weight", tensor="model.norm.weight", expected="tensor<32xf32>"):
        ModuleInterpreter(module, tensors)


def test_a_weight_of_another_shape_is_refused(module: ir.Module) -> None:
    tensors = {**weights(FAMILY), "model.norm.weight": torch.ones(31)}
    with raises(
        EvaluatedModuleErrors.WEIGHT_SHAPE, role="weight", tensor="model.norm.weight", shape=[31],
        expected="tensor<32xf32>",
    ):
        ModuleInterpreter(module, tensors)


def test_calls_that_do_not_fit_are_refused(module: ir.Module) -> None:
    interpreter = ModuleInterpreter(module, weights(FAMILY))
    with raises(EvaluatedModuleErrors.NO_ENTRY, entry="encode", entries=["prefill", "decode", "score"]):
        interpreter.run("encode", {})
    with raises(EvaluatedModuleErrors.NO_INPUT, input="token"):
        interpreter.run("decode", {})
    with raises(EvaluatedModuleErrors.INPUT_SHAPE, input="token", shape=[3, 1], expected="tensor<2x1xi64>"):
        interpreter.run("decode", {"token": torch.zeros(3, 1)})
    with raises(EvaluatedModuleErrors.NO_STATE, state="logits"):
        interpreter.tensor("logits")


def test_an_unknown_operation_is_refused_before_anything_runs(module: ir.Module) -> None:
    head = next(f for f in functions(module) if f.name.value == "decode.head")
    with ir.InsertionPoint.at_block_begin(head.entry_block), ir.Location.name("lm_head"):
        ir.Operation.create("tensor.rank", results=[ir.IndexType.get()], operands=[head.arguments[0]])
    with raises(NotEvaluatedErrors.UNKNOWN_OPERATION, origin="lm_head: ", op="tensor.rank"):
        ModuleInterpreter(module, weights(FAMILY))


def test_another_precision_is_refused(module: ir.Module) -> None:
    with raises(EvaluatedTypeErrors.UNKNOWN_PRECISION, precision="f16"):
        ModuleInterpreter(module, weights(FAMILY), precision="f16")
