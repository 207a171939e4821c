"""User-defined rules: the parts of a file that are read, permitted rules, and refusals, with their line."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import sscc
from sscc.compiler.driver.driver import CompilationErrors, compile_model
from sscc.compiler.frontend import algorithm
from sscc.compiler.frontend.algorithm import Softmax
from sscc.compiler.frontend.capture import AttentionSizes
from sscc.compiler.frontend.rules import RuleErrors, capture_rule, end_of_prompt
from sscc.compiler.options.compile_options import CompileOptions, OptionErrors
from sscc.compiler.options.policy import Policy, PolicyErrors, Rule, policy_of
from sscc.compiler.tools.commands import cli
from sscc.compiler.tools.commands.eval import EvalCommandErrors
from sscc.ir.errors import ErrorKind
from sscc.ir.geometry import Geometry
from sscc.passes.attended import ThreadCacheErrors
from sscc.passes.lower_torch import LowerTorchErrors
from tests.errors import check, one_line, raises, reported
from tests.models.tiny.task import fixed_queries

TINY = Path(__file__).parents[1] / "models" / "tiny"
RULES = Path(__file__).parents[2] / "examples" / "rules"
SIZES = AttentionSizes(heads=4, kv_heads=2, width=8, value_width=8, scale=8**-0.5, softcap=0.0, dtype=torch.float32)
LINE = {line: re.compile(rf"mine\.py:{line}$") for line in range(1, 10)}
"""Places in the file of a rule."""
G = Geometry(sink=1, recent=4, topk=6, obs=5, pool=1, pool_mode="avg", max_context=32)


def written(folder: Path, body: str, name: str = "Mine") -> Path:
    """The file of a rule whose class has this body; its first line is line 6."""
    file = folder / "mine.py"
    file.write_text(f"import torch\nimport sscc\n\n\nclass {name}(sscc.Policy):\n{body}\n")
    return file


def scoring(text: str) -> str:
    return f"    def scores(self, prompt):\n        {text}"


def rule_of(asked: Any) -> Rule:
    rule = policy_of(asked)
    assert isinstance(rule, Rule)
    return rule


# ------------------------------------------------------------------------------------------------- what is a rule


@pytest.mark.parametrize("softmax", [Softmax(), Softmax(2.0), Softmax(None, torch.tensor([0.5, -1.0, 2.0, 0.0]))])
@pytest.mark.parametrize("n", [3, 20])
def test_attention_and_its_mass_are_the_definitions_scores(softmax: Softmax, n: int) -> None:
    """With caps and learned sinks, and for prompts that are shorter than the window."""
    torch.manual_seed(0)
    queries, keys, values = torch.randn(4, n, 8), torch.randn(2, n, 8), torch.randn(2, n, 8)
    prompt = end_of_prompt(queries, keys, values, SIZES.scale, G, softmax)
    expected = algorithm.observation_scores(queries[:, max(n - G.obs, 0) :], keys, SIZES.scale, G, softmax)
    torch.testing.assert_close(prompt.attention_mass(), expected, atol=1e-6, rtol=1e-5)
    by_hand = prompt.mean_over_group(prompt.attention().sum(dim=1))
    end = max(n - min(G.obs, G.recent), 0)
    torch.testing.assert_close(by_hand[:, :end], expected[:, :end], atol=1e-6, rtol=1e-5)
    assert float(by_hand.sum()) > float(expected.sum())  # what the window pays itself


def test_the_rule_that_comes_with_sscc_is_the_same_program(tmp_path: Path) -> None:
    """SnapStream as a rule, traced and lowered, and SnapStream as the compiler writes it."""
    for name, policy in (("built_in", None), ("rule", sscc.SnapStream)):
        options: dict[str, Any] = {"kv_budget": 64, "kv_obs": 8, "max_context": 128, "prefill_chunk": 32}
        options |= {"dump_ir_dir": tmp_path / name, "weights": "none", "native_code": False}
        compile_model(CompileOptions(TINY, tmp_path / f"{name}.rdu", kv_policy=policy, **options))
    schedules = [next((tmp_path / name).glob("*schedule.json")).read_text() for name in ("built_in", "rule")]
    assert schedules[0] == schedules[1]


@pytest.mark.parametrize(
    ("text", "pool", "whole"),
    [
        ("return prompt.mean_over_group(prompt.attention().sum(dim=1))", 1, True),
        ("return prompt.mean_over_group(prompt.attention()).sum(1)", 1, True),
        ("return prompt.mean_over_group(prompt.attention().sum(dim=1))", 3, False),
        ("return prompt.mean_over_group(prompt.attention().amax(dim=1))", 1, False),
        ("return 2 * prompt.mean_over_group(prompt.attention().sum(dim=1))", 1, False),
    ],
)
def test_a_sum_of_attention_is_recognised(text: str, pool: int, whole: bool, tmp_path: Path) -> None:
    """Pooled it is another thing: the operation has zeros in the columns of the window."""
    captured = capture_rule(rule_of(written(tmp_path, scoring(text))), SIZES, replace(G, pool=pool), 40)
    targets = [str(node.target) for node in captured.graph.nodes if node.op == "call_function"]
    assert (targets == ["sscc.attention_mass.default"]) == whole
    assert any("bmm" in target for target in targets) != whole


def test_names_and_digests(tmp_path: Path) -> None:
    file = written(tmp_path, scoring("return prompt.attention_mass()"))
    rule = rule_of(file)
    assert rule.name == "Mine"
    assert rule.digest == hashlib.sha256(file.read_bytes()).hexdigest()
    options = CompileOptions(Path("model"), kv_policy=file, kv_budget=64)
    geometry = options.resolve(256).geometry
    assert geometry.rule == (rule.name, rule.digest)
    assert geometry.selects
    assert Geometry.from_dict(geometry.to_dict()) == geometry
    assert rule_of(sscc.SnapStream).digest == rule_of(sscc.SnapStream()).digest

    class Scaled(sscc.SnapStream):
        def __init__(self, factor: float = 1.0) -> None:
            self.factor = factor

    assert rule_of(Scaled(2.0)).digest != rule_of(Scaled).digest == rule_of(Scaled(1.0)).digest


def test_what_a_rule_says_holds_where_no_option_is_stronger() -> None:
    def resolved(rule: str, **options: Any) -> Geometry:
        file = RULES / f"{rule}.py"
        return CompileOptions(Path("model"), kv_policy=file, kv_budget=64, **options).resolve(256).geometry

    g = resolved("accumulated_mass")
    assert (g.obs, g.pool, g.recent) == (256, 1, 16)  # all queries are seen, and need not stay
    assert resolved("key_norm").recent == 16
    assert (resolved("accumulated_mass", kv_obs=9, kv_pool=3).obs, resolved("key_norm", kv_pool=3).pool) == (9, 3)
    shape = CompileOptions(Path("model"), kv_policy=RULES / "pyramid.py", kv_topk=10, kv_recent=4).resolve(256)
    assert shape.geometry_of(3).layer_topk == (15, 10, 5)


# ------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("text", "kind", "fields"),
    [
        ("x = = 1", PolicyErrors.FILE_FAILS, {"place": LINE[1], "type": "SyntaxError"}),
        (
            "import sscc\nimport nothing_here", PolicyErrors.FILE_FAILS,
            {"place": LINE[2], "type": "ModuleNotFoundError", "cause": "No module named 'nothing_here'"},
        ),
        ("raise SystemExit(3)", PolicyErrors.FILE_FAILS, {"place": LINE[1], "type": "SystemExit", "cause": "3"}),
        ("import sscc", PolicyErrors.EMPTY_FILE, {}),
        ("import sscc\nclass A(sscc.SnapStream): pass\nclass B(A): pass", PolicyErrors.SEVERAL, {"rules": ["A", "B"]}),
    ],
)
def test_files_that_are_no_rule(text: str, kind: ErrorKind, fields: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(text)
    with raises(kind, **fields):
        policy_of(tmp_path / "mine.py")


def test_one_of_several_rules_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import sscc\nclass A(sscc.SnapStream): pass\nclass Bee(A): pass")
    assert rule_of(f"{tmp_path}/mine.py:Bee").name == "Bee"
    with raises(PolicyErrors.NOT_IN_FILE, rule="Be", hint="; did you mean 'Bee'?"):
        policy_of(f"{tmp_path}/mine.py:Be")
    with raises(PolicyErrors.NOT_READABLE):
        policy_of(tmp_path / "other" / "mine.py")


@pytest.mark.parametrize(
    ("body", "kind", "fields"),
    [
        ("    pool = 2\n" + scoring("return prompt.keys"), PolicyErrors.BAD_POOL, {"rule": "Mine", "pool": 2}),
        (
            "    pool_mode = 'mean'\n" + scoring("return prompt.keys"), PolicyErrors.BAD_POOL_MODE,
            {"rule": "Mine", "mode": "mean", "known": ["avg", "max"]},
        ),
        (
            "    obs = 0\n" + scoring("return prompt.keys"), PolicyErrors.BAD_OBS,
            {"rule": "Mine", "obs": 0, "whole": "prompt"},
        ),
        ("    pool = 3", PolicyErrors.NO_SCORES, {"rule": "Mine"}),
        ("    def __init__(self, x): pass\n" + scoring("return prompt.keys"), PolicyErrors.TAKES_ARGUMENTS, {}),
    ],
)
def test_rules_that_cannot_be(body: str, kind: ErrorKind, fields: dict[str, Any], tmp_path: Path) -> None:
    with raises(kind, **fields):
        policy_of(written(tmp_path, body))


MASS = "prompt.attention_mass()"


@pytest.mark.parametrize(
    ("text", "kind", "fields"),
    [
        (
            "return prompt.kyes", RuleErrors.SCORES_FAIL,
            {"rule": "Mine", "place": LINE[7], "cause": re.compile("'kyes'")},
        ),
        (
            "return prompt.keys.norm(dim=-1)[0]", RuleErrors.OTHER_SHAPE,
            {"shape": [24], "dtype": "torch.float32", "expected": [2, 24]},
        ),
        ("return 3", RuleErrors.NO_TENSOR, {"type": "int"}),
        (f"return {MASS} / 0", RuleErrors.NOT_FINITE, {"tokens": 24}),
        ("return prompt.keys.mean(dim=1, keepdim=True).expand(-1, len(prompt.positions), -1).sum(-1)",
         RuleErrors.READS_BEHIND, {}),
        ("return torch.rand_like(prompt.keys[..., 0])", RuleErrors.RANDOM, {"rule": "Mine", "place": LINE[6]}),
        ("prompt.keys_scratch.mul_(2)\n        return prompt.keys.norm(dim=-1)", RuleErrors.CHANGES_PROMPT, {}),
        (f"return {MASS} if {MASS}.sum() > 0 else -{MASS}",
         RuleErrors.SCORES_FAIL, {"rule": "Mine", "place": LINE[7]}),
        (f"return {MASS} * prompt.keys[0, :, 0].nonzero().sum()",
         RuleErrors.SHAPE_NOT_STATIC, {"rule": "Mine", "place": LINE[7]}),
        (f"return {MASS} * torch.tensor([1.0, 2.0])[:, None]",
         RuleErrors.OWN_TENSOR, {"rule": "Mine", "place": LINE[7]}),
    ],
)  # fmt: skip
def test_scores_that_no_program_can_be(text: str, kind: ErrorKind, fields: dict[str, Any], tmp_path: Path) -> None:
    with raises(kind, **fields):
        capture_rule(rule_of(written(tmp_path, scoring(text))), SIZES, G, 40)


@pytest.mark.parametrize(
    ("options", "kind", "fields"),
    [
        ({"kv_policy": "snapsteam"}, PolicyErrors.UNKNOWN, {"known": ["snapstream", "query"]}),
        ({"kv_policy": 3}, PolicyErrors.NO_POLICY, {}),
        ({"kv_policy": sscc.SnapStream, "tp": 2}, OptionErrors.RULE_OVER_RANKS, {"rule": "SnapStream"}),
        (
            {"kv_policy": RULES / "pyramid.py", "kv_topk_per_layer": "3,4"}, OptionErrors.BUDGETS_OF_RULE,
            {"rule": "Pyramid"},
        ),
        ({"kv_policy": sscc.SnapStream, "kv_fetch": 3}, OptionErrors.ONLY_BY_QUERY, {"option": "--kv-fetch"}),
        ({"kv_policy": sscc.SnapStream, "compile_from": "graph"}, OptionErrors.RECORDED, {"option": "--kv-policy"}),
    ],
)
def test_options_that_contradict_a_rule(options: dict[str, Any], kind: ErrorKind, fields: dict[str, Any]) -> None:
    with raises(kind, **fields):
        CompileOptions(Path("model"), **options)


def test_budgets_that_cannot_be() -> None:
    class Half(sscc.SnapStream):
        def topk(self, layer: int, layers: int, topk: int) -> int:
            return topk / 2  # type: ignore[return-value]

    with raises(PolicyErrors.BAD_TOPK, rule="Half", rows=5.0, layer=0):
        rule_of(Half).budgets(2, 10)


def test_an_operator_that_no_level_has_is_refused_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, scoring(f"return {MASS}.cumsum(dim=1)"))
    arguments = ["compile", str(TINY), "--no-weights", "--kv-policy", str(file), "--kv-budget", "64"]
    error = reported([*arguments, "-o", str(tmp_path / "out.rdu")])
    check(error, LowerTorchErrors.NO_SUCH_OPERATION, origin="mine.py:7: ", op="tm_tensor.scan")
    assert capsys.readouterr().err.endswith(f"sscc: error: {error}\n")


@pytest.mark.parametrize(
    ("model", "options", "kind", "fields"),
    [
        (TINY.with_name("tiny_mla"), [], ThreadCacheErrors.RULE_OF_LATENT_ROWS, {"layer": 0}),
        (TINY, ["--kv-topk", "0"], CompilationErrors.NOTHING_TO_SELECT, {"rule": "KeyNorm"}),
    ],
)
def test_programs_that_no_rule_is_for(
    model: Path, options: list[str], kind: ErrorKind, fields: dict[str, Any], tmp_path: Path
) -> None:
    rule = str(RULES / "key_norm.py")
    arguments = ["compile", str(model), "--no-weights", "--kv-policy", rule, "--max-context", "64"]
    check(reported([*arguments, *options, "-o", str(tmp_path / "out.rdu")]), kind, **fields)


# ------------------------------------------------------------------------------------------------ from the command line


def test_a_dump_holds_the_rule_and_an_artifact_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file may go once the dump is there: it is never read again."""
    file = written(tmp_path, scoring("return -prompt.keys.norm(dim=-1)"))
    dump, out = tmp_path / "a.mlir", tmp_path / "a.rdu"
    options = ["--kv-budget", "32", "--kv-recent", "8", "--max-context", "128", "--prefill-chunk", "16"]
    options += ["--kv-policy", str(file), "--compile-to", "import", "-o", str(dump)]
    assert cli.main(["compile", str(TINY), *options]) == 0
    digest = rule_of(file).digest
    file.unlink()
    text = dump.read_text()
    assert "@rule.Mine.0(%observed: " in text
    assert f'policy = "rule:Mine@{digest}"' in text
    going_on = ["--compile-from", "import", "--checkpoint", str(TINY), "--no-native-code", "-o", str(out)]
    assert cli.main(["compile", str(dump), *going_on]) == 0
    err = capsys.readouterr().err
    assert "the rule Mine (sha256 " in err
    assert "observation window 32, avg pool 1" in err
    assert cli.main(["inspect", str(out)]) == 0
    assert f"selection  the rule Mine (sha256 {digest[:16]}), observation window 32" in capsys.readouterr().out


