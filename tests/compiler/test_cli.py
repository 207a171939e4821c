"""The command line: help without heavy imports, one line per error, and the exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

import sscc
from sscc.compiler.options.compile_options import OptionErrors
from sscc.compiler.options.policy import PolicyErrors
from sscc.compiler.options.versions import version_of
from sscc.compiler.tools.commands import cli, doctor
from sscc.compiler.tools.commands.compile import CompileCommandErrors
from sscc.compiler.tools.commands.parser import CommandLineErrors
from sscc.compiler.tools.quality.eval_options import EvaluationOptionErrors
from sscc.ir import errors
from sscc.ir.errors import ErrorKind
from sscc.ir.suggestions import ChoiceErrors
from sscc.ir.target import TargetErrors
from tests.errors import check, reported

HEAVY = ("torch", "torch_mlir", "transformers", "numpy", "tokenizers", "safetensors", "jinja2", "gguf")


def likely(word: str) -> str:
    return f"; did you mean {word!r}?"


def sscc_process(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sscc.compiler.tools.commands.cli", *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **environment}
    )


def imported_by(statement: str) -> set[str]:
    """Return the heavy packages that are imported in a new Python process after `statement`."""
    code = f"import sys\n{statement}\nprint(*(name for name in {HEAVY} if name in sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    return set(result.stdout.splitlines()[-1].split())


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Makes `sscc doctor` raise."""

    def install(error: BaseException) -> None:
        def fail(args: object) -> NoReturn:
            raise error

        monkeypatch.setattr(doctor, "main", fail)

    return install


class TestLight:
    def test_import_sscc(self) -> None:
        assert imported_by("import sscc; sscc.CompileOptions, sscc.UsageError, sscc.Geometry, dir(sscc)") == set()

    def test_help(self) -> None:
        assert imported_by("from sscc.compiler.tools.commands import cli; cli.build_parser().format_help()") == set()

    def test_refused_options(self) -> None:
        assert imported_by("from sscc.compiler.tools.commands import cli; cli.main(['compile', 'm', '-O3'])") == set()


class TestHelp:
    def test_names_the_commands(self) -> None:
        result = sscc_process("--help")
        assert result.returncode == 0
        assert all(name in result.stdout for name in cli.COMMANDS)

    @pytest.mark.parametrize("command", cli.COMMANDS)
    def test_of_a_command(self, command: str, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as exit_info:
            cli.main([command, "--help"])
        assert exit_info.value.code == 0
        assert f"usage: sscc {command}" in capsys.readouterr().out

    def test_version(self) -> None:
        result = sscc_process("--version")
        assert (result.returncode, result.stdout) == (0, f"sscc {sscc.__version__}\n")

    def test_console_script(self) -> None:
        script = Path(sys.executable).with_name("sscc")
        result = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=120, check=True)
        assert result.stdout == f"sscc {sscc.__version__}\n"


