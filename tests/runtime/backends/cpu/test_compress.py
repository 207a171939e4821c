"""The end of a prompt and gathers of rows as native code, against the reference interpreter."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from sscc.ir import kv_rows
from sscc.ir.errors import InputError
from sscc.ir.schedule import Compress, GatherRows
from sscc.runtime.backends.cpu.compress import lower_compress, lower_gather_rows
from sscc.runtime.backends.cpu.features import AVX2, GENERIC, Features
from sscc.runtime.backends.cpu.figures import GRAIN
from sscc.runtime.backends.reference import cache, compress, selection
from tests.runtime.backends.cpu.harness_prefill import CompiledStages, check_pieces, like, meta_of, run_step, strided

Tensors = dict[str, torch.Tensor]

CPUS = [pytest.param(AVX2, id="avx2"), pytest.param(GENERIC, id="generic"), pytest.param(Features.of_host(), id="host")]
SCALE, HEADS, KV_HEADS, DEPTH, WIDTH = 0.5, 6, 2, 8, 6
NAN = float("nan")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def compress_step(sink: int, recent: int, room: int, pool: int, mode: str) -> Compress:
    selected = "selected" if room else ""
    names = ("observed", "log_sum_exp", "key", "value", "k_cache", "v_cache", selected, "n", "top")
    return Compress(*names, SCALE, sink, recent, pool, mode)


def encoded(rows: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(kv_rows.encode(rows.float().numpy()))


def with_encoded_caches(tensors: Tensors) -> Tensors:
    """The operands with caches of encoded rows, each byte 99, laid out as the caches are."""
    k_cache, v_cache = (
        torch.full((*tensors[name].shape[:3], size + 4), 99, dtype=torch.int8)
        for name, size in (("k_cache", DEPTH), ("v_cache", WIDTH))
    )
    return tensors | {"k_cache": k_cache, "v_cache": strided(v_cache, (0, 2, 1, 3))}


def operands(step: Compress, rows: int, obs: int, room: int, dtype: torch.dtype, indexed: bool = False) -> Tensors:
    """Random contents; caches of other rows than the prompt has are full of 99."""
    cached = step.sink + step.recent + (0 if indexed else room)
    made = {
        "observed": torch.randn(1, HEADS, obs, DEPTH).to(dtype),
        "log_sum_exp": torch.zeros(1, HEADS, obs),
        "key": strided(torch.randn(1, KV_HEADS, rows, DEPTH).to(dtype), (0, 2, 1, 3)),
        "value": torch.randn(1, KV_HEADS, rows, WIDTH).to(dtype),
        "k_cache": torch.full((1, KV_HEADS, cached, DEPTH), 99.0).to(dtype),
        "v_cache": strided(torch.full((1, KV_HEADS, cached, WIDTH), 99.0).to(dtype), (0, 2, 1, 3)),
    }
    return made | ({"selected": torch.full((KV_HEADS, room), 99)} if room else {})


def prompt_of(tensors: Tensors, length: int, sink: int) -> Tensors:
    """The operands with NaN behind the prompt's end (zeros in the rows of sinks) and the true log-sum-exp."""
    case = {name: like(tensor) for name, tensor in tensors.items()}
    for name in ("key", "value"):
        case[name][:, :, length:] = NAN
        case[name][:, :, length:sink] = 0.0
    case["observed"][:, :, length:] = NAN
    scores = selection.PromptScores(
        case["observed"].double(), case["key"].double(), length=length, scale=SCALE, recent=1, wide=torch.float64
    )
    case["log_sum_exp"][:] = NAN
    sums = scores.log_sum_exp().reshape(1, HEADS, -1)
    case["log_sum_exp"][:, :, : scores.window] = sums.float()
    return case


def reference(step: Compress, case: Tensors, length: int, topk: int) -> Tensors:
    """What the step leaves behind, computed in double precision."""
    wide = {name: (t.double() if t.is_floating_point() else t.clone()) for name, t in case.items()}
    scores = selection.PromptScores(
        wide["observed"], wide["key"], length=length, scale=SCALE, recent=step.recent, wide=torch.float64
    )
    selected = wide.get("selected", torch.empty(KV_HEADS, 0, dtype=torch.int64))
    compress.select_streaming(scores, wide["log_sum_exp"], selected, topk, step)
    rows = compress.kept_rows(length, step.sink, step.recent).expand(KV_HEADS, -1)
    if wide["k_cache"].shape[2] > rows.shape[1]:
        rows = torch.cat([rows, selected], 1)
    cache.gather_rows(wide["key"], rows, wide["k_cache"])
    cache.gather_rows(wide["value"], rows, wide["v_cache"])
    return {name: wide[name] for name in ("k_cache", "v_cache", "selected") if name in wide}


