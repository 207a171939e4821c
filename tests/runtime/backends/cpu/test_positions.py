"""Padding of a prompt's last chunk is not computed, and has no effect on the rows and states of the prompt."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest
import torch

from sscc.ir.schedule import Body, Instr, Local, Param, Product, Vector
from sscc.runtime.backends.cpu.codegen.features import Features
from sscc.runtime.backends.cpu.codegen.nests import LinearAccess, Nest
from sscc.runtime.backends.cpu.codegen.positions import Positions
from sscc.runtime.backends.cpu.plan.plan import MEMORY
from sscc.runtime.backends.cpu.products.packing import Panels
from tests.families import Compiler, random_tokens
from tests.native import native_session
from tests.runtime.backends.cpu.cpus import CPUS
from tests.runtime.backends.cpu.harness_bodies import NativeBody, access
from tests.test_levels import CASES
from tests.torch_session import TorchSession

CHUNK = 24
CACHES = ("k_cache", "v_cache", "selected")


def nest(
    dims: tuple[int, ...], *inputs: LinearAccess, output: LinearAccess, reduce: frozenset[int] = frozenset()
) -> Nest:
    return Nest(dims, (), reduce, inputs, output, (), "in0", {})


def product_of(output: LinearAccess) -> Nest:
    """A product of CHUNK rows and 64 columns."""
    a, b = LinearAccess("a", 0, (32, 0, 1)), LinearAccess("b", 0, (0, 32, 1))
    return replace(nest((CHUNK, 64, 32), a, b, output=output, reduce=frozenset({2})), combine="addf", product=True)


def learned(output: LinearAccess) -> Positions:
    positions = Positions(CHUNK)
    assert positions.product(product_of(output), (0,))
    return positions


# -------------------------------------------------------------------------------------- which dimension it is


def test_what_is_computed_from_a_product_has_its_rows() -> None:
    positions = learned(LinearAccess("out", 0, (64, 1, 0)))
    halves = nest((4, CHUNK, 16), LinearAccess("out", 0, (16, 64, 1)), output=LinearAccess("y", 0, (CHUNK * 16, 16, 1)))
    assert positions.dimension(halves) == 1
    onwards = nest((4, CHUNK, 8), LinearAccess("y", 8, (CHUNK * 16, 16, 1)), output=LinearAccess("z", 0, (8, 32, 1)))
    assert positions.dimension(onwards) == 1


@pytest.mark.parametrize(
    "reader",
    [
        nest((CHUNK, 64), LinearAccess("elsewhere", 0, (64, 1)), output=LinearAccess("y", 0, (64, 1))),
        nest((CHUNK, CHUNK), LinearAccess("out", 0, (1, 1)), output=LinearAccess("y", 0, (CHUNK, 1))),
        nest((CHUNK, 65), LinearAccess("out", 0, (64, 1)), output=LinearAccess("y", 0, (65, 1))),
        nest((CHUNK, 64), LinearAccess("out", 1, (64, 1)), output=LinearAccess("y", 0, (64, 1))),
        nest((CHUNK - 1, 64), LinearAccess("out", 0, (64, 1)), output=LinearAccess("y", 0, (64, 1))),
        nest((CHUNK, 64), LinearAccess("out", 0, (64, 1)), output=LinearAccess("y", 0, (0, 1)), reduce=frozenset({0})),
    ],
    ids=["another region", "across rows", "into the next row", "from the next row", "fewer rows", "a sum of rows"],
)
def test_what_may_depend_on_other_rows_is_computed_whole(reader: Nest) -> None:
    assert learned(LinearAccess("out", 0, (64, 1, 0))).dimension(reader) is None


def test_a_region_of_two_layouts_has_none() -> None:
    positions = learned(LinearAccess("out", 0, (64, 1, 0)))
    assert positions.product(product_of(LinearAccess("out", 0, (1, CHUNK, 0))), (0,))
    reader = nest((CHUNK, 64), LinearAccess("out", 0, (64, 1)), output=LinearAccess("y", 0, (64, 1)))
    assert positions.dimension(reader) is None


def test_products_of_other_rows_are_computed_whole() -> None:
    positions = Positions(CHUNK + 1)
    assert not positions.product(product_of(LinearAccess("out", 0, (64, 1, 0))), (0,))
    two = replace(product_of(LinearAccess("out", 0, (64, 1, 0))), dims=(CHUNK + 1, 64, 32))
    assert not positions.product(two, (0, 1))


# ----------------------------------------------------------------------------------------------- what is computed


def gated() -> Body:
    """y = twice x times w; the product goes through a local."""
    rows, operands = (CHUNK, 64), (access("x", (1, 0, 0, 0), (0, 0, 1, 0)), access("w", (0, 1, 0, 0), (0, 0, 1, 0)))
    product = Product((CHUNK, 64, 32), (2,), *operands, access("p", (1, 0, 0, 0), (0, 1, 0, 0)))
    twice = (Instr("v0", "addf", ("in0", "in0"), "f32"),)
    double = Vector(rows, (access("p", (1, 0, 0), (0, 1, 0)),), access("y", (1, 0, 0), (0, 1, 0)), twice, "v0")
    inputs = (Param("x", (CHUNK, 32), "f32", "read"), Param("w", (64, 32), "f32", "read"))
    return Body("k", (*inputs, Param("y", rows, "f32", "write")), (), (Local("p", rows, "f32"),), (), (product, double))


@pytest.mark.parametrize("live", [0, 1, 5, 14, 15, CHUNK - 1, CHUNK])
@pytest.mark.parametrize("features", CPUS)
def test_rows_of_padding_are_not_written(features: Features, live: int) -> None:
    body, panels = gated(), Panels(64, 32, "f32", 32, 1)
    random = np.random.default_rng(live)
    x, w = random.standard_normal((CHUNK, 32), np.float32), random.standard_normal((64, 32), np.float32)
    x[live:] = np.nan
    y = np.full((CHUNK, 64), 7, np.float32)
    NativeBody(body, packed={"w": panels}, features=features, positions=CHUNK).run(
        {"x": x, "w": panels.pack(w), "y": y}, [live]
    )
    np.testing.assert_allclose(y[:live], 2 * x[:live] @ w.T, rtol=1e-5, atol=1e-5)
    assert (y[live:] == 7).all()


def test_whole_chunks_take_the_same_bits() -> None:
    body, panels = gated(), Panels(64, 32, "f32", 32, 1)
    random = np.random.default_rng(0)
    x, w = random.standard_normal((CHUNK, 32), np.float32), random.standard_normal((64, 32), np.float32)
    outputs = []
    for positions in (None, CHUNK):
        y = np.zeros((CHUNK, 64), np.float32)
        NativeBody(body, packed={"w": panels}, positions=positions).run({"x": x, "w": panels.pack(w), "y": y}, [CHUNK])
        outputs.append(y)
    assert np.array_equal(*outputs)


# ------------------------------------------------------------------------------------------------- whole prompts


def poison(session: TorchSession) -> None:
    """Everything but the caches becomes NaN, and -1 where it is integers."""
    interpreter = session.session.interpreter
    caches = {name: interpreter.tensor(name).copy() for name in CACHES}
    for name, threads in ((MEMORY, 1), ("workspace", 1), ("private", interpreter.core.threads)):
        for thread in range(threads):
            address, nbytes = interpreter.core.region(name, thread)
            ctypes.memset(address, 0xFF, nbytes)
    for name, cache in caches.items():
        interpreter.tensor(name)[...] = cache


@pytest.mark.parametrize("opt_level", [1, 2])
@pytest.mark.parametrize("case", ["llama3-rope", "llama-bf16", "int8-rows", "gpt2"])
def test_nothing_of_the_padding_reaches_the_results(case: str, opt_level: int, compiled: Compiler) -> None:
    artifact = CASES[case].compiled(compiled, opt_level).artifact
    for length in (1, 6, 8, 23, 41):
        prompt, sessions = random_tokens(length, seed=length), [native_session(artifact), native_session(artifact)]
        poison(sessions[1])
        clean, poisoned = ([s.prefill(1, prompt), s.decode({1: 3})[1], s.decode({1: 4})[1]] for s in sessions)
        assert all(torch.equal(a, b) and not a.isnan().any() for a, b in zip(clean, poisoned, strict=True)), length
        for name in CACHES:
            a, b = (s.session.interpreter.tensor(name) for s in sessions)
            assert np.array_equal(a.view(np.uint8), b.view(np.uint8)), (length, name)


def test_padding_is_not_appended(compiled: Compiler) -> None:
    """A prompt of 9 tokens in chunks of 7 leaves the poison in all rows behind it."""
    session = native_session(CASES["llama3-rope"].compiled(compiled, 2).artifact)
    poison(session)
    session.prefill(0, random_tokens(9))
    for name in ("k_scratch", "v_scratch"):
        rows = session.session.interpreter.tensor(name)
        assert not np.isnan(rows[:, :, :9]).any(), name
        assert np.isnan(rows[:, :, 9:]).all(), name
