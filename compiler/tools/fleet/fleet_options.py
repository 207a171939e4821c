"""What a deployment file says (deploy/fleet.yaml): options of `sscc serve`, with which every replica is started, and
those of the fleet."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sscc.compiler.tools.commands.parser import Parser
from sscc.compiler.tools.commands.serve import (
    DEFAULT_HOST,
    KEY_VARIABLE,
    PREFILL_KEY_VARIABLE,
    add_arguments,
    allowed_hosts,
    allowed_origins,
    check_arguments,
)
from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.suggestions import did_you_mean
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.support.serving_defaults import MOST_REQUESTS

ARTIFACT = "artifact"
ELSEWHERE = {
    "api-key": f"a file is no place for a key: set {KEY_VARIABLE} where Ray is started",
    "prefill-key": f"a file is no place for a key: set {PREFILL_KEY_VARIABLE} where Ray is started",
    "ssl-certfile": "a gateway is reached by http: let a proxy before it speak https",
    "ssl-keyfile": "a gateway is reached by http: let a proxy before it speak https",
    "ssl-keyfile-password": "a gateway is reached by http: let a proxy before it speak https",
    "trace": "a trace is of one process: sscc serve --trace",
}
"""Options of `sscc serve` that a replica has no use for, and what is said about each."""
STREAM_INTERVAL_MS = 100
"""An event takes a few tenths of a millisecond of a processor in each of the replica, the gateway and the client."""


class FleetOptionErrors(ErrorKind):
    NOT_REPLICAS = (
        UsageError,
        "replicas is {text!r}, it must be a number from 1 to 9999, or two of them as in 1-4",
    )
    OUT_OF_RANGE = UsageError, "{option} is {text!r}, it must be a number from {least} to {most}"
    NO_ARTIFACT = UsageError, "the deployment has no artifact: it must be the path of what `sscc compile` wrote"
    NOT_OF_A_FLEET = UsageError, "{option} is no option of a fleet: {reason}"
    UNKNOWN = UsageError, "there is no option {option!r} of a fleet{similar_hint}"
    HOST_WITHOUT_PORT = (
        UsageError,
        "host goes with port: without one Ray Serve listens (http_options of the deployment file)",
    )
    PORT_WITH_GATEWAYS = (
        UsageError,
        "port requires a single gateway, but gateways is {gateways}: leave one of the two out",
    )
    NOT_ONE_VALUE = UsageError, "{option} is {value}, it must be one value"
    NOT_A_SWITCH = UsageError, "{option} is {value!r}, it must be true or false"


@dataclass(frozen=True)
class Replicas:
    """How many replicas there are: between `least` and `most`, by how many requests there are."""

    least: int
    most: int

    @classmethod
    def parse(cls, text: str) -> Replicas:
        """Of "2" or "1-4". Raises UsageError."""
        match = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", text)
        least, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= least <= most:
            raise FleetOptionErrors.NOT_REPLICAS(text=text)
        return cls(least, most)


@dataclass(frozen=True)
class FleetOptions:
    """A deployment file's options.

    Attributes:
        words: the command line of `sscc serve` for a replica.
        replicas: how many.
        attempts: replicas that a request may be sent to until it is given up, at least 1.
        imbalance: requests more than the least loaded replica that one may have and still be preferred for what it
            keeps; None: half as many as it has slots, at least 1.
        gateways: processes that give requests to replicas.
        port: on which the gateway listens; None: it has what Serve's proxies pass on.
        host: the address that goes with it.
    """

    words: tuple[str, ...]
    replicas: Replicas = Replicas(1, 1)
    attempts: int = 3
    imbalance: int | None = None
    gateways: int = 1
    port: int | None = None
    host: str = DEFAULT_HOST


def _number(least: int, most: int) -> Callable[[str, str], int]:
    def parse(name: str, text: str) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) < 10 and least <= int(text) <= most):
            raise FleetOptionErrors.OUT_OF_RANGE(option=name, text=text, least=least, most=most)
        return int(text)

    return parse


_OWN: dict[str, Callable[[str, str], Any]] = {
    "replicas": lambda _, text: Replicas.parse(text),
    "attempts": _number(1, 100),
    "imbalance": _number(0, MOST_REQUESTS),
    "gateways": _number(1, 1000),
    "port": _number(1, (1 << 16) - 1),
    "host": lambda _, text: text,
}


def parse_options(options: Mapping[str, Any]) -> FleetOptions:
    """The options from what a deployment file has under `args`.

    Args:
        options: "artifact", names of options of `sscc serve` without their dashes (true for one that takes no value),
            and the fields of `FleetOptions`.

    Raises UsageError for a name that is none, and for values that are not theirs.
    """
    own, words = {}, []
    flags = _flags()
    if not isinstance(options.get(ARTIFACT), str) or not options[ARTIFACT]:
        raise FleetOptionErrors.NO_ARTIFACT()
    for name, value in options.items():
        if name in _OWN:
            own[name] = _OWN[name](name, str(value))
        elif name in ELSEWHERE:
            raise FleetOptionErrors.NOT_OF_A_FLEET(option=name, reason=ELSEWHERE[name])
        elif name in flags:
            words += _words(name, value, flags[name])
        elif name != ARTIFACT:
            known = (ARTIFACT, *_OWN, *flags)
            raise FleetOptionErrors.UNKNOWN(option=name, similar_hint=did_you_mean(name, known))
    words.append(options[ARTIFACT])
    parsed = FleetOptions(tuple(words), **own)
    if parsed.port is None and "host" in own:
        raise FleetOptionErrors.HOST_WITHOUT_PORT()
    if parsed.port is not None and parsed.gateways > 1:
        raise FleetOptionErrors.PORT_WITH_GATEWAYS(gateways=parsed.gateways)
    replica_arguments(parsed.words)
    return parsed


def replica_arguments(words: Sequence[str]) -> argparse.Namespace:
    """What `sscc serve` makes of a command line. Raises UsageError."""
    args = _parser().parse_args(words)
    check_arguments(args)
    return args


def _parser() -> Parser:
    parser = Parser(prog="sscc serve", add_help=False, allow_abbrev=False)
    add_arguments(parser)
    return parser


def _flags() -> dict[str, bool]:
    """Options of `sscc serve` that a replica takes, without their dashes; whether each takes a value."""
    actions = [(option, action) for option, action in _parser()._option_string_actions.items() if option[:2] == "--"]
    names = {option.removeprefix("--"): action.nargs != 0 for option, action in actions}
    return {name: valued for name, valued in names.items() if name not in ELSEWHERE}


def _words(name: str, value: Any, valued: bool) -> list[str]:
    if valued:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise FleetOptionErrors.NOT_ONE_VALUE(option=name, value=repr(value))
        return [f"--{name}={value}"]
    if str(value).lower() not in ("true", "false"):
        raise FleetOptionErrors.NOT_A_SWITCH(option=name, value=value)
    return [f"--{name}"] if str(value).lower() == "true" else []


@dataclass(frozen=True)
class Plan:
    """How replicas of an artifact are deployed.

    Attributes:
        words: the command line of each, as of `sscc serve`.
        slots: requests that one decodes together.
        threads: of one, over all its ranks: processors that it is given.
        ongoing: requests that one may have at a time: twice its slots, so that there is one whenever a slot is free.
            What has no replica yet asks all of them how much they have to do, again and again, which costs them and
            the gateway.
        queue: requests that may wait for a replica.
        drain_seconds: that a replica may go on for when it is to end.
        by_prompt: True if replicas keep beginnings of prompts, so that requests are routed by their prompts.
        imbalance: see `FleetOptions`.
        max_body: bytes of a request's body.
        hosts: names of the gateways beside that of `host` (`--allowed-hosts`).
        origins, root_path: of the gateways (`--allowed-origins`, `--root-path`).
    """

    words: tuple[str, ...]
    slots: int
    threads: int
    ongoing: int
    queue: int
    drain_seconds: float
    by_prompt: bool
    imbalance: int
    max_body: int
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    root_path: str = ""


def plan_of(options: FleetOptions) -> Plan:
    """The deployment that options ask for, from what the artifact is. Raises UsageError and InputError."""
    args = replica_arguments(options.words)
    artifact = Artifact.load(args.artifact, verify=False)  # replicas verify what they execute
    signature, ranks = artifact.signature, artifact.program.ranks
    slots = signature.batch
    # Of two words of one name the last one counts.
    defaults = (f"--threads={ranks}", f"--stream-interval={STREAM_INTERVAL_MS}")
    return Plan(
        words=(*defaults, *options.words),
        slots=slots,
        threads=args.threads or ranks,
        ongoing=2 * slots,
        queue=args.max_queue,
        drain_seconds=args.drain_timeout,
        by_prompt=args.prompt_cache != 0,
        imbalance=max(1, slots // 2) if options.imbalance is None else options.imbalance,
        max_body=args.max_body,
        hosts=allowed_hosts(args),
        origins=allowed_origins(args),
        root_path=args.root_path,
    )
