"""`sscc serve`: an artifact behind HTTP, with OpenAI's protocol."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sscc.compiler.commands.engines import (
    add_execution_arguments,
    add_trace_argument,
    check_at_least,
    check_execution_arguments,
    followed,
    log_to_stderr,
    open_artifact,
    session_of,
    tokenizer_and_template,
    traced,
)
from sscc.compiler.commands.noise import add_quiet_argument
from sscc.compiler.commands.shortening import add_draft_arguments, check_draft_arguments, keeps_of, opened_shortener
from sscc.compiler.files import printing_beside
from sscc.ir.errors import UsageError
from sscc.ir.extras import SERVE, require
from sscc.ir.sizes import parse_bytes
from sscc.runtime.serving_defaults import BODY_BYTES, QUEUE

if TYPE_CHECKING:
    from fastapi import FastAPI

    from sscc.runtime.engine import Engine
    from sscc.runtime.server.jobs import Model

KEY_VARIABLE, PREFILL_KEY_VARIABLE = "SSCC_API_KEY", "SSCC_PREFILL_KEY"
ROLES = ("both", "prefill", "decode")
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
DEFAULT_DRAIN_SECONDS = 30.0
DEFAULT_PREFILL_SECONDS = 600.0
_LOCAL = ("127.", "localhost", "::1")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("artifact", type=Path, metavar="OUT.rdu", help="what `sscc compile` wrote")
    add_quiet_argument(parser)
    network = parser.add_argument_group("network")
    network.add_argument(
        "--port", type=int, default=DEFAULT_PORT, metavar="P", help="0 is any free one"
    )
    network.add_argument(
        "--host", default=DEFAULT_HOST, metavar="ADDRESS", help="to listen on"
    )
    network.add_argument("--api-key", metavar="KEY", help=f"that clients must send (default: {KEY_VARIABLE}, if set)")
    network.add_argument(
        "--served-model-name", metavar="NAME", help="that clients ask for (default: the artifact's name, without .rdu)"
    )
    limits = parser.add_argument_group("limits")
    limits.add_argument("--max-queue", type=int, default=QUEUE, metavar="N", help="requests that wait")
    limits.add_argument(
        "--max-body",
        type=parse_bytes,
        default=BODY_BYTES,
        metavar="BYTES",
        help="of a request's body: 4194304, 4M or 4MiB",
    )
    limits.add_argument(
        "--max-prompt", type=int, metavar="TOKENS", help="of a prompt (default: what the context permits)"
    )
    limits.add_argument("--max-new-tokens", type=int, metavar="N", help="of an answer (default: likewise)")
    limits.add_argument("--timeout", type=float, metavar="S", help="seconds that a request may take (default: any)")
    limits.add_argument(
        "--drain-timeout",
        type=float,
        default=DEFAULT_DRAIN_SECONDS,
        metavar="S",
        help="seconds that requests may go on after a signal",
    )
    network.add_argument(
        "--stream-interval",
        type=int,
        default=0,
        metavar="MS",
        help="least milliseconds between two events of a streamed answer; tokens that are made meanwhile come together",
    )
    engine = parser.add_argument_group("engine")
    engine.add_argument(
        "--prompt-cache",
        type=parse_bytes,
        default=0,
        metavar="BYTES",
        help="for prompts that are sent again, or begin alike, for which `sscc inspect` says how many a token takes",
    )
    engine.add_argument(
        "--prefill-steps",
        type=int,
        metavar="N",
        help="chunk steps between two decode steps (default: what one chunk takes through all layers)",
    )
    split = parser.add_argument_group("prefill elsewhere")
    split.add_argument(
        "--role",
        choices=ROLES,
        default=ROLES[0],
        help="prefill: prompts for decode servers, and no answers; decode: answers to prompts that --prefill-from "
        "prefills; of the same artifact",
    )
    split.add_argument(
        "--prefill-from",
        action="append",
        default=[],
        metavar="URL",
        help="a server with --role prefill, http://HOST:PORT; may be given more than once",
    )
    split.add_argument(
        "--prefill-key", metavar="KEY", help=f"that prefill servers ask for (default: {PREFILL_KEY_VARIABLE}, if set)"
    )
    split.add_argument(
        "--prefill-timeout",
        type=float,
        default=DEFAULT_PREFILL_SECONDS,
        metavar="S",
        help="seconds that a prefill may take there, with what waits before it",
    )
    split.add_argument(
        "--prefill-ahead",
        type=int,
        metavar="N",
        help="prompts on their way, or there and without a slot yet (default: as many as there are slots)",
    )
    split.add_argument(
        "--prefill-locally",
        action="store_true",
        help="prefill here what no prefill server can (default: such a request ends with 503)",
    )
    add_draft_arguments(parser.add_argument_group("speculative prefill"))
    execution = parser.add_argument_group("execution")
    add_execution_arguments(execution)
    add_trace_argument(execution)


def main(args: argparse.Namespace) -> int:
    check_arguments(args)
    key = api_key(args)
    require(SERVE, "sscc serve")
    log_to_stderr(args.quiet)
    if followed(args):
        return 0
    from sscc.runtime.server.service import bind, serve, url_of

    bound = bind(args.host, args.port)  # before weights are read, which would be in vain where the port is taken
    with opened(args, key) as served:
        if key is None and not args.host.startswith(_LOCAL):
            print(f"sscc: whoever reaches {args.host} may use this server: there is no --api-key", file=sys.stderr)
        at = f"{url_of(bound)} ({served.engine.signature.batch} slots of {served.model.max_context} tokens)"
        doing = "prefilling for others with" if args.role == "prefill" else "serving"
        ready = f"sscc: {doing} {served.model.name} at {at}"
        serve(served.app, served.engine, bound, args.drain_timeout, lambda: print(ready, flush=True))
    return 0


@dataclass(frozen=True)
class Served:
    """An artifact that is open for requests: the application, what executes them, and what clients know of the
    model."""

    app: FastAPI
    engine: Engine
    model: Model


@contextmanager
def opened(args: argparse.Namespace, key: str | None) -> Iterator[Served]:
    """The artifact as the options say, whoever carries requests to its application. It is closed with the block, which
    finishes what was begun, or cancels it where an exception ends the block.

    Args:
        args: of `add_arguments`, which `check_arguments` has seen.
        key: that the application asks for; None: none.
    """
    from sscc.runtime.engine import Engine, EngineOptions
    from sscc.runtime.server.app import create_app
    from sscc.runtime.server.jobs import Model, RequestLimits
    from sscc.runtime.server.prefill_servers import PrefillServers
    from sscc.runtime.server.protocol import MAX_CHOICES

    artifact = open_artifact(args.artifact, verify=args.verify)
    tokenizer, template = tokenizer_and_template(artifact)
    signature = artifact.signature
    model = Model(
        name=args.served_model_name or args.artifact.resolve().name.removesuffix(".rdu"),
        max_context=signature.geometry.max_context,
        vocab_size=signature.vocab_size,
        created=int((args.artifact / "manifest.json").stat().st_mtime),
        tokenizer=tokenizer,
        chat_template=template,
        keep=None if args.draft is None else keeps_of(args)[0],
    )
    limits = RequestLimits(
        max_body=args.max_body,
        max_prompt=args.max_prompt,
        max_new_tokens=args.max_new_tokens,
        max_choices=min(MAX_CHOICES, signature.batch + args.max_queue),
        timeout=args.timeout,
    )
    options = EngineOptions(args.max_queue, args.prefill_steps, args.prompt_cache, args.prefill_ahead)
    prefill_key = _key("--prefill-key", args.prefill_key, PREFILL_KEY_VARIABLE)
    with ExitStack() as stack:
        session = stack.enter_context(closing(session_of(artifact, args)))
        stack.enter_context(traced(session, args.trace))
        stack.enter_context(printing_beside(args.trace))
        elsewhere = None
        if args.role != "both":
            slot_format = session.slot_format  # of another checkpoint it takes a while, and others would wait for it
        if args.role == "decode":
            elsewhere = PrefillServers(
                args.prefill_from,
                slot_format,
                chunk=signature.prefill_chunk if signature.continues else None,
                key=prefill_key,
                timeout=args.prefill_timeout,
                locally=args.prefill_locally,
            )
        shortener = stack.enter_context(opened_shortener(args, signature, tokenizer))
        engine = stack.enter_context(Engine(session, tokenizer, options, elsewhere, shortener))
        app = create_app(
            engine,
            model,
            limits,
            key,
            role=args.role,
            prefill_servers=elsewhere,
            stream_interval=args.stream_interval / 1000,
        )
        yield Served(app, engine, model)


def check_arguments(args: argparse.Namespace) -> None:
    """Raises UsageError for values that are no such."""
    check_execution_arguments(args)
    if not 0 <= args.port < 1 << 16:
        raise UsageError(f"--port is {args.port}, it must be between 0 and {(1 << 16) - 1}")
    check_draft_arguments(args)
    if args.draft is not None and args.role == "prefill":
        raise UsageError("--draft shortens prompts before they are sent to a prefill server: give it to the other one")
    check_at_least(0, "--stream-interval", args.stream_interval)
    check_at_least(0, "--max-queue", args.max_queue)
    check_at_least(1, "--max-body", args.max_body)
    check_at_least(1, "--max-prompt", args.max_prompt)
    check_at_least(1, "--max-new-tokens", args.max_new_tokens)
    check_at_least(0, "--drain-timeout", args.drain_timeout)
    check_at_least(1, "--prefill-steps", args.prefill_steps)
    check_at_least(1, "--prefill-ahead", args.prefill_ahead)
    if not args.prefill_timeout > 0:
        raise UsageError(f"--prefill-timeout is {args.prefill_timeout:g} s, it must be above 0")
    if args.role == "decode" and not args.prefill_from:
        raise UsageError("--role decode needs --prefill-from URL: a server of the same artifact with --role prefill")
    for option in ("prefill_from", "prefill_key", "prefill_ahead", "prefill_locally"):
        if args.role != "decode" and getattr(args, option):
            raise UsageError(f"--{option.replace('_', '-')} is for --role decode, and the role is {args.role}")
    if args.timeout is not None and not args.timeout > 0:
        raise UsageError(f"--timeout is {args.timeout:g} s, it must be above 0")


def api_key(args: argparse.Namespace) -> str | None:
    """The key that clients of this server have to name; None: none.

    Raises:
        UsageError: it is no key.
    """
    return _key("--api-key", args.api_key, KEY_VARIABLE)


def _key(option: str, text: str | None, variable: str) -> str | None:
    """The key from the option, or else from the environment, where other users of the machine cannot see it."""
    key = os.environ.get(variable) if text is None else text
    if key is not None and not (key.strip() and key.isascii() and key.isprintable() and " " not in key):
        source = variable if text is None else option
        raise UsageError(f"{source} is no key: it must be printable ASCII without spaces")
    return key
