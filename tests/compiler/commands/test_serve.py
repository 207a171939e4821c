"""`sscc serve` as a separate process with the tiny model: its answers, its end, and its refusals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from sscc.compiler.options.execution_options import DraftOptionErrors
from sscc.compiler.options.server_options import ServeErrors
from sscc.compiler.tools.commands import cli
from sscc.compiler.tools.commands.engines import ExecutionErrors
from sscc.compiler.tools.commands.parser import CommandLineErrors
from sscc.ir.errors import ErrorKind
from sscc.ir.extras import ExtraErrors
from sscc.ir.files import FileErrors
from sscc.ir.option import OptionRangeErrors
from sscc.ir.sizes import SizeErrors
from sscc.ir.suggestions import ChoiceErrors
from sscc.runtime.serving.server.service import ListeningErrors
from sscc.runtime.support.host_names import AllowedHostErrors
from tests.compiler.commands.chatting import with_template
from tests.errors import check, one_line
from tests.trace_rules import checked_events

Capture = pytest.CaptureFixture[str]
GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0}
SERVER_PACKAGES = (
    *("fastapi", "starlette", "uvicorn", "pydantic", "prometheus_client", "jinja2"),
    "sscc.runtime.serving.server",
)


@pytest.fixture(scope="module")
def chatting(artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_template(artifact, tmp_path_factory.mktemp("serving") / "tiny.rdu")


class Served:
    def __init__(self, process: subprocess.Popen[str], ready: str) -> None:
        self.process = process
        self.ready = ready
        self.url = ready.split(" at ")[1].split(" ")[0]
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="secret", max_retries=0)

    def end(self, number: int) -> tuple[int, str, str]:
        """Sends a signal; exit code and the rest of stdout and stderr."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


