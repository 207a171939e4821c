"""`sscc run`: prompts of every form, text and figures, goldens, and refusals in one line."""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from sscc.compiler.frontend.checkpoint import CheckpointErrors
from sscc.compiler.options.execution_options import DraftOptionErrors
from sscc.compiler.tools.commands import cli, run
from sscc.compiler.tools.commands.generation import PromptOptionErrors, parse_token_ids
from sscc.compiler.tools.commands.parser import CommandLineErrors
from sscc.compiler.tools.commands.run import RunErrors
from sscc.ir.errors import ErrorKind
from sscc.ir.files import FileErrors
from sscc.ir.option import OptionRangeErrors
from sscc.ir.suggestions import ChoiceErrors
from sscc.runtime.artifact.artifact_files import ArtifactFileErrors
from sscc.runtime.artifact.manifest import ManifestErrors
from sscc.runtime.artifact.tensor_files import TensorErrors
from sscc.runtime.session.golden_replay import GoldenReplayErrors
from sscc.runtime.session.session_errors import SessionErrors
from sscc.runtime.support.verification import VerificationErrors
from tests.errors import check, one_line, raises

Capture = pytest.CaptureFixture[str]
PROMPT = "The quick brown fox jumps over the lazy dog."
ROOT = Path(__file__).parents[3]
WITHOUT_TORCH = """
import sys
from sscc.compiler.tools.commands import cli
from sscc.runtime.session.session import Session
from tests.runtime.fake import FakeInterpreter

open_real = Session.from_artifact

def open_fake(artifact, *, interpreter, **others):
    if interpreter != "reference":
        return open_real(artifact, interpreter=interpreter, **others)
    assert all(array.ndim for array in artifact.weights().values())
    return Session(artifact.signature, FakeInterpreter(artifact.signature))

Session.from_artifact = open_fake
cli.main(sys.argv[1:])
print()
print([name for name in ("torch", "transformers", "torch_mlir", "gguf", "jinja2") if name in sys.modules])
"""
"""Runs a command line, and prints what was imported; in place of the reference, which needs torch, with an interpreter
that computes nothing."""


