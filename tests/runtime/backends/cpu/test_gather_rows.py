"""Gathers of rows as native code, against the reference interpreter."""

from __future__ import annotations

import pytest
import torch

from sscc.ir import kv_rows
from sscc.ir.operations import GatherRows
from sscc.runtime.backends.cpu.codegen.features import GENERIC, Features
from sscc.runtime.backends.cpu.codegen.gather_rows import lower_gather_rows
from sscc.runtime.backends.reference import kv_cache as cache
from tests.runtime.backends.cpu.cpus import CPUS
from tests.runtime.backends.cpu.harness_prefill import CompiledStages, check_pieces, run_step, strided

STEP = GatherRows("source", "index", "out")


@pytest.mark.parametrize("features", CPUS)
@pytest.mark.parametrize(("source", "out"), [("f32", "f32"), ("bf16", "bf16"), ("f32", "bf16"), ("bf16", "f32")])
def test_gather_rows_of_any_dtype(source: str, out: str, features: Features) -> None:
    types = {"f32": torch.float32, "bf16": torch.bfloat16}
    tensors = {
        "source": strided(torch.randn(1, 3, 20, 37).to(types[source]), (0, 2, 1, 3)),
        "index": torch.randint(-2, 20, (3, 70)),
        "out": torch.full((1, 3, 70, 37), 9.0).to(types[out]),
    }
    got = run_step(STEP, lower_gather_rows, tensors, {}, features, ["out"])
    want = tensors["out"].clone()
    cache.gather_rows(tensors["source"], tensors["index"], want)
    assert torch.equal(got["out"], want)


@pytest.mark.parametrize(("index", "reported"), [(3, False), (-1, False), (4, True), (1 << 50, True)])
def test_an_index_beyond_the_source_is_reported(index: int, reported: bool) -> None:
    tensors = {"source": torch.randn(1, 1, 4, 3), "index": torch.tensor([[3, index]]), "out": torch.ones(1, 1, 2, 3)}
    compiled = CompiledStages(STEP, lower_gather_rows, tensors, (), GENERIC)
    compiled.run(tensors, {})
    assert compiled.reported == reported
    assert torch.equal(tensors["out"][0, 0, 0], tensors["source"][0, 0, 3])


@pytest.mark.parametrize("features", CPUS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [6, 8, 37])
def test_gathered_rows_are_encoded(width: int, dtype: torch.dtype, features: Features) -> None:
    """All bits, into a part of a cache whose heads are the inner axis; an empty row is zero bytes."""
    source, index = torch.randn(1, 3, 20, width).to(dtype), torch.randint(-2, 20, (3, 150))
    out = strided(torch.full((1, 3, 150, width + 4), 99, dtype=torch.int8), (0, 2, 1, 3))
    tensors = {"source": strided(source, (0, 2, 1, 3)), "index": index, "out": out}
    got = check_pieces(CompiledStages(STEP, lower_gather_rows, tensors, (), features), tensors, {}, ["out"])["out"]
    rows = torch.zeros(1, 3, 150, width, dtype=dtype)
    cache.gather_rows(source, index, rows)
    assert torch.equal(got, torch.from_numpy(kv_rows.encode(rows.float().numpy())))
    assert not got[0][index < 0].any()


@pytest.mark.parametrize("features", CPUS)
@pytest.mark.parametrize("width", [6, 37])
def test_encoded_rows_are_gathered_as_they_are(width: int, features: Features) -> None:
    source, index = torch.randint(-128, 128, (1, 3, 20, width + 4)).to(torch.int8), torch.randint(-2, 20, (3, 70))
    tensors = {"source": source, "index": index, "out": torch.full((1, 3, 70, width + 4), 99, dtype=torch.int8)}
    got = run_step(STEP, lower_gather_rows, tensors, {}, features, ["out"])["out"]
    assert torch.equal(got, cache.gathered(source, index[None]))
