"""Figures of `sscc inspect`, read off a schedule or modelled, compared with figures worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest

from sscc.compiler.tools.commands.cli import main
from sscc.compiler.tools.inspection.inspection import (
    InspectionErrors,
    LevelReport,
    decode_floor,
    inspect_artifact,
    on_chip_bytes,
    time_decode,
    time_prefill,
)
from sscc.compiler.tools.inspection.inspection_words import described
from sscc.ir.looping import Looping
from sscc.ir.operations import DecodeAttention
from sscc.ir.schedule import (
    Body,
    Entry,
    For,
    If,
    Kernel,
    Launch,
    Param,
    Pipeline,
    Port,
    Program,
    Scalar,
    Stage,
    Tensor,
    View,
    launches,
)
from sscc.runtime.artifact.artifact_files import MACHINE as MACHINE_FILE
from sscc.runtime.artifact.manifest import Manifest, WeightsRecord
from sscc.runtime.artifact.writer import ArtifactWriter
from sscc.runtime.session.artifact import Artifact
from tests.errors import raises
from tests.runtime.fake import GEOMETRY, SIGNATURE
from tests.runtime.schedules import view_of
from tests.runtime.timing.programs import MACHINE, TILE, streamed
from tests.targets import changed

MAIN = SIGNATURE.plan.main
B, L, H, G, D, R = SIGNATURE.batch, SIGNATURE.layers, MAIN.heads, MAIN.kv_heads, MAIN.key.width, 9
CACHE = (B, G, R, D)
TILES = 3
LOOPING = (Looping("decode", "k", L), Looping("prefill", "k", L, "the value of layer 0 is an output"))


def attend() -> tuple[Body, Kernel]:
    """The caches of one layer, unfused."""
    shapes: dict[str, tuple[Any, ...]] = {
        "q": ((B, H, 1, D), "f32", "read"),
        "nk": ((B, G, 1, D), "f32", "read"),
        "nv": ((B, G, 1, D), "f32", "read"),
        "k_cache": (CACHE, "f32", "update"),
        "v_cache": (CACHE, "f32", "update"),
        "position": ((B,), "i64", "read"),
        "base": ((B,), "i64", "read"),
        "active": ((B,), "i1", "read"),
        "out": ((B, H, 1, D), "f32", "write"),
    }
    params = tuple(Param(name, *rest) for name, rest in shapes.items())
    names = ("q", "nk", "nv", "k_cache", "v_cache", "k_cache", "v_cache", "position", "base", "active", "topk", "out")
    step = DecodeAttention(*names, 0.5, GEOMETRY.sink, GEOMETRY.recent)
    stage = Stage("attend", "attend", (), tuple(Port(view_of(p.name, p.shape)) for p in params), (GEOMETRY.topk,), ())
    pipeline = Pipeline("p", "i", 0, 1, (), (), (stage,))
    return Body("attend", params, ("topk",), (), (), (step,)), Kernel("attend", params, (), (pipeline,))


def artifact_program() -> Program:
    """decode: one looped launch over the weights of both layers, attention per layer. prefill: a launch per chunk."""
    (looped,), bodies = streamed(TILES, 400, iterations=L)
    body, attention = attend()
    tensors = (
        Tensor("w", (L * TILES, TILE), "bf16", "weight", "hbm", 4096, ("w",)),
        Tensor("slow", (L * TILES, TILE), "bf16", "weight", "ddr", 8192, ("slow",)),
        Tensor("table", (7,), "f32", "constant", "hbm", 16384, ("table",)),
        *(Tensor(p.name, _stacked(p), p.dtype, "state", "hbm", 64 * i) for i, p in enumerate(attention.params)),
        Tensor("y", (1,), "bf16", "temporary", "hbm", 2048),
    )
    whole = view_of("w", (L * TILES, TILE))
    attending = (Launch("attend", tuple(_layer(p, layer) for p in attention.params)) for layer in range(L))
    decode = (Launch("k", (whole, view_of("y", (1,)))), *attending)
    prefill = (
        Scalar("rows", "add", ("length", 7)),
        Scalar("chunks", "floordiv", ("rows", 8)),
        For("c", 0, "chunks", (Launch("k", (view_of("slow", (L * TILES, TILE)), view_of("y", (1,)))),)),
        If("slot", (Launch("k", (whole, view_of("y", (1,)))),)),
    )
    scalars = ("length", "slot", "phase", "chunk", "steps", "reused")
    entries = (Entry("decode", (), (), (), (), decode), Entry("prefill", (), (), scalars, (), prefill))
    return Program(tensors, (*bodies, body), (looped, attention), entries, 4096)


def _stacked(param: Param) -> tuple[int, ...]:
    """Return the shape of the tensor behind a parameter: the caches of all layers are one tensor."""
    return (L, *param.shape) if param.name.endswith("_cache") else param.shape


def _layer(param: Param, layer: int) -> View:
    window = view_of(param.name, param.shape)
    return replace(window, offset=layer * prod(param.shape)) if param.name.endswith("_cache") else window


def artifact(folder: Path = Path()) -> Artifact:
    manifest = Manifest("0", {}, "rdu", {"model_type": "fake"}, SIGNATURE, WeightsRecord("reference", ""))
    return Artifact(folder, replace(manifest, looping=LOOPING), artifact_program())


WEIGHTS = L * TILES * TILE * 2
KV = 2 * B * G * R * D * 4  # of one layer and all slots
SMALL = 2 * 4 * B * H * D + 2 * 4 * B * G * D + 8 * 2 * B + B  # attention's other operands and its result
WRITTEN = 2 * 4 * B * G * D  # a row of K and one of V per slot and head


def test_launches_are_counted_once_inside_loops_and_branches() -> None:
    program = artifact_program()
    assert [launch.kernel for launch in launches(program.entry("decode").body)] == ["k", "attend", "attend"]
    assert [launch.args[0].tensor for launch in launches(program.entry("prefill").body)] == ["slow", "w"]


def test_bytes_of_a_decode_step() -> None:
    report = inspect_artifact(artifact(), MACHINE)
    assert report.decode_traffic_bytes == WEIGHTS + L * TILES * 2 + L * (KV + SMALL + WRITTEN)
    assert report.decode_floor_bytes == WEIGHTS + L * KV
    assert report.decode_floor_seconds == pytest.approx((WEIGHTS + L * KV) / 1e9)
    assert report.full_cache_floor_seconds == pytest.approx((WEIGHTS + L * KV / R * GEOMETRY.max_context) / 1e9)
    assert report.decode.nbytes["hbm"] == report.decode_traffic_bytes


def test_what_lies_where() -> None:
    found = inspect_artifact(artifact(), MACHINE.with_sockets(2))
    assert found.weight_bytes == 2 * WEIGHTS + 28
    assert on_chip_bytes(artifact_program()) == 2 * TILE * 2
    assert found.levels == {
        "sram": LevelReport(2 * TILE * 2, 2 * 10 * 1000),
        "hbm": LevelReport(WEIGHTS + 28 + 4096, 2 * 64 * 2**30),
        "ddr": LevelReport(WEIGHTS, 2 * 1500 * 10**9),
    }
    assert (found.pcus, found.pmus) == (10, 1)
    assert (found.kernels, found.stages) == (2, 3)
    assert found.steps == {"decode_attention": 1, "product": 1, "vector": 1}


def test_times_are_those_of_the_model() -> None:
    report = inspect_artifact(artifact(), MACHINE, prompt=17)
    assert report.decode.seconds == time_decode(artifact(), MACHINE).seconds
    assert report.tokens_per_second == pytest.approx(B / report.decode.seconds)
    assert (report.launches_per_token, report.prefill_launches) == (3, 2)
    assert report.decode.overhead_seconds == pytest.approx(3 * 1500e-9)
    assert {kernel.name: kernel.launches for kernel in report.decode.kernels} == {"k": 1, "attend": 2}
    looped = next(kernel for kernel in report.decode.kernels if kernel.name == "k")
    assert (looped.slowest, looped.bound) == ("multiply", "compute")
    assert sum(kernel.seconds for kernel in report.decode.kernels) == pytest.approx(report.decode.seconds)
    assert report.prefill is not None
    assert report.prefill.launches == 3  # chunks of 8 tokens
    assert report.prefill.nbytes["ddr"] == 3 * WEIGHTS


def test_a_short_context_saves_arithmetic_and_no_traffic() -> None:
    machine = changed({"f32_flops": 1e6}, MACHINE)
    full, short = (time_decode(artifact(), machine, context) for context in (None, 3))
    assert full.nbytes == short.nbytes
    flops = 2 * L * B * H * 2 * D * (R - 3)
    assert full.seconds - short.seconds == pytest.approx(flops / 1e6)


@pytest.mark.parametrize("tokens", [0, 21])
def test_contexts_and_prompts_that_do_not_fit(tokens: int) -> None:
    with raises(InspectionErrors.CONTEXT, tokens=tokens, max_context=20):
        time_decode(artifact(), MACHINE, tokens)
    with raises(InspectionErrors.PROMPT, tokens=tokens, max_context=20):
        time_prefill(artifact(), MACHINE, tokens)


def test_a_weight_that_is_read_twice_is_one_weight() -> None:
    timing = time_prefill(artifact(), MACHINE, 20)
    assert timing.tensor_bytes["slow"] == 3 * WEIGHTS
    assert decode_floor(artifact(), timing) == {"hbm": 0, "ddr": WEIGHTS}


def with_caches_in_ddr() -> Artifact:
    """The same program, whose caches lie in DDR."""
    program = artifact_program()
    tensors = tuple(replace(t, tier="ddr") if t.name.endswith("_cache") else t for t in program.tensors)
    return replace(artifact(), program=replace(program, tensors=tensors))


def test_the_bound_knows_the_speed_of_each_tier() -> None:
    slow = changed({"ddr.bandwidth": 1e7}, MACHINE)
    found = inspect_artifact(with_caches_in_ddr(), slow)
    assert found.decode_floor_bytes == WEIGHTS + L * KV
    assert found.decode_floor_tiers == {"hbm": WEIGHTS, "ddr": L * KV}
    assert found.decode_floor_seconds == pytest.approx(L * KV / 1e7)
    assert found.decode_floor_seconds < found.decode.seconds


def test_full_caches_take_what_the_program_leaves_of_hbm_and_then_ddr() -> None:
    found = inspect_artifact(artifact(), MACHINE)
    full = SIGNATURE.batch * found.full_kv_bytes
    held = found.levels["hbm"].nbytes - L * KV  # by all but the compressed caches
    room = {"ddr.bandwidth": 1e7, "hbm.capacity": held + full - 100}
    in_ddr = found.levels["ddr"].nbytes
    part = inspect_artifact(artifact(), changed({**room, "ddr.capacity": in_ddr + 100}, MACHINE))
    assert part.full_cache_tiers == {"hbm": full - 100, "ddr": 100}
    assert part.full_cache_floor_seconds == pytest.approx(max((WEIGHTS + full - 100) / 1e9, 100 / 1e7))
    none = inspect_artifact(artifact(), changed({**room, "ddr.capacity": in_ddr + 99}, MACHINE))
    assert none.full_cache_floor_seconds is None


def test_the_words_of_the_bound() -> None:
    report = inspect_artifact(artifact(), MACHINE)
    words = "\n".join(described(report))
    assert f"bound      {report.decode_floor_seconds * 1e6:.4g} us a step by HBM bandwidth alone, " in words
    assert "with full caches of 20 tokens\n" in words
    in_ddr = inspect_artifact(with_caches_in_ddr(), MACHINE)
    assert "by HBM and DDR bandwidth alone (2.25 KiB of it from DDR), " in "\n".join(described(in_ddr))
    beyond = "\n".join(described(replace(report, full_cache_tiers={"hbm": 5000, "ddr": 100})))
    assert "with full caches of 20 tokens, 100 bytes of them in DDR\n" in beyond
    homeless = "\n".join(described(replace(report, full_cache_floor_seconds=None)))
    assert "full caches of 20 tokens (5 KiB) do not fit into the machine\n" in homeless


# ---------------------------------------------------------------------------------------------------- the command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An artifact of a program with round figures. No session could run it, so the proofs for a session are skipped."""
    monkeypatch.setattr("sscc.runtime.artifact.proofs.prove", lambda program, signature: None)
    out = tmp_path / "fake.rdu"
    with ArtifactWriter(out) as writer:
        program = artifact_program()
        writer.write_program(replace(program, tensors=tuple(t for t in program.tensors if t.role != "constant")))
        writer.write_text(MACHINE_FILE, MACHINE.to_json())
        writer.finish(artifact().manifest)
    return out


