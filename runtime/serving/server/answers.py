"""Answers of /v1/completions and /v1/chat/completions, whole or in chunks, from the engine's results."""

from __future__ import annotations

import json
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sscc.runtime.serving.engine import FINISH_REASONS, Completion, Finish, Piece
from sscc.runtime.serving.server.api_errors import ApiError, ServerErrors, timed_out
from sscc.runtime.serving.server.openai import StreamedUsage
from sscc.runtime.session.samplers import TokenLogprobs
from sscc.runtime.text.chat_formats import AnswerReader, Call, Part, Text, Thought
from sscc.runtime.text.token_text import Offsets, TokenBytes, as_text

Json = dict[str, Any]
DONE = b"data: [DONE]\n\n"
LEAST_LOGPROB = -9999.0
"""Finite value for minus infinity, which JSON cannot express; the value that OpenAI uses."""


def failure(finish: Finish | None, tokens: int, timeout: float | None) -> ApiError | None:
    """Return the error for a finish reason; None if it is a complete answer, or None."""
    if finish is None or finish in FINISH_REASONS:
        return None
    if finish == "timeout":
        return timed_out(timeout or 0.0, tokens)
    if finish == "cancelled":
        return ServerErrors.CLOSING()
    return ServerErrors.ENGINE_FAILED()


@dataclass(frozen=True)
class Counts:
    """Token counts of an answer or a request: prompt tokens, generated tokens, and cached tokens of the prompt."""

    prompt: int
    new: int
    cached: int
    drafted: int = 0
    accepted: int = 0


class Format(ABC):
    """Conversion of the results of a request to the body of the answer, whole or as server-sent events."""

    @abstractmethod
    def whole(self, completions: Sequence[Completion], per_prompt: int) -> Json:
        """Return the body of an answer without streaming."""

    @abstractmethod
    def events(self, index: int, piece: Piece, counts: Counts) -> list[bytes]:
        """Return the events of the next piece of answer `index`. `counts` are the counts of that answer so far."""

    @abstractmethod
    def closing(self, counts: Counts) -> list[bytes]:
        """Return the events after all answers."""

    @abstractmethod
    def failing(self, error: ApiError) -> list[bytes]:
        """Return the events of an error, which end the stream."""


def counts_of(completions: Sequence[Completion], per_prompt: int) -> Counts:
    """Return the counts of a request. A prompt is counted once, however many answers it has."""
    prompts = completions[::per_prompt]
    return Counts(
        sum(done.prompt_tokens for done in prompts),
        sum(len(done.tokens) for done in completions),
        sum(done.cached_tokens for done in prompts),
        sum(done.drafted_tokens for done in completions),
        sum(done.accepted_tokens for done in completions),
    )


def event(data: Json, name: str | None = None) -> bytes:
    """Return one server-sent event."""
    head = b"" if name is None else f"event: {name}\n".encode()
    return head + b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


class ChoicesFormat(Format):
    """Common part of OpenAI's /v1/completions and /v1/chat/completions: bodies with a list of choices.

    Args:
        model: name of the model.
        spell: returns the bytes of a token, for logprobs.
        choices: total number of answers.
        alternatives: number of alternatives in the logprobs; None for no logprobs.
        usage: chunks that contain the usage: "last" the last one (it is null in the others), "each" every chunk, with
            the usage of its answer so far.
    """

    prefix: str
    whole_object: str
    chunk_object: str

    def __init__(
        self,
        model: str,
        spell: TokenBytes,
        choices: int,
        alternatives: int | None = None,
        usage: StreamedUsage = "none",
    ) -> None:
        self._id = f"{self.prefix}-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._model = model
        self._spell = spell
        self._with_logprobs = alternatives is not None
        self._offsets = [Offsets(spell) for _ in range(choices)]
        self._usage = usage
        self._opened: set[int] = set()

    def whole(self, completions: Sequence[Completion], per_prompt: int) -> Json:
        choices = [self._choice(index, done) for index, done in enumerate(completions)]
        return self._body(self.whole_object, choices) | {"usage": usage_of(counts_of(completions, per_prompt))}

    def events(self, index: int, piece: Piece, counts: Counts) -> list[bytes]:
        reason = None if piece.finish is None else FINISH_REASONS[piece.finish]
        chunks = [self._body(self.chunk_object, [delta]) for delta in self._deltas(index, piece, reason)]
        opening = [] if index in self._opened else self._opening(index)
        self._opened.add(index)
        nothing_new = Counts(counts.prompt, 0, counts.cached)
        return [self._chunk(chunk, nothing_new) for chunk in opening] + [self._chunk(chunk, counts) for chunk in chunks]

    def closing(self, counts: Counts) -> list[bytes]:
        if self._usage == "none":
            return [DONE]
        return [event(self._body(self.chunk_object, []) | {"usage": usage_of(counts)}), DONE]

    def failing(self, error: ApiError) -> list[bytes]:
        return [event(error.body()), DONE]

    def _chunk(self, chunk: Json, counts: Counts) -> bytes:
        if self._usage == "none":
            return event(chunk)
        return event(chunk | {"usage": usage_of(counts) if self._usage == "each" else None})

    def _opening(self, index: int) -> list[Json]:
        """Return the chunks before the first one of an answer."""
        return []

    @abstractmethod
    def _choice(self, index: int, done: Completion) -> Json:
        """Return the choice of an answer without streaming."""

    @abstractmethod
    def _deltas(self, index: int, piece: Piece, reason: str | None) -> list[Json]: ...

    def _body(self, kind: str, choices: list[Json]) -> Json:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model, "choices": choices}