def test_eval_compares_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the trained tiny model: what attention paid recalls, the norm of keys does not."""
    examples = tmp_path / "recall.jsonl"
    examples.write_text(
        "".join(f'{json.dumps({"tokens": q.prompt, "answer_tokens": [q.answer]})}\n' for q in fixed_queries(32)[:8])
    )
    rules = [str(RULES / f"{name}.py") for name in ("pyramid", "key_norm")]
    arguments = ["eval", str(TINY), "-o", str(tmp_path / "results"), "--examples-file", str(examples), "--no-plot"]
    cells = ["--methods", "full", "--budgets", "64", "--kv-obs", "8", "--kv-policy", rules[0], "--kv-policy", rules[1]]
    assert cli.main([*arguments, *cells]) == 0
    results = json.loads((tmp_path / "results" / "results.json").read_text())
    scores = {cell["name"]: cell["scores"][0]["mean"] for cell in results["cells"]}
    assert scores["full"] == 1
    assert scores["Pyramid 64"] >= 0.75
    assert scores["KeyNorm 64"] <= 0.25
    assert results["options"]["rules"] == {rule.name: rule.digest for rule in map(rule_of, rules)}
    shown = capsys.readouterr().out
    assert all(f"{name} 64 " in part for name in ("Pyramid", "KeyNorm") for part in shown.split("minus full"))
    error = one_line([*arguments, "--kv-policy", "query"], capsys)
    check(error, EvalCommandErrors.BUILT_IN_POLICY, policy="query")


def test_a_policy_is_a_class_or_an_object_in_python(tmp_path: Path) -> None:
    class Positions(Policy):
        obs = 1

        def scores(self, prompt: sscc.Prompt) -> torch.Tensor:
            return -prompt.positions.to(torch.float32).expand(prompt.keys.shape[:2])

    shape: dict[str, Any] = {"kv_budget": 32, "kv_sink": 2, "kv_recent": 8, "max_context": 128, "native_code": False}
    sscc.compile(TINY, output=tmp_path / "a.rdu", kv_policy=Positions, **shape)
    session = sscc.load(tmp_path / "a.rdu", interpreter="reference")
    session.prefill(0, list(range(8, 108)))
    assert session.interpreter.tensor("selected")[0, 0].tolist() == list(range(2, 24))
    with raises(OptionErrors.UNKNOWN, option="policy", hint="; did you mean 'kv_policy'?"):
        sscc.compile(TINY, policy=Positions)  # type: ignore[call-arg]