def run_json(capsys: Capture, artifact: Path, *words: str) -> dict[str, Any]:
    assert cli.main(["run", str(artifact), "--json", *words]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return report


class TestGeneration:
    def test_text_goes_to_stdout_and_figures_to_stderr(self, artifact: Path, capsys: Capture) -> None:
        assert cli.main(["run", str(artifact), "--prompt", PROMPT, "--max-new-tokens", "4", "--ignore-eos"]) == 0
        out, err = capsys.readouterr()
        assert out.endswith("\n")
        assert f"{len(PROMPT)} tokens, 4 new (length)" in err
        assert "16 of 47 positions kept, 31 evicted (budget 16 rows)" in err
        assert "4 KiB against 32 KiB for a full cache (12.5%)" in err
        assert err.count("tokens/s") == 2

    def test_json(self, artifact: Path, capsys: Capture) -> None:
        report = run_json(capsys, artifact, "--prompt", PROMPT, "--max-new-tokens", "4", "--ignore-eos")
        assert len(report["tokens"]) == 4
        assert isinstance(report["text"], str)
        assert report["finish"] == "length"
        assert (report["prompt_tokens"], report["kept_rows"], report["evicted_rows"]) == (len(PROMPT), 16, 31)
        assert (report["kv_bytes"], report["full_kv_bytes"]) == (16 * 256, 128 * 256)
        assert report["prefill_seconds"] > 0
        assert report["decode_tokens_per_second"] > 0

    def test_a_draft_leaves_out_a_part_of_the_prompt(self, artifact: Path, capsys: Capture) -> None:
        words = ["--prompt", PROMPT * 2, "--max-new-tokens", "4", "--ignore-eos"]
        whole, drafted = run_json(capsys, artifact, *words), ["--draft", str(artifact)]
        report = run_json(capsys, artifact, *words, *drafted, "--keep", "0.5")
        assert (whole["prompt_tokens"], whole["read_tokens"], whole["draft_seconds"]) == (88, 88, None)
        assert (report["prompt_tokens"], report["read_tokens"]) == (88, 32 + 24)
        assert (report["kept_rows"], report["evicted_rows"]) == (16, 56 + 3 - 16)
        assert report["draft_seconds"] > 0
        assert run_json(capsys, artifact, *words, *drafted, "--keep", "1")["tokens"] == whole["tokens"]
        assert cli.main(["run", str(artifact), *words, *drafted, "--show-kept"]) == 0
        out, err = capsys.readouterr()
        assert "prompt   88 tokens, 24 of which are prefilled, 4 new (length)" in err
        assert "draft" in err
        assert PROMPT[-20:] in out.replace("\n", "")

    def test_a_short_text_is_the_models_own(self, artifact: Path, checkpoint: Path, capsys: Capture) -> None:
        report = run_json(capsys, artifact, "--token-ids", "1,2,3", "--max-new-tokens", "6", "--ignore-eos")
        model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
        expected = model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=6, min_new_tokens=6, do_sample=False)
        assert report["tokens"] == expected[0, 3:].tolist()

    def test_prompts_of_every_form_are_the_same(self, artifact: Path, tmp_path: Path, capsys: Capture) -> None:
        text, ids = tmp_path / "prompt.txt", tmp_path / "ids.txt"
        text.write_text("abc\n")
        ids.write_text("64 65\n66")  # a, b, c in the byte alphabet
        forms = (["--prompt", "abc"], ["--prompt-file", str(text)], ["--token-ids", f"@{ids}"])
        answers = [run_json(capsys, artifact, *form, "--max-new-tokens", "3")["tokens"] for form in forms]
        assert answers[0] == answers[1] == answers[2]

    def test_sampling_is_reproducible(self, artifact: Path, capsys: Capture) -> None:
        words = ["--prompt", PROMPT, "--max-new-tokens", "8", "--temperature", "5", "--ignore-eos"]
        runs = [run_json(capsys, artifact, *words, "--seed", seed)["tokens"] for seed in ("1", "1", "2")]
        assert runs[0] == runs[1] != runs[2]

    def test_the_default_length_fits_the_context(self, artifact: Path, capsys: Capture) -> None:
        report = run_json(capsys, artifact, "--prompt", "x" * 120, "--ignore-eos")
        assert len(report["tokens"]) == 8

    @pytest.mark.usefixtures("code_in_the_cache")
    def test_transformers_and_mlir_stay_out(self, artifact: Path) -> None:
        """`sscc run` imports neither if the native code of the schedule is in the cache."""
        assert cli.main(["run", str(artifact), "--prompt", "a", "--max-new-tokens", "1"]) == 0
        code = (
            "import sys\nfrom sscc.compiler.tools.commands import cli\n"
            f"cli.main(['run', {str(artifact)!r}, '--prompt', 'a', '--max-new-tokens', '1'])\n"
            "print([name for name in ('transformers', 'torch_mlir', 'gguf') if name in sys.modules])"
        )
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
        assert result.stdout.splitlines()[-1] == "[]"

    @pytest.mark.usefixtures("code_in_the_cache")
    @pytest.mark.parametrize(
        ("words", "reached"),
        [(["--prompt", "a", "--max-new-tokens", "2", "--temperature", "1"], "tokens/s"), (["--check"], "golden")],
    )
    def test_an_interpreter_without_torch_runs_without_torch(
        self, artifact: Path, words: list[str], reached: str
    ) -> None:
        """Artifact, weights, tokenizer, goldens, session and sampling are numpy's."""
        assert cli.main(["run", str(artifact), "--prompt", "a", "--max-new-tokens", "1"]) == 0
        result = subprocess.run(
            [sys.executable, "-c", WITHOUT_TORCH, "run", str(artifact), *words],
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
            cwd=ROOT,
        )
        assert result.stdout.splitlines()[-1] == "[]", result.stderr
        assert reached in result.stderr

    def test_without_a_tokenizer_ids_are_printed(self, artifact: Path, tmp_path: Path, capsys: Capture) -> None:
        bare = without_tokenizer(artifact, tmp_path)
        assert cli.main(["run", str(bare), "--token-ids", "1,2", "--max-new-tokens", "2", "--ignore-eos"]) == 0
        assert [word.isdecimal() for word in capsys.readouterr().out.split()] == [True, True]
        assert run_json(capsys, bare, "--token-ids", "1,2", "--max-new-tokens", "1")["text"] is None