class CompletionFormat(ChoicesFormat):
    """Format of /v1/completions. A chunk has the same form as the whole answer.

    Args:
        echoed: text and tokens of the prompt for each answer; empty if the answers do not repeat their prompts.
        answers: False for the prompts only; the engine then still generates one token for each, which is dropped.
    """

    prefix, whole_object, chunk_object = "cmpl", "text_completion", "text_completion"

    def __init__(
        self,
        model: str,
        spell: TokenBytes,
        choices: int,
        alternatives: int | None = None,
        usage: StreamedUsage = "none",
        *,
        echoed: Sequence[tuple[str, Sequence[int]]] = (),
        answers: bool = True,
    ) -> None:
        super().__init__(model, spell, choices, alternatives, usage)
        self._answers = answers
        self._echoed = dict(enumerate(echoed))  # by answer, until the answer has begun

    def whole(self, completions: Sequence[Completion], per_prompt: int) -> Json:
        counts = self._counted(counts_of(completions, per_prompt))
        return super().whole(completions, per_prompt) | {"usage": usage_of(counts)}

    def events(self, index: int, piece: Piece, counts: Counts) -> list[bytes]:
        return super().events(index, piece, self._counted(counts))

    def closing(self, counts: Counts) -> list[bytes]:
        return super().closing(self._counted(counts))

    def _counted(self, counts: Counts) -> Counts:
        return counts if self._answers else replace(counts, new=0)

    def _deltas(self, index: int, piece: Piece, reason: str | None) -> list[Json]:
        text, entries, prompt = piece.text, piece.logprobs, None
        if not self._answers:
            text, entries, reason = "", (), reason and "length"
        if piece.tokens or reason:
            prompt = self._echoed.pop(index, None)
        if not (text or entries or reason or prompt):
            return []
        echo, tokens = prompt or ("", ())
        scored: list[_Scored] = [(tokens[0], None), *_by_token(piece.prompt_logprobs)] if tokens else []
        figures = self._logprobs(index, [*scored, *_by_token(entries)]) if self._with_logprobs else None
        return [{"index": index, "text": echo + text, "logprobs": figures, "finish_reason": reason}]

    def _choice(self, index: int, done: Completion) -> Json:
        piece = Piece(done.tokens, done.text, done.logprobs, done.finish, done.prompt_logprobs)
        (choice,) = self._deltas(index, piece, FINISH_REASONS[done.finish])
        return choice

    def _logprobs(self, index: int, scored: Sequence[_Scored]) -> Json:
        return {
            "tokens": [as_text(self._spell(token)) for token, _ in scored],
            "token_logprobs": [None if entry is None else _finite(entry.logprob) for _, entry in scored],
            "top_logprobs": [None if entry is None else self._alternatives(entry) for _, entry in scored],
            "text_offset": [self._offsets[index].next(token) for token, _ in scored],
        }

    def _alternatives(self, entry: TokenLogprobs) -> dict[str, float]:
        """Return the top tokens and the picked one by their texts. For tokens with the same text the most likely one
        counts."""
        by_text: dict[str, float] = {}
        for token, logprob in (*entry.top, (entry.token, entry.logprob)):
            by_text.setdefault(as_text(self._spell(token)), _finite(logprob))
        return by_text


