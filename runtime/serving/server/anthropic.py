"""Anthropic's /v1/messages. A body is converted to the equivalent chat completion, and the answer is returned as
content blocks.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, model_validator

from sscc.runtime.serving.engine import Completion, Finish, Piece
from sscc.runtime.serving.server.answers import Counts, Format, Json, counts_of, event
from sscc.runtime.serving.server.api_errors import ApiError, ApiKind, Http, anthropic_body
from sscc.runtime.serving.server.openai import ChatBody, given
from sscc.runtime.serving.server.request_bodies import validated
from sscc.runtime.serving.server.request_fields import Parameters, Text
from sscc.runtime.support.serving_options import MOST_TOKENS
from sscc.runtime.text.chat_formats import AnswerReader, Call, Part, Thought

PATH = "/v1/messages"
_INVALID = Http(code="invalid_value")
_NO_EFFECT = ("metadata", "service_tier", "container", "context_management", "output_config")


class BlockErrors(ApiKind):
    NOT_A_BLOCK = "blocks of type {type!r} are not supported, only text, tool_use, tool_result and thinking", _INVALID
    NOT_A_CONTENT = "content must be a string or a list of blocks", _INVALID
    NOT_A_TOOL = "only tools with a name and an input_schema are supported", _INVALID


class Turn(Parameters):
    """One message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: Text | list[dict[str, Any]]


class ToolChoiceObject(Parameters):
    """Choice of a tool: any, a named one, none, or the model's choice."""

    type: Literal["auto", "any", "tool", "none"]
    name: Text | None = None
    disable_parallel_tool_use: bool = False


class ThinkingOptions(Parameters):
    """Switch for reasoning, and its maximum length in tokens."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    display: Text | None = None


class MessagesBody(Parameters):
    """Body of POST /v1/messages."""

    messages: list[Turn] = Field(min_length=1, fail_fast=True)
    model: Text | None = None
    max_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    system: Text | list[dict[str, Any]] | None = None
    stop_sequences: list[Text] = []
    stream: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    tools: list[dict[str, Any]] = []
    tool_choice: ToolChoiceObject | None = None
    thinking: ThinkingOptions | None = None

    @model_validator(mode="before")
    @classmethod
    def _given(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if value is not None and name not in _NO_EFFECT}

    def chat(self) -> ChatBody:
        """Return the equivalent chat completion. Raises ApiError."""
        messages: list[Json] = []
        if self.system:
            messages.append({"role": "system", "content": _text(self.system)})
        for turn in self.messages:
            messages += _messages(turn)
        asked: Json = {
            "messages": messages,
            "model": self.model,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "stop": self.stop_sequences,
            "stream": self.stream,
            "tools": [_chat_tool(tool) for tool in self.tools],
        }
        choice = self.tool_choice
        if choice is not None:
            named = {"type": "function", "function": {"name": choice.name}}
            asked["tool_choice"] = {"any": "required", "tool": named}.get(choice.type, choice.type)
            asked["parallel_tool_calls"] = not choice.disable_parallel_tool_use
        if self.thinking is not None and self.thinking.type != "adaptive":
            asked["chat_template_kwargs"] = {"enable_thinking": self.thinking.type == "enabled"}
            asked["thinking_token_budget"] = self.thinking.budget_tokens
        return validated(given(asked), ChatBody)


def _chat_tool(tool: Json) -> Json:
    if not isinstance(tool.get("input_schema"), dict):
        raise BlockErrors.NOT_A_TOOL(param="tools")
    described = {} if tool.get("description") is None else {"description": tool["description"]}
    function = {"name": tool.get("name"), **described, "parameters": tool["input_schema"]}
    return {"type": "function", "function": function}


def _text(content: Any) -> str:
    """Return the text of a content, with blocks joined by newlines."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise BlockErrors.NOT_A_CONTENT(param="messages")
    for block in content:
        if block.get("type") != "text" or not isinstance(block.get("text"), str):
            raise BlockErrors.NOT_A_BLOCK(param="messages", type=str(block.get("type")))
    return "\n".join(block["text"] for block in content)


def _messages(turn: Turn) -> list[Json]:
    """Return the messages of a turn. Tool results become separate messages before the user's text."""
    if isinstance(turn.content, str):
        return [{"role": turn.role, "content": turn.content}]
    results: list[Json] = []
    texts: list[Json] = []
    calls: list[Json] = []
    thoughts: list[str] = []
    for block in turn.content:
        kind = block.get("type")
        if kind == "text":
            texts.append(block)
        elif kind == "tool_use" and turn.role == "assistant":
            arguments = json.dumps(block.get("input", {}), ensure_ascii=False)
            calls.append({"id": block.get("id"), "function": {"name": block.get("name"), "arguments": arguments}})
        elif kind == "tool_result" and turn.role == "user":
            content = _text(block.get("content") or "")
            results.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content})
        elif kind == "thinking" and turn.role == "assistant":
            thoughts.append(str(block.get("thinking", "")))
        elif kind != "redacted_thinking":
            raise BlockErrors.NOT_A_BLOCK(param="messages", type=str(kind))
    if not texts and not calls and results:
        return results
    message: Json = {"role": turn.role, "content": _text(texts) if texts or not calls else None}
    if calls:
        message["tool_calls"] = calls
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    return [*results, message]


