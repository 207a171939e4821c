"""shard: what all ranks of a cut program compute together is what the whole program computes, for every kind of layer,
through a prompt that outgrows the cache and the steps after it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from torch import Tensor
from torch_mlir import ir
from transformers import PreTrainedConfig, PreTrainedModel, Qwen3Config

from sscc.compiler.driver.driver import compile_model
from sscc.compiler.interpret.module import module_session, stored_layout
from sscc.compiler.options.compile_options import CompileOptions
from sscc.ir.builders import STORED, arguments_of
from sscc.ir.context import mlir, parse_module
from sscc.ir.geometry import Geometry
from sscc.ir.levels import get_facts, set_facts, set_target
from sscc.ir.rewriting import functions
from sscc.ir.sharding import Cut, CutErrors, Segment
from sscc.ir.suggestions import ChoiceErrors
from sscc.ir.target import Target, load_target
from sscc.ir.weight_formats.registry import Encoding, parse_format
from sscc.passes.base import run_passes
from sscc.passes.build_entries import BuildEntries
from sscc.passes.pass_pipeline import pipeline_of
from sscc.passes.shard import Shard, ShardErrors
from sscc.runtime.backends.collectives.group import ALONE, Group, GroupErrors, ThreadGroup, run_ranks, thread_groups
from sscc.runtime.backends.reference.arrays import to_tensors
from sscc.runtime.session.session import Session
from sscc.runtime.support.quantization import encode
from tests import tiny_configs
from tests.compiler.interpret.models import GEOMETRY, PROMPT, SLOT, TOKENS, shape_options, weights_of
from tests.errors import raises
from tests.families import SHAPE, random_model
from tests.targets import changed


@pytest.fixture(autouse=True)
def _context() -> Iterator[None]:
    with mlir():
        yield


MANY = SHAPE | {"num_attention_heads": 16, "head_dim": 4}
MANY_HEADS: dict[str, PreTrainedConfig] = {
    "eight-to-a-head": Qwen3Config(**MANY, num_key_value_heads=2),
}
POLICIES: dict[str, Geometry] = {
    "snapstream": GEOMETRY,
    "query": replace(GEOMETRY, policy="query", rows="indexed", key_bits=4),
    "budgets": replace(GEOMETRY, layer_topk=(4, 6)),
    "fetch": replace(GEOMETRY, policy="query", rows="indexed", key_bits=16, fetch=2),
}


@cache
def model(family: str) -> PreTrainedModel:
    return tiny_configs.random_model(MANY_HEADS[family]) if family in MANY_HEADS else random_model(family)


@cache
def imported(family: str, dtype: str = "f32") -> str:
    with TemporaryDirectory() as name:
        folder = Path(name)
        model(family).config.save_pretrained(folder)
        options = shape_options() | {"dtype": dtype}
        compile_model(
            CompileOptions(folder / "config.json", folder / "a.mlir", compile_to="import", weights="none", **options)  # type: ignore[arg-type]
        )
        return (folder / "a.mlir").read_text()


def graph(
    family: str, ranks: int, policy: str = "snapstream", weights: str | None = None, machine: Target | None = None,
    sums: str = "f32", dtype: str = "f32",
) -> ir.Module:
    """Return the module of level graph, cut over `ranks` ranks."""
    module = parse_module(imported(family, dtype), family)
    if machine is not None:
        set_target(module, machine)
    set_facts(module, get_facts(module)[0], POLICIES[policy])
    steps = pipeline_of(2, parse_format(weights) if weights else None, Shard(ranks, sums))
    run_passes(module, steps[: [item.name for item in steps].index(BuildEntries.name) + 1])
    return module


def session(module: ir.Module, family: str, group: Group = ALONE) -> Session:
    whole = weights_of(model(family))
    stored = {name: stack for role in STORED for name, stack in stored_layout(module, role).items()}
    named = {name: whole[(stack.sources or (name,))[0]] for name, stack in stored.items()}
    codes = {name: Encoding.parse(stack.encoding) for name, stack in stored.items() if stack.encoding}
    named |= to_tensors({name: encode(named[name].numpy(), encoding) for name, encoding in codes.items()})
    return module_session(module, named, precision="f64", group=group)


def logits(run: Session) -> np.ndarray:
    """Return the logits of a prompt in each slot, one of them longer than the cache, and of the steps after them."""
    rows = [run.prefill(slot, PROMPT[:length]).copy() for slot, length in ((1 - SLOT, 11), (SLOT, len(PROMPT)))]
    rows += [run.decode({SLOT: token, 1 - SLOT: token + 1}).copy() for token in TOKENS]
    return np.vstack(rows)


def cuts(module: ir.Module) -> dict[str, str]:
    """Return the cuts of the stored arguments of a decode step, by name."""
    return {
        argument.name: argument.cut
        for function in functions(module)
        if function.name.value == "decode"
        for argument in arguments_of(function)
        if argument.cut
    }


@pytest.mark.parametrize(
    ("family", "ranks", "policy"),
    [
        ("llama-tied-biased", 4, "snapstream"),
        ("gpt-neox", 2, "snapstream"),  # queries, keys and values of a head beside each other
        ("gpt2", 2, "snapstream"),  # all queries, all keys, all values; products with weights as they lie
        ("phi3", 2, "snapstream"),  # joined likewise, and gate and up
        ("experts-softmax", 2, "snapstream"),
        # KV heads fewer than ranks, each with the rows of its own slots.
        ("olmo2", 4, "budgets"),  # norms over all heads, of two KV heads
        ("learned-sinks", 4, "snapstream"),
        ("windows-among-others", 4, "query"),  # and where queries choose with those of all
        # With the rows of all slots: queries choose, or there are fewer slots than ranks that share a KV head.
        ("learned-sinks", 4, "fetch"),
        ("shared-alone", 2, "query"),
        ("eight-to-a-head", 8, "query"),
        # All heads read one latent row; there are more ranks than slots.
        ("latent-among-experts", 4, "snapstream"),
    ],
)
def test_ranks_compute_together_what_one_computes(family: str, ranks: int, policy: str) -> None:
    check_ranks(family, graph(family, 1, policy), graph(family, ranks, policy), ranks)


def check_ranks(family: str, whole: ir.Module, cut: ir.Module, ranks: int) -> None:
    expected = logits(session(whole, family))
    groups = thread_groups(ranks)
    sessions = [session(cut, family, group) for group in groups]
    by_rank = run_ranks(groups, lambda group: logits(sessions[group.rank]))
    for rows in by_rank:
        np.testing.assert_allclose(rows, expected, rtol=0, atol=1e-12 * np.abs(expected).max())
        assert np.array_equal(rows, by_rank[0]), "sums are taken in the order of ranks, whoever takes them"


@pytest.mark.parametrize(
    ("family", "weights"),
    [("phi3", "int4:8:zero-point"), ("experts-softmax", "int8:8"), ("gpt2", "int4:8:minimum")],
)
def test_codes_and_their_scales_are_cut_alike(family: str, weights: str) -> None:
    check_ranks(family, graph(family, 1, weights=weights), graph(family, 2, weights=weights), 2)


def test_groups_do_not_straddle_ranks() -> None:
    joined = cuts(graph("phi3", 2, weights="int4:16"))
    layer = {name.removeprefix("model.layers.1."): cut for name, cut in joined.items() if ".layers.1." in name}
    assert layer == {
        "self_attn.qkv_proj.weight.values": "0:32/2,16/2,16/2",
        "self_attn.qkv_proj.weight.scales": "0:32/2,16/2,16/2",
        "self_attn.o_proj.weight.values": "1:16/2",
        "self_attn.o_proj.weight.scales": "1:4/2",
        "mlp.gate_up_proj.weight.values": "0:48/2,48/2",
        "mlp.gate_up_proj.weight.scales": "0:48/2,48/2",
        "mlp.down_proj.weight": "1:48/2",  # a rank's 24 are one group and a half: it stays as it is
    }
    for encoding in (Encoding.parse("int4:16/values"), Encoding.parse("int8:16/scales/transposed")):
        for whole in (Cut(0, (Segment(32, 2),)), Cut(1, (Segment(64, 2), Segment(32, 1)))):
            assert encoding.cut_of_source(encoding.cut_of_part(whole, 2), 2) == whole


def test_what_is_cut_how() -> None:
    joined = cuts(graph("phi3", 2))
    assert joined["model.embed_tokens.weight"] == "1:32/2"
    assert joined["lm_head.weight"] == "0:96/2"
    layer = {name.removeprefix("model.layers.1."): cut for name, cut in joined.items() if ".layers.1." in name}
    assert layer == {
        "self_attn.qkv_proj.weight": "0:32/2,16/2,16/2",
        "self_attn.o_proj.weight": "1:32/2",
        "mlp.gate_up_proj.weight": "0:48/2,48/2",
        "mlp.down_proj.weight": "1:48/2",
    }
    tied = cuts(graph("llama-tied-biased", 2))
    assert {name: cut for name, cut in tied.items() if "embed" in name} == {
        "model.embed_tokens.weight.cut1": "1:32/2", "model.embed_tokens.weight.cut0": "0:96/2"
    }  # fmt: skip
    few = cuts(graph("eight-to-a-head", 4))
    path = "model.layers.1.self_attn."
    assert {name.removeprefix(path): cut for name, cut in few.items() if name.startswith(path)} == {
        "q_proj.weight": "0:64/4", "k_proj.weight": "0:8/2", "v_proj.weight": "0:8/2", "o_proj.weight": "1:64/4"
    }  # fmt: skip


def test_products_whose_result_is_needed_whole_are_cut_where_an_exchange_costs_less() -> None:
    """Behind the first product of queries and of latent rows is a norm, behind the router's a choice. Ranks compute
    together what one does, also with parts that are rounded before they are added up."""
    machine = load_target("rdu:sn40l-16")
    quick = changed({"socket.bandwidth": 1e18, "socket.latency": 1e-15}, machine)
    family, paths = "latent-among-experts", ("self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa", "mlp.gate")
    names = [f"model.layers.2.{path}.weight" for path in paths]
    slow = cuts(graph(family, 2, machine=machine, dtype="bf16"))
    assert not slow.keys() & set(names)
    cut = graph(family, 2, machine=quick, sums="model", dtype="bf16")
    joined = cuts(cut)
    assert [joined[name] for name in names] == ["0:12/2", "0:20/2", "0:8/2"]
    assert {name: cut for name, cut in joined.items() if name not in names and ".layers.2." in name} == {
        name: cut for name, cut in slow.items() if ".layers.2." in name
    }
    check_ranks(family, graph(family, 1, dtype="bf16"), cut, 2)


def test_a_sum_is_one_collective_per_block() -> None:
    """Two in a layer: behind the heads and behind the feed-forward; and where the embedding and the head are cut the
    pieces are put together."""
    module = graph("qwen2", 2)
    (layer,) = (function for function in functions(module) if function.name.value == "decode.layer.0")
    names = [op.operation.name for op in layer.entry_block.operations]
    assert [name for name in names if name.startswith("shard.")] == ["shard.all_reduce"] * 2


def test_parts_may_be_rounded_before_they_are_exchanged() -> None:
    """Sums of bf16 are then exchanged as bf16, and those of selected and shared experts together."""

    def sent(sums: str) -> list[str]:
        module = graph(family, 2, sums=sums, dtype="bf16")
        (layer,) = (function for function in functions(module) if function.name.value == "decode.layer.1")
        ops = (op.operation for op in layer.entry_block.operations)
        return [str(op.operands[0].type.element_type) for op in ops if op.name == "shard.all_reduce"]

    family = "latent-among-experts"
    assert sent("f32") == ["f32"] * 3
    assert sent("model") == ["bf16"] * 2
    with raises(ChoiceErrors.UNKNOWN, option="sums", value="bf16"):
        graph(family, 2, sums="bf16")


def test_large_sums_are_rounded_in_parts() -> None:
    """The results have the same bits. Sums of selected and of shared experts are exchanged in parts and gathered once.
    Small sums, sums in f32, and parts that are already rounded do not change."""
    family = "latent-among-experts"
    machine = load_target("rdu:sn40l-16")
    quick = changed({"socket.latency": 1e-15}, machine)

    def exchanges(module: ir.Module, function: str = "prefill.layer.1") -> str:
        (layer,) = (each for each in functions(module) if each.name.value == function)
        letters = {"shard.all_reduce": "r", "shard.reduce_scatter": "s", "shard.all_gather": "g"}
        return "".join(letters.get(op.operation.name, "") for op in layer.entry_block.operations)

    whole, parts = (graph(family, 2, machine=each, dtype="bf16") for each in (machine, quick))
    assert [exchanges(each) for each in (whole, parts)] == ["rrr", "sgssg"]
    assert exchanges(parts, "decode.layer.1") == "sgssg"
    assert exchanges(graph(family, 2, machine=quick)) == "rr"
    assert exchanges(graph(family, 2, machine=quick, sums="model", dtype="bf16")) == "rr"

    def by_rank(module: ir.Module) -> list[np.ndarray]:
        groups = thread_groups(2)
        sessions = [session(module, family, group) for group in groups]
        return run_ranks(groups, lambda group: logits(sessions[group.rank]))

    assert all(map(np.array_equal, by_rank(whole), by_rank(parts)))


def test_what_cannot_be_cut_is_refused() -> None:
    with raises(ShardErrors.NOTHING_TO_CUT, ranks=7):
        graph("llama", 7)


def test_which_blocks_a_rank_holds() -> None:
    joined = Cut(1, (Segment(8, 4), Segment(2, 2), Segment(3, 1)))
    assert [joined.spans(rank, 4) for rank in range(4)] == [
        [(0, 2), (8, 9), (10, 13)],
        [(2, 4), (8, 9), (10, 13)],
        [(4, 6), (9, 13)],
        [(6, 8), (9, 13)],
    ]
    assert (joined.size, joined.local, joined.local_shape([5, 13])) == (13, 6, [5, 6])
    assert Cut.parse(str(joined)) == joined
    for text in ("", "0", "0:", "x:4/2", "0:4/3", "0:4", "0:4/2,", "0:04/2", "-1:4/2", "0:4/0"):
        with raises(CutErrors.UNKNOWN, cut=text):
            Cut.parse(text)


def test_a_rank_that_fails_ends_the_others() -> None:
    def work(group: ThreadGroup) -> Tensor:
        if group.rank == 1:
            raise ValueError("this rank's own")
        group.exchange(group.rank)
        raise AssertionError

    with pytest.raises(ValueError, match="this rank's own"):
        run_ranks(thread_groups(3), work)
    lost = thread_groups(2, timeout=0.05)
    with raises(GroupErrors.SILENT):
        lost[0].exchange(1)
