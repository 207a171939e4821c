"""Hostile requests against the server's application, in process: each is answered, or refused as a client's mistake.

A body is a right one with values put in place of others, names added, or bytes changed; headers are changed too. It
goes to a server of texts or to one of slots, at once or in drips; and its client reads the answer, reads nothing of it
for a while, or leaves. Wrong is an answer above 499, one that is not of OpenAI's form, a request that is left in the
engine, and a slot that a reader of slots holds. A case has a second of processor time and 256 MiB.
"""

from __future__ import annotations

import asyncio
import atexit
import copy
import json
import random
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from fastapi import FastAPI

from sscc.runtime.artifact.signature import ProgramIdentity
from sscc.runtime.serving.engine import Engine, EngineOptions, Request
from sscc.runtime.serving.server.anthropic import PATH as MESSAGES
from sscc.runtime.serving.server.anthropic import MessagesBody
from sscc.runtime.serving.server.app import create_app
from sscc.runtime.serving.server.freed_memory import keep_little
from sscc.runtime.serving.server.openai import NO_EFFECT, UNSUPPORTED, ChatBody, CompletionBody
from sscc.runtime.serving.server.prefill_endpoint import PATH, SlotBody
from sscc.runtime.serving.server.responses import ResponsesBody
from sscc.runtime.serving.server.tokenization import DetokenizeBody, TokenizeBody
from sscc.runtime.session.session import Session
from sscc.runtime.support.serving_options import RequestLimits, Role
from sscc.runtime.text.chat_formats import CALL_FORMATS, THOUGHT_FORMATS, ChatFormats
from tests.fuzz.harness import Finding, Target
from tests.runtime.server.fake import MODEL, NAME, SIGNATURE, TOKENIZER, AlphabetInterpreter

PATHS = {
    "/v1/completions": CompletionBody,
    "/v1/chat/completions": ChatBody,
    "/v1/responses": ResponsesBody,
    MESSAGES: MessagesBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
    PATH: SlotBody,
}
FORMATS = ChatFormats(THOUGHT_FORMATS["think"], CALL_FORMATS["hermes"])
IDENTITY = ProgramIdentity("a" * 64, "b" * 64)
MAX_BODY = 1 << 18
SECONDS = 10.0
_ONE = Request((0,), 1)  # a request that shows that the engine has heard what it was told before

VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2,
    3,
    17,
    127,
    128,
    129,
    256,
    257,
    2**31,
    2**53 + 1,
    -(2**63),
    2**63 - 1,
    2**63,
    2**64,
    1e10,
    604800,
    604800.5,
    9.3e9,
    2**31,
    2**31 + 1,
    -(2**31) - 1,
    10**4299,
    10**400,
    -(10**4000),
    0.5,
    -0.0,
    5e-324,
    1e-300,
    1e300,
    float("inf"),
    float("nan"),
    "",
    "a",
    "1",
    "-1",
    "1" * 5000,
    "٣",
    "²",
    "\x00",
    "\ud800",
    "\udc00\ud800",
    "é" * 300,
    "\u202e\ufeff\U0001f469\u200d\U0001f4bb",
    "ﷺ" * 100,
    "%s%n{0}{{}}",
    "{% for x in y %}",
    "a" * 100_000,
    " " * 2000,
    "<|end|>" * 20,
    [],
    {},
    [[]],
    [{}],
    [None],
    [[1, 2, 3]],
    [1, "a"],
    [True],
    [256, 0, 3],
    [10**30],
    ["a"] * 16,
    ["a"] * 2000,
    ["\ud83d"],
    ["b" * 1024],
    list(range(300)),
    {"a": {"b": {"c": []}}},
    {"type": "text", "text": "x"},
    [{"type": "text", "text": "x"}],
    [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}],
    {"include_usage": True},
    {"role": "user", "content": "hi"},
    [{"role": "user", "content": "hi"}] * 30,
    {str(token): 100 for token in range(256)},
    {"0" * 30: 1},
    {"1" * 5000: 1},
    {"٣": 1},
    {"5": float("inf")},
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    {"type": "json_object"},
    {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array", "items": {"$ref": "#"}}}},
    {"type": "json_schema", "json_schema": {"name": "x", "schema": {"pattern": "(a{1,500}){1,500}"}}},
    {"$ref": "#"},
    {"anyOf": [{"$ref": "#"}, {"not": {}}]},
    {"enum": list(range(2000))},
    {"json": {"type": "string", "minLength": 10**6}},
    {"regex": "(?:.{0,200}a.{0,200}){5}"},
    {"choice": ["a", "b"]},
    "(a|b)+",
    "(((",
    "[a-z]{1,1000}{1,1000}",
    'root ::= "a" root | "b"',
    "root ::= root",
    "start: start",
    "required",
    "auto",
    {"type": "function", "function": {"name": "f"}},
    [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    [{"type": "function", "name": "f"}],
    [{"name": "f", "input_schema": {"type": "object", "properties": {"x": {"type": "string"}}}}],
    [{"type": "tool_result", "tool_use_id": "x", "content": "y"}],
    [{"type": "tool_use", "id": "x", "name": "f", "input": {}}],
    [{"type": "function_call", "call_id": "x", "name": "f", "arguments": "{"}],
    [{"type": "thinking", "thinking": "x"}],
    {"format": {"type": "json_schema", "name": "x", "schema": {"type": "boolean"}}},
    {"effort": "none"},
    {"enable_thinking": True},
    {"messages": []},
)
TEXTS = (b"1e400", b"-1e400", b"NaN", b"Infinity", b"1" * 5000, b"\\ud800", b"\\u0000", b"[" * 3000, b'{"a":' * 3000)
TEXTS += (b"\xff", b"\xc3", b"\x00", b",", b'"', b"\\", b"{", b"}", b"]", b"//", b"\xef\xbb\xbf", b"1.", b"-", b"tru")
TYPES = (
    "application/json",
    "application/json; charset=utf-16",
    "application/problem+json",
    "text/plain",
    "",
    "a" * 900,
)


HOSTS = ("localhost", "evil.example", "", "[::1]", "a:b:c", "x" * 300, "127.0.0.1", "\x1b[2J")
ORIGINS = ("http://127.0.0.1", "https://evil.example", "null", "", "\x1b[2J", "http://[", "http://" + "a" * 5000)


def right_body(choose: random.Random, path: str) -> dict[str, Any]:
    """A body that is answered."""
    if path == PATH:
        count = choose.randint(1, 40)
        slot: dict[str, Any] = {"prompt": choose.choices(range(257), k=count)}
        slot |= {"positions": sorted(choose.sample(range(127), count))} if choose.random() < 0.3 else {}
        slot |= {"timeout": choose.choice([0.5, 100, 604800])} if choose.random() < 0.5 else {}
        return slot | {"program": IDENTITY.program, "weights": IDENTITY.weights}
    body: dict[str, Any] = {"model": NAME, "max_tokens": choose.randint(1, 30), "seed": choose.randrange(1000)}
    text = "".join(choose.choices("abc dé🎉", k=choose.randint(1, 40)))
    if path == "/tokenize":
        return choose.choice([{"prompt": text}, {"content": text}, {"messages": [{"role": "user", "content": text}]}])
    if path == "/detokenize":
        return {"tokens": choose.choices(range(257), k=choose.randint(0, 40))}
    if path == "/v1/responses":
        return {"input": choose.choice([text, [{"role": "user", "content": text}]]), "max_output_tokens": 9}
    if path == MESSAGES:
        return {"messages": [{"role": "user", "content": text}], "max_tokens": 9, "stream": choose.random() < 0.5}
    if path == "/v1/completions":
        body["prompt"] = choose.choice([text, [text, "b"], TOKENIZER.encode(text).ids])
    else:
        body["messages"] = [{"role": choose.choice(["user", "system"]), "content": text}]
    extras: dict[str, Any] = {
        "temperature": choose.choice([0, 0.7, 2]),
        "top_p": 0.9,
        "n": choose.randint(1, 3),
        "stop": choose.choice(["x", ["yz", "b"]]),
        "logit_bias": {str(choose.randrange(257)): choose.choice([-100, 100, 0.5])},
        "stream": True,
        "ignore_eos": True,
        "presence_penalty": 1.5,
        "repetition_penalty": 1.2,
        "logprobs": True if path.startswith("/v1/chat") else 3,
        "guided_regex": "[a-z]{1,20}",
        "min_tokens": choose.randint(0, 3),
        "stop_token_ids": [choose.randrange(257)],
    }
    if path == "/v1/completions":
        extras |= {"echo": True, "max_tokens": choose.choice([0, 5])}
    return body | {name: extras[name] for name in choose.sample(sorted(extras), choose.randint(0, 4))}


def hostile_body(choose: random.Random, path: str) -> bytes:
    """Return a valid body with a few changes."""
    body: Any = right_body(choose, path)
    for _ in range(choose.choice([0, 1, 1, 1, 2, 4])):
        choose.choice(_CHANGES)(choose, body, path)
    data = json.dumps(body).encode()
    for _ in range(choose.choice([0, 0, 0, 0, 1, 3])):
        at = choose.randrange(len(data) + 1)
        data = choose.choice(
            [
                data[:at],
                data[:at] + choose.choice(TEXTS) + data[at:],
                data[:at] + choose.choice(TEXTS) + data[at + 1 :],
                data[:at] + data[at + choose.randint(1, 20) :],
                data + data,
            ]
        )
    return data


def _value(choose: random.Random) -> Any:
    return copy.deepcopy(choose.choice(VALUES))  # what is put in place may be changed again


def _set_known(choose: random.Random, body: dict[str, Any], path: str) -> None:
    names = sorted({*PATHS[path].model_fields, *UNSUPPORTED, *NO_EFFECT})
    body[choose.choice(names)] = _value(choose)


def _set_unknown(choose: random.Random, body: dict[str, Any], path: str) -> None:
    body[str(_value(choose))[:6000]] = _value(choose)


def _drop(choose: random.Random, body: dict[str, Any], path: str) -> None:
    if body:
        del body[choose.choice(sorted(body, key=ascii))]


def _set_inside(choose: random.Random, body: dict[str, Any], path: str) -> None:
    """Somewhere within the prompt or the messages."""
    place: Any = body.get("messages" if "messages" in body else "prompt")
    for _ in range(choose.randint(0, 2)):
        inner = list(place.values()) if isinstance(place, dict) else place if isinstance(place, list) else []
        below = [each for each in inner if isinstance(each, dict | list)]
        place = choose.choice(below) if below else place
    if isinstance(place, list):
        place.insert(choose.randint(0, len(place)), _value(choose))
    elif isinstance(place, dict):
        place[choose.choice(["role", "content", "name", "type", "text", "x"])] = _value(choose)


_CHANGES: tuple[Callable[[random.Random, dict[str, Any], str], None], ...] = (
    _set_known,
    _set_known,
    _set_known,
    _set_unknown,
    _set_inside,
    _set_inside,
    _drop,
)


_ANSWERS = ("choices", "output", "content", "tokens", "prompt")
_LAST_EVENTS = ("message_stop", "response.completed", "response.incomplete")
_ERROR_FORMS = ({"message", "type", "param", "code"}, {"message", "type"})


class HttpBodies(Target):
    """The application over an engine with three slots and a context of 128 tokens."""

    name: ClassVar[str] = "http"
    seconds: ClassVar[float] = 1.0
    memory: ClassVar[int] = 256 << 20

    def __init__(self, folder: Path) -> None:
        keep_little()
        limits = RequestLimits(max_body=MAX_BODY, max_choices=64)
        self._texts, self._slots = self._opened(limits, "both"), self._opened(limits, "prefill")

    def _opened(self, limits: RequestLimits, role: Role) -> tuple[Engine, FastAPI]:
        session = Session(SIGNATURE, AlphabetInterpreter(SIGNATURE), identity=lambda: IDENTITY)
        engine = Engine(session, TOKENIZER, EngineOptions(max_queue=61))
        atexit.register(engine.close, drain=False)
        return engine, create_app(engine, replace(MODEL, formats=FORMATS), limits, role=role)

    def run(self, seed: int) -> str:
        choose = random.Random(seed)
        path = choose.choice(sorted(PATHS))
        headers = {"content-type": choose.choice(TYPES) if choose.random() < 0.1 else TYPES[0]}
        if choose.random() < 0.02:
            headers["content-length"] = choose.choice(["1" * 5000, "0", "99999999", "²"])
        if choose.random() < 0.02:
            headers["authorization"] = "Bearer " + "\xff" * 100
        if choose.random() < 0.05:
            headers["host"] = choose.choice(HOSTS)
        if choose.random() < 0.05:
            headers["origin"] = choose.choice(ORIGINS)
        engine, app = self._slots if path == PATH else self._texts
        client = Client(choose, app, engine)
        outcome = asyncio.run(asyncio.wait_for(client.ask(path, hostile_body(choose, path), headers), SECONDS))
        if outcome:
            self._check_left(engine)
            return outcome
        outcome = self._judge(client, engine)
        self._check_left(engine)
        return outcome

    def _judge(self, client: Client, engine: Engine) -> str:
        status = client.status
        if status == 200 and client.kind == "application/octet-stream":
            engine.slot_format.read(bytes(client.received), "the answer")
            return "a slot"
        text = client.received.decode()
        if status == 200 and text.startswith("event: "):
            if not text.rpartition("event: ")[2].startswith(_LAST_EVENTS):
                raise Finding(f"a stream that ends otherwise: {text[-300:]}")
            return "streamed"
        if status == 200 and text.startswith("data: "):
            if not text.endswith("data: [DONE]\n\n") or '"error"' in text:
                raise Finding(f"a stream that ends otherwise: {text[-300:]}")
            return "streamed"
        with suppress(ValueError):
            answer = json.loads(text)
            if status == 200 and any(answer.get(name) is not None for name in _ANSWERS):
                return "answered"
            if 400 <= status < 500 and set(answer["error"]) in _ERROR_FORMS:
                return f"refused, {status}"
        raise Finding(f"status {status}: {text[:300]}")

    def _check_left(self, engine: Engine) -> None:
        if engine.failure is not None:
            raise Finding(f"the engine has failed: {engine.failure!r}")
        for _ in range(1000):
            now = engine.metrics()
            if now.queued == now.running == now.prefilling == 0:
                return
            engine.generate(_ONE)
        raise Finding(f"requests are left: {now}")


class Client:
    """Sends a body, at once or in drips, and reads the answer, or not.

    Attributes:
        status, kind: the answer's status and content type.
        received: its body.
    """

    def __init__(self, choose: random.Random, app: FastAPI, engine: Engine) -> None:
        self.status, self.kind, self.received = 0, "", bytearray()
        self._app, self._engine = app, engine
        self._drips = choose.choice([1, 1, 1, 7, 50])
        self._leaves = choose.random() < 0.05
        self._stuck = choose.random() < 0.1
        self._begun, self._left = asyncio.Event(), asyncio.Event()

    async def ask(self, path: str, data: bytes, headers: dict[str, str]) -> str:
        """Send a request. Returns the outcome if there is no answer to judge."""
        size = max(1, -(-len(data) // self._drips))
        pieces = [data[begin : begin + size] for begin in range(0, len(data), size)] or [b""]
        if self._leaves:
            pieces = pieces[: len(pieces) // 2]
        task = asyncio.ensure_future(self._app(self._scope(path, headers), self._receiver(pieces), self._send))
        if self._stuck:
            begun = asyncio.ensure_future(self._begun.wait())
            await asyncio.wait({task, begun}, return_when=asyncio.FIRST_COMPLETED)
            begun.cancel()
            if not task.done():
                self._check_slots(path)
                self._left.set()
        await task
        if self._leaves:
            return "left while it sent"
        return "left while it read" if self._left.is_set() else ""

    def _check_slots(self, path: str) -> None:
        """A reader of a slot that reads nothing holds none of the engine's."""
        if path != PATH or self.status != 200:
            return
        self._engine.generate(_ONE)
        if any(slot.phase != "free" for slot in self._engine.slots()):
            raise Finding(f"a reader that reads nothing holds a slot: {self._engine.slots()}")

    def _scope(self, path: str, headers: dict[str, str]) -> dict[str, Any]:
        raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": raw,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }

    def _receiver(self, pieces: list[bytes]) -> Callable[[], Awaitable[dict[str, Any]]]:
        async def receive() -> dict[str, Any]:
            await asyncio.sleep(0)
            if pieces:
                body = pieces.pop(0)
                return {"type": "http.request", "body": body, "more_body": bool(pieces) or self._leaves}
            if not self._leaves:
                await self._left.wait()
            return {"type": "http.disconnect"}

        return receive

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.kind = dict(message["headers"]).get(b"content-type", b"").decode()
            return
        self._begun.set()
        if self._stuck and not self._left.is_set() and self.status == 200:
            await self._left.wait()  # a server's own `send` returns too once the connection is lost
        self.received += message.get("body", b"")