def check_lengths(
    lengths: tuple[int, ...], obs: int, step: Compress, room: int, dtype: torch.dtype, features: Features,
    indexed: bool = False,
) -> None:  # fmt: skip
    """For every length as many positions as there is room for, and fewer."""
    given = operands(step, max(*lengths, step.sink) + 3, obs, room, dtype, indexed)
    writes = [name for name in ("k_cache", "v_cache", "selected") if name in given]
    compiled = CompiledStages(step, lower_compress, given, ["n", "top"], features)
    for length, topk in product(lengths, {room, room // 3, 0}):
        case = prompt_of(given, length, step.sink)
        got = check_pieces(compiled, case, {"n": length, "top": topk}, writes)
        for name, want in reference(step, case, length, topk).items():
            assert torch.equal(got[name].to(want.dtype), want), (name, length, topk)


SEAMS = (1, 2, 3, 4, 8, 9, 10, 13, 27, 100)
TILES = (GRAIN - 1, GRAIN, GRAIN + 1, GRAIN + 10, 2 * GRAIN + 3, 3 * GRAIN)


@pytest.mark.parametrize("features", CPUS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("topk", "mode"), [(1, "avg"), (4, "max"), (50, "avg")])
def test_compress_around_the_seams_of_the_cache(topk: int, mode: str, dtype: torch.dtype, features: Features) -> None:
    check_lengths(SEAMS, 4, compress_step(3, 6, topk, 5, mode), topk, dtype, features)


def test_compress_without_selection() -> None:
    check_lengths(SEAMS, 4, compress_step(3, 6, 0, 5, "avg"), 0, torch.bfloat16, AVX2)


@pytest.mark.parametrize("features", CPUS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("room", "topk"), [(0, 0), (50, 50), (50, 9)])
def test_compress_encodes_the_rows_that_it_keeps(room: int, topk: int, dtype: torch.dtype, features: Features) -> None:
    step = compress_step(3, 6, room, 5, "avg")
    given = operands(step, max(SEAMS) + 3, 4, room, dtype)
    stored = with_encoded_caches(given)
    compiled = CompiledStages(step, lower_compress, stored, ["n", "top"], features)
    for length in SEAMS:
        case, floats = prompt_of(stored, length, step.sink), prompt_of(given, length, step.sink)
        got = check_pieces(compiled, case, {"n": length, "top": topk}, ["k_cache", "v_cache"])
        want = reference(step, floats, length, topk)
        for name in ("k_cache", "v_cache"):
            assert torch.equal(got[name], encoded(want[name])), (name, length)
        if length < step.sink + step.recent:
            assert not got["k_cache"][:, :, length : step.sink + step.recent].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_compress_around_the_seams_of_slices(mode: str, dtype: torch.dtype) -> None:
    check_lengths(TILES, 8, compress_step(4, 6, 40, 7, mode), 40, dtype, Features.of_host())


@pytest.mark.parametrize(
    ("length", "obs", "sink", "recent", "pool", "mode"),
    [
        (20, 50, 2, 4, 3, "avg"),  # more observation rows than tokens
        (20, 3, 0, 1, 1, "max"),  # no sinks, a ring of one, no pooling
        (300, 3, 0, 40, 5, "avg"),  # scores between the candidates and the window reach candidates
        (300, 40, 0, 1, 9, "max"),  # the window is wider than the ring
        (30, 4, 2, 4, 61, "avg"),  # a pool wider than the prompt
        (600, 4, 2, 4, 553, "max"),  # a pool wider than two slices
    ],
)
def test_compress_of_other_geometries(length: int, obs: int, sink: int, recent: int, pool: int, mode: str) -> None:
    check_lengths((length,), obs, compress_step(sink, recent, 7, pool, mode), 7, torch.float32, Features.of_host())


def test_compress_where_selected_rows_stay_in_the_prompt() -> None:
    check_lengths(SEAMS, 4, compress_step(3, 6, 5, 3, "avg"), 5, torch.bfloat16, Features.of_host(), indexed=True)


@pytest.mark.parametrize("topk", [5, 2])
def test_compress_gives_ties_to_the_earlier_position(topk: int) -> None:
    """All keys equal: all scores are, and the first positions win."""
    length, step = 2 * GRAIN + 50, compress_step(3, 6, 5, 1, "avg")
    given = operands(step, length, 4, 5, torch.float32)
    given["key"].zero_()
    given["log_sum_exp"][:] = torch.log(torch.arange(length - 3, length + 1).float())
    got = run_step(step, lower_compress, given, {"n": length, "top": topk}, Features.of_host(), ["selected"])
    assert got["selected"].tolist() == [[3, 4, 5, 6, 7][:topk] + [-1] * (5 - topk)] * 2


@pytest.mark.parametrize("length", [0, 13])
def test_compress_of_a_prompt_that_the_scratch_does_not_hold_writes_nothing(length: int) -> None:
    step = compress_step(3, 6, 2, 1, "avg")
    given = operands(step, 12, 2, 2, torch.float32)
    scalars = {"n": length, "top": 2}
    got = run_step(step, lower_compress, given, scalars, GENERIC, ["k_cache", "v_cache", "selected"])
    assert all((tensor == 99).all() for tensor in got.values())


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (compress_step(3, 5, 0, 1, "avg"), r"fills 9 rows with sink 3 \+ recent 5 \+ topk 0 from 12 rows"),
        (compress_step(3, 6, 0, 4, "avg"), "pools with mode 'avg' and width 4"),
        (compress_step(3, 6, 0, 3, "min"), "pools with mode 'min'"),
    ],
)
def test_compress_that_does_not_fit_is_refused(step: Compress, message: str) -> None:
    tensors = operands(compress_step(3, 6, 0, 1, "avg"), 12, 2, 0, torch.float32)
    with pytest.raises(InputError, match=message):
        lower_compress(step, meta_of(tensors), GENERIC)


