"""Options of a server, and the checks that need no artifact."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from sscc.compiler.options.execution_options import DraftOptions
from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.files import read_text
from sscc.ir.option import check_options, flag_of, option
from sscc.ir.sizes import parse_bytes
from sscc.runtime.support.host_names import parse_hosts
from sscc.runtime.support.serving_options import LIMITS, MOST_MEMORY, MOST_SECONDS, PREFILL, Role

KEY_VARIABLE, PREFILL_KEY_VARIABLE, TLS_VARIABLE = "SSCC_API_KEY", "SSCC_PREFILL_KEY", "SSCC_SSL_PASSWORD"
DEFAULT_HOST = "127.0.0.1"
NETWORK, ANSWERS, SEVERAL = "network", "answers", "several models"
"""Headings of option groups in help."""
_LOG_LEVELS = ("debug", "info", "warning", "error")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/,]+/?", re.IGNORECASE | re.ASCII)
_ROOT_PATH = re.compile(r"(/[^\s/?#]+)+/?")


class ServeErrors(ErrorKind):
    ALSO_ALONE = UsageError, "--also needs a server that prefills and decodes itself: leave --draft and --role out"
    NOT_A_MODEL = UsageError, "--also must be NAME=ARTIFACT, got {word!r}"
    MODEL_TWICE = UsageError, "two models have the name {name!r}: requests could not tell them apart"
    DRAFT_WITH_PREFILL = (
        UsageError,
        "--draft shortens prompts before they go to a prefill server: give it to the decode server",
    )
    NO_PREFILL_SERVER = (
        UsageError,
        "--role decode needs --prefill-from URL: a server of the same artifact with --role prefill",
    )
    NOT_DECODE = UsageError, "{option} needs --role decode, but the role is {role}"
    NOT_AN_ORIGIN = UsageError, "--allowed-origins contains {origin!r}, but an origin is SCHEME://NAME or SCHEME://NAME:PORT"
    NOT_A_PATH = UsageError, "--root-path must begin with / and have no spaces, got {path!r}"
    KEY_WITHOUT_CERTIFICATE = UsageError, "{option} needs --ssl-certfile"
    TWO_KEYS = UsageError, "--api-key and --api-key-file are both given: give one of them"
    NO_KEYS = UsageError, "{path} (--api-key-file) contains no key: write one key on each line"
    NOT_A_KEY = UsageError, "the key of {source} is invalid: it must be printable ASCII without spaces"


@dataclass(frozen=True)
class ServerOptions:
    """Options of `sscc serve`, except those of the engine, of requests and of execution.

    Raises UsageError for a value out of bounds, and for options that contradict each other.
    """

    log_level: str = option(
        "info", "minimum level of log lines: debug, info (a line for each request, and one every 10 s while requests "
        "run), warning or error", "LEVEL", choices=_LOG_LEVELS,
    )  # fmt: skip
    port: int = option(8000, "port to listen on; 0 for any free one", "P", group=NETWORK, least=0, most=65535)
    host: str = option(DEFAULT_HOST, "address to listen on", "ADDRESS", group=NETWORK)
    allowed_hosts: str | None = option(
        None, "comma-separated host names by which clients may address this server, NAME or NAME:PORT, * for any; web "
        "pages from these hosts may use it, too", "NAMES", group=NETWORK,
        default="loopback names for requests to a loopback address, any name for others",
    )  # fmt: skip
    api_key: str | None = option(
        None, "key that clients must send", "KEY", group=NETWORK, default=f"{KEY_VARIABLE}, if set"
    )
    api_key_file: Path | None = option(
        None, "file with one key per line; clients may send any of them", "FILE", group=NETWORK
    )
    allowed_origins: str | None = option(
        None, "comma-separated origins of web pages that may use this server, SCHEME://NAME[:PORT], * for any",
        "ORIGINS", group=NETWORK,
    )  # fmt: skip
    root_path: str | None = option(None, "path prefix of this server behind a proxy, /NAME", "PATH", group=NETWORK)
    ssl_certfile: Path | None = option(None, "TLS certificate, for https", "FILE", group=NETWORK)
    ssl_keyfile: Path | None = option(
        None, f"private key of the certificate; {TLS_VARIABLE} holds its password", "FILE", group=NETWORK
    )
    served_model_name: str | None = option(
        None, "name of the model for clients", "NAME", group=NETWORK, default="the model's file name without .rdu"
    )
    stream_interval: int = option(
        0, "minimum milliseconds between two events of a streamed answer; an event carries all new tokens", "MS",
        group=NETWORK, least=0, most=3_600_000,
    )  # fmt: skip
    drain_timeout: float = option(
        30.0, "seconds for running requests to finish after a signal to stop", "S", group=LIMITS, least=0,
        most=MOST_SECONDS,
    )  # fmt: skip
    tool_parser: str | None = option(
        None, "format of tool calls in the model's text, or none", "NAME", group=ANSWERS,
        default="the format in its chat template",
    )  # fmt: skip
    reasoning_parser: str | None = option(
        None, "format of reasoning in the model's text, or none to leave it in the text", "NAME", group=ANSWERS,
        default="the format in its chat template",
    )  # fmt: skip
    also: tuple[str, ...] = option(
        (), "another model, opened by the first request that names it; repeatable", "NAME=ARTIFACT", group=SEVERAL
    )
    models_memory: int | None = option(
        None, "memory for open models of --also; idle ones are closed to make room", "BYTES", group=SEVERAL,
        default="half of the memory", parse=parse_bytes, least=1, most=MOST_MEMORY,
    )  # fmt: skip
    role: Role = option(
        "both", "task of the server. prefill: prefill prompts for decode servers; decode: answer prompts that the "
        "servers of --prefill-from prefill; both: prefill and decode", "ROLE", group=PREFILL, choices=get_args(Role),
    )  # fmt: skip
    prefill_from: tuple[str, ...] = option(
        (), f"server of the same artifact with --role prefill, http://HOST:PORT; {PREFILL_KEY_VARIABLE} holds its key; "
        "repeatable", "URL", group=PREFILL,
    )  # fmt: skip
    prefill_timeout: float = option(
        600.0, "seconds that a prefill server may take for a prompt, from connecting to the last byte of its answer",
        "S", group=PREFILL, least=0, most=MOST_SECONDS, exclusive=True,
    )  # fmt: skip
    prefill_locally: bool = option(
        False, "prefill a prompt here if no prefill server can; otherwise its request fails with 503",
        group=PREFILL,
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_options(self)
        _ = self.hosts, self.origins
        if self.root_path and not _ROOT_PATH.fullmatch(self.root_path):
            raise ServeErrors.NOT_A_PATH(path=self.root_path)
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise ServeErrors.KEY_WITHOUT_CERTIFICATE(option=flag_of("ssl_keyfile"))
        if self.role == "decode" and not self.prefill_from:
            raise ServeErrors.NO_PREFILL_SERVER()

    def check_beside(self, draft: DraftOptions, prefill_ahead: int | None, name: str) -> None:
        """Check the combination with other options.

        Args:
            draft: options of speculative prefill.
            prefill_ahead: option of the engine.
            name: name of the model for clients.

        Raises UsageError.
        """
        if self.also and (self.role != "both" or draft.draft is not None):
            raise ServeErrors.ALSO_ALONE()
        self.other_models(name)
        if draft.draft is not None and self.role == "prefill":
            raise ServeErrors.DRAFT_WITH_PREFILL()
        of_decode = {name: getattr(self, name) for name in ("prefill_from", "prefill_locally")}
        for option_, value in (of_decode | {"prefill_ahead": prefill_ahead}).items():
            if self.role != "decode" and value:
                raise ServeErrors.NOT_DECODE(option=flag_of(option_), role=self.role)

    def other_models(self, name: str) -> dict[str, Path]:
        """Return the artifacts of `also` by their names.

        Args:
            name: name of the first model.

        Raises:
            UsageError: an option without a name or a path, or two models with the same name.
        """
        models: dict[str, Path] = {}
        for word in self.also:
            other, _, path = word.partition("=")
            if not other or not path:
                raise ServeErrors.NOT_A_MODEL(word=word)
            if other in (*models, name):
                raise ServeErrors.MODEL_TWICE(name=other)
            models[other] = Path(path)
        return models

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names of `allowed_hosts`. Raises UsageError for an invalid name."""
        return () if self.allowed_hosts is None else parse_hosts(self.allowed_hosts)

    @property
    def origins(self) -> tuple[str, ...]:
        """The origins of `allowed_origins`. Raises UsageError for an invalid origin."""
        origins = tuple(each.strip() for each in (self.allowed_origins or "").split(",") if each.strip())
        for origin in origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ServeErrors.NOT_AN_ORIGIN(origin=origin)
        return origins

    def keys(self) -> Sequence[str]:
        """Return the keys that clients may send; empty if they need none.

        Raises UsageError for an invalid key, InputError for a file that cannot be read.
        """
        if self.api_key_file is None:
            key = key_of("--api-key", self.api_key, KEY_VARIABLE)
            return () if key is None else (key,)
        if self.api_key is not None:
            raise ServeErrors.TWO_KEYS()
        keys = [line.strip() for line in read_text(self.api_key_file).splitlines() if line.strip()]
        if not keys:
            raise ServeErrors.NO_KEYS(path=self.api_key_file)
        return tuple(str(key_of("--api-key-file", key, KEY_VARIABLE)) for key in keys)


def key_of(option: str, text: str | None, variable: str) -> str | None:
    """Return the key in an option, or else in an environment variable, which other users of the machine cannot see;
    None without both. Raises UsageError for an invalid key."""
    key = os.environ.get(variable) if text is None else text
    if key is not None and not (key.strip() and key.isascii() and key.isprintable() and " " not in key):
        raise ServeErrors.NOT_A_KEY(source=variable if text is None else option)
    return key