class TestCheckpoint:
    def test_its_own_checkpoint_changes_nothing(self, artifact: Path, checkpoint: Path, capsys: Capture) -> None:
        words = ["--prompt", PROMPT, "--max-new-tokens", "4"]
        own = run_json(capsys, artifact, *words)["tokens"]
        assert run_json(capsys, artifact, *words, "--checkpoint", str(checkpoint))["tokens"] == own

    def test_another_checkpoint_fails_the_goldens(
        self, artifact: Path, checkpoint: Path, tmp_path: Path, capsys: Capture
    ) -> None:
        other = Path(shutil.copytree(checkpoint, tmp_path / "other"))
        weights = load_file(other / "model.safetensors")
        weights["model.norm.weight"] *= 2
        save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
        error = one_line(["run", str(artifact), "--check", "--checkpoint", str(other)], capsys)
        check(error, GoldenReplayErrors.LOGITS_DIFFER, tensor="prefill_logits", dtype="f32", tensors=10)
        assert all(error.fields[name] > error.fields["tolerance"] for name in ("max_abs", "max_rel", "rowwise"))
        assert error.fields["correlation"] == pytest.approx(1)

    def test_other_shapes_are_refused(self, artifact: Path, checkpoint: Path, tmp_path: Path, capsys: Capture) -> None:
        other = Path(shutil.copytree(checkpoint, tmp_path / "other"))
        weights = load_file(other / "model.safetensors")
        weights["model.norm.weight"] = torch.ones(16)
        save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
        error = one_line(["run", str(artifact), "--prompt", "a", "--checkpoint", str(other)], capsys)
        other_shape = {"tensor": "model.norm.weight", "dtype": "float32", "shape": [16], "expected": "f32 [32]"}
        check(error, TensorErrors.OTHER_TENSOR, **other_shape)


class TestCheck:
    def test_goldens_agree(self, artifact: Path, capsys: Capture) -> None:
        assert cli.main(["run", str(artifact), "--check"]) == 0
        assert "golden tensors agree" in capsys.readouterr().err

    def test_for_machines(self, artifact: Path, capsys: Capture) -> None:
        report = run_json(capsys, artifact, "--check")
        assert report["passed"] is True
        assert {"prefill_logits", "logits.2", "k_cache.1"} <= {check["name"] for check in report["checks"]}

    def test_without_goldens(self, artifact: Path, tmp_path: Path, capsys: Capture) -> None:
        bare = without(artifact, tmp_path, "golden/")
        check(one_line(["run", str(bare), "--check"], capsys), RunErrors.NO_GOLDENS, path=bare)


