"""Hostile bodies against the server's application, in process: every one is answered, or refused as a client's mistake.

A body is a right one with values put in place of others, names added, or bytes changed; headers are changed too.
Wrong is an answer above 499, one that is not of OpenAI's form, and a request that is left in the engine.
"""

from __future__ import annotations

import asyncio
import atexit
import copy
import json
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import httpx2

from sscc.runtime.engine import Engine, EngineOptions, Request
from sscc.runtime.server.app import create_app
from sscc.runtime.server.jobs import RequestLimits
from sscc.runtime.server.protocol import NO_EFFECT, UNSUPPORTED, ChatBody, CompletionBody
from sscc.runtime.session import Session
from tests.fuzz.harness import Finding, Target
from tests.runtime.server.fake import MODEL, NAME, SIGNATURE, TOKENIZER, AlphabetInterpreter

PATHS = {"/v1/completions": CompletionBody, "/v1/chat/completions": ChatBody}
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


def right_body(choose: random.Random, path: str) -> dict[str, Any]:
    """A body that is answered."""
    body: dict[str, Any] = {"model": NAME, "max_tokens": choose.randint(1, 30), "seed": choose.randrange(1000)}
    text = "".join(choose.choices("abc dé🎉", k=choose.randint(1, 40)))
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
    }
    return body | {name: extras[name] for name in choose.sample(sorted(extras), choose.randint(0, 4))}


def hostile_body(choose: random.Random, path: str) -> bytes:
    """A right body, changed in a few places."""
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


class HttpBodies(Target):
    """The application over an engine with three slots and a context of 128 tokens."""

    name: ClassVar[str] = "http"

    def __init__(self, folder: Path) -> None:
        self._engine = Engine(
            Session(SIGNATURE, AlphabetInterpreter(SIGNATURE)), TOKENIZER, EngineOptions(max_queue=61)
        )
        atexit.register(self._engine.close, drain=False)
        limits = RequestLimits(max_body=MAX_BODY, max_choices=64)
        self._app = create_app(self._engine, MODEL, limits)

    def run(self, seed: int) -> str:
        choose = random.Random(seed)
        path = choose.choice(sorted(PATHS))
        headers = {"content-type": choose.choice(TYPES) if choose.random() < 0.1 else TYPES[0]}
        if choose.random() < 0.02:
            headers["content-length"] = choose.choice(["1" * 5000, "0", "99999999", "²"])
        if choose.random() < 0.02:
            headers["authorization"] = "Bearer " + "\xff" * 100
        response = asyncio.run(self._post(path, hostile_body(choose, path), headers))
        outcome = self._judge(response)
        self._check_left()
        return outcome

    async def _post(self, path: str, data: bytes, headers: dict[str, str]) -> httpx2.Response:
        transport = httpx2.ASGITransport(self._app)
        raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        async with httpx2.AsyncClient(transport=transport, base_url="http://server") as client:
            return await asyncio.wait_for(client.post(path, content=data, headers=raw), SECONDS)

    def _judge(self, response: httpx2.Response) -> str:
        status, text = response.status_code, response.text
        if status == 200 and text.startswith("data: "):
            if not text.endswith("data: [DONE]\n\n") or '"error"' in text:
                raise Finding(f"a stream that ends otherwise: {text[-300:]}")
            return "streamed"
        with suppress(ValueError):
            answer = response.json()
            if status == 200 and answer["choices"]:
                return "answered"
            if 400 <= status < 500 and set(answer["error"]) == {"message", "type", "param", "code"}:
                return f"refused, {status}"
        raise Finding(f"status {status}: {text[:300]}")

    def _check_left(self) -> None:
        if self._engine.failure is not None:
            raise Finding(f"the engine has failed: {self._engine.failure!r}")
        for _ in range(1000):
            now = self._engine.metrics()
            if now.queued == now.running == now.prefilling == 0:
                return
            self._engine.generate(_ONE)
        raise Finding(f"requests are left: {now}")
