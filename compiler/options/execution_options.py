"""Options of the commands that execute an artifact, of speculative prefill, and of speculative decoding."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.option import check_options, flag_of, option
from sscc.runtime.backends.registry import DEFAULT_BACKEND, backend_names

EXECUTION, SPECULATIVE, SPECULATION = "execution", "speculative prefill", "speculative decoding"
"""Headings of option groups in help."""
MOST_THREADS = 1 << 14
DEFAULT_KEEP = 0.3


class DraftOptionErrors(ErrorKind):
    NO_DRAFT = UsageError, "{option} applies to prompts that a draft shortens: give --draft, too"


@dataclass(frozen=True, kw_only=True)
class InterpreterOptions:
    """Options of an interpreter. Raises UsageError for a value out of bounds."""

    interpreter: str = option(
        DEFAULT_BACKEND, f"interpreter of the program: {' or '.join(backend_names())}", "NAME", group=EXECUTION,
        choices=backend_names,
    )  # fmt: skip
    threads: int | None = option(
        None, "threads of the interpreter on this machine", "N", group=EXECUTION,
        default="all CPUs that this process may use", least=1, most=MOST_THREADS, identity=False,
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, kw_only=True)
class ExecutionOptions(InterpreterOptions):
    """Options of a session. Raises UsageError for a value out of bounds."""

    checkpoint: Path | None = option(
        None, "checkpoint whose weights replace the artifact's, with the same shapes", "PATH", group=EXECUTION,
        default="the artifact's weights, or the checkpoint that it refers to",
    )  # fmt: skip
    digests: bool = option(
        True, "skip the digest check of the weights, which is otherwise done once, and again when files change",
        group=EXECUTION, flags=("--no-verify",), inverted=True,
    )  # fmt: skip
    transport: str | None = option(
        None, "transport between ranks: memory or sockets", "NAME", group=EXECUTION,
        default="memory if all ranks share it, else sockets",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TracedExecutionOptions(ExecutionOptions):
    """Options of a session with an optional trace."""

    trace: Path | None = option(
        None, "file for a Perfetto trace (ui.perfetto.dev) of threads, stages and requests, written on exit; - for "
        "stdout, with other output on stderr", "FILE", group=EXECUTION,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SpeculationOptions:
    """Options of speculative decoding."""

    speculate: str | None = option(
        None, "source of drafted tokens, of which a step verifies several where that is faster: lookup (of the newest "
        "tokens in prompt and answer), or the artifact of a smaller model with the same tokens", "DRAFT",
        group=SPECULATION, default="one token a step",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DraftOptions:
    """Options of speculative prefill. Raises UsageError for a value out of bounds, or an option without a draft."""

    draft: Path | None = option(
        None, "artifact of a smaller model that selects the parts of a prompt to prefill (speculative prefill), best "
        "compiled with --kv-rows indexed", "DRAFT.rdu", group=SPECULATIVE,
    )  # fmt: skip
    keep: float | None = option(
        None, "share of a prompt's 32-token chunks to prefill", "SHARE", group=SPECULATIVE,
        default=f"{DEFAULT_KEEP:g}", least=0, most=1, exclusive=True,
    )  # fmt: skip
    keep_delimiter: str | None = option(
        None, "text that replaces omitted parts, for a draft with another tokenizer", "TEXT", group=SPECULATIVE,
        default="a line of three dots",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_options(self)
        for name in ("keep", "keep_delimiter"):
            if self.draft is None and getattr(self, name) not in (None, ()):
                raise DraftOptionErrors.NO_DRAFT(option=flag_of(name))

    @property
    def share(self) -> float | None:
        """The share of a prompt to prefill; None without a draft."""
        return None if self.draft is None else self.keep or DEFAULT_KEEP
