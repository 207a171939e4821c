"""The FastAPI application: endpoints of OpenAI, Anthropic and vLLM over an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

import sscc
from sscc.ir.errors import RankError
from sscc.runtime.artifact.signature import Signature
from sscc.runtime.serving.engine import Completion, Engine, RequestHandle, cancel_all
from sscc.runtime.serving.server import anthropic
from sscc.runtime.serving.server import prefill_endpoint as slots
from sscc.runtime.serving.server.answers import ChatFormat, CompletionFormat, Format, Json, failure
from sscc.runtime.serving.server.anthropic import MessagesBody, MessagesFormat
from sscc.runtime.serving.server.api_errors import ApiKind, Http, ServerErrors, install_handlers
from sscc.runtime.serving.server.engine_requests import (
    Model,
    ServedPrompt,
    chat_prompts,
    completion_prompts,
    requests_for,
)
from sscc.runtime.serving.server.freed_memory import keep_few_words
from sscc.runtime.serving.server.gate import Gate
from sscc.runtime.serving.server.hosts import Hosts
from sscc.runtime.serving.server.model_pool import ModelSwitch, Shelf
from sscc.runtime.serving.server.openai import ChatBody, CompletionBody, GenerationBody
from sscc.runtime.serving.server.pages import add_pages
from sscc.runtime.serving.server.prefill_servers import PrefillServers
from sscc.runtime.serving.server.prometheus import CONTENT_TYPE, exposition
from sscc.runtime.serving.server.request_bodies import BodyMemory, BodyReader
from sscc.runtime.serving.server.request_log import RequestLog, Traffic, record_of
from sscc.runtime.serving.server.responses import ResponsesBody, ResponsesFormat
from sscc.runtime.serving.server.streaming import EventStream, unless_gone
from sscc.runtime.serving.server.tokenization import DetokenizeBody, TokenizeBody
from sscc.runtime.serving.server.workers import SMALL, Workers
from sscc.runtime.support.serving_options import RequestLimits, Role
from sscc.runtime.text.chat_formats import AnswerReader
from sscc.runtime.text.token_text import TokenBytes, as_text
from sscc.runtime.text.tokenizer import encode

LARGE_BODIES = 8  # bodies of maximum size that may be read at the same time
LEAST_VALUES = 1 << 16
"""Number of JSON values that a body may have even if the context is short. Parsing takes a microsecond for each, during
which nothing else runs."""

TOTALS = (
    "submitted", "rejected", "prompt_tokens", "cached_prompt_tokens", "new_tokens", "decode_steps", "verify_steps",
    "drafted_tokens", "accepted_tokens", "decode_seconds",
    "prefill_steps", "prefill_seconds", "overhead_seconds",
    "shortened_prompts", "left_out_prompt_tokens", "draft_seconds",
    "slot_messages", "slot_message_bytes", "slot_message_full_kv_bytes",
)  # fmt: skip
"""Counters among the fields of `Metrics`."""


class EndpointErrors(ApiKind):
    MODEL_NOT_FOUND = "there is no model {name!r}, only {served!r}", Http(404, code="model_not_found")


def create_app(
    engine: Engine,
    model: Model,
    limits: RequestLimits | None = None,
    api_key: str | Sequence[str] | None = None,
    *,
    role: Role = "both",
    prefill_servers: PrefillServers | None = None,
    stream_interval: float = 0.0,
    hosts: Hosts | None = None,
    root_path: str = "",
    shelf: Shelf | None = None,
) -> FastAPI:
    """Return the application. The caller still owns the engine, and must set `app.state.closing` before closing the
    engine after the last request. `app.state.traffic` counts requests (`Traffic`).

    Args:
        limits: limits of a request; None for the defaults of `RequestLimits`.
        api_key: API key of /v1/, or several keys, any of which is accepted; None for no key.
        role: role of the server; "prefill" serves only /v1/slots and information.
        prefill_servers: remote prefill of the engine, for /v1/status.
        stream_interval: minimum time in seconds between two chunks of a streamed answer (`RequestHandle.apieces`).
        hosts: allowed host names and origins; None for those of loopback.
        root_path: path prefix, "/NAME", under which a proxy serves the application; requests may omit it.
        shelf: further models, for requests that name them.
    """
    limits = limits or RequestLimits()
    # FastAPI's own documentation pages would load scripts from another site.
    app = FastAPI(title="sscc", version=sscc.__version__, docs_url=None, redoc_url=None)
    app.state.closing = False
    app.state.traffic = Traffic(engine)
    endpoints = _Endpoints(engine, model, limits, role, prefill_servers, stream_interval)
    memory = BodyMemory(LARGE_BODIES * limits.max_body)
    if shelf is not None:
        most_values = max(LEAST_VALUES, 4 * max(model.max_context, shelf.longest))
        app.add_middleware(
            ModelSwitch, shelf=shelf, workers=endpoints.workers, memory=memory, most_values=most_values
        )
    keys = (api_key,) if isinstance(api_key, str) else tuple(api_key or ())
    app.add_middleware(
        Gate, api_keys=keys, max_body=limits.max_body, hosts=hosts or Hosts(), root_path=root_path.rstrip("/")
    )
    app.add_middleware(RequestLog, traffic=app.state.traffic)
    install_handlers(app)
    add_pages(app)
    app.get("/health")(endpoints.health)
    app.get("/metrics")(endpoints.metrics)
    app.get("/v1/status")(endpoints.status)
    app.get("/v1/models")(endpoints.models)
    app.get("/v1/models/{name:path}")(endpoints.model)
    for route in [route for route in app.routes if isinstance(route, APIRoute) and "GET" in (route.methods or ())]:
        app.head(route.path, include_in_schema=False)(route.endpoint)
    reader = BodyReader(endpoints.workers, memory, max(LEAST_VALUES, 4 * model.max_context))
    posts = APIRouter(route_class=reader.route())
    if role == "prefill":
        posts.post(slots.PATH)(endpoints.slots)
    else:
        posts.post("/v1/completions")(endpoints.completions)
        posts.post("/v1/chat/completions")(endpoints.chat_completions)
        posts.post("/v1/responses")(endpoints.responses)
        posts.post(anthropic.PATH)(endpoints.messages)
        posts.post(f"{anthropic.PATH}/count_tokens")(endpoints.count_tokens)
        posts.post("/tokenize")(endpoints.tokenize)
        posts.post("/detokenize")(endpoints.detokenize)
    app.include_router(posts)
    return app


def program_of(signature: Signature) -> Json:
    """Return the sizes of a program for /v1/status. Bytes are those of one sequence."""
    g = signature.geometry
    return {
        "layers": signature.layers,
        "dtype": signature.dtype,
        "slots": signature.batch,
        "max_context": g.max_context,
        "policy": g.policy,
        "sink": g.sink,
        "recent": g.recent,
        "topk": g.topk,
        "budget": g.budget,
        "most_kept": g.most_kept,
        "row_dtype": g.dtype,
        "kv_bytes": signature.held_bytes,
        "full_kv_bytes": signature.full_kv_bytes(g.max_context),
    }


def card_of(name: str, created: int, max_context: int) -> Json:
    """Return an entry of /v1/models.

    Args:
        created: creation time in seconds since 1970.
    """
    facts = {"object": "model", "created": created, "owned_by": "sscc", "max_model_len": max_context}
    return {"id": name, **facts}


class _Endpoints:
    def __init__(
        self,
        engine: Engine,
        model: Model,
        limits: RequestLimits,
        role: Role,
        prefill_servers: PrefillServers | None,
        stream_interval: float,
    ) -> None:
        self._engine = engine
        self._role = role
        self._prefill_servers = prefill_servers
        self._model = model
        self._limits = limits
        self._stream_interval = stream_interval
        self._spell = TokenBytes(model.tokenizer)
        keep_few_words(model.tokenizer)
        self.workers = Workers()
        # Room for a copy of every slot with the longest prompt.
        longest = engine.slot_format.nbytes(model.max_context - 1) if role == "prefill" else 0
        self._copies = slots.Copies(engine.signature.batch * longest)

    # -- information

    async def health(self, request: Request) -> Response:
        """Health: 200 while the server accepts requests, then 503."""
        if (ended := self._engine.failure) is not None:
            reason = {"reason": str(ServerErrors.RANK_GONE())} if isinstance(ended, RankError) else {}
            return JSONResponse({"status": "failed", **reason}, 503)
        if request.app.state.closing:
            return JSONResponse({"status": "closing"}, 503)
        return JSONResponse({"status": "ok"})

    async def metrics(self) -> Response:
        """Metrics in Prometheus' text format."""
        return Response(exposition(self._engine.metrics()), headers={"content-type": CONTENT_TYPE})

    async def status(self) -> Json:
        """Sizes of the program, state of every slot, and totals since the start. Times are in seconds, rows are per
        layer and KV head."""
        metrics, model = self._engine.metrics(), self._model
        return {
            "object": "status",
            "model": model.name,
            "version": sscc.__version__,
            "chat": model.chat_template is not None and self._role != "prefill",
            "role": self._role,
            "keep": model.keep,
            "program": program_of(self._engine.signature),
            "queued": metrics.queued,
            "totals": {name: getattr(metrics, name) for name in TOTALS},
            "finished": dict(metrics.finished),
            "slots": [asdict(slot) for slot in self._engine.slots()],
        } | self._split()

    def _split(self) -> Json:
        """Return the fields for split prefill and decode: the bytes of a message with the longest prompt, and the state
        of the prefill servers."""
        if self._role == "both":
            return {}
        longest = self._model.max_context - 1
        sizes = {"slot_message_bytes": self._engine.slot_format.nbytes(longest)}
        return sizes if self._prefill_servers is None else sizes | {"prefill_servers": self._prefill_servers.states()}

    async def models(self) -> Json:
        """List of the served models."""
        return {"object": "list", "data": [self._card()]}

    async def model(self, name: str) -> Json:
        """The served model of this name."""
        self._check_name(name)
        return self._card()

    def _card(self) -> Json:
        return card_of(self._model.name, self._model.created, self._model.max_context)

    def _check_name(self, name: str) -> None:
        if name != self._model.name:
            raise EndpointErrors.MODEL_NOT_FOUND(param="model", name=name, served=self._model.name)

    # -- generation

    async def completions(self, body: CompletionBody, request: Request) -> Response:
        """Completes a prompt."""
        return await self._answer(body, request, completion_prompts, self._completion_format)

    async def chat_completions(self, body: ChatBody, request: Request) -> Response:
        """Answers a conversation."""
        return await self._answer(body, request, chat_prompts, self._chat_format)

    async def responses(self, body: ResponsesBody, request: Request) -> Response:
        """Answers a conversation, in OpenAI's Responses format. Nothing is stored."""
        chat = body.chat()

        def form(chat: ChatBody, prompts: Sequence[ServedPrompt]) -> Format:
            return ResponsesFormat(body, self._model.name, self._reader(chat, prompts[0]), self._count)

        return await self._answer(chat, request, chat_prompts, form)

    async def messages(self, body: MessagesBody, request: Request) -> Response:
        """Answers a conversation, in Anthropic's format."""

        def form(chat: ChatBody, prompts: Sequence[ServedPrompt]) -> Format:
            return MessagesFormat(self._model.name, self._reader(chat, prompts[0]), body.stop_sequences)

        return await self._answer(body.chat(), request, chat_prompts, form)

    async def count_tokens(self, body: MessagesBody, request: Request) -> Response:
        """Counts the prompt tokens of a conversation, in Anthropic's format."""
        chat = body.chat()
        counted = self.workers.run(chat.size, lambda: chat_prompts(chat, self._model, self._limits)[0])
        return JSONResponse({"input_tokens": len(await unless_gone(request.receive, counted))})

    async def tokenize(self, body: TokenizeBody, request: Request) -> Response:
        """Tokenizes a text or a conversation."""
        made = self.workers.run(body.size, lambda: body.tokens(self._model, self._limits))
        tokens = list((await unless_gone(request.receive, made)).tokens)
        texts = [as_text(self._spell(token)) for token in tokens] if body.return_token_strs else None
        most = self._model.max_context
        return JSONResponse({"count": len(tokens), "max_model_len": most, "tokens": tokens, "token_strs": texts})

    async def detokenize(self, body: DetokenizeBody, request: Request) -> Response:
        """Converts tokens to text."""
        text = await unless_gone(request.receive, self.workers.run(body.size, lambda: body.text(self._model)))
        return JSONResponse({"prompt": text, "content": text})

    def _count(self, text: str) -> int:
        return len(encode(self._model.tokenizer, text, special=False))

    def _reader(self, body: ChatBody, prompt: ServedPrompt) -> AnswerReader:
        return self._model.formats.reader(prompt.rendered, body.callable_tools, body.most_calls)

    def _completion_format(self, body: CompletionBody, prompts: Sequence[ServedPrompt]) -> Format:
        echoed = [(prompt.echo, prompt.tokens) for prompt in prompts for _ in range(body.n) if prompt.echo is not None]
        choices = len(prompts) * body.n
        return CompletionFormat(
            self._model.name,
            self._spell,
            choices,
            body.alternatives,
            body.streamed_usage,
            echoed=echoed,
            answers=body.max_tokens != 0,
        )

    def _chat_format(self, body: ChatBody, prompts: Sequence[ServedPrompt]) -> ChatFormat:
        formats = self._model.formats
        return ChatFormat(
            self._model.name,
            self._spell,
            [self._reader(body, prompt) for prompt in prompts for _ in range(body.n)],
            body.alternatives,
            body.streamed_usage,
            with_thoughts=body.include_reasoning,
            short_ids=formats.call is not None and formats.call.name == "mistral",
        )

    async def slots(self, body: slots.SlotBody, request: Request) -> Response:
        """Prefills a prompt for another server, which decodes from the returned slot."""
        return await slots.prefilled(body, self._engine, self._model, self._limits, self._copies, request)

    async def _answer(
        self,
        body: Any,
        request: Request,
        make_prompts: Callable[[Any, Model, RequestLimits], list[ServedPrompt]],
        make_format: Callable[[Any, Sequence[ServedPrompt]], Format],
    ) -> Response:
        if body.model is not None:
            self._check_name(body.model)
        submit = partial(self._submit, body, make_prompts)
        submitted = self.workers.run(body.size, submit, lambda pair: cancel_all(pair[0]))
        handles, prompts = await unless_gone(request.receive, submitted)
        record = record_of(request)
        record.handles, record.per_prompt = handles, body.n
        form = make_format(body, prompts)
        if body.stream:
            return EventStream(
                handles,
                form,
                sum(map(len, prompts)),
                body.n,
                self._limits.timeout,
                self._stream_interval,
            )
        return await self._whole(body, request, handles, form)

    def _submit(
        self, body: Any, make_prompts: Callable[[Any, Model, RequestLimits], list[ServedPrompt]]
    ) -> tuple[list[RequestHandle], list[ServedPrompt]]:
        """Submit the requests of a body. Return their handles, and the prompts."""
        prompts = make_prompts(body, self._model, self._limits)
        requests = requests_for(body, prompts, self._model, self._limits)
        return self._engine.submit_all(requests), prompts

    async def _whole(
        self, body: GenerationBody, request: Request, handles: Sequence[RequestHandle], form: Format
    ) -> Response:
        try:
            done = await unless_gone(request.receive, _results(handles))
        finally:
            cancel_all(handles)
        for one in done:
            if (error := failure(one.finish, len(one.tokens), self._limits.timeout)) is not None:
                raise error
        size = sum(len(one.tokens) * (1 + (body.alternatives or 0)) for one in done)
        if size <= SMALL >> 4:
            return JSONResponse(form.whole(done, body.n))
        return await self.workers.run(size, lambda: JSONResponse(form.whole(done, body.n)))


async def _results(handles: Sequence[RequestHandle]) -> list[Completion]:
    return await asyncio.gather(*(handle.aresult() for handle in handles))
