"""Options of a deployment file, and their consequences for an artifact. Needs no Ray."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import sscc.compiler.tools.fleet
from sscc.compiler.tools.commands.parser import CommandLineErrors
from sscc.compiler.tools.fleet.fleet_options import (
    FleetOptionErrors,
    FleetOptions,
    Plan,
    Replicas,
    parse_options,
    plan_of,
    replica_options,
)
from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.extras import ExtraErrors
from sscc.ir.files import FileErrors
from sscc.ir.option import OptionRangeErrors
from sscc.ir.suggestions import ChoiceErrors
from sscc.runtime.session.artifact import Artifact
from tests.errors import raises
from tests.runtime.server.fake import SIGNATURE
from tests.runtime.signatures import altered

NOT_PARSED, OUT_OF_RANGE = CommandLineErrors.INVALID_ARGUMENT, OptionRangeErrors.OUT_OF_RANGE


def test_options_become_the_command_line_of_a_replica() -> None:
    said = {"artifact": "m.rdu", "threads": 2, "prompt-cache": "1MiB", "no-verify": True, "replicas": "1-4"}
    options = parse_options(said)
    assert options.replicas == Replicas(1, 4)
    replica = replica_options(options.words)
    assert (replica.artifact, replica.engine.prompt_cache_bytes) == (Path("m.rdu"), 1 << 20)
    assert (replica.execution.threads, replica.execution.digests) == (2, False)
    assert parse_options({"artifact": "m.rdu", "no-verify": "false"}) == FleetOptions(("m.rdu",))


def test_words_of_a_command_line_will_do() -> None:
    """`serve run sscc.compiler.tools.fleet:app artifact=m.rdu replicas=3` passes all values as strings."""
    numbers = {"replicas": "3", "attempts": "2", "imbalance": "0", "gateways": "2"}
    options = parse_options({"artifact": "m.rdu", **numbers})
    assert options == FleetOptions(("m.rdu",), Replicas(3, 3), 2, 0, 2)
    options = parse_options({"artifact": "m.rdu", "port": "8000", "host": "::1"})
    assert options == FleetOptions(("m.rdu",), port=8000, host="::1")
    assert parse_options({"artifact": "m.rdu", "port": 80}).address == "127.0.0.1"


@pytest.mark.parametrize(
    ("said", "kind", "fields"),
    [
        ({"artifact": None}, FleetOptionErrors.NO_ARTIFACT, {}),
        ({"artifact": ""}, FleetOptionErrors.NO_ARTIFACT, {}),
        (
            {"treads": 1},
            FleetOptionErrors.UNKNOWN,
            {"option": "treads", "similar_hint": "; did you mean 'threads'?"},
        ),
        ({"port": 0}, OUT_OF_RANGE, {"option": "--port", "value": 0, "least": 1, "most": 65535}),
        ({"port": 65536}, OUT_OF_RANGE, {"option": "--port", "value": 65536, "least": 1, "most": 65535}),
        ({"host": "::1"}, FleetOptionErrors.HOST_WITHOUT_PORT, {}),
        ({"port": 80, "gateways": 2}, FleetOptionErrors.PORT_WITH_GATEWAYS, {"gateways": 2}),
        ({"api-key": "x"}, FleetOptionErrors.NOT_OF_A_FLEET, {"option": "api-key"}),
        ({"trace": "t.json"}, FleetOptionErrors.NOT_OF_A_FLEET, {"option": "trace"}),
        (
            {"threads": "many"},
            CommandLineErrors.INVALID,
            {"reason": "argument --threads: invalid int value: 'many'"},
        ),
        ({"threads": 0}, OUT_OF_RANGE, {"option": "--threads", "value": 0, "least": 1}),
        ({"threads": [1]}, FleetOptionErrors.NOT_ONE_VALUE, {"option": "threads", "value": "[1]"}),
        ({"threads": True}, FleetOptionErrors.NOT_ONE_VALUE, {"option": "threads", "value": "True"}),
        ({"no-verify": "yes"}, FleetOptionErrors.NOT_A_SWITCH, {"option": "no-verify", "value": "yes"}),
        ({"interpreter": "natve"}, ChoiceErrors.UNKNOWN, {"option": "--interpreter", "value": "natve"}),
        ({"replicas": 0}, NOT_PARSED, {"option": "--replicas", "cause": FleetOptionErrors.NOT_REPLICAS}),
        ({"replicas": "4-1"}, NOT_PARSED, {"option": "--replicas", "cause": FleetOptionErrors.NOT_REPLICAS}),
        ({"replicas": "1-"}, NOT_PARSED, {"option": "--replicas", "cause": FleetOptionErrors.NOT_REPLICAS}),
        ({"attempts": 0}, OUT_OF_RANGE, {"option": "--attempts", "value": 0, "least": 1, "most": 100}),
        ({"imbalance": -1}, OUT_OF_RANGE, {"option": "--imbalance", "value": -1, "least": 0, "most": 1048576}),
    ],
)
def test_refusals(said: dict[str, Any], kind: ErrorKind, fields: dict[str, Any]) -> None:
    with raises(kind, **fields):
        parse_options({"artifact": "m.rdu", **said})


def test_a_path_that_looks_like_an_option() -> None:
    with pytest.raises(UsageError):
        parse_options({"artifact": "--help"})


def test_what_the_artifact_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    signature = altered(SIGNATURE, batch=4)
    artifact = SimpleNamespace(signature=signature, program=SimpleNamespace(ranks=2))
    monkeypatch.setattr(Artifact, "load", lambda path, verify: artifact)

    def plan(**more: Any) -> Plan:
        return plan_of(parse_options({"artifact": "m.rdu", **more}))

    lean = plan()
    assert (lean.slots, lean.threads, lean.ongoing, lean.imbalance, lean.by_prompt) == (4, 2, 8, 2, True)
    replica = replica_options(lean.words)
    assert (replica.execution.threads, replica.server.stream_interval) == (2, 100)  # a thread for each rank
    full = plan(**{"prompt-cache": "0", "threads": 3, "imbalance": 5, "drain-timeout": 7, "max-queue": 9})
    assert (full.by_prompt, full.threads, full.imbalance, full.drain_seconds, full.queue) == (False, 3, 5, 7.0, 9)
    replica = replica_options(plan(**{"threads": 3, "stream-interval": 0, "max-queue": 9}).words)
    assert (replica.execution.threads, replica.server.stream_interval, replica.engine.max_queue) == (3, 0, 9)


def test_an_artifact_that_is_not_there() -> None:
    with raises(FileErrors.MISSING, path="nothing.rdu"):
        plan_of(parse_options({"artifact": "nothing.rdu"}))


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with raises(ExtraErrors.NOT_INSTALLED, purpose="a fleet of replicas", packages=["ray"], extra="fleet"):
        sscc.compiler.tools.fleet.app({"artifact": "m.rdu"})


def test_ray_is_imported_by_one_module_alone() -> None:
    fleet = "sscc.compiler.tools.fleet"
    modules = fleet, f"{fleet}.fleet_options", "sscc.runtime.serving.fleet.gateway"
    code = f"import sys, {', '.join(modules)}; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
