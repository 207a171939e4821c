"""Golden cases: prompts, and answers of an artifact approved by a developer.

A file is TOML:

    artifact = "../model.rdu"               # relative to the file; or a model, which is compiled first:
    # model = "../model"
    # options = { kv_budget = 64, max_context = 256 }      keywords of `sscc.compile`
    interpreter = ["native", "reference"]   # default: "native"
    replay = true                           # also compare with the recorded run (`sscc compile --save-golden`)

    [[case]]
    name = "a greeting"
    prompt = "Once upon a time"             # or tokens = [1, 2, 3], or messages = [{role = "user", content = ".."}]
    max_tokens = 16                         # and other fields of `SamplingParams`; default: greedy
    expected = ", there was"                # the text, or expected_tokens = [5, 6, 7], or both

Each case is one test per interpreter.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from sscc.compiler.driver.api import compile
from sscc.compiler.driver.llm import LLM, RequestOutput, SamplingParams
from sscc.ir.errors import CheckError, ErrorKind, InputError, SsccError, UsageError, quoted
from sscc.ir.suggestions import check_choice, did_you_mean
from sscc.runtime.backends.registry import DEFAULT_BACKEND, backend_names

_OF_A_FILE = ("artifact", "model", "options", "interpreter", "replay", "case")
_PROMPTS = ("prompt", "tokens", "messages")
_OF_A_CASE = ("name", *_PROMPTS, "expected", "expected_tokens")
_SAMPLING = tuple(item.name for item in fields(SamplingParams) if item.name != "n")
REPLAY = "recorded run"
"""Name of the test for `replay`."""


class GoldenFileErrors(ErrorKind):
    UNREADABLE = InputError, "{path} cannot be read as TOML: {reason}"
    NO_PROGRAM = UsageError, "{path} must name either an artifact or a model"
    OPTIONS_OF_ARTIFACT = UsageError, "{path} has options, which apply to a model only, not to an artifact"
    NO_CASE = UsageError, "{path} has neither a [[case]] nor replay = true"
    UNKNOWN_NAME = UsageError, "{where} has the unknown name {name!r}{similar_hint}"
    NOT_ONE_PROMPT = UsageError, "{where} has {count} prompts: give one of {choices}"
    NOTHING_EXPECTED = UsageError, "{where} has no expected answer: give expected or expected_tokens"
    NO_SEED = UsageError, "{where} has a temperature but no seed, so its answers are not reproducible: give seed"
    BAD_SAMPLING = UsageError, "{where}: {cause}"
    OTHER_ANSWER = CheckError, "the answer to {case!r} has changed:"
    NO_RECORDED_RUN = InputError, "{artifact} contains no recorded run: compile it with save_golden"


@dataclass(frozen=True)
class GoldenCase:
    """A prompt and its expected answer.

    Attributes:
        prompt: text, tokens, or messages.
        params: sampling parameters of the answer.
        text, tokens: the expected answer in either form; None for a form that is not compared.
    """

    name: str
    prompt: Any
    params: SamplingParams
    text: str | None = None
    tokens: tuple[int, ...] | None = None


@dataclass(frozen=True)
class GoldenFile:
    """Contents of a golden file.

    Attributes:
        path: the file.
        artifact: folder of the artifact, or None if `model` is compiled.
        model, options: the model to compile, and its options.
        interpreters: interpreters that run every case.
        replay: True to replay the recorded run of the artifact.
    """

    path: Path
    artifact: Path | None
    model: Path | None
    options: Mapping[str, Any] = field(default_factory=dict)
    interpreters: tuple[str, ...] = (DEFAULT_BACKEND,)
    replay: bool = False
    cases: tuple[GoldenCase, ...] = ()

    @property
    def key(self) -> tuple[object, ...]:
        """Key of the program; files with the same program have equal keys."""
        return self.artifact, self.model, repr(sorted(self.options.items()))


def read_golden_file(path: Path) -> GoldenFile:
    """Return the contents of a golden file. Raises InputError if it is not TOML, and UsageError for an unknown or
    invalid field."""
    try:
        values = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise GoldenFileErrors.UNREADABLE(path=path, reason=quoted(error)) from None
    _check_names(f"{path}", values, _OF_A_FILE)
    if ("artifact" in values) == ("model" in values):
        raise GoldenFileErrors.NO_PROGRAM(path=path)
    if "options" in values and "model" not in values:
        raise GoldenFileErrors.OPTIONS_OF_ARTIFACT(path=path)
    asked = values.get("interpreter", DEFAULT_BACKEND)
    interpreters = (asked,) if isinstance(asked, str) else tuple(asked)
    for name in interpreters:
        check_choice(f"{path}: interpreter", name, backend_names())
    cases = tuple(_case(f"{path}: case {number}", each) for number, each in enumerate(values.get("case", []), 1))
    if not cases and not values.get("replay", False):
        raise GoldenFileErrors.NO_CASE(path=path)
    place = {name: path.parent / values[name] if name in values else None for name in ("artifact", "model")}
    return GoldenFile(
        path, place["artifact"], place["model"], values.get("options", {}), interpreters,
        values.get("replay", False), cases,
    )  # fmt: skip


def _check_names(where: str, values: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in values:
        if name not in known:
            raise GoldenFileErrors.UNKNOWN_NAME(where=where, name=name, similar_hint=did_you_mean(name, known))


def _case(where: str, values: Mapping[str, Any]) -> GoldenCase:
    _check_names(where, values, (*_OF_A_CASE, *_SAMPLING))
    prompts = [name for name in _PROMPTS if name in values]
    if len(prompts) != 1:
        raise GoldenFileErrors.NOT_ONE_PROMPT(where=where, count=len(prompts), choices=_PROMPTS)
    if not {"expected", "expected_tokens"} & values.keys():
        raise GoldenFileErrors.NOTHING_EXPECTED(where=where)
    sampling = {name: values[name] for name in _SAMPLING if name in values}
    if "logit_bias" in sampling:
        sampling["logit_bias"] = {int(token): addend for token, addend in sampling["logit_bias"].items()}
    if sampling.get("temperature", 0) and "seed" not in sampling:
        raise GoldenFileErrors.NO_SEED(where=where)
    try:
        params = SamplingParams(**{"temperature": 0.0, **sampling})
    except (UsageError, TypeError) as error:
        cause = error if isinstance(error, SsccError) else quoted(error)
        raise GoldenFileErrors.BAD_SAMPLING(where=where, cause=cause) from None
    prompt = values[prompts[0]]
    tokens = values.get("expected_tokens")
    name = values.get("name") or (prompt if isinstance(prompt, str) else f"{prompts[0]} {where.rpartition(' ')[2]}")
    return GoldenCase(name, prompt, params, values.get("expected"), None if tokens is None else tuple(tokens))


class Programs:
    """The opened programs of golden files, at most one for each program and interpreter.

    Args:
        folder: function that returns a folder for compiled artifacts.
    """

    def __init__(self, folder: Callable[[], Path]) -> None:
        self._folder = folder
        self._artifacts: dict[tuple[object, ...], Path] = {}
        self._opened: dict[tuple[object, ...], LLM] = {}

    def llm(self, file: GoldenFile, interpreter: str) -> LLM:
        """Return the opened program of a file. Raises the errors of `sscc.compile` and `sscc.LLM`."""
        key = (*file.key, interpreter)
        if key not in self._opened:
            self._opened[key] = LLM(self.artifact(file), interpreter=interpreter)
        return self._opened[key]

    def artifact(self, file: GoldenFile) -> Path:
        """Return the artifact of a file, compiled if the file names a model. Raises the errors of `sscc.compile`."""
        if file.artifact is not None:
            return file.artifact
        if file.key not in self._artifacts:
            assert file.model is not None
            output = self._folder() / f"{len(self._artifacts)}.rdu"
            self._artifacts[file.key] = compile(file.model, output=output, **file.options).path
        return self._artifacts[file.key]

    def close(self) -> None:
        """Close all programs."""
        for llm in self._opened.values():
            llm.close()
        self._opened.clear()


def check_case(case: GoldenCase, llm: LLM) -> None:
    """Generate the answer of a case. Raises CheckError with the new answer if it differs from the expected one."""
    if isinstance(case.prompt, list) and case.prompt and isinstance(case.prompt[0], dict):
        (output,) = llm.chat(case.prompt, case.params)
    else:
        (output,) = llm.generate(case.prompt, case.params)
    wrong = [*_differences(case, output)]
    if wrong:
        raise GoldenFileErrors.OTHER_ANSWER(case=case.name, excerpt="\n".join(wrong))


def _differences(case: GoldenCase, output: RequestOutput) -> Iterator[str]:
    """Yield lines about the differences, with the new values in the syntax of golden files."""
    tokens, text = output.outputs[0].token_ids, output.text
    if case.tokens is not None and case.tokens != tokens:
        pairs = zip(case.tokens, tokens, strict=False)
        first = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(case.tokens), len(tokens)))
        yield f"  tokens differ from token {first} on"
        yield f"  expected_tokens = {list(case.tokens)}"
        yield f"  now             = {list(tokens)}"
    if case.text is not None and case.text != text:
        yield f"  expected = {case.text!r}"
        yield f"  now      = {text!r}"


def replay(path: Path, interpreter: str) -> None:
    """Replay the recorded run of an artifact. Raises CheckError if a tensor differs, and InputError without a recorded
    run."""
    from sscc.compiler.driver.sessions import open_session
    from sscc.runtime.session.artifact import Artifact
    from sscc.runtime.session.golden_replay import replay as replayed

    artifact = Artifact.load(path)
    golden = artifact.golden()
    if golden is None:
        raise GoldenFileErrors.NO_RECORDED_RUN(artifact=artifact.path)
    session = open_session(artifact, interpreter=interpreter)
    try:
        replayed(session, golden, quantized=any(tensor.encoding for tensor in artifact.program.tensors)).require()
    finally:
        session.close()