REFUSED = {
    "no-prompt": ([], RunErrors.NO_PROMPT, {}),
    "two-prompts": (
        ["--prompt", "a", "--token-ids", "1"],
        CommandLineErrors.INVALID,
        {"reason": "argument --token-ids: not allowed with argument --prompt"},
    ),
    "prompt-and-check": (
        ["--prompt", "a", "--check"],
        CommandLineErrors.INVALID,
        {"reason": "argument --check: not allowed with argument --prompt"},
    ),
    "empty-prompt": (["--prompt", ""], SessionErrors.EMPTY_PROMPT, {}),
    "no-ids": (["--token-ids", ""], SessionErrors.EMPTY_PROMPT, {}),
    "long-prompt": (["--prompt", "x" * 129], SessionErrors.PROMPT_TOO_LONG, {"tokens": 129, "max_context": 128}),
    "long-answer": (
        ["--prompt", "x" * 100, "--max-new-tokens", "29"],
        SessionErrors.REQUEST_TOO_LONG,
        {"tokens": 100, "max_new_tokens": 29, "max_context": 128},
    ),
    "no-answer": (["--prompt", "a", "--max-new-tokens", "0"], SessionErrors.MAX_NEW_TOKENS, {"value": 0}),
    "token-out-of-range": (
        ["--token-ids", "1,257"],
        SessionErrors.PROMPT_TOKEN,
        {"token": 257, "position": 1, "last": 256},
    ),
    "not-a-token": (["--token-ids", "1,two"], PromptOptionErrors.NOT_A_TOKEN, {"word": "two"}),
    "threads": (
        ["--prompt", "a", "--threads", "0"],
        OptionRangeErrors.OUT_OF_RANGE,
        {"option": "--threads", "value": 0, "least": 1},
    ),
    "keep-without-draft": (["--prompt", "a", "--keep", "0.5"], DraftOptionErrors.NO_DRAFT, {"option": "--keep"}),
    "keep-nothing": (["--prompt", "a", "--draft", "d.rdu", "--keep", "0"], OptionRangeErrors.NOT_ABOVE, {"value": 0.0}),
    "keep-more": (["--prompt", "a", "--draft", "d.rdu", "--keep", "1.5"], OptionRangeErrors.NOT_ABOVE, {"value": 1.5}),
    "no-draft": (["--prompt", "a", "--draft", "no-such.rdu"], FileErrors.MISSING, {"path": "no-such.rdu"}),
    "draft-and-check": (["--check", "--draft", "d.rdu"], RunErrors.DRAFT_AND_CHECK, {}),
    "draft-and-needed": (["--prompt", "a", "--show-needed", "--draft", "d.rdu"], RunErrors.DRAFT_AND_NEEDED, {}),
    "interpreter": (
        ["--prompt", "a", "--interpreter", "quantum"],
        ChoiceErrors.UNKNOWN,
        {"option": "--interpreter", "value": "quantum", "choices": ["native", "native-int8", "reference"]},
    ),
    "temperature": (["--prompt", "a", "--temperature", "-1"], OptionRangeErrors.TOO_SMALL, {"value": -1.0}),
    "missing-file": (["--prompt-file", "/nowhere/prompt.txt"], FileErrors.CANNOT_READ, {"path": "/nowhere/prompt.txt"}),
    "missing-ids": (["--token-ids", "@/nowhere/ids"], FileErrors.CANNOT_READ, {"path": "/nowhere/ids"}),
    "missing-checkpoint": (
        ["--prompt", "a", "--checkpoint", "/nowhere"],
        CheckpointErrors.MISSING,
        {"path": "/nowhere"},
    ),
}