def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(folder), "--prompt", "17"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "cache      9 rows = sink 2 + recent 4 + topk 3, for 20 tokens" in lines
    assert "KV         1.125 KiB a sequence, 2.5 KiB uncompressed (2.2x)" in lines
    assert "kernels    2, with 3 stages: 1 decode_attention, 1 product, 1 vector" in lines
    assert "launches   3 per decode step, 2 in prefill's body" in lines
    assert "looping    decode: 2 layers in one launch of k" in lines
    assert "looping    prefill: 2 calls of k, not looped: the value of layer 0 is an output" in lines
    assert "SRAM       400 bytes of 9.766 KiB" in lines
    assert "DDR        1.172 KiB of 1397 GiB" in lines
    assert "units      10 of 10 (100%) PCUs, 1 of 10 (10%) PMUs" in lines
    assert any(line.startswith("modelled ") and "2 slots of 20 tokens" in line for line in lines)
    assert any("k x 1" in line and "slowest stage multiply (compute)" in line for line in lines)
    assert any(line.startswith("prefill ") and "for 17 tokens" in line for line in lines)
    assert any(line.startswith("assumed    boundary_seconds 5e-07 s: fitted") for line in lines)


def test_the_command_for_programs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(folder), "--json", "--context", "3"]) == 0
    report = json.loads(capsys.readouterr().out)
    expected = inspect_artifact(artifact(), MACHINE, context=3)
    assert report["decode"]["seconds"] == expected.decode.seconds
    assert [kernel["name"] for kernel in report["decode"]["kernels"]] == ["attend", "k"]
    assert report["looping"][1]["reason"] == "the value of layer 0 is an output"
    assert report["prefill"] is None
    assert report["context"] == 3


