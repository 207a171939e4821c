"""An engine that prefills for another one in the same process; slots go between them as bytes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sscc.runtime.serving.engine import Elsewhere, Engine, EngineOptions, Outcome, PrefillError, Received, Request
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
        ticket = self.engine.submit(Request(prompt, 1, keep_slot=True))

        def work() -> None:
            message = asyncio.run(ticket.aslot())
            if message is None:
                done(PrefillError("it was cancelled"))
                return
            data = b"".join(self.engine.slot_format.pieces(message))
            ticket.taken()
            assert len(data) == self.reads.nbytes(len(prompt))
            done(Received(self.reads.read(data, "it"), len(data), ticket.cached_tokens))

        threading.Thread(target=work).start()
        return ticket.cancel

    def close(self) -> None: ...


@contextmanager
def split(
    prefills: Session, decodes: Session, there: EngineOptions | None = None, here: EngineOptions | None = None
) -> Iterator[tuple[Engine, OtherEngine]]:
    """An engine for which another one prefills."""
    with Engine(prefills, options=there) as other:
        elsewhere = OtherEngine(other, decodes.slot_format)
        _: Elsewhere = elsewhere
        with Engine(decodes, options=here, elsewhere=elsewhere) as engine:
            yield engine, elsewhere