class TestRefusals:
    @pytest.mark.parametrize(("words", "kind", "fields"), REFUSED.values(), ids=REFUSED)
    def test_is_one_line(
        self, words: list[str], kind: ErrorKind, fields: dict[str, Any], artifact: Path, capsys: Capture
    ) -> None:
        check(one_line(["run", str(artifact), *words], capsys), kind, **fields)

    def test_not_an_artifact(self, tmp_path: Path, capsys: Capture) -> None:
        error = one_line(["run", str(tmp_path), "--prompt", "a"], capsys)
        check(error, ArtifactFileErrors.NO_MANIFEST, path=tmp_path, name="manifest.json")

    def test_an_artifact_that_is_not_there(self, tmp_path: Path, capsys: Capture) -> None:
        error = one_line(["run", str(tmp_path / "nofile.rdu"), "--prompt", "a"], capsys)
        check(error, FileErrors.MISSING, path=tmp_path / "nofile.rdu", similar_hint="")

    @pytest.mark.parametrize("name", ["x.gguf", "my model.pt", "x.pt2"])
    def test_a_model_that_is_not_compiled(self, name: str, tmp_path: Path, capsys: Capture) -> None:
        (tmp_path / name).touch()
        error = one_line(["inspect", str(tmp_path / name)], capsys)
        model, output = (shlex.quote(str(path)) for path in (tmp_path / name, Path(name).with_suffix(".rdu")))
        check(error, ArtifactFileErrors.NOT_COMPILED, path=tmp_path / name, model=model, output=output)
        assert str(error).endswith(f"sscc compile {model} -o {output}")

    def test_a_hugging_face_folder_that_is_not_compiled(self, checkpoint: Path, capsys: Capture) -> None:
        error = one_line(["inspect", str(checkpoint)], capsys)
        check(
            error, ArtifactFileErrors.NOT_COMPILED, path=checkpoint, model=checkpoint, output=f"{checkpoint.name}.rdu"
        )

    @pytest.mark.parametrize(
        ("version", "kind"),
        [(1, ManifestErrors.FORMAT_OLDER), (4, ManifestErrors.FORMAT_OLDER), (99, ManifestErrors.FORMAT_NEWER)],
    )
    def test_another_format(
        self, version: int, kind: ErrorKind, artifact: Path, tmp_path: Path, capsys: Capture
    ) -> None:
        copy = Path(shutil.copytree(artifact, tmp_path / "old.rdu"))
        manifest = json.loads((copy / "manifest.json").read_text())
        (copy / "manifest.json").write_text(json.dumps({**manifest, "format": version}))
        error = one_line(["run", str(copy), "--prompt", "a"], capsys)
        check(error, kind, version=version, supported=manifest["format"], writer=manifest["sscc"], path=copy)
        assert f"`sscc compile MODEL -o {copy}`" in str(error)

    def test_a_trace_that_cannot_be_written_is_refused_first(
        self, artifact: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(run, "open_artifact", lambda *_, **__: pytest.fail("the artifact is opened"))
        words = ["run", str(artifact), "--prompt", "a", "--trace", str(tmp_path / "missing" / "trace.json")]
        trace = tmp_path / "missing" / "trace.json"
        check(one_line(words, capsys), FileErrors.CANNOT_WRITE, path=trace, reason=os.strerror(errno.ENOENT))

    def test_damaged_weights(self, artifact: Path, tmp_path: Path, capsys: Capture) -> None:
        damaged = Path(shutil.copytree(artifact, tmp_path / "damaged.rdu"))
        (shard,) = damaged.glob("weights/model-*")
        data = bytearray(shard.read_bytes())
        data[-1] ^= 1
        shard.write_bytes(data)
        words = ["run", str(damaged), "--prompt", "a", "--max-new-tokens", "1"]
        check(one_line(words, capsys), VerificationErrors.DIGEST_DIFFERS, path=shard)
        assert cli.main([*words, "--no-verify"]) == 0

    def test_not_text(self, artifact: Path, tmp_path: Path, capsys: Capture) -> None:
        (tmp_path / "prompt").write_bytes(b"ab\xff")
        error = one_line(["run", str(artifact), "--prompt-file", str(tmp_path / "prompt")], capsys)
        check(error, FileErrors.NOT_UTF8, path=tmp_path / "prompt", position=2, byte=0xFF)

    def test_text_without_a_tokenizer(self, artifact: Path, tmp_path: Path, capsys: Capture) -> None:
        bare = without_tokenizer(artifact, tmp_path)
        check(one_line(["run", str(bare), "--prompt", "a"], capsys), PromptOptionErrors.NO_TOKENIZER, artifact=bare)


@pytest.mark.parametrize(
    ("text", "expected"), [("1,2,3", [1, 2, 3]), ("7", [7]), (" 1, 2 3\n", [1, 2, 3]), ("", []), ("0", [0])]
)
def test_token_ids(text: str, expected: list[int]) -> None:
    assert parse_token_ids(text) == expected


@pytest.mark.parametrize("text", ["-1", "1.5", "1,x", "0x10"])
def test_bad_token_ids(text: str) -> None:
    with raises(PromptOptionErrors.NOT_A_TOKEN, word=text.split(",")[-1]):
        parse_token_ids(text)


def without(artifact: Path, tmp_path: Path, prefix: str) -> Path:
    """A copy of the artifact that lacks every file under `prefix`, as if it had been compiled so."""
    copy = Path(shutil.copytree(artifact, tmp_path / "bare.rdu"))
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["files"] = {name: record for name, record in manifest["files"].items() if not name.startswith(prefix)}
    (copy / "manifest.json").write_text(json.dumps(manifest))
    shutil.rmtree(copy / prefix)
    return copy


def without_tokenizer(artifact: Path, tmp_path: Path) -> Path:
    return without(artifact, tmp_path, "tokenizer/")