class ChatFormat(ChoicesFormat):
    """Format of /v1/chat/completions. The first chunk of an answer contains the role.

    Args:
        readers: split the answers into thoughts, text and tool calls; one for each answer.
        with_thoughts: True to include thoughts in the answers.
        short_ids: True for call ids of nine letters and digits, which some templates require.
    """

    prefix, whole_object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(
        self,
        model: str,
        spell: TokenBytes,
        readers: Sequence[AnswerReader],
        alternatives: int | None = None,
        usage: StreamedUsage = "none",
        *,
        with_thoughts: bool = True,
        short_ids: bool = False,
    ) -> None:
        super().__init__(model, spell, len(readers), alternatives, usage)
        self._readers = readers
        self._with_thoughts = with_thoughts
        self._short_ids = short_ids
        self._calls = [0] * len(readers)

    def _opening(self, index: int) -> list[Json]:
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return [self._body(self.chunk_object, [choice])]

    def parts(self, index: int, text: str, *, last: bool) -> list[Part]:
        """Return the parts that are complete after more text of an answer."""
        reader = self._readers[index]
        parts = reader.push(text) if text else []
        return [part for part in parts + (reader.finish() if last else []) if self._is_sent(part)]

    def _is_sent(self, part: Part) -> bool:
        return self._with_thoughts or not isinstance(part, Thought)

    def _choice(self, index: int, done: Completion) -> Json:
        reason = FINISH_REASONS[done.finish]
        parts = self.parts(index, done.text, last=True)
        content = "".join(part.text for part in parts if isinstance(part, Text))
        reasoning = "".join(part.text for part in parts if isinstance(part, Thought))
        calls = [self._call(part) for part in parts if isinstance(part, Call)]
        message: Json = {"role": "assistant", "content": content or (None if calls else "")}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = calls
            reason = "tool_calls" if reason == "stop" else reason
        return {"index": index, "message": message, "logprobs": self._logprobs(done.logprobs), "finish_reason": reason}

    def _deltas(self, index: int, piece: Piece, reason: str | None) -> list[Json]:
        deltas: list[Json] = []
        for part in self.parts(index, piece.text, last=reason is not None):
            if isinstance(part, Call):
                call: Json = {"index": self._calls[index], **self._call(part)}
                function = call.pop("function")
                deltas.append({"tool_calls": [call | {"function": function | {"arguments": ""}}]})
                rest = {"index": call["index"], "function": {"arguments": part.arguments}}
                deltas.append({"tool_calls": [rest]})
                self._calls[index] += 1
            else:
                deltas.append({"reasoning_content" if isinstance(part, Thought) else "content": part.text})
        if not deltas and (piece.logprobs or reason is not None):
            deltas.append({})
        if reason == "stop" and self._calls[index]:
            reason = "tool_calls"
        last = len(deltas) - 1
        return [
            {
                "index": index,
                "delta": delta,
                "logprobs": self._logprobs(piece.logprobs if number == 0 else ()),
                "finish_reason": reason if number == last else None,
            }
            for number, delta in enumerate(deltas)
        ]

    def _call(self, call: Call) -> Json:
        name = uuid.uuid4().hex
        return {
            "id": name[:9] if self._short_ids else f"call_{name[:24]}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }

    def _logprobs(self, entries: Sequence[TokenLogprobs]) -> Json | None:
        if not self._with_logprobs:
            return None
        return {
            "content": [
                self._entry(entry.token, entry.logprob) | {"top_logprobs": [self._entry(*one) for one in entry.top]}
                for entry in entries
            ],
            "refusal": None,
        }

    def _entry(self, token: int, logprob: float) -> Json:
        spelling = self._spell(token)
        return {"token": as_text(spelling), "logprob": _finite(logprob), "bytes": list(spelling)}


def usage_of(counts: Counts) -> Json:
    """Return OpenAI's `usage`, with the numbers of drafted tokens that are part of the answer and that are not, if any
    were drafted."""
    usage = {
        "prompt_tokens": counts.prompt,
        "completion_tokens": counts.new,
        "total_tokens": counts.prompt + counts.new,
        "prompt_tokens_details": {"cached_tokens": counts.cached},
    }
    if not counts.drafted:
        return usage
    drafts = {
        "accepted_prediction_tokens": counts.accepted,
        "rejected_prediction_tokens": counts.drafted - counts.accepted,
    }
    return usage | {"completion_tokens_details": drafts}


_Scored = tuple[int, TokenLogprobs | None]
"""A token and its logprobs. The first token of a prompt has none."""


def _by_token(entries: Sequence[TokenLogprobs]) -> list[_Scored]:
    return [(entry.token, entry) for entry in entries]


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)
