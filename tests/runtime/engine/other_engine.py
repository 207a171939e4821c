"""An engine that prefills for another one in the same process; slots go between them as bytes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sscc.runtime.serving.engine import Engine, EngineOptions, Outcome, PrefillError, Received, RemotePrefill, Request
from sscc.runtime.session.excerpt import Excerpt
from sscc.runtime.session.session import Session
from sscc.runtime.session.slot_message import SlotFormat


@dataclass
class OtherEngine:
    """Prefills with an engine.

    Attributes:
        reads: the messages of the engine that it prefills for.
        prompts: that were asked for.
    """

    engine: Engine
    reads: SlotFormat
    prompts: list[tuple[int, ...]] = field(default_factory=list)

    def start(self, prompt: Excerpt, deadline: float, done: Callable[[Outcome], None]) -> Callable[[], None]:
        self.prompts.append(tuple(prompt.tokens.tolist()))
        handle = self.engine.submit(Request(prompt, 1, keep_slot=True))

        def work() -> None:
            message = asyncio.run(handle.aslot())
            if message is None:
                done(PrefillError("it was cancelled"))
                return
            data = b"".join(self.engine.slot_format.pieces(message))
            handle.taken()
            assert len(data) == self.reads.nbytes(len(prompt))
            done(Received(self.reads.read(data, "it"), len(data), handle.cached_tokens))

        threading.Thread(target=work).start()
        return handle.cancel

    def close(self) -> None: ...


@contextmanager
def split(
    prefills: Session, decodes: Session, there: EngineOptions | None = None, here: EngineOptions | None = None
) -> Iterator[tuple[Engine, OtherEngine]]:
    """An engine for which another one prefills."""
    with Engine(prefills, options=there) as other:
        remote_prefill = OtherEngine(other, decodes.slot_format)
        _: RemotePrefill = remote_prefill
        with Engine(decodes, options=here, remote_prefill=remote_prefill) as engine:
            yield engine, remote_prefill
