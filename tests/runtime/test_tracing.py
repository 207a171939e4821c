"""Traces of real runs: what the native interpreter's threads, a session and an engine's requests did when."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from sscc.compiler.tools.commands import cli
from sscc.compiler.tools.commands.run import RunErrors
from sscc.ir.files import FileErrors
from sscc.runtime.serving.engine import Engine
from sscc.runtime.serving.engine.request import Request
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.session.sampling import Sampling
from sscc.runtime.session.session import Session
from sscc.runtime.session.tracing import Tracer
from sscc.runtime.support.trace_file import complete, process_name, thread_name, write_events
from tests.errors import check, reported
from tests.families import Compiler, random_tokens
from tests.runtime.fake import SIGNATURE, FakeInterpreter
from tests.trace_rules import checked_events


def written(tracer: Tracer) -> tuple[list[dict[str, object]], dict[str, object]]:
    file = io.BytesIO()
    tracer.write_to(file)
    return checked_events(file.getvalue()), json.loads(file.getvalue())["otherData"]


@pytest.fixture(scope="module")
def artifact(compiled: Compiler) -> Artifact:
    return compiled("llama3-rope").artifact


def test_stages_lie_in_the_calls_that_ran_them(artifact: Artifact) -> None:
    session = Session.from_artifact(artifact, threads=2)
    session.prefill(0, random_tokens(9))
    tracer = session.start_trace()
    session.decode({0: 3})
    session.decode({0: 4})
    events, facts = written(tracer)
    calls = [e for e in events if e.get("cat") == "host"]
    assert [(e["name"], e["args"]) for e in calls] == [("decode", {"slots": 1})] * 2
    stages = [e for e in events if e.get("cat") == "stage"]
    assert {e["tid"] for e in stages} == {0, 1}
    assert any(e["name"] == "barrier" for e in events)
    for event in stages:
        inside = [c["ts"] <= event["ts"] and event["ts"] + event["dur"] <= c["ts"] + c["dur"] + 1e-3 for c in calls]
        assert sum(inside) == 1
    assert facts["kept"]["calls"] == "2, all of them"
    session.decode({0: 5})
    assert written(tracer)[0] == events, "it has ended"


def test_what_does_not_fit_is_dropped_and_told(artifact: Artifact) -> None:
    session = Session.from_artifact(artifact, threads=1)
    tracer = session.start_trace(capacity=4)
    session.prefill(0, random_tokens(9))
    for _ in range(5):
        session.decode({0: 3})
    events, facts = written(tracer)
    assert facts["kept"]["calls"] == "the latest 4 of 6"
    assert facts["kept"]["stages of thread 0"].startswith("the latest 4 of ")
    assert sum(e.get("cat") == "stage" or e.get("cat") == "wait" for e in events) == 4


def test_an_engines_requests_are_nests_with_their_waits() -> None:
    session = Session(SIGNATURE, FakeInterpreter())
    tracer = session.start_trace()
    with Engine(session) as engine:
        handles = [engine.submit(Request((1, 2), max_new_tokens=3, sampling=Sampling(), stop=())) for _ in range(5)]
        results = [handle.result(30) for handle in handles]
    events, facts = written(tracer)
    assert facts["stages"].startswith("not traced")
    begun = [e for e in events if e["ph"] == "b"]
    assert [e["name"] for e in begun].count("queued") == 5
    whole = {e["name"]: e["args"] for e in begun if e["name"].startswith("request ")}
    assert whole["request 4"] == {"finish": results[4].finish, "prompt": 2, "cached": 2, "new": 3}
    assert {e["name"] for e in events if e["ph"] == "X"} == {"round", "prefill", "decode", "pick tokens"}
    counters = [e["args"] for e in events if e["ph"] == "C"]
    assert max(c["running"] for c in counters) <= 2
    assert counters[-1] == {"queued": 0, "running": 0}


def test_a_file_has_a_limit_and_keeps_the_ends_of_what_has_begun() -> None:
    shared = {"cat": "c", "id2": {"local": "1"}, "pid": 0, "tid": 0, "name": "one"}
    events = [*process_name(0, "p"), *thread_name(0, 0, "t"), {"ph": "b", "ts": 0.0, **shared}]
    events += [{**complete(0, "x", float(at), 1.0, {}), "pid": 0} for at in range(5)]
    events.append({"ph": "e", "ts": 9.0, **shared})
    file = io.BytesIO()
    write_events(file, events, {"about": "a test"}, most=3)
    assert len([e for e in checked_events(file.getvalue()) if e["ph"] != "M"]) == 4
    assert json.loads(file.getvalue())["otherData"] == {"about": "a test", "left_out": "3 events, beyond 3"}


def test_from_the_command_line(
    artifact: Artifact, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    words = ["run", str(artifact.path), "--token-ids", "1,2,3", "--max-new-tokens", "3", "--ignore-eos"]
    assert cli.main([*words, "--trace", str(tmp_path / "run.json")]) == 0
    assert checked_events((tmp_path / "run.json").read_bytes())
    capsysbinary.readouterr()
    assert cli.main([*words, "--trace", "-"]) == 0
    out, err = capsysbinary.readouterr()
    assert sum(e["name"] == "decode" for e in checked_events(out)) == 2
    assert b"3 new (length)" in err
    words = ["inspect", str(artifact.path), "--prompt", "20", "--trace", "-"]
    assert cli.main(words) == 0
    out, err = capsysbinary.readouterr()
    events = checked_events(out)
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {"decode, socket 0", "prefill, socket 0"}
    assert b"launches" in err
    check(reported(["run", str(artifact.path), "--check", "--trace", "-"]), RunErrors.TRACE_AND_CHECK)
    missing = tmp_path / "none" / "x"
    check(reported([*words[:2], "--trace", str(missing)]), FileErrors.CANNOT_WRITE, path=missing)
