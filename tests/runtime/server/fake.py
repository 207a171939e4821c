"""An engine whose interpreter makes up its answers, so that tests know them; and a server around it, on a real port."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import uvicorn

from sscc.ir.geometry import Geometry
from sscc.runtime.artifact.signature import ProgramIdentity, Signature
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.serving.engine import Engine, EngineOptions
from sscc.runtime.serving.server.app import create_app
from sscc.runtime.serving.server.engine_requests import Model
from sscc.runtime.serving.server.hosts import Hosts
from sscc.runtime.serving.server.model_pool import Shelf
from sscc.runtime.serving.server.prefill_servers import PrefillServers
from sscc.runtime.serving.server.service import Tls, bind, config_of, url_of
from sscc.runtime.session.session import Session
from sscc.runtime.support.serving_options import RequestLimits, Role
from sscc.runtime.text.chat_template import ChatTemplate
from tests.models.tiny_llama import END, byte_tokenizer
from tests.runtime.fake import HostInterpreter, moved_cursor
from tests.runtime.signatures import altered, uniform

NAME = "alphabet"
CONTEXT = 128
CREATED = 1_700_000_000
GEOMETRY = Geometry(sink=2, recent=8, topk=6, obs=4, pool=3, pool_mode="avg", max_context=CONTEXT)
SIGNATURE = uniform(
    GEOMETRY,
    batch=3,
    prefill_chunk=16,
    dtype="f32",
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=4,
    value_dim=4,
    vocab_size=END + 1,
    eos_token_ids=(END,),
)
IDENTITY = ProgramIdentity("a" * 64, "b" * 64)
TOKENIZER = byte_tokenizer()
TEMPLATE = (
    "{% for message in messages %}{{ message.role[0] }}:{{ message.content }};{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)
AGENT_TEMPLATE = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}"
    "{% for message in messages %}<{{ message.role }}>"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    "{{ message.content or '' }}{% for call in message.tool_calls or [] %}[{{ call.function.name }}|"
    "{% for k, v in call.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}]{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)
"""With what agents send: tools, thoughts, calls and results."""
ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_LETTERS = TOKENIZER.encode(ALPHABET).ids
_STEPS = (1, 3, 5, 7, 9, 11)  # coprime to 26: every letter comes once


def reply(prompt: str | Sequence[int], count: int = len(ALPHABET)) -> str:
    """The text of the first `count` tokens of the greedy answer to a prompt; after 26 letters it ends."""
    tokens = TOKENIZER.encode(prompt).ids if isinstance(prompt, str) else prompt
    return "".join(ALPHABET[_letter(sum(tokens), index)] for index in range(min(count, len(ALPHABET))))


def _letter(salt: int, index: int) -> int:
    return (salt + _STEPS[salt % len(_STEPS)] * index) % len(ALPHABET)


class AlphabetInterpreter(HostInterpreter):
    """Answers every prompt with the letters in an order of its own, which a slot's first row has.

    Attributes:
        go: where it is not set, decode steps wait.
        seconds: that a decode step takes.
        error: raised by the next call, if there is one.
    """

    def __init__(self, signature: Signature) -> None:
        self.go = threading.Event()
        self.go.set()
        self.seconds = 0.0
        self.error: Exception | None = None
        self._prompt = np.zeros(0, np.int64)
        self._signature = signature
        main = signature.plan.main
        shape = (signature.layers, signature.batch, main.kv_heads, GEOMETRY.budget, main.key.width)
        scratch = np.zeros((1, main.kv_heads, signature.scratch_tokens, main.key.width), np.float32)
        self._states = {
            "k_cache": np.zeros(shape, np.float32),
            "v_cache": np.zeros(shape, np.float32),
            "selected": np.zeros((signature.layers, main.kv_heads, GEOMETRY.topk), np.int64),
            **dict.fromkeys(("k_scratch", "v_scratch"), scratch),
        }

    def run(
        self, entry: str, inputs: Mapping[str, Array], scalars: Mapping[str, int] | None = None, *, copy: bool = True
    ) -> tuple[dict[str, Array], tuple[int, ...]]:
        if self.error is not None:
            raise self.error
        if entry == "decode":
            self.go.wait()
            time.sleep(self.seconds)
            counts = inputs["position"] - self._states["k_cache"][0, :, 0, 0, 1].astype(np.int64) + 1
            return {"logits": np.stack([self._logits(slot, int(count)) for slot, count in enumerate(counts)])}, ()
        assert scalars is not None
        if entry == "score":
            return {"logits": self._scores(scalars["first"])}, ()
        slot, length = scalars["slot"], scalars["length"]
        self._prompt = inputs["tokens"][0, :length].copy()
        self._states["k_cache"][0, slot, 0, 0, :2] = inputs["tokens"][0, :length].sum(), length
        return {"prefill_logits": self._logits(slot, 0)[None]}, moved_cursor(self._signature, scalars)

    def _scores(self, first: int) -> Array:
        """After each token of a prompt the next two of the vocabulary are the likeliest."""
        rows = np.full((self._signature.batch, self._signature.vocab_size), -5, np.float32)
        for row, token in enumerate(self._prompt[first : first + len(rows)]):
            rows[row, (token + 1) % len(rows[0])], rows[row, (token + 2) % len(rows[0])] = 2, 1
        return rows

    def tensor(self, name: str) -> Array:
        return self._states[name]

    def reset(self) -> None: ...

    def _logits(self, slot: int, index: int) -> Array:
        """The right letter is the likeliest by far at temperature 1, the two after it come next."""
        logits = np.zeros(self._signature.vocab_size, np.float32)
        index %= len(ALPHABET) + 1
        if index == len(ALPHABET):
            logits[END] = 30
            return logits
        letter = _letter(int(self._states["k_cache"][0, slot, 0, 0, 0]), index)
        for rank, value in enumerate((30.0, 28.0, 26.0)):
            logits[_LETTERS[(letter + rank) % len(ALPHABET)]] = value
        return logits


class ScriptedInterpreter(AlphabetInterpreter):
    """Answers prompts with the text of a test, until the test sets another text.

    Attributes:
        script: the text.
    """

    def __init__(self, signature: Signature) -> None:
        super().__init__(signature)
        self.script = ""
        self._tokens: dict[int, list[int]] = {}

    def run(
        self, entry: str, inputs: Mapping[str, Array], scalars: Mapping[str, int] | None = None, *, copy: bool = True
    ) -> tuple[dict[str, Array], tuple[int, ...]]:
        if entry == "prefill":
            assert scalars is not None
            self._tokens[scalars["slot"]] = TOKENIZER.encode(self.script).ids
        return super().run(entry, inputs, scalars, copy=copy)

    def _logits(self, slot: int, index: int) -> Array:
        tokens = self._tokens.get(slot, [])
        logits = np.zeros(self._signature.vocab_size, np.float32)
        logits[tokens[index] if 0 <= index < len(tokens) else END] = 30
        return logits


@dataclass
class Running:
    """A server that runs."""

    url: str
    engine: Engine
    interpreter: AlphabetInterpreter
    app: Any

    @property
    def v1(self) -> str:
        return f"{self.url}/v1"

    def idle(self, seconds: float = 10.0) -> bool:
        """Waits until no request is anywhere in the engine; False where that does not come."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            now = self.engine.metrics()
            if now.queued == now.running == now.prefilling == 0:
                return True
            time.sleep(0.005)
        return False

    def wait_for(self, seconds: float = 10.0, **gauges: int) -> None:
        """Waits until the engine's gauges have these values."""
        self.wait_until(
            lambda: all(getattr(self.engine.metrics(), name) == value for name, value in gauges.items()), seconds
        )

    def wait_until(self, holds: Callable[[], bool], seconds: float = 10.0) -> None:
        until = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < until, self.engine.metrics()
            time.sleep(0.005)