class MessagesFormat(Format):
    """Format of /v1/messages.

    Args:
        model: name of the model.
        reader: splits the answer into thoughts, text and tool calls.
        stops: stop strings of the request.
    """

    def __init__(self, model: str, reader: AnswerReader, stops: Sequence[str] = ()) -> None:
        self._model, self._reader, self._stops = model, reader, stops
        self._id = f"msg_{uuid.uuid4().hex}"
        self._blocks: list[Json] = []
        self._open: str | None = None  # kind of the last block while it is incomplete
        self._finish: Finish | None = None
        self._began = False

    def whole(self, completions: Sequence[Completion], per_prompt: int) -> Json:
        (done,) = completions
        self._finish = done.finish
        for part in self._reader.push(done.text) + self._reader.finish():
            self._add(part)
        usage = _usage(counts_of(completions, per_prompt))
        return self._message(usage) | {"content": self._blocks} | self._stopped()

    def events(self, index: int, piece: Piece, counts: Counts) -> list[bytes]:
        events: list[bytes] = []
        if not self._began:
            self._began = True
            usage = _usage(Counts(counts.prompt, 0, counts.cached))
            events.append(_event("message_start", message=self._message(usage)))
        parts = self._reader.push(piece.text) if piece.text else []
        if piece.finish is not None:
            self._finish = piece.finish
            parts = parts + self._reader.finish()
        for part in parts:
            events += self._add(part)
        return events

    def closing(self, counts: Counts) -> list[bytes]:
        return [
            *self._close(),
            _event("message_delta", delta=self._stopped(), usage=_usage(counts)),
            _event("message_stop"),
        ]

    def failing(self, error: ApiError) -> list[bytes]:
        return [event(anthropic_body(error), "error")]

    def _add(self, part: Part) -> list[bytes]:
        """Add a part to the blocks. Return its events."""
        if isinstance(part, Call):
            empty = {"type": "tool_use", "id": f"toolu_{uuid.uuid4().hex[:24]}", "name": part.name, "input": {}}
            events = [*self._close(), *self._begin("tool_use", empty)]
            self._blocks[-1] = empty | {"input": json.loads(part.arguments)}
            return [*events, self._delta({"type": "input_json_delta", "partial_json": part.arguments}), *self._close()]
        kind, field = ("thinking", "thinking") if isinstance(part, Thought) else ("text", "text")
        events = []
        if self._open != kind:
            signed = {"signature": ""} if kind == "thinking" else {}
            events = [*self._close(), *self._begin(kind, {"type": kind, field: "", **signed})]
        self._blocks[-1][field] += part.text
        return [*events, self._delta({"type": f"{kind}_delta", field: part.text})]

    def _begin(self, kind: str, block: Json) -> list[bytes]:
        self._open = kind
        self._blocks.append(dict(block))
        return [_event("content_block_start", index=len(self._blocks) - 1, content_block=block)]

    def _delta(self, delta: Json) -> bytes:
        return _event("content_block_delta", index=len(self._blocks) - 1, delta=delta)

    def _close(self) -> list[bytes]:
        if self._open is None:
            return []
        self._open = None
        return [_event("content_block_stop", index=len(self._blocks) - 1)]

    def _stopped(self) -> Json:
        """Return the stop reason. With several stop strings it is not known which of them ended the message."""
        if any(block["type"] == "tool_use" for block in self._blocks) and self._finish in ("eos", "stop"):
            return {"stop_reason": "tool_use", "stop_sequence": None}
        if self._finish == "stop" and self._stops:
            return {"stop_reason": "stop_sequence", "stop_sequence": self._stops[0] if len(self._stops) == 1 else None}
        reason = "end_turn" if self._finish in ("eos", "stop") else "max_tokens"
        return {"stop_reason": reason, "stop_sequence": None}

    def _message(self, usage: Json) -> Json:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }


def _event(name: str, **fields: Any) -> bytes:
    return event({"type": name, **fields}, name)


def _usage(counts: Counts) -> Json:
    return {
        "input_tokens": counts.prompt - counts.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": counts.cached,
        "output_tokens": counts.new,
    }
