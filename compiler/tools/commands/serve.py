"""`sscc serve`: an HTTP server with OpenAI's protocol for an artifact."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sscc.compiler.options.execution_options import DraftOptions, SpeculationOptions, TracedExecutionOptions
from sscc.compiler.options.outputs import printing_beside
from sscc.compiler.options.server_options import PREFILL_KEY_VARIABLE, TLS_VARIABLE, ServerOptions, key_of
from sscc.compiler.tools.commands.engines import (
    followed,
    log_to_stderr,
    open_artifact,
    opened_shortener,
    opened_speculation,
    session_of,
    tokenizer_and_template,
    traced,
)
from sscc.compiler.tools.commands.generation import sampling_of
from sscc.compiler.tools.commands.model_arguments import (
    ModelArgument,
    add_compilation_options,
    announce,
    name_of,
    resolve_model,
)
from sscc.compiler.tools.commands.parser import CommonOptions, Parser
from sscc.ir.extras import SERVE, require
from sscc.ir.option import options_of
from sscc.runtime.session.sampling import Sampling
from sscc.runtime.support.serving_options import ENGINE, MAX_CHOICES, EngineOptions, RequestLimits

if TYPE_CHECKING:
    from fastapi import FastAPI

    from sscc.runtime.serving.engine import Engine
    from sscc.runtime.serving.server.engine_requests import Model
    from sscc.runtime.serving.server.model_pool import Closing, Shelf
    from sscc.runtime.session.artifact import Artifact
    from sscc.runtime.text.chat_formats import ChatFormats
    from sscc.runtime.text.chat_template import ChatTemplate

DEFAULT_BATCH = 4
"""Decode slots of a model that `sscc serve` compiles."""
_LOCAL = ("127.", "localhost", "::1")


def add_arguments(parser: Parser) -> None:
    parser.add_options(ModelArgument)
    parser.add_options(CommonOptions, ["quiet"])
    parser.add_options(ServerOptions)
    add_compilation_options(parser, batch=DEFAULT_BATCH)
    parser.add_options(RequestLimits)
    parser.add_options(EngineOptions)
    parser.add_options(Sampling, ["temperature"], heading=ENGINE, of_models=True)
    parser.add_options(SpeculationOptions)
    parser.add_options(DraftOptions)
    parser.add_options(TracedExecutionOptions)


@dataclass(frozen=True)
class Serving:
    """Checked options of a server.

    Attributes:
        artifact: path of the artifact.
        name: name of the model in requests.
        parsed: parsed command line.
    """

    artifact: Path
    name: str
    server: ServerOptions
    limits: RequestLimits
    engine: EngineOptions
    draft: DraftOptions
    speculation: SpeculationOptions
    execution: TracedExecutionOptions
    parsed: argparse.Namespace

    @classmethod
    def of(cls, args: argparse.Namespace) -> Serving:
        """Return the options of a parsed command line. Raises UsageError for options that contradict each other."""
        server, draft = options_of(ServerOptions, args), options_of(DraftOptions, args)
        limits, engine = options_of(RequestLimits, args), options_of(EngineOptions, args)
        name = server.served_model_name or name_of(args)
        server.check_beside(draft, engine.prefill_ahead, name)
        speculation, execution = options_of(SpeculationOptions, args), options_of(TracedExecutionOptions, args)
        return cls(args.artifact, name, server, limits, engine, draft, speculation, execution, args)


def main(args: argparse.Namespace) -> int:
    serving = Serving.of(args)
    server = serving.server
    keys = server.keys()
    require(SERVE, "sscc serve")
    log_to_stderr(args.quiet)
    if not args.quiet:
        logging.getLogger("sscc").setLevel(server.log_level.upper())
    resolve_model(args, DEFAULT_BATCH)
    if followed(args.artifact, serving.execution):
        return 0
    from sscc.runtime.serving.server.service import Tls, bind, serve, url_of

    tls = None
    if server.ssl_certfile is not None:
        tls = Tls(server.ssl_certfile, server.ssl_keyfile, os.environ.get(TLS_VARIABLE))
    bound = bind(server.host, server.port)  # before the weights are read, so that a port in use fails at once
    with opened(replace(serving, artifact=args.artifact), keys) as served:
        if not keys and not server.host.startswith(_LOCAL):
            print(f"sscc: there is no --api-key: every client that reaches {server.host} is served", file=sys.stderr)
        address = url_of(bound, "http" if tls is None else "https")
        at = f"{address} ({served.engine.signature.batch} slots of {served.model.max_context} tokens)"
        doing = "prefilling for other servers with" if server.role == "prefill" else "serving"
        ready = f"sscc: {doing} {served.model.name} at {at}"
        serve(served.app, served.closing, bound, server.drain_timeout, lambda: print(ready, flush=True), tls)
    return 0


@dataclass(frozen=True)
class Served:
    """An artifact that is open for requests.

    Attributes:
        app: HTTP application that answers requests.
        engine: engine that executes them.
        model: the model's properties that clients see.
        closing: ends the requests of all models at shutdown.
    """

    app: FastAPI
    engine: Engine
    model: Model
    closing: Closing


@contextmanager
def opened(serving: Serving, keys: Sequence[str]) -> Iterator[Served]:
    """Open an artifact and its HTTP application for the duration of the block. Any ASGI server can carry the requests.
    At the end of the block running requests are finished; an exception cancels them.

    Args:
        serving: options of the server.
        keys: API keys that the application accepts; empty if it needs none.
    """
    from sscc.runtime.serving.engine import Engine
    from sscc.runtime.serving.server.app import create_app
    from sscc.runtime.serving.server.engine_requests import Model
    from sscc.runtime.serving.server.hosts import Hosts
    from sscc.runtime.serving.server.model_pool import AllEngines
    from sscc.runtime.serving.server.prefill_servers import PrefillServers

    server, execution = serving.server, serving.execution
    artifact = open_artifact(serving.artifact, verify=execution.digests)
    announce(serving.parsed, artifact)
    tokenizer, template = tokenizer_and_template(artifact)
    signature = artifact.signature
    model = Model(
        name=serving.name,
        max_context=signature.geometry.max_context,
        vocab_size=signature.vocab_size,
        created=_created(artifact),
        tokenizer=tokenizer,
        chat_template=template,
        keep=serving.draft.share,
        ends=tuple(signature.eos_token_ids),
        formats=formats_of(server, template),
        sampling=sampling_of(serving.parsed, artifact),
    )
    waiting = serving.engine.max_queue or 0
    limits = replace(serving.limits, max_choices=min(MAX_CHOICES, signature.batch + waiting))
    prefill_key = key_of(PREFILL_KEY_VARIABLE, None, PREFILL_KEY_VARIABLE)
    with ExitStack() as stack:
        session = stack.enter_context(closing(session_of(artifact, execution)))
        stack.enter_context(traced(session, execution.trace))
        stack.enter_context(printing_beside(execution.trace))
        remote_prefill = None
        if server.role != "both" or serving.engine.prompt_folder is not None:
            slot_format = session.slot_format  # hashed before requests arrive: another checkpoint takes long
        if server.role == "decode":
            remote_prefill = PrefillServers(
                server.prefill_from,
                slot_format,
                key=prefill_key,
                timeout=server.prefill_timeout,
                locally=server.prefill_locally,
            )
        shortener = stack.enter_context(opened_shortener(serving.draft, execution, signature, tokenizer))
        speculation = stack.enter_context(opened_speculation(serving.speculation, execution, signature))
        engine = stack.enter_context(
            Engine(session, tokenizer, serving.engine, remote_prefill, shortener, speculation)
        )
        shelf = None if not server.also else stack.enter_context(shelf_of(serving))
        app = create_app(
            engine,
            model,
            limits,
            keys,
            shelf=shelf,
            role=server.role,
            prefill_servers=remote_prefill,
            stream_interval=server.stream_interval / 1000,
            hosts=Hosts((server.host,), server.hosts, server.origins),
            root_path=server.root_path or "",
        )
        yield Served(app, engine, model, engine if shelf is None else AllEngines(engine, shelf))


@contextmanager
def shelf_of(serving: Serving) -> Iterator[Shelf]:
    """Open the shelf of the models of `--also` for the duration of the block.

    Raises:
        InputError: an artifact is missing or damaged.
    """
    from sscc.runtime.serving.server.app import card_of
    from sscc.runtime.serving.server.model_pool import ModelSource, Shelf
    from sscc.runtime.session.artifact import Artifact
    from sscc.runtime.support.usable_memory import usable_memory

    single_server, untraced = replace(serving.server, also=()), replace(serving.execution, trace=None)
    sources: dict[str, ModelSource] = {}
    for name, path in serving.server.other_models(serving.name).items():
        artifact = Artifact.load(path, verify=False)  # the shelf verifies it when it opens it
        parsed = argparse.Namespace(**{**vars(serving.parsed), "artifact": path, "given_model": path})
        other = replace(serving, artifact=path, name=name, server=single_server, execution=untraced, parsed=parsed)
        sources[name] = ModelSource(
            artifact.program.ranks * sum(tensor.nbytes for tensor in artifact.program.tensors),
            partial(opened, other, ()),
            card_of(name, _created(artifact), artifact.signature.geometry.max_context),
        )
    shelf = Shelf(sources, serving.server.models_memory or usable_memory() // 2)
    try:
        yield shelf
    finally:
        shelf.end()


def _created(artifact: Artifact) -> int:
    """Return the time of a compilation, in seconds since 1970."""
    from sscc.runtime.artifact.artifact_files import MANIFEST

    return int((artifact.path / MANIFEST).stat().st_mtime)


def formats_of(server: ServerOptions, template: ChatTemplate | None) -> ChatFormats:
    """Return a model's formats of reasoning and tool calls: those of the options, or else those of its chat template.
    Raises UsageError for an unknown format.
    """
    from sscc.runtime.text.chat_formats import ChatFormats

    formats = ChatFormats() if template is None else ChatFormats.from_template(template.source)
    return formats.with_names(server.reasoning_parser, server.tool_parser)
