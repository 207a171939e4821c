"""Options of a deployment file (deploy/fleet.yaml): those of `sscc serve`, which apply to every replica, and those of
the fleet."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sscc.compiler.options.server_options import DEFAULT_HOST, KEY_VARIABLE
from sscc.compiler.tools.commands.parser import Parser
from sscc.compiler.tools.commands.serve import Serving, add_arguments
from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.option import option, options_of
from sscc.ir.suggestions import did_you_mean
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.support.serving_options import MOST_REQUESTS

ARTIFACT = "artifact"
_PROXY = "gateways serve http only: terminate TLS in a proxy in front of them"
ELSEWHERE = {
    "api-key": f"keys must not be stored in a file: set {KEY_VARIABLE} in the environment of Ray",
    "ssl-certfile": _PROXY,
    "ssl-keyfile": _PROXY,
    "trace": "a trace covers a single process: use sscc serve --trace",
}
"""Options of `sscc serve` that are refused in a deployment file, with the reason for each."""
STREAM_INTERVAL_MS = 100
"""Default interval between the events of a stream. An event takes a few tenths of a millisecond of processor time in
each of the replica, the gateway and the client."""


class FleetOptionErrors(ErrorKind):
    NOT_REPLICAS = (
        UsageError,
        "replicas must be a number from 1 to 9999 or a range such as 1-4, got {text!r}",
    )
    NO_ARTIFACT = UsageError, "the deployment has no `artifact`: set it to the path of an artifact"
    NOT_OF_A_FLEET = UsageError, "a fleet does not take the option {option}: {reason}"
    UNKNOWN = UsageError, "a fleet has no option {option!r}{similar_hint}"
    HOST_WITHOUT_PORT = (
        UsageError,
        "`host` requires `port`: without a port Ray Serve listens (http_options of the deployment file)",
    )
    PORT_WITH_GATEWAYS = (
        UsageError,
        "`port` requires a single gateway, but `gateways` is {gateways}: remove one of the two",
    )
    NOT_ONE_VALUE = UsageError, "{option} must be a single value, got {value}"
    NOT_A_SWITCH = UsageError, "{option} must be true or false, got {value!r}"


@dataclass(frozen=True)
class Replicas:
    """Range of the number of replicas. The number follows the number of requests."""

    least: int
    most: int

    @classmethod
    def parse(cls, text: str) -> Replicas:
        """Parse a number ("2") or a range ("1-4"). Raises UsageError."""
        match = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", text)
        least, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= least <= most:
            raise FleetOptionErrors.NOT_REPLICAS(text=text)
        return cls(least, most)


@dataclass(frozen=True)
class FleetOptions:
    """Options of a fleet, and the command line of its replicas.

    Attributes:
        words: command line of `sscc serve` for a replica.

    Raises UsageError for options that exclude each other.
    """

    words: tuple[str, ...]
    replicas: Replicas = option(
        Replicas(1, 1), "number of replicas (1 by default), or a range such as 1-4, in which it follows the requests",
        "N", parse=Replicas.parse,
    )  # fmt: skip
    attempts: int = option(3, "replicas that a request is sent to before it is given up", "N", least=1, most=100)
    imbalance: int | None = option(
        None, "requests that the preferred replica may have beyond the least loaded one", "N",
        default="half of the slots, at least 1", least=0, most=MOST_REQUESTS,
    )  # fmt: skip
    gateways: int = option(1, "processes that distribute requests to replicas", "N", least=1, most=1000)
    port: int | None = option(
        None, "port of the gateway", "P", default="none: Ray Serve's proxies listen", least=1, most=65535
    )
    host: str | None = option(None, "address of the gateway; with port", "ADDRESS", default=DEFAULT_HOST)

    def __post_init__(self) -> None:
        if self.port is None and self.host is not None:
            raise FleetOptionErrors.HOST_WITHOUT_PORT()
        if self.port is not None and self.gateways > 1:
            raise FleetOptionErrors.PORT_WITH_GATEWAYS(gateways=self.gateways)

    @property
    def address(self) -> str:
        """Address on which the gateway listens."""
        return self.host or DEFAULT_HOST


def parse_options(options: Mapping[str, Any]) -> FleetOptions:
    """Parse the options under `args` of a deployment file.

    Args:
        options: values of "artifact", of the options of `sscc serve` without their dashes (true for an option without
            a value), and of the options of `FleetOptions`.

    Raises UsageError for an unknown name or an invalid value.
    """
    own, words = [], []
    fleet, server = _fleet_parser(), _parser()
    if not isinstance(options.get(ARTIFACT), str) or not options[ARTIFACT]:
        raise FleetOptionErrors.NO_ARTIFACT()
    for name, value in options.items():
        if name in (flags := _flags(fleet)):
            own += _words(name, value, flags[name])
        elif name in ELSEWHERE:
            raise FleetOptionErrors.NOT_OF_A_FLEET(option=name, reason=ELSEWHERE[name])
        elif name in (flags := _flags(server)):
            words += _words(name, value, flags[name])
        elif name != ARTIFACT:
            known = (ARTIFACT, *_flags(fleet), *_flags(server))
            raise FleetOptionErrors.UNKNOWN(option=name, similar_hint=did_you_mean(name, known))
    words.append(options[ARTIFACT])
    parsed = options_of(FleetOptions, fleet.parse_args(own), words=tuple(words))
    replica_options(parsed.words)
    return parsed


def replica_options(words: Sequence[str]) -> Serving:
    """Parse the command line of `sscc serve` for a replica. Raises UsageError."""
    return Serving.of(_parser().parse_args(words))


def _parser() -> Parser:
    parser = Parser(prog="sscc serve", add_help=False, allow_abbrev=False)
    add_arguments(parser)
    return parser


def _fleet_parser() -> Parser:
    parser = Parser(prog="fleet", add_help=False, allow_abbrev=False)
    parser.add_options(FleetOptions)
    return parser


def _flags(parser: Parser) -> dict[str, bool]:
    """Return the parser's options that a deployment file may set, without their dashes, with True for those that take a
    value."""
    actions = [(option, action) for option, action in parser._option_string_actions.items() if option[:2] == "--"]
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
    """Deployment of the replicas of an artifact.

    Attributes:
        words: command line of `sscc serve` for a replica.
        slots: number of requests that a replica decodes together.
        threads: threads of a replica over all its ranks, and the number of CPUs that Ray reserves for it.
        ongoing: maximum number of requests of a replica at a time: twice its slots, so that a request is ready when a
            slot becomes free. A request without a replica polls the load of all replicas, which costs time in them and
            in the gateway.
        queue: maximum number of requests that wait for a replica.
        drain_seconds: time in which a replica that is to end may finish its requests.
        by_prompt: True if replicas cache prompt prefixes, so that requests are routed by their prompts.
        imbalance: see `FleetOptions`.
        max_body: maximum size of a request's body in bytes.
        hosts: host names of the gateways in addition to `host` (`--allowed-hosts`).
        origins: origins that the gateways allow (`--allowed-origins`).
        root_path: path prefix of the gateways (`--root-path`).
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
    """Return the deployment that the options describe. Raises UsageError and InputError."""
    replica = replica_options(options.words)
    artifact = Artifact.load(replica.artifact, verify=False)  # each replica verifies its artifact
    signature, ranks = artifact.signature, artifact.program.ranks
    slots = signature.batch
    # The last of several options with the same name wins, so the file's options override these.
    defaults = (f"--threads={ranks}", f"--stream-interval={STREAM_INTERVAL_MS}")
    return Plan(
        words=(*defaults, *options.words),
        slots=slots,
        threads=replica.execution.threads or ranks,
        ongoing=2 * slots,
        queue=replica.engine.max_queue or 0,
        drain_seconds=replica.server.drain_timeout,
        by_prompt=replica.engine.prompt_cache_bytes != 0,
        imbalance=max(1, slots // 2) if options.imbalance is None else options.imbalance,
        max_body=replica.limits.max_body,
        hosts=replica.server.hosts,
        origins=replica.server.origins,
        root_path=replica.server.root_path or "",
    )