@contextmanager
def serving(artifact: Path, *words: str, **environment: str) -> Iterator[Served]:
    process = subprocess.Popen(
        [sys.executable, "-m", "sscc.compiler.tools.commands.cli", "serve", str(artifact)]
        + ["--port", "0", "--threads", "1", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        if not ready:
            pytest.fail(process.communicate(timeout=60)[1])
        yield Served(process, ready)
    finally:
        process.kill()
        process.communicate()


def answer(artifact: Path, prompt: str, count: int, capsys: Capture, *words: str) -> dict[str, Any]:
    """Return the report of `sscc run` on a prompt without its template."""
    arguments = ["--prompt", prompt, "--raw", "--max-new-tokens", str(count), "--threads", "1", "--json", *words]
    assert cli.main(["run", str(artifact), *arguments]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return report


def test_answers_are_those_of_sscc_run(chatting: Path, capsys: Capture) -> None:
    """Completions, chat, whole and streamed, one by one and together; then SIGTERM."""
    prompts = ["hello", "The quick brown fox jumps over the lazy dog.", "a", "x" * 90]
    expected = [answer(chatting, prompt, 12, capsys) for prompt in prompts]
    hot = answer(chatting, "hello", 12, capsys, "--temperature", "2", "--seed", "5", "--top-k", "40")
    chat = answer(chatting, "u:hi;a:", 12, capsys)
    with serving(chatting) as server:
        assert server.ready.startswith("sscc: serving tiny at http://127.0.0.1:")
        assert server.ready.endswith("(2 slots of 128 tokens)\n")
        client = server.client
        for prompt, report in zip(prompts, expected, strict=True):
            completion = client.completions.create(prompt=prompt, max_tokens=12, **GREEDY)
            assert completion.choices[0].text == report["text"]
            assert completion.choices[0].finish_reason == {"eos": "stop"}.get(report["finish"], report["finish"])
            assert completion.usage is not None
            assert completion.usage.prompt_tokens == report["prompt_tokens"]
            assert completion.usage.completion_tokens == len(report["tokens"])
        together = client.completions.create(prompt=prompts, max_tokens=12, **GREEDY).choices
        assert [choice.text for choice in together] == [report["text"] for report in expected]
        texts = [""] * len(prompts)
        for chunk in client.completions.create(prompt=prompts, max_tokens=12, stream=True, **GREEDY):
            for choice in chunk.choices:
                texts[choice.index] += choice.text
        assert texts == [report["text"] for report in expected]
        drawn = client.completions.create(
            model="tiny", prompt="hello", max_tokens=12, temperature=2, seed=5, extra_body={"top_k": 40}
        )
        assert drawn.choices[0].text == hot["text"]
        said = client.chat.completions.create(messages=[{"role": "user", "content": "hi"}], max_tokens=12, **GREEDY)
        assert said.choices[0].message.content == chat["text"]
        logprobs = client.completions.create(prompt="a", max_tokens=12, logprobs=3, **GREEDY).choices[0].logprobs
        assert logprobs is not None
        assert logprobs.token_logprobs is not None
        assert logprobs.top_logprobs is not None
        for logprob, top in zip(logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
            assert logprob == max(top.values()) < 0, "greedy picks the likeliest"
        assert httpx2.get(f"{server.url}/health").json() == {"status": "ok"}
        assert "sscc_requests_running 0.0" in httpx2.get(f"{server.url}/metrics").text
        assert server.end(signal.SIGTERM)[:2] == (0, "")


SLOW = ("--interpreter", "reference")
"""The native interpreter makes 120 tokens of the tiny model in less time than a signal takes."""


def test_what_was_begun_is_finished(artifact: Path) -> None:
    """A stream that is under way when SIGINT comes still has its end."""
    with serving(artifact, *SLOW) as server:
        stream = server.client.completions.create(
            prompt="a", max_tokens=120, stream=True, extra_body={"ignore_eos": True}, **GREEDY
        )
        next(stream)
        server.process.send_signal(signal.SIGINT)
        assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "length"
        out, err = server.process.communicate(timeout=60)
        assert (server.process.returncode, out) == (0, "")
        said = [line for line in err.splitlines() if "waiting" in line]
        assert said == ["sscc: waiting for 1 request; press Ctrl-C again to cancel it"]
        (line,) = [line for line in err.splitlines() if "/v1/completions" in line]
        assert line.startswith("sscc: POST /v1/completions 200, 1 prompt tokens (0 cached), 120 new tokens, first ")
        assert line.endswith(" tokens/s, finish length")


@pytest.mark.parametrize(("seconds", "signals"), [("0.02", 1), ("30", 2)], ids=["time", "second-signal"])
def test_what_takes_too_long_is_cancelled(seconds: str, signals: int, artifact: Path) -> None:
    """After the time to drain, or at a second signal; the stream says so."""
    with serving(artifact, "--drain-timeout", seconds, *SLOW) as server:
        stream = server.client.completions.create(
            prompt="a", max_tokens=120, stream=True, extra_body={"ignore_eos": True}, **GREEDY
        )
        next(stream)
        for _ in range(signals):
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.01)  # two that come together are one
        with pytest.raises(openai.APIError, match="the server is closing"):
            list(stream)
        out, err = server.process.communicate(timeout=60)
        assert (server.process.returncode, out) == (0, "")
        assert ("cancelling 1 request" in err) == (signals == 2)


def test_what_is_logged(artifact: Path) -> None:
    """-q says nothing of requests; a path is a client's text."""
    for words, lines in ((["-q"], 0), ([], 1), (["--log-level", "debug"], 2)):
        with serving(artifact, *words) as server:
            assert httpx2.get(f"{server.url}/health").status_code == 200
            assert httpx2.get(f"{server.url}/%1b%5b2J%0aforged").status_code == 404
            code, out, err = server.end(signal.SIGINT)
            assert (code, out) == (0, "")
            assert err.count("\n") == lines
            assert ("GET /\\x1b[2J forged 404" in err) == (lines > 0)
            assert "\x1b" not in err


def test_options(artifact: Path) -> None:
    words = ["--max-prompt", "5", "--max-new-tokens", "4", "--max-body", "300", "--served-model-name", "some/name"]
    with serving(artifact, *words, SSCC_API_KEY="secret") as server:
        assert "serving some/name at" in server.ready
        client, greedy = server.client, {"model": "some/name", "temperature": 0}
        assert client.models.list().data[0].id == "some/name"
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="wrong").models.list()
        with pytest.raises(openai.BadRequestError, match="at most 5"):
            client.completions.create(prompt="x" * 6, **greedy)
        with pytest.raises(openai.BadRequestError, match="at most 4"):
            client.completions.create(prompt="x", max_tokens=5, **greedy)
        with pytest.raises(openai.APIStatusError, match="larger than 300 bytes"):
            client.completions.create(prompt="x" * 300, **greedy)
        with pytest.raises(openai.BadRequestError, match="has no chat template"):
            client.chat.completions.create(messages=[{"role": "user", "content": "hi"}], **greedy)
        completion = client.completions.create(prompt="x", extra_body={"ignore_eos": True}, **greedy)
        assert completion.usage is not None
        assert completion.usage.completion_tokens == 4


def test_a_prompt_that_is_sent_again(artifact: Path, tmp_path: Path) -> None:
    """And a trace of both requests, once the server has ended."""
    trace = tmp_path / "trace.json"
    with serving(artifact, "--prompt-cache", str(1 << 20), "--trace", str(trace)) as server:
        asked = [
            server.client.completions.create(prompt="x" * 50, max_tokens=5, n=2, **GREEDY | {"temperature": 0})
            for _ in range(2)
        ]
        usages = [completion.usage for completion in asked]
        assert asked[0].choices == asked[1].choices
        assert usages[1] is not None
        assert usages[1].prompt_tokens_details is not None
        assert usages[1].prompt_tokens_details.cached_tokens == 50
        assert server.end(signal.SIGTERM)[:2] == (0, "")
    requests = [event for event in checked_events(trace.read_bytes()) if event["ph"] == "b" and event["args"]]
    assert [event["args"]["cached"] for event in requests] == [0, 50, 50, 50]


def test_prompts_that_a_draft_shortens(artifact: Path, capsys: Capture) -> None:
    drafted, prompt = ["--draft", str(artifact), "--keep", "0.5"], "The quick brown fox jumps. " * 4
    with serving(artifact, *drafted) as server:
        tokens = GREEDY | {"temperature": 0, "extra_body": {"ignore_eos": True}}
        asked = [server.client.completions.create(prompt=prompt, max_tokens=5, **tokens) for _ in range(2)]
        status = httpx2.get(f"{server.client.base_url}status").json()
    expected = answer(artifact, prompt, 5, capsys, "--ignore-eos", *drafted)
    assert (expected["prompt_tokens"], expected["read_tokens"]) == (108, 32 + 12)
    assert [completion.choices[0].text for completion in asked] == [expected["text"]] * 2
    assert asked[0].usage is not None
    assert asked[0].usage.prompt_tokens == 108
    assert status["keep"] == 0.5
    totals = status["totals"]
    assert (totals["shortened_prompts"], totals["left_out_prompt_tokens"]) == (2, 2 * 64)
    assert totals["draft_seconds"] > 0


def test_a_port_that_is_taken(artifact: Path, capsys: Capture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = one_line(["serve", str(artifact), "--port", str(port)], capsys)
    check(error, ListeningErrors.PORT_IN_USE, host="127.0.0.1", port=port)


RANGE, ABOVE_ZERO = OptionRangeErrors.OUT_OF_RANGE, OptionRangeErrors.NOT_ABOVE
REFUSED: dict[str, tuple[list[str], ErrorKind, dict[str, Any]]] = {
    "port": (["--port", "65536"], RANGE, {"option": "--port", "value": 65536, "least": 0, "most": 65535}),
    "host": (["--host", "no.such.host.invalid"], ListeningErrors.NO_SUCH_HOST, {"host": "no.such.host.invalid"}),
    "foreign-host": (["--host", "192.0.2.1"], ListeningErrors.CANNOT_LISTEN, {"host": "192.0.2.1", "port": 8000}),
    "queue": (["--max-queue", "-1"], RANGE, {"option": "--max-queue", "value": -1, "least": 0}),
    "body": (["--max-body", "0"], RANGE, {"option": "--max-body", "value": 0, "least": 1}),
    "prompt": (["--max-prompt", "0"], RANGE, {"option": "--max-prompt", "value": 0, "least": 1}),
    "answer": (["--max-new-tokens", "0"], RANGE, {"option": "--max-new-tokens", "value": 0, "least": 1}),
    "timeout": (["--timeout", "0"], ABOVE_ZERO, {"option": "--timeout", "value": 0.0, "most": 604800}),
    "drain": (["--drain-timeout", "-1"], RANGE, {"option": "--drain-timeout", "value": -1.0, "least": 0}),
    "cache": (
        ["--prompt-cache", "-1"],
        CommandLineErrors.INVALID_ARGUMENT,
        {"option": "--prompt-cache", "cause": SizeErrors.NOT_A_SIZE},
    ),
    "steps": (["--prefill-steps", "0"], RANGE, {"option": "--prefill-steps", "value": 0, "least": 1}),
    "threads": (["--threads", "0"], OptionRangeErrors.OUT_OF_RANGE, {"option": "--threads", "value": 0, "least": 1}),
    "keep": (["--keep", "0.5"], DraftOptionErrors.NO_DRAFT, {"option": "--keep"}),
    "prefill-draft": (["--role", "prefill", "--draft", "d.rdu"], ServeErrors.DRAFT_WITH_PREFILL, {}),
    "also-draft": (["--also", "a=b.rdu", "--role", "prefill"], ServeErrors.ALSO_ALONE, {}),
    "also-path": (["--also", "b.rdu"], ServeErrors.NOT_A_MODEL, {"word": "b.rdu"}),
    "also-twice": (["--served-model-name", "a", "--also", "a=b.rdu"], ServeErrors.MODEL_TWICE, {"name": "a"}),
    "also-nothing": (["--also", "a=/no/b.rdu"], FileErrors.MISSING, {"path": Path("/no/b.rdu")}),
    "models-memory": (["--models-memory", "0"], RANGE, {"option": "--models-memory", "value": 0, "least": 1}),
    "temperature": (["--temperature", "-1"], OptionRangeErrors.TOO_SMALL, {"value": -1.0}),
    "endless": (["--timeout", "1e10"], ABOVE_ZERO, {"option": "--timeout", "value": 1e10, "most": 604800}),
    "no-time": (["--timeout", "nan"], ABOVE_ZERO, {"option": "--timeout", "value": "nan", "most": 604800}),
    "endless-drain": (["--drain-timeout", "inf"], RANGE, {"option": "--drain-timeout", "value": "inf", "least": 0}),
    "no-drain": (["--drain-timeout", "nan"], RANGE, {"option": "--drain-timeout", "value": "nan", "least": 0}),
    "huge-queue": (
        ["--max-queue", "9" * 400],
        RANGE,
        {"option": "--max-queue", "value": "inf", "least": 0, "most": 2**20},
    ),
    "huge-body": (["--max-body", "1024T"], RANGE, {"option": "--max-body", "value": 2**50, "least": 1, "most": 2**34}),
    "huge-steps": (
        ["--prefill-steps", str(2**40)],
        RANGE,
        {"option": "--prefill-steps", "value": 2**40, "least": 1, "most": 2**31},
    ),
    "huge-interval": (
        ["--stream-interval", str(2**70)],
        RANGE,
        {"option": "--stream-interval", "value": 2**70, "least": 0, "most": 3_600_000},
    ),
    "huge-threads": (
        ["--threads", str(2**31)],
        RANGE,
        {"option": "--threads", "value": 2**31, "least": 1, "most": 2**14},
    ),
    "level": (["--log-level", "loud"], ChoiceErrors.UNKNOWN, {"option": "--log-level", "value": "loud"}),
    "names": (["--allowed-hosts", "http://a"], AllowedHostErrors.NOT_A_HOST, {"name": "http://a"}),
    "key": (["--api-key", "a b"], ServeErrors.NOT_A_KEY, {"source": "--api-key"}),
    "empty-key": (["--api-key", ""], ServeErrors.NOT_A_KEY, {"source": "--api-key"}),
    "interpreter": (
        ["--interpreter", "quantum"],
        ChoiceErrors.UNKNOWN,
        {"option": "--interpreter", "value": "quantum"},
    ),
}


@pytest.mark.parametrize(("words", "kind", "fields"), REFUSED.values(), ids=REFUSED)
def test_refusals_are_one_line(
    words: list[str], kind: ErrorKind, fields: dict[str, Any], artifact: Path, capsys: Capture
) -> None:
    check(one_line(["serve", str(artifact), *words], capsys), kind, **fields)


def test_without_a_tokenizer(artifact: Path, tmp_path: Path, capsys: Capture) -> None:
    from tests.compiler.commands.test_run import without_tokenizer

    bare = without_tokenizer(artifact, tmp_path)
    check(one_line(["serve", str(bare), "--port", "0"], capsys), ExecutionErrors.NO_TOKENIZER, path=bare)


def test_without_the_packages(artifact: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    needed = {"purpose": "sscc serve", "packages": ["uvicorn"], "extra": "serve"}
    check(one_line(["serve", str(artifact)], capsys), ExtraErrors.NOT_INSTALLED, **needed)


def test_sscc_run_imports_none_of_it(artifact: Path) -> None:
    code = (
        "import sys\nfrom sscc.compiler.tools.commands import cli\n"
        f"cli.main(['run', {str(artifact)!r}, '--prompt', 'a', '--max-new-tokens', '1'])\n"
        f"print([name for name in {SERVER_PACKAGES!r} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert result.stdout.splitlines()[-1] == "[]"
