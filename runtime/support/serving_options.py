"""Options of an engine and limits of requests, and the bounds of all numbers of serving. Nothing heavy is imported, so
that `sscc serve --help` imports no server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sscc.ir.option import check_options, option
from sscc.ir.sizes import parse_bytes

NEW_TOKENS = 64  # default length of an answer, if it fits
QUEUE = 64  # default number of requests that may wait for a slot
MAX_CHOICES = 128
"""Maximum number of answers to one request, over all its prompts."""

MOST_SECONDS = 7 * 24 * 3600.0
"""The longest time that any option or request may ask for: a week. Waits of threads overflow beyond some 292 years."""
MOST_TOKENS = 1 << 31
"""The largest number of tokens that any option or request may name."""
MOST_REQUESTS = 1 << 20
"""The largest number of requests that any option may name."""
MOST_BODY_BYTES = 1 << 34
"""The largest size of a request's body that an option may allow."""
MOST_MEMORY = 1 << 62
"""The largest size of memory that an option may allow, in bytes."""

Role = Literal["both", "prefill", "decode"]
"""Work of a server: prompts and answers; prompts for others; answers to prompts that others prefill."""

ENGINE, LIMITS, PREFILL = "engine", "limits", "remote prefill"
"""Headings of option groups in help."""


@dataclass(frozen=True)
class EngineOptions:
    """Options of an engine. A `max_queue` of None lets any number of requests wait.

    Raises UsageError for a value out of bounds.
    """

    max_queue: int | None = option(
        QUEUE, "requests that may wait for a slot", "N", group=LIMITS, least=0, most=MOST_REQUESTS
    )
    prefill_steps: int | None = option(
        None, "chunk steps between two decode steps", "N", group=ENGINE, default="those of one chunk in all layers",
        least=1, most=MOST_TOKENS,
    )  # fmt: skip
    prompt_cache_bytes: int | None = option(
        None, "host memory, of all ranks together, for reusing prompts with a common prefix (`sscc inspect` shows the "
        "bytes per token); 0 for none", "BYTES", group=ENGINE,
        default="2 GiB, or a tenth of the memory if that is less", flags=("--prompt-cache",), parse=parse_bytes,
        least=0, most=MOST_MEMORY,
    )  # fmt: skip
    prefill_ahead: int | None = option(
        None, "prompts that are prefilled remotely, or prefilled and waiting for a slot here", "N", group=PREFILL,
        default="the number of slots", least=1, most=MOST_REQUESTS,
    )  # fmt: skip
    prompt_folder: Path | None = option(
        None, "folder that keeps the prompt cache over restarts: read at the start, written at the end", "DIR",
        group=ENGINE,
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_options(self, as_flags=False)


@dataclass(frozen=True)
class RequestLimits:
    """Limits of a request.

    Attributes:
        max_choices: answers that one request may ask for, over all its prompts.
    """

    max_body: int = option(
        4 << 20, "largest body of a request: 4194304, 4M or 4MiB", "BYTES", group=LIMITS, parse=parse_bytes, least=1,
        most=MOST_BODY_BYTES,
    )  # fmt: skip
    max_prompt: int | None = option(
        None, "longest prompt", "TOKENS", group=LIMITS, default="as the context permits", least=1, most=MOST_TOKENS
    )
    max_new_tokens: int | None = option(
        None, "longest answer", "N", group=LIMITS, default="as the context permits", least=1, most=MOST_TOKENS
    )
    timeout: float | None = option(
        None, "seconds from the arrival of a request to its last token, at most a week", "S", group=LIMITS,
        default="no limit", least=0, most=MOST_SECONDS, exclusive=True,
    )  # fmt: skip
    max_choices: int = MAX_CHOICES
