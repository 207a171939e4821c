"""`sscc bisect`: a wrong pass is named, right ones are not, whatever the compilation starts from."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from torch_mlir import ir

from sscc.compiler.interpret.bisection import BisectionErrors, Trial
from sscc.compiler.options.compile_options import OptionErrors
from sscc.compiler.tools.commands import bisect
from sscc.compiler.tools.commands.bisect import BisectErrors
from sscc.compiler.tools.commands.cli import main
from sscc.ir.builders import index_constant
from sscc.ir.choices import LEVELS
from sscc.ir.context import mlir, parse_module
from sscc.ir.errors import ErrorKind
from sscc.ir.levels import walk
from sscc.ir.option import OptionRangeErrors
from sscc.ir.suggestions import ChoiceErrors
from sscc.passes import pass_pipeline as pipeline
from sscc.passes.base import Pass
from sscc.passes.pass_pipeline import PassPipelineErrors
from tests.compiler.interpret.models import BATCH, CHUNK, GEOMETRY, graph
from tests.errors import check, one_line, raises, reported
from tests.families import random_model
from tests.runtime.signatures import uniform

FAMILY = "llama"
TRIAL = ["--prompt-tokens", "20", "--steps", "2"]
SHAPE = [
    *("--kv-sink 2 --kv-recent 8 --kv-topk 6 --kv-obs 4 --kv-pool 3 --max-context 64".split()),
    *f"--batch {BATCH} --prefill-chunk {CHUNK}".split(),
]


@dataclass(frozen=True)
class WrongScale(Pass):
    """Attention over the cache with another scale: prefill's logits stay, those of decode change."""

    name: ClassVar[str] = "wrong-scale"
    takes: ClassVar[tuple[str, ...]] = ()
    level: ClassVar[str] = "kernels"

    percent: int = 150

    def run(self, module: ir.Module) -> None:
        for op in walk(module):
            if op.name == "kv.cached_attention":
                scale = ir.FloatAttr(op.attributes["scale"])
                op.attributes["scale"] = ir.FloatAttr.get(scale.type, scale.value * self.percent / 100)


@dataclass(frozen=True)
class NoNumbers(Pass):
    """The scale of the attention over the cache becomes infinite, so that decode gives NaN."""

    name: ClassVar[str] = "no-numbers"
    takes: ClassVar[tuple[str, ...]] = ()
    level: ClassVar[str] = "kernels"

    def run(self, module: ir.Module) -> None:
        for op in walk(module):
            if op.name == "kv.cached_attention":
                op.attributes["scale"] = ir.FloatAttr.get(ir.F64Type.get(), float("inf"))


@dataclass(frozen=True)
class EndlessLoops(Pass):
    """Loops over chunks run on behind the scratch."""

    name: ClassVar[str] = "endless-loops"
    takes: ClassVar[tuple[str, ...]] = ()
    level: ClassVar[str] = "kernels"

    def run(self, module: ir.Module) -> None:
        for op in walk(module):
            if op.name == "scf.for":
                with ir.InsertionPoint(op), op.location:
                    op.operands[1] = index_constant(1000)


@dataclass(frozen=True)
class NoSums(Pass):
    """Ranks keep their parts of a sum to themselves."""

    name: ClassVar[str] = "no-sums"
    takes: ClassVar[tuple[str, ...]] = ()
    level: ClassVar[str] = "kernels"

    def run(self, module: ir.Module) -> None:
        for op in list(walk(module)):
            if op.name == "shard.all_reduce":
                op.results[0].replace_all_uses_with(op.operands[0])
                op.erase()


@pytest.fixture(autouse=True)
def _wrong_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (WrongScale, NoNumbers, EndlessLoops, NoSums):
        monkeypatch.setitem(pipeline.REGISTRY, kind.name, kind)


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    path = tmp_path / "graph.mlir"
    path.write_text(graph(FAMILY, "f32"))
    return path


@pytest.fixture
def kernels(dump: Path, tmp_path: Path) -> Path:
    path = tmp_path / "kernels.mlir"
    assert main(["opt", str(dump), "--pass-pipeline", "outline-kernels,merge-equal-kernels", "-o", str(path)]) == 0
    return path


