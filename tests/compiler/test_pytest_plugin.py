"""`sscc.pytest_plugin` in a repository of somebody else's."""

from __future__ import annotations

import fnmatch
import json
import re
from pathlib import Path

import pytest

import sscc
from tests.models.tiny_llama import byte_tokenizer, save_tiny_llama

pytest_plugins = ["pytester"]
PAGE = Path(__file__).parents[2] / "docs" / "python.md"

GOLDEN = """
artifact = "../model.rdu"
interpreter = ["native", "reference"]
replay = true

[[case]]
name = "text"
prompt = "ab"
max_tokens = 4
expected = {text}

[[case]]
name = "tokens"
tokens = [1, 2]
max_tokens = 3
temperature = 0.9
seed = 3
expected_tokens = {tokens}
"""
PASS_CASE = """
// CASE: a pass of the user
// PASSES: hard-silu
// CHECK: arith.maximumf
// CHECK-NOT: math.exp
module attributes {sscc.level = "graph"} {
  func.func @gate(%x: f32) -> f32 {
    %one = arith.constant 1.0 : f32
    %n = arith.negf %x : f32
    %e = math.exp %n : f32
    %s = arith.addf %e, %one : f32
    %d = arith.divf %one, %s : f32
    return %d : f32
  }
}
"""
IR = """
// CASE: what an artifact is
// RUN: sscc inspect %S/model.rdu
// CHECK: launches
// CHECK-SAME: 3 per decode step

// -----

// CASE: a function
// CHECK: math.exp
// CHECK-NOT: math.exp
func.func @f(%a: f32) -> f32 {
  %0 = math.exp %a : f32
  return %0 : f32
}
"""


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("artifact")
    model = save_tiny_llama(folder, tokenizer=byte_tokenizer(), max_position_embeddings=64)
    return sscc.compile(model, output=folder / "model.rdu", max_context=64, save_golden=True, golden_tokens=4).path


@pytest.fixture
def repository(pytester: pytest.Pytester, artifact: Path) -> pytest.Pytester:
    pytester.makeconftest('pytest_plugins = ["sscc.pytest_plugin"]')
    (pytester.path / "model.rdu").symlink_to(artifact)
    pytester.mkdir("golden")
    return pytester


def run(repository: pytest.Pytester, *words: str) -> pytest.RunResult:
    return repository.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:xdist", *words)


def test_goldens_and_ir(repository: pytest.Pytester, artifact: Path) -> None:
    with sscc.LLM(artifact, interpreter="reference") as llm:
        text = llm.generate("ab", sscc.SamplingParams(temperature=0, max_tokens=4))[0].text
        drawn = llm.generate([1, 2], sscc.SamplingParams(temperature=0.9, seed=3, max_tokens=3))[0].outputs[0].token_ids
    file, ir = repository.path / "golden" / "answers.toml", repository.path / "program.mlir"
    file.write_text(GOLDEN.format(text=json.dumps(text), tokens=[*drawn]))
    ir.write_text(IR)
    (repository.path / "dump.mlir").write_text("module {}\n")  # which is no test
    run(repository).assert_outcomes(passed=8)
    file.write_text(GOLDEN.format(text='"else"', tokens=[drawn[0], drawn[1] + 1]))
    ir.write_text(IR.replace("CHECK-SAME: 3 per decode step", "CHECK: no such thing"))
    result = run(repository, "-k", "not recorded")
    result.assert_outcomes(passed=1, failed=5)
    result.stdout.fnmatch_lines(
        [
            "*answers.toml:1: text?native?*",
            "*expected = 'else'*",
            f"*now      = {text!r}*".replace("[", "[[]"),
            "*tokens differ from token 1 on*",
            f"*now             = [[]{', '.join(map(str, drawn))}]*",
            "*no such thing*",
        ]
    )
    assert "Traceback" not in result.stdout.str()


def test_the_examples_of_the_documentation(repository: pytest.Pytester, artifact: Path) -> None:
    toml, ir = (re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.DOTALL)[0] for kind in ("toml", "mlir"))
    with sscc.LLM(artifact) as llm:
        text = llm.generate("Once upon a time", sscc.SamplingParams(temperature=0, max_tokens=16))[0].text
    (repository.path / "golden" / "a.toml").write_text(toml.replace('", there was"', json.dumps(text)))
    (repository.path / "a.mlir").write_text(ir)
    (repository.path / "model").symlink_to(artifact.parent)
    run(repository).assert_outcomes(passed=7)


MISTAKES = [
    ("[[case]]", ".toml*artifact*model"),
    ("artifact = 'a'", "neither a ?[[]case]] nor replay = true"),
    ("artifact = 'a'\nintepreter = 'native'", "'intepreter'; did you mean*"),
    ("artifact = 'a'\n[[case]]\nprompt = 'a'", "case 1 has no expected answer"),
    ("artifact = 'a'\n[[case]]\nexpected = 'a'", "case 1*prompts"),
    ("artifact = 'a'\n[[case]]\nprompt = 'a'\nexpected = 'b'\ntemperature = 1.0", "give seed"),
    ("artifact = 'a'\n[[case]]\nprompt = 'a'\nexpected = 'b'\nmax_tokens = 0", "max_tokens must be at least 1"),
    ("artifact = ", ".toml*TOML*"),
]


def test_mistakes_are_a_line(repository: pytest.Pytester) -> None:
    for number, (text, _) in enumerate(MISTAKES):
        (repository.path / "golden" / f"{number}.toml").write_text(text)
    result = run(repository)
    result.assert_outcomes(errors=len(MISTAKES))
    assert "Traceback" not in result.stdout.str()
    reports = re.split(r"_+ ERROR collecting golden/(\d+)\.toml _+", result.stdout.str())
    lines = {int(number): report.splitlines() for number, report in zip(reports[1::2], reports[2::2], strict=True)}
    for number, (_, message) in enumerate(MISTAKES):
        assert fnmatch.filter(lines[number], f"*{message}*"), message


def test_a_program_that_is_not_there_fails(repository: pytest.Pytester) -> None:
    text = GOLDEN.replace("model.rdu", "none.rdu").format(text='"a"', tokens=[1])
    (repository.path / "golden" / "a.toml").write_text(text)
    result = run(repository, "-k", "text and native")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*none.rdu*"])


def test_cases_name_passes_that_are_loaded(pytester: pytest.Pytester) -> None:
    example = Path(__file__).parents[2] / "examples" / "passes" / "hard_silu.py"
    pytester.path.joinpath("hard_silu.py").write_text(example.read_text())
    pytester.path.joinpath("gate.mlir").write_text(PASS_CASE)
    pytester.makeini("[pytest]\nsscc_load_pass = hard_silu.py\n")
    pytester.runpytest_subprocess("-p", "sscc.pytest_plugin").assert_outcomes(passed=1)
    pytester.makeini("[pytest]\n")
    pytester.runpytest_subprocess("-p", "sscc.pytest_plugin").assert_outcomes(failed=1)