MODEL = Model(NAME, CONTEXT, SIGNATURE.vocab_size, CREATED, TOKENIZER, ChatTemplate(TEMPLATE))


@contextmanager
def running(**options: Any) -> Iterator[Running]:
    """A server on a free port, with what the options of `open_app` change."""
    with open_app(**options) as opened, listening(opened.app) as url:
        try:
            yield replace(opened, url=url)
        finally:
            opened.interpreter.go.set()


@contextmanager
def open_app(
    *,
    limits: RequestLimits | None = None,
    api_key: str | Sequence[str] | None = None,
    root_path: str = "",
    max_queue: int = 64,
    batch: int = SIGNATURE.batch,
    context: int = CONTEXT,
    role: Role = "both",
    prefill_from: Sequence[str] = (),
    prefill: Mapping[str, Any] | None = None,
    stream_interval: float = 0.0,
    hosts: Hosts | None = None,
    scripted: bool = False,
    prompt_cache_bytes: int = 0,
    shelf: Shelf | None = None,
    **model: Any,
) -> Iterator[Running]:
    """Open the application without a port. `model` has fields of `Model` to change, and `prefill` arguments of
    `PrefillServers`."""
    geometry = replace(GEOMETRY, max_context=context)
    signature = altered(SIGNATURE, batch=batch, geometry=geometry)
    interpreter = (ScriptedInterpreter if scripted else AlphabetInterpreter)(signature)
    model = {"max_context": context} | model
    session = Session(signature, interpreter, identity=lambda: IDENTITY)
    servers = PrefillServers(prefill_from, session.slot_format, **prefill or {}) if role == "decode" else None
    options = EngineOptions(max_queue=max_queue, prompt_cache_bytes=prompt_cache_bytes)
    with Engine(session, TOKENIZER, options, servers) as engine:
        app = create_app(
            engine,
            replace(MODEL, **model),
            limits,
            api_key,
            role=role,
            prefill_servers=servers,
            stream_interval=stream_interval,
            hosts=hosts,
            root_path=root_path,
            shelf=shelf,
        )
        try:
            yield Running("", engine, interpreter, app)
        finally:
            interpreter.go.set()


@contextmanager
def listening(app: Any, tls: Tls | None = None) -> Iterator[str]:
    """Serves an application in a thread; its address."""
    bound = bind("127.0.0.1", 0)
    server = uvicorn.Server(config_of(app, graceful_seconds=5, tls=tls))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([bound])))
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.005)
    try:
        yield url_of(bound, "http" if tls is None else "https")
    finally:
        server.should_exit = True
        thread.join()