def test_right_passes_agree(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bisect", str(dump), "-O0", "--compile-to", "kernels", *TRIAL]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["after", str(dump), "outline-kernels", "merge-equal-kernels", "all"]
    assert lines[1].split()[1:] == ["graph", "compared", "with"]
    assert lines[2].split()[1:] == ["kernels", "0.00e+00", "0.00e+00", "1.00000000"]


@pytest.mark.parametrize("level", ["-O0", "-O2"])
def test_the_schedule_agrees_with_the_graph(dump: Path, level: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bisect", str(dump), level, *TRIAL]) == 0
    *_, last, verdict = capsys.readouterr().out.splitlines()
    assert last.split()[:2] == ["schedule", "schedule"]
    assert verdict == "all agree within 1e-05"


def test_a_wrong_pass_of_the_pipeline_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the model's config alone, with random weights."""
    random_model(FAMILY).config.save_pretrained(tmp_path)
    steps = pipeline.PIPELINES[0]
    after = [item.name for item in steps].index("outline-kernels") + 1
    monkeypatch.setitem(pipeline.PIPELINES, 0, (*steps[:after], WrongScale(), *steps[after:]))
    words = ["bisect", str(tmp_path / "config.json"), "--no-weights", "-O0", *SHAPE, *TRIAL]
    error = reported(words)
    out, err = capsys.readouterr()
    named = [line.split()[0] for line in out.splitlines()[1:]]
    assert named == ["build-entries", "outline-kernels", "wrong-scale"]
    check(error, BisectErrors.OUTPUTS_CHANGED, step="wrong-scale", first="build-entries", tolerance=1e-5)
    assert error.fields["error"] > 1e-5
    assert f"{error}\n" in err


def test_ranks_are_compared_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The passes behind the cut are right; one that loses sums is named."""
    random_model("qwen2").config.save_pretrained(tmp_path)
    words = ["bisect", str(tmp_path / "config.json"), "--no-weights", "--tp", "2", *SHAPE, *TRIAL]
    steps = pipeline.PIPELINES[2]
    after = [item.name for item in steps].index("merge-equal-kernels") + 1
    monkeypatch.setitem(pipeline.PIPELINES, 2, (*steps[:after], NoSums(), *steps[after:]))
    error = reported(words)
    check(error, BisectErrors.OUTPUTS_CHANGED, step="no-sums", first="one rank", tolerance=1e-5)
    out, _ = capsys.readouterr()
    rows = [line.split() for line in out.splitlines()[1:]]
    names = ["one", "build-entries", "outline-kernels{granularity=layer}", "merge-equal-kernels", "no-sums"]
    assert [row[0] for row in rows] == names
    monkeypatch.undo()
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "all agree within 1e-05"


def test_a_given_pipeline_with_the_weights_of_a_checkpoint(
    dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random_model(FAMILY).save_pretrained(tmp_path / "model")
    passes = "outline-kernels,wrong-scale{percent=101},merge-equal-kernels"
    words = ["bisect", str(dump), "--pass-pipeline", passes, "--checkpoint", str(tmp_path / "model"), "--json", *TRIAL]
    error = reported(words)
    check(error, BisectErrors.OUTPUTS_CHANGED, step="wrong-scale{percent=101}", first=str(dump), tolerance=1e-5)
    *outcomes, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert last["error"]["kind"] == BisectErrors.OUTPUTS_CHANGED.code
    assert [outcome["name"] for outcome in outcomes] == [str(dump), "outline-kernels", "wrong-scale{percent=101}"]
    assert outcomes[0]["difference"] is None
    assert outcomes[1]["difference"]["rowwise"] == 0.0
    assert outcomes[2]["difference"]["rowwise"] == error.fields["error"] > 1e-5


def test_a_difference_within_the_tolerance_is_none(dump: Path) -> None:
    words = ["bisect", str(dump), "--pass-pipeline", "wrong-scale{percent=101}", *TRIAL]
    assert main([*words, "--tolerance", "0.5"]) == 0
    assert main([*words, "--tolerance", "1e-7", "--precision", "f64"]) == 4


def test_a_wrong_decode_does_not_show_after_prefill_alone(dump: Path) -> None:
    words = ["bisect", str(dump), "--pass-pipeline", "wrong-scale", "--prompt-tokens", "20"]
    assert main([*words, "--steps", "0"]) == 0
    assert main([*words, "--steps", "1"]) == 4


def test_a_pass_whose_result_cannot_be_run_is_named(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = reported(["bisect", str(dump), "--pass-pipeline", "endless-loops", *TRIAL])
    check(error, BisectErrors.NOT_RUNNABLE, step="endless-loops")
    assert "of dimension" in error.fields["problem"]
    assert capsys.readouterr().out.splitlines()[-1].split() == ["endless-loops", "kernels", "cannot", "be", "run"]


def test_logits_that_are_not_numbers_are_a_difference(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = reported(["bisect", str(dump), "--pass-pipeline", "no-numbers", "--tolerance", "1e9", "--json", *TRIAL])
    check(error, BisectErrors.OUTPUTS_CHANGED, step="no-numbers", error=float("inf"), tolerance=1e9)
    *_, outcome, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert outcome["difference"]["rowwise"] is None
    assert last["error"]["fields"]["error"] == "inf"


def test_two_dumps_are_compared(dump: Path, kernels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bisect", str(dump), str(kernels), *TRIAL]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "all agree within 1e-05"
    with mlir():
        module = parse_module(kernels.read_text(), "kernels")
        WrongScale().run(module)
        kernels.write_text(str(module))
    error = reported(["bisect", str(dump), str(kernels), *TRIAL])
    check(error, BisectErrors.OUTPUTS_CHANGED, step=str(kernels), first=str(dump))


@pytest.mark.parametrize(
    ("words", "kind", "fields"),
    [
        (["--tolerance", "-1"], OptionRangeErrors.TOO_SMALL, {"option": "--tolerance", "value": -1.0}),
        (
            ["--prompt-tokens", "63", "--steps", "2"],
            BisectionErrors.TOO_LONG,
            {"prompt_tokens": 63, "steps": 2, "max_context": 64},
        ),
        (["--prompt-tokens", "0"], BisectionErrors.TOO_LONG, {"prompt_tokens": 0, "steps": 4}),
        (["--steps", "-1"], BisectionErrors.BAD_STEPS, {"steps": -1}),
        (
            ["--compile-to", "import"],
            ChoiceErrors.UNKNOWN,
            {"option": "--compile-to", "value": "import", "choices": LEVELS[1:]},
        ),
        (
            ["--precision", "f16"],
            ChoiceErrors.UNKNOWN,
            {"option": "--precision", "value": "f16", "choices": ["f32", "f64"]},
        ),
        (["--kv-topk", "3"], OptionErrors.RECORDED, {"option": "--kv-topk"}),
        (["--pass-pipeline", "no-such-pass"], PassPipelineErrors.UNKNOWN_PASS, {"name": "no-such-pass"}),
    ],
)
def test_what_cannot_be_honoured_is_refused(
    dump: Path, words: list[str], kind: ErrorKind, fields: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    check(one_line(["bisect", str(dump), *words], capsys), kind, **fields)


def test_a_dump_comes_from_stdin(
    dump: Path, kernels: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["-", "-O0", "--compile-to", "kernels"], [str(kernels), "-"]):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(dump.read_bytes())))
        assert main(["bisect", *words, *TRIAL]) == 0
        assert "<stdin>" in capsys.readouterr().out
    check(reported(["bisect", "-", "-"]), BisectErrors.STDIN_TWICE)


def test_two_files_are_dumps_and_take_no_passes(dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([str(dump), str(dump), "--pass-pipeline", "outline-kernels"], [str(tmp_path), str(dump)]):
        check(one_line(["bisect", *words], capsys), BisectErrors.NOT_TWO_DUMPS)


def test_every_dtype_has_a_tolerance() -> None:
    assert bisect.TOLERANCE.keys() == {"f32", "bf16", "f64"}


def test_the_default_prompt_overflows_the_cache_where_the_context_has_room() -> None:
    signature = uniform(GEOMETRY, 2, 8, "f32", 2, 4, 1, 8, 8, 96)
    trial = Trial.random(signature, None, 4, 0)
    assert len(trial.prompt) == 21 > GEOMETRY.budget
    assert len(trial.tokens) == 4
    assert Trial.random(signature, None, 4, 0) == trial != Trial.random(signature, None, 4, 1)
    assert len(Trial.random(signature, None, 60, 0).prompt) == 4
    with raises(BisectionErrors.TOO_LONG, prompt_tokens=0, max_context=64):
        Trial.random(signature, None, 64, 0)