def test_compress_refuses_encoded_rows_where_they_do_not_fit() -> None:
    step = compress_step(3, 6, 0, 1, "avg")
    tensors = operands(step, 12, 2, 0, torch.float32)
    narrow = tensors | {"v_cache": torch.zeros(1, KV_HEADS, 9, WIDTH, dtype=torch.int8)}
    with pytest.raises(InputError, match="takes encoded rows of 6 numbers as 10 of i8, but 'v_cache' has 6 of i8"):
        lower_compress(step, meta_of(narrow), GENERIC)
    with pytest.raises(InputError, match="compress takes no operand of dtype i8 as 'key'"):
        lower_compress(step, meta_of(tensors | {"key": encoded(tensors["key"])}), GENERIC)


# ------------------------------------------------------------------------------------------------------ gathers


@pytest.mark.parametrize("features", CPUS)
@pytest.mark.parametrize(("source", "out"), [("f32", "f32"), ("bf16", "bf16"), ("f32", "bf16"), ("bf16", "f32")])
def test_gather_rows_of_any_dtype(source: str, out: str, features: Features) -> None:
    types = {"f32": torch.float32, "bf16": torch.bfloat16}
    tensors = {
        "source": strided(torch.randn(1, 3, 20, 37).to(types[source]), (0, 2, 1, 3)),
        "index": torch.randint(-2, 20, (3, 70)),
        "out": torch.full((1, 3, 70, 37), 9.0).to(types[out]),
    }
    got = run_step(GatherRows("source", "index", "out"), lower_gather_rows, tensors, {}, features, ["out"])
    want = tensors["out"].clone()
    cache.gather_rows(tensors["source"], tensors["index"], want)
    assert torch.equal(got["out"], want)


@pytest.mark.parametrize(("index", "reported"), [(3, False), (-1, False), (4, True), (1 << 50, True)])
def test_an_index_beyond_the_source_is_reported(index: int, reported: bool) -> None:
    tensors = {"source": torch.randn(1, 1, 4, 3), "index": torch.tensor([[3, index]]), "out": torch.ones(1, 1, 2, 3)}
    step = GatherRows("source", "index", "out")
    compiled = CompiledStages(step, lower_gather_rows, tensors, (), GENERIC)
    compiled.run(tensors, {})
    assert compiled.reported == reported
    assert torch.equal(tensors["out"][0, 0, 0], tensors["source"][0, 0, 3])
