"""`sscc serve`: an artifact behind HTTP, with OpenAI's protocol."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sscc.compiler.options.outputs import printing_beside
from sscc.compiler.tools.commands.engines import (
    add_execution_arguments,
    add_trace_argument,
    check_execution_arguments,
    followed,
    log_to_stderr,
    open_artifact,
    session_of,
    tokenizer_and_template,
    traced,
)
from sscc.compiler.tools.commands.generation import sampling_of
from sscc.compiler.tools.commands.model_arguments import (
    add_compilation_arguments,
    add_model_argument,
    announce,
    name_of,
    resolve_model,
)
from sscc.compiler.tools.commands.noise import add_quiet_argument
from sscc.compiler.tools.commands.ranges import MOST_RANKS, MOST_THREADS, check_positive, check_range
from sscc.compiler.tools.commands.shortening import (
    add_draft_arguments,
    check_draft_arguments,
    keeps_of,
    opened_shortener,
)
from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.extras import SERVE, require
from sscc.ir.files import read_text
from sscc.ir.sizes import parse_bytes
from sscc.runtime.support.serving_defaults import (
    BODY_BYTES,
    MOST_BODY_BYTES,
    MOST_REQUESTS,
    MOST_SECONDS,
    MOST_TOKENS,
    QUEUE,
)

if TYPE_CHECKING:
    from fastapi import FastAPI

    from sscc.runtime.serving.engine import Engine
    from sscc.runtime.serving.server.jobs import Model
    from sscc.runtime.serving.server.model_pool import Closing, Shelf
    from sscc.runtime.session.artifact import Artifact
    from sscc.runtime.text.chat_formats import ChatFormats
    from sscc.runtime.text.chat_template import ChatTemplate

KEY_VARIABLE, PREFILL_KEY_VARIABLE, TLS_VARIABLE = "SSCC_API_KEY", "SSCC_PREFILL_KEY", "SSCC_SSL_PASSWORD"
ROLES = ("both", "prefill", "decode")
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
DEFAULT_BATCH = 4
"""Slots of a model that is compiled to be served."""
DEFAULT_DRAIN_SECONDS = 30.0
DEFAULT_PREFILL_SECONDS = 600.0
LOG_LEVELS = ("debug", "info", "warning", "error")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/,]+/?", re.IGNORECASE | re.ASCII)
_ROOT_PATH = re.compile(r"(/[^\s/?#]+)+/?")
_LOCAL = ("127.", "localhost", "::1")


class ServeErrors(ErrorKind):
    ALSO_ALONE = UsageError, "--also is for a server that prefills and decodes itself, without --draft and --role"
    NOT_A_MODEL = UsageError, "--also is {word!r}, expected NAME=ARTIFACT"
    MODEL_TWICE = UsageError, "two models have the name {name!r}: requests could not tell them apart"
    DRAFT_WITH_PREFILL = (
        UsageError,
        "--draft shortens prompts before they go to a prefill server: give it to the decode server",
    )
    NO_PREFILL_SERVER = (
        UsageError,
        "--role decode needs --prefill-from URL: a server of the same artifact with --role prefill",
    )
    NOT_DECODE = UsageError, "{option} is for --role decode, and the role is {role}"
    NOT_AN_ORIGIN = UsageError, "--allowed-origins has {origin!r}, an origin is SCHEME://NAME or SCHEME://NAME:PORT"
    NOT_A_PATH = UsageError, "--root-path is {path!r}, a path begins with / and has no spaces"
    KEY_WITHOUT_CERTIFICATE = UsageError, "{option} needs --ssl-certfile"
    TWO_KEYS = UsageError, "--api-key and --api-key-file are both given: give one of them"
    NO_KEYS = UsageError, "{path} has no key"
    NOT_A_KEY = UsageError, "{source} is no key: it must be printable ASCII without spaces"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_argument(parser)
    add_quiet_argument(parser)
    parser.add_argument(
        "--log-level",
        choices=LOG_LEVELS,
        default="info",
        help="info: a line for each request, and one every 10 s while requests run; debug: also for other paths",
    )
    network = parser.add_argument_group("network")
    network.add_argument("--port", type=int, default=DEFAULT_PORT, metavar="P", help="port; 0 is any free one")
    network.add_argument("--host", default=DEFAULT_HOST, metavar="ADDRESS", help="address to listen on")
    network.add_argument(
        "--allowed-hosts",
        metavar="NAMES",
        help="names that clients may call this server by, with commas between them, NAME or NAME:PORT, * for any; "
        "their pages may ask it too (default: names of loopback where a request arrives there, any name elsewhere)",
    )
    network.add_argument(
        "--api-key", metavar="KEY", help=f"key that clients must send (default: {KEY_VARIABLE}, if set)"
    )
    network.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help="file with a key on each line, any of which a client may send"
    )
    network.add_argument(
        "--allowed-origins",
        metavar="ORIGINS",
        help="pages of other servers that may ask this one, SCHEME://NAME[:PORT] with commas between them, * for any",
    )
    network.add_argument(
        "--root-path", default="", metavar="PATH", help="path below which a proxy shows this server, /NAME"
    )
    network.add_argument("--ssl-certfile", type=Path, metavar="FILE", help="certificate, to be reached by https")
    network.add_argument("--ssl-keyfile", type=Path, metavar="FILE", help="key of the certificate")
    network.add_argument(
        "--ssl-keyfile-password", metavar="WORD", help=f"password of the key (default: {TLS_VARIABLE}, if set)"
    )
    network.add_argument(
        "--served-model-name",
        metavar="NAME",
        help="name of the model for clients (default: the name of the model, without .rdu)",
    )
    add_compilation_arguments(parser.add_argument_group("compilation, of a model"), batch=DEFAULT_BATCH)
    limits = parser.add_argument_group("limits")
    limits.add_argument("--max-queue", type=int, default=QUEUE, metavar="N", help="requests that may wait for a slot")
    limits.add_argument(
        "--max-body",
        type=parse_bytes,
        default=BODY_BYTES,
        metavar="BYTES",
        help="largest body of a request: 4194304, 4M or 4MiB",
    )
    limits.add_argument(
        "--max-prompt", type=int, metavar="TOKENS", help="longest prompt (default: as the context permits)"
    )
    limits.add_argument(
        "--max-new-tokens", type=int, metavar="N", help="longest answer (default: as the context permits)"
    )
    limits.add_argument(
        "--timeout", type=float, metavar="S", help="seconds that a request may take, at most a week (default: no limit)"
    )
    limits.add_argument(
        "--drain-timeout",
        type=float,
        default=DEFAULT_DRAIN_SECONDS,
        metavar="S",
        help="seconds that requests may go on after a signal",
    )
    answers = parser.add_argument_group("answers")
    answers.add_argument(
        "--tool-parser",
        metavar="NAME",
        help="how the model writes calls of tools, none for not at all (default: as its chat template tells)",
    )
    answers.add_argument(
        "--reasoning-parser",
        metavar="NAME",
        help="how the model writes thoughts, none to leave them in the text (default: as its chat template tells)",
    )
    network.add_argument(
        "--stream-interval",
        type=int,
        default=0,
        metavar="MS",
        help="least milliseconds between two events of a streamed answer; tokens made meanwhile come together",
    )
    several = parser.add_argument_group("several models")
    several.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="NAME=ARTIFACT",
        help="another model, for requests that name it; the first of these opens it",
    )
    several.add_argument(
        "--models-memory",
        type=parse_bytes,
        metavar="BYTES",
        help="memory for models of --also that are open together; what nobody uses is closed where another needs room "
        "(default: half of the memory)",
    )
    engine = parser.add_argument_group("engine")
    engine.add_argument(
        "--temperature",
        type=float,
        metavar="T",
        help="of requests that do not say it (default: what the model's generation_config.json says, or 0)",
    )
    engine.add_argument(
        "--prompt-cache",
        type=parse_bytes,
        metavar="BYTES",
        help="memory for prompts that are sent again or begin alike; `sscc inspect` says how much a token takes; 0 for "
        "none (default: 2 GiB, or a tenth of the memory where that is less)",
    )
    engine.add_argument(
        "--prompt-folder",
        type=Path,
        metavar="DIR",
        help="folder that keeps the prompts of --prompt-cache over restarts: read at the start, written at the end",
    )
    engine.add_argument(
        "--prefill-steps",
        type=int,
        metavar="N",
        help="chunk steps between two decode steps (default: those of one chunk through all layers)",
    )
    split = parser.add_argument_group("prefill elsewhere")
    split.add_argument(
        "--role",
        choices=ROLES,
        default=ROLES[0],
        help="prefill: prefill prompts for decode servers and answer nothing; decode: answer prompts that the servers "
        "of --prefill-from prefill; all serve the same artifact",
    )
    split.add_argument(
        "--prefill-from",
        action="append",
        default=[],
        metavar="URL",
        help="a server with --role prefill, http://HOST:PORT; may be given more than once",
    )
    split.add_argument(
        "--prefill-key", metavar="KEY", help=f"key of the prefill servers (default: {PREFILL_KEY_VARIABLE}, if set)"
    )
    split.add_argument(
        "--prefill-timeout",
        type=float,
        default=DEFAULT_PREFILL_SECONDS,
        metavar="S",
        help="seconds that a prefill server may take for one prompt, from connecting to the last byte of its answer",
    )
    split.add_argument(
        "--prefill-ahead",
        type=int,
        metavar="N",
        help="prompts that are being prefilled there, or have come and wait for a slot (default: the number of slots)",
    )
    split.add_argument(
        "--prefill-locally",
        action="store_true",
        help="prefill a prompt here that no prefill server can (default: such a request ends with 503)",
    )
    add_draft_arguments(parser.add_argument_group("speculative prefill"))
    execution = parser.add_argument_group("execution")
    add_execution_arguments(execution)
    add_trace_argument(execution)


def main(args: argparse.Namespace) -> int:
    check_arguments(args)
    keys = api_keys(args)
    require(SERVE, "sscc serve")
    log_to_stderr(args.quiet)
    if not args.quiet:
        logging.getLogger("sscc").setLevel(args.log_level.upper())
    resolve_model(args, DEFAULT_BATCH)
    if followed(args):
        return 0
    from sscc.runtime.serving.server.service import Tls, bind, serve, url_of

    tls = None
    if args.ssl_certfile is not None:
        password = args.ssl_keyfile_password or os.environ.get(TLS_VARIABLE)
        tls = Tls(args.ssl_certfile, args.ssl_keyfile, password)
    bound = bind(args.host, args.port)  # before weights are read, which would be in vain where the port is taken
    with opened(args, keys) as served:
        if not keys and not args.host.startswith(_LOCAL):
            print(f"sscc: whoever reaches {args.host} may use this server: there is no --api-key", file=sys.stderr)
        address = url_of(bound, "http" if tls is None else "https")
        at = f"{address} ({served.engine.signature.batch} slots of {served.model.max_context} tokens)"
        doing = "prefilling for others with" if args.role == "prefill" else "serving"
        ready = f"sscc: {doing} {served.model.name} at {at}"
        serve(served.app, served.closing, bound, args.drain_timeout, lambda: print(ready, flush=True), tls)
    return 0


@dataclass(frozen=True)
class Served:
    """An artifact that is open for requests.

    Attributes:
        app: answers them; engine: executes them; model: what clients know of it.
        closing: ends the requests of all models.
    """

    app: FastAPI
    engine: Engine
    model: Model
    closing: Closing


@contextmanager
def opened(args: argparse.Namespace, keys: Sequence[str]) -> Iterator[Served]:
    """The artifact as the options say, whoever carries requests to its application. It is closed with the block, which
    finishes what was begun, or cancels it where an exception ends the block.

    Args:
        args: of `add_arguments`, which `check_arguments` has seen.
        keys: one of which the application asks for; empty: it asks for none.
    """
    from sscc.runtime.serving.engine import Engine, EngineOptions
    from sscc.runtime.serving.server.app import create_app
    from sscc.runtime.serving.server.hosts import Hosts
    from sscc.runtime.serving.server.jobs import Model, RequestLimits
    from sscc.runtime.serving.server.model_pool import AllEngines
    from sscc.runtime.serving.server.openai import MAX_CHOICES
    from sscc.runtime.serving.server.prefill_servers import PrefillServers

    artifact = open_artifact(args.artifact, verify=args.verify)
    announce(args, artifact)
    tokenizer, template = tokenizer_and_template(artifact)
    signature = artifact.signature
    model = Model(
        name=args.served_model_name or name_of(args),
        max_context=signature.geometry.max_context,
        vocab_size=signature.vocab_size,
        created=_created(artifact),
        tokenizer=tokenizer,
        chat_template=template,
        keep=None if args.draft is None else keeps_of(args)[0],
        ends=tuple(signature.eos_token_ids),
        formats=formats_of(args, template),
        sampling=sampling_of(args, artifact),
    )
    limits = RequestLimits(
        max_body=args.max_body,
        max_prompt=args.max_prompt,
        max_new_tokens=args.max_new_tokens,
        max_choices=min(MAX_CHOICES, signature.batch + args.max_queue),
        timeout=args.timeout,
    )
    options = EngineOptions(
        args.max_queue,
        args.prefill_steps,
        prefill_ahead=args.prefill_ahead,
        prompt_cache_bytes=args.prompt_cache,
        prompt_folder=args.prompt_folder,
    )
    prefill_key = _key("--prefill-key", args.prefill_key, PREFILL_KEY_VARIABLE)
    with ExitStack() as stack:
        session = stack.enter_context(closing(session_of(artifact, args)))
        stack.enter_context(traced(session, args.trace))
        stack.enter_context(printing_beside(args.trace))
        elsewhere = None
        if args.role != "both" or args.prompt_folder is not None:
            slot_format = session.slot_format  # of another checkpoint it takes a while, and others would wait for it
        if args.role == "decode":
            elsewhere = PrefillServers(
                args.prefill_from,
                slot_format,
                key=prefill_key,
                timeout=args.prefill_timeout,
                locally=args.prefill_locally,
            )
        shortener = stack.enter_context(opened_shortener(args, signature, tokenizer))
        engine = stack.enter_context(Engine(session, tokenizer, options, elsewhere, shortener))
        shelf = None if not args.also else stack.enter_context(shelf_of(args))
        app = create_app(
            engine,
            model,
            limits,
            keys,
            shelf=shelf,
            role=args.role,
            prefill_servers=elsewhere,
            stream_interval=args.stream_interval / 1000,
            hosts=Hosts((args.host,), allowed_hosts(args), allowed_origins(args)),
            root_path=args.root_path,
        )
        yield Served(app, engine, model, engine if shelf is None else AllEngines(engine, shelf))


@contextmanager
def shelf_of(args: argparse.Namespace) -> Iterator[Shelf]:
    """Make the models of --also known, for a block at whose end they are closed.

    Raises:
        InputError: an artifact that is missing or damaged.
    """
    from sscc.runtime.serving.server.app import card_of
    from sscc.runtime.serving.server.model_pool import ModelSource, Shelf
    from sscc.runtime.session.artifact import Artifact
    from sscc.runtime.support.usable_memory import usable_memory

    sources: dict[str, ModelSource] = {}
    for name, path in other_models(args).items():
        artifact = Artifact.load(path, verify=False)  # verified when it is opened
        own = {"artifact": path, "given_model": path, "served_model_name": name, "also": [], "trace": None}
        sources[name] = ModelSource(
            artifact.program.ranks * sum(tensor.nbytes for tensor in artifact.program.tensors),
            partial(opened, argparse.Namespace(**{**vars(args), **own}), ()),
            card_of(name, _created(artifact), artifact.signature.geometry.max_context),
        )
    shelf = Shelf(sources, args.models_memory or usable_memory() // 2)
    try:
        yield shelf
    finally:
        shelf.end()


def other_models(args: argparse.Namespace) -> dict[str, Path]:
    """Return the artifacts of --also by their names.

    Raises:
        UsageError: an option without a name or a path, a name of two models, or a server that serves one artifact.
    """
    if args.also and (args.role != ROLES[0] or args.draft is not None):
        raise ServeErrors.ALSO_ALONE()
    models: dict[str, Path] = {}
    for word in args.also:
        name, _, path = word.partition("=")
        if not name or not path:
            raise ServeErrors.NOT_A_MODEL(word=word)
        if name in (*models, args.served_model_name or name_of(args)):
            raise ServeErrors.MODEL_TWICE(name=name)
        models[name] = Path(path)
    return models


def _created(artifact: Artifact) -> int:
    """Return the time of a compilation, in seconds since 1970."""
    from sscc.runtime.artifact.artifact_files import MANIFEST

    return int((artifact.path / MANIFEST).stat().st_mtime)


def formats_of(args: argparse.Namespace, template: ChatTemplate | None) -> ChatFormats:
    """Return how a model thinks and calls tools: as the options say, or as its chat template tells.

    Raises UsageError for a name that no format has.
    """
    from sscc.runtime.text.chat_formats import ChatFormats

    told = ChatFormats() if template is None else ChatFormats.told_by(template.source)
    return told.with_names(args.reasoning_parser, args.tool_parser)


def check_arguments(args: argparse.Namespace) -> None:
    """Check that every value is one of its option's. Raises UsageError."""
    check_execution_arguments(args)
    for option, least, most in _RANGES:
        check_range(f"--{option}", getattr(args, option.replace("-", "_")), least, most)
    check_positive("--prefill-timeout", args.prefill_timeout, MOST_SECONDS)
    check_positive("--timeout", args.timeout, MOST_SECONDS)
    check_draft_arguments(args)
    other_models(args)
    sampling_of(args)
    allowed_hosts(args)
    allowed_origins(args)
    if args.root_path and not _ROOT_PATH.fullmatch(args.root_path):
        raise ServeErrors.NOT_A_PATH(path=args.root_path)
    for option in ("ssl-keyfile", "ssl-keyfile-password"):
        if getattr(args, option.replace("-", "_")) is not None and args.ssl_certfile is None:
            raise ServeErrors.KEY_WITHOUT_CERTIFICATE(option=f"--{option}")
    if args.draft is not None and args.role == "prefill":
        raise ServeErrors.DRAFT_WITH_PREFILL()
    if args.role == "decode" and not args.prefill_from:
        raise ServeErrors.NO_PREFILL_SERVER()
    for option in ("prefill-from", "prefill-key", "prefill-ahead", "prefill-locally"):
        if args.role != "decode" and getattr(args, option.replace("-", "_")):
            raise ServeErrors.NOT_DECODE(option=f"--{option}", role=args.role)