class TestErrors:
    @pytest.mark.parametrize(
        ("words", "kind", "fields"),
        [
            ((), CommandLineErrors.INVALID, {"command": "sscc"}),
            (("fly",), CommandLineErrors.UNKNOWN_COMMAND, {"name": "fly", "commands": list(cli.COMMANDS), "hint": ""}),
            (("inspct", "m"), CommandLineErrors.UNKNOWN_COMMAND, {"name": "inspct", "hint": likely("inspect")}),
            (
                ("compile", "m", "--kv-buget=3"),
                CommandLineErrors.UNKNOWN_OPTION,
                {"option": "--kv-buget", "hint": likely("--kv-budget")},
            ),
            (
                ("compile", "m", "--frobnicate"),
                CommandLineErrors.UNKNOWN_OPTION,
                {"option": "--frobnicate", "command": "sscc compile", "hint": ""},
            ),
            (
                ("compile", "m", "--kv-policy", "snapstrem"),
                PolicyErrors.UNKNOWN,
                {"option": "--kv-policy", "value": "snapstrem", "hint": likely("snapstream")},
            ),
            (
                ("eval", "m", "-o", "r", "--tasks", "paskey"),
                EvaluationOptionErrors.UNKNOWN_TASK,
                {"task": "paskey", "similar_hint": likely("passkey")},
            ),
            (
                ("run", "m.rdu", "--prompt", "x", "--interpreter", "natve"),
                ChoiceErrors.UNKNOWN,
                {"option": "--interpreter", "value": "natve", "similar_hint": likely("native")},
            ),
            (("serve", "m.rdu", "--max-body", "4 MX"), CommandLineErrors.INVALID_ARGUMENT, {"option": "--max-body"}),
            (("compile", "-"), OptionErrors.MODEL_FROM_STDIN, {}),
            (("compile", "-", "--compile-from", "graph", "--no-weights"), OptionErrors.NO_OUTPUT_NAME, {}),
            (("compile",), CommandLineErrors.INVALID, {"command": "sscc compile"}),
            (("compile", "m", "--kv-topk", "many"), CommandLineErrors.INVALID, {"command": "sscc compile"}),
            (("compile", "m", "--target", "gpu"), TargetErrors.UNKNOWN, {"target": "gpu"}),
            (("compile", "m", "-O3"), OptionErrors.NO_OPT_LEVEL, {"level": 3, "known": ["-O0", "-O1", "-O2"]}),
            (("compile", "m", "-O", "fast"), CommandLineErrors.INVALID, {"command": "sscc compile"}),
            (("compile", "m", "--no-weights", "--save-golden"), OptionErrors.GOLDEN_WITHOUT_WEIGHTS, {}),
            (("compile", "m", "--no-weights", "--weights", "embed"), CommandLineErrors.INVALID, {}),
            (("compile", "m", "-o-", "--json", "--compile-to=graph"), CompileCommandErrors.JSON_BESIDE_OUTPUT, {}),
        ],
    )
    def test_wrong_words_are_one_line(
        self, words: tuple[str, ...], kind: ErrorKind, fields: dict[str, Any], capsys: pytest.CaptureFixture[str]
    ) -> None:
        error = reported(words)
        check(error, kind, **fields)
        assert error.exit_code == 2
        out, err = capsys.readouterr()
        assert bool(out) == ("--json" in words)
        assert err == f"sscc: error: {error}\n"

    def test_json_has_kind_fields_and_exit_code(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["inspect", "nofile.rdu", "--json"]) == 5
        out, err = capsys.readouterr()
        shown = json.loads(out)["error"]
        assert (shown["kind"], shown["exit_code"]) == ("file.missing", 5)
        assert shown["fields"]["path"] == "nofile.rdu"
        assert err == f"sscc: error: {shown['message']}\n"

    def test_a_long_message_is_not_cut(self, failing: Any, capsys: pytest.CaptureFixture[str]) -> None:
        failing(KeyError("x" * 1000))
        assert cli.main(["doctor"]) == 70
        assert "x" * 1000 in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("kind", "code"),
        [
            (errors.SsccError, 1),
            (errors.UsageError, 2),
            (errors.UnsupportedError, 3),
            (errors.CheckError, 4),
            (errors.InputError, 5),
            (errors.OutputError, 6),
        ],
    )
    def test_exit_codes(
        self, kind: type[errors.SsccError], code: int, failing: Any, capsys: pytest.CaptureFixture[str]
    ) -> None:
        failing(kind("what, and what to change"))
        assert cli.main(["doctor"]) == code
        assert capsys.readouterr().err == "sscc: error: what, and what to change\n"

    @pytest.mark.parametrize("error", [errors.InternalError("stage lost"), KeyError("stage lost")])
    def test_bugs_say_so(self, error: Exception, failing: Any, capsys: pytest.CaptureFixture[str]) -> None:
        failing(error)
        assert cli.main(["doctor"]) == 70
        err = capsys.readouterr().err
        assert "stage lost" in err
        assert "a bug in sscc" in err
        assert "Traceback" not in err

    def test_traceback_on_request(self, failing: Any, capsys: pytest.CaptureFixture[str]) -> None:
        failing(errors.InputError("damaged"))
        assert cli.main(["doctor", "--traceback"]) == 5
        assert "Traceback" in capsys.readouterr().err

    def test_traceback_by_the_environment(
        self, failing: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        failing(errors.InputError("damaged"))
        monkeypatch.setenv("SSCC_TRACEBACK", "1")
        assert cli.main(["doctor"]) == 5
        assert "Traceback" in capsys.readouterr().err

    def test_interrupt(self, failing: Any, capsys: pytest.CaptureFixture[str]) -> None:
        failing(KeyboardInterrupt())
        assert cli.main(["doctor"]) == 130
        assert "Traceback" not in capsys.readouterr().err

    def test_closed_pipe_is_quiet(self) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        command = [sys.executable, "-m", "sscc.compiler.tools.commands.cli", "doctor", "--json"]
        with os.fdopen(writer, "wb") as stdout:
            result = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
        assert (result.returncode, result.stderr) == (141, "")


class TestDoctor:
    def test_for_people(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["doctor"]) == 0
        out = capsys.readouterr().out
        assert all(word in out for word in ("threads", "GB/s", "torch-mlir 20261001", "no problems found"))

    def test_for_machines(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["doctor", "--json"]) == 0
        diagnosis = json.loads(capsys.readouterr().out)
        assert diagnosis["sscc"] == sscc.__version__
        assert diagnosis["native"]["threads"] >= 1
        assert all(speed > 0 for speed in diagnosis["native"]["bandwidth_gb_per_second"].values())
        assert diagnosis["problems"] == []

    def test_an_extra_that_is_not_there_is_no_problem(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(doctor, "version_of", lambda name: None if name == "uvicorn" else version_of(name))
        assert cli.main(["doctor"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert "extra      serve: lacks uvicorn (pip install 'sscc[serve]')" in lines
        assert f"extra      completion: shtab {version_of('shtab')}" in lines

    def test_another_version_is_a_problem(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        others = {"tokenizers": None, "torch": "2.12.0+cpu"}
        monkeypatch.setattr(doctor, "version_of", lambda name: others.get(name, version_of(name)))
        assert cli.main(["doctor"]) == 1
        out = capsys.readouterr().out
        assert "the package tokenizers is not installed" in out
        assert "torch is 2.12.0+cpu, sscc needs ==2.13.*" in out


class TestPackage:
    def test_every_name_is_there(self) -> None:
        missing = [name for name in sscc.__all__ if not hasattr(sscc, name)]
        assert missing == []

    def test_an_unknown_name_is_an_attribute_error(self) -> None:
        with pytest.raises(AttributeError, match="no attribute 'decompile'"):
            sscc.decompile  # noqa: B018

    def test_nothing_is_installed_under_a_folders_own_name(self, tmp_path: Path) -> None:
        names = ("compiler", "ir", "passes", "runtime")
        code = f"from importlib.util import find_spec; print([name for name in {names} if find_spec(name)])"
        result = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True, cwd=tmp_path
        )
        assert result.stdout == "[]\n"