def test_other_machines(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seconds = []
    for words in ([], ["--sockets", "8"], ["--target", "rdu"]):
        assert main(["inspect", str(folder), "--json", *words]) == 0
        report = json.loads(capsys.readouterr().out)
        seconds.append((report["sockets"], report["decode"]["seconds"] - report["decode"]["overhead_seconds"]))
    assert seconds[1] == (8, pytest.approx(seconds[0][1] / 8))
    assert seconds[2][1] < seconds[0][1]
    assert main(["inspect", str(folder), "--sockets", "0"]) == 2
    assert main(["inspect", str(folder), "--target", "gpu"]) == 2
    assert main(["inspect", str(folder), "--context", "21"]) == 2


def test_the_trace(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.json"
    assert main(["inspect", str(folder), "--json", "--trace", str(trace)]) == 0
    seconds = json.loads(capsys.readouterr().out)["decode"]["seconds"]
    events = json.loads(trace.read_text())["traceEvents"]
    kernels = [event for event in events if event["ph"] == "X" and event["name"] in ("k", "attend")]
    assert sum(event["dur"] for event in kernels if event["tid"] == 1) == pytest.approx(seconds * 1e6)
    assert main(["inspect", str(folder), "--trace", str(tmp_path / "none" / "trace.json")]) == 6
    capsys.readouterr()
    assert main(["inspect", str(folder), "--trace", "-"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["traceEvents"] == events
    assert "roofline" in err