_RANGES: tuple[tuple[str, float, float], ...] = (
    ("port", 0, (1 << 16) - 1),
    ("threads", 1, MOST_THREADS),
    ("tp", 1, MOST_RANKS),
    ("stream-interval", 0, 3_600_000),
    ("max-queue", 0, MOST_REQUESTS),
    ("max-body", 1, MOST_BODY_BYTES),
    ("max-prompt", 1, MOST_TOKENS),
    ("max-new-tokens", 1, MOST_TOKENS),
    ("drain-timeout", 0, MOST_SECONDS),
    ("prompt-cache", 0, 1 << 62),
    ("models-memory", 1, 1 << 62),
    ("prefill-steps", 1, MOST_TOKENS),
    ("prefill-ahead", 1, MOST_REQUESTS),
)
"""Options, with the least and the largest value of each."""


def allowed_hosts(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the names of --allowed-hosts. Raises UsageError for a text that is no name."""
    from sscc.runtime.support.host_names import parse_hosts

    return () if args.allowed_hosts is None else parse_hosts(args.allowed_hosts)


def allowed_origins(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the pages of --allowed-origins. Raises UsageError for a text that is no origin."""
    origins = tuple(each.strip() for each in (args.allowed_origins or "").split(",") if each.strip())
    for origin in origins:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise ServeErrors.NOT_AN_ORIGIN(origin=origin)
    return origins


def api_keys(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the keys one of which clients of this server have to send; empty: none.

    Raises UsageError for a text that is no key, InputError for a file that cannot be read.
    """
    if args.api_key_file is None:
        key = _key("--api-key", args.api_key, KEY_VARIABLE)
        return () if key is None else (key,)
    if args.api_key is not None:
        raise ServeErrors.TWO_KEYS()
    keys = [line.strip() for line in read_text(args.api_key_file).splitlines() if line.strip()]
    if not keys:
        raise ServeErrors.NO_KEYS(path=args.api_key_file)
    return tuple(str(_key("--api-key-file", key, KEY_VARIABLE)) for key in keys)


def _key(option: str, text: str | None, variable: str) -> str | None:
    """Return the key from the option, or else from the environment, where other users of the machine cannot see it."""
    key = os.environ.get(variable) if text is None else text
    if key is not None and not (key.strip() and key.isascii() and key.isprintable() and " " not in key):
        raise ServeErrors.NOT_A_KEY(source=variable if text is None else option)
    return key
