"""Without the packages of extras: artifacts run, what needs a package is refused in one line that names its extra."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from sscc.compiler.tools.commands import cli
from sscc.ir import extras
from tests.errors import raises

ROOT = Path(__file__).parents[3]
PROMPT = ["--prompt", "hello world, hello", "--max-new-tokens", "4", "--threads", "1", "--json"]

RUN = """
import json, sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
blocked, commands = json.loads(sys.argv[1])
for name in blocked:
    sys.modules[name] = None  # `import` says that there is no such module
from sscc.compiler.tools.commands import cli
outcomes = []
for words in commands:
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = cli.main(words)
    outcomes.append([code, out.getvalue(), err.getvalue()])
print(json.dumps([outcomes, sorted({name.partition(".")[0] for name, module in sys.modules.items() if module})]))
"""
"""A script that runs command lines in one process in which the named modules cannot be imported. It prints exit codes,
output, and the imported modules."""


def run_without(blocked: list[str], cache: Path, *commands: list[str]) -> tuple[list[list[Any]], set[str]]:
    environment = os.environ | {"SSCC_CACHE": str(cache), "SSCC_NATIVE_CODE": "1"}
    result = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps([blocked, commands])],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=environment,
    )
    assert result.returncode == 0, result.stderr
    outcomes, imported = json.loads(result.stdout.splitlines()[-1])
    return outcomes, set(imported)


def test_the_base_install_runs_artifacts(
    artifact: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With an empty cache LLVM compiles the schedule, without torch and transformers."""
    assert cli.main(["run", str(artifact), *PROMPT]) == 0
    expected = json.loads(capsys.readouterr().out.splitlines()[-1])["tokens"]
    without = list(extras.EXTRAS[extras.COMPILE])
    outcomes, imported = run_without(
        without,
        tmp_path,
        ["run", str(artifact), *PROMPT],
        ["run", str(artifact), "--check"],
        ["inspect", str(artifact)],
        ["bench", str(artifact), "-p", "8", "-n", "2", "-d", "8", "-b", "1", "-r", "1"],
        ["diff", str(artifact), str(artifact)],
        ["report", str(artifact), "-o", str(tmp_path / "report.html")],
        ["opt", "--list-passes"],
        ["run", str(artifact), *PROMPT, "--interpreter", "reference"],
        ["run", str(artifact), *PROMPT, "--checkpoint", str(checkpoint)],
        ["compile", str(checkpoint), "-o", str(tmp_path / "out.rdu")],
        ["pack", str(checkpoint), "-o", str(tmp_path / "out.pt")],
        ["bisect", str(checkpoint)],
        ["eval", str(checkpoint), "-o", str(tmp_path / "results")],
    )
    run, allowed, refused = outcomes[0], outcomes[:-6], outcomes[-6:]
    assert [code for code, _, _ in allowed] == [0] * len(allowed), allowed
    assert json.loads(run[1].splitlines()[-1])["tokens"] == expected
    assert "torch_mlir" in imported
    assert not imported & set(without)
    subjects = (
        "the reference interpreter",
        f"reading the checkpoint {checkpoint}",
        "sscc compile",
        "sscc pack",
        "sscc bisect",
        "sscc eval",
    )
    for (code, _, err), subject in zip(refused, subjects, strict=True):
        assert code == 2
        assert err == f"sscc: error: {subject} needs torch, transformers, gguf: pip install 'sscc[compile]'\n"

    (again,), imported = run_without([*without, "torch_mlir"], tmp_path, ["run", str(artifact), *PROMPT])
    assert again[0] == 0, again[2]
    assert json.loads(again[1].splitlines()[-1])["tokens"] == expected
    assert not imported & {*without, "torch_mlir"}


def test_a_dump_is_worked_on_without_torch(checkpoint: Path, tmp_path: Path) -> None:
    dump = tmp_path / "tiny.mlir"
    words = ["compile", str(checkpoint), "-o", str(dump), "--compile-to", "import", "-q"]
    assert cli.main([*words, "--kv-budget", "64", "--prefill-chunk", "16"]) == 0
    pipeline = "lower-torch,split-layers,repeat-layers,absorb-latent,thread-cache"
    ((code, text, err),), _ = run_without(
        list(extras.EXTRAS[extras.COMPILE]), tmp_path, ["opt", str(dump), f"--pass-pipeline={pipeline}"]
    )
    assert code == 0, err
    assert "kv.cached_attention" in text


@pytest.mark.parametrize("extra", extras.EXTRAS)
def test_a_missing_package_is_named_with_its_extra(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, package in extras.EXTRAS[extra].items():
        for other in extras.EXTRAS[extra]:
            monkeypatch.setitem(sys.modules, other, sys)
        extras.require(extra, "it")
        monkeypatch.setitem(sys.modules, module, None)
        with raises(extras.ExtraErrors.NOT_INSTALLED, purpose="it", packages=[package], extra=extra) as caught:
            extras.require(extra, "it")
        assert str(caught.value) == f"it needs {package}: pip install 'sscc[{extra}]'"


def test_extras_are_those_of_the_installation() -> None:
    """Each extra brings the required packages, and the base installation none of them. Two extras are for work on
    sscc."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {*extras.EXTRAS, "docs", "test"} == {*project["optional-dependencies"]}
    base = {Requirement(text).name for text in project["dependencies"]}
    for extra, packages in extras.EXTRAS.items():
        brought = {Requirement(text).name for text in project["optional-dependencies"][extra]}
        assert {*packages.values()} <= brought, extra
        assert not {*packages.values()} & base
