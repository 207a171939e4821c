"""OpenAI's /v1/responses, without state: responses are not stored, so clients send the whole conversation every time.

A body is converted to the equivalent chat completion, and the answer is returned as output items.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Literal

from pydantic import Field, model_validator

from sscc.runtime.serving.engine import FINISH_REASONS, Completion, Piece
from sscc.runtime.serving.server.answers import Counts, Format, Json, counts_of, event
from sscc.runtime.serving.server.api_errors import ApiError, ApiKind, Http
from sscc.runtime.serving.server.openai import ChatBody, given
from sscc.runtime.serving.server.request_bodies import validated
from sscc.runtime.serving.server.request_fields import Parameters, Text
from sscc.runtime.support.serving_options import MOST_TOKENS
from sscc.runtime.text.chat_formats import AnswerReader, Call, Part, Thought

_UNSUPPORTED = Http(code="unsupported_parameter")
_NO_EFFECT = ("user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "service_tier")
_INCLUDED = "reasoning.encrypted_content"


class ResponseErrors(ApiKind):
    NOT_AN_ITEM = (
        "items of type {type!r} are not supported, only messages, function calls, their outputs and reasoning",
        Http(code="invalid_value"),
    )
    NOT_A_TOOL = "only tools of type 'function' are supported", _UNSUPPORTED
    STATELESS = "{param} is not supported: this server stores no responses", _UNSUPPORTED
    NOT_INCLUDED = "include is {value}, but this server cannot add that to a response", _UNSUPPORTED


class TextOptions(Parameters):
    """Format of the answer."""

    format: dict[str, Any] | None = None
    verbosity: Literal["medium"] | None = None


class ReasoningOptions(Parameters):
    """Options of reasoning. `summary` has no effect, because the answer contains the whole reasoning."""

    effort: Text | None = None
    summary: Text | None = None
    generate_summary: Text | None = None


class ResponsesBody(Parameters):
    """Body of POST /v1/responses."""

    input: Text | list[dict[str, Any]]
    model: Text | None = None
    instructions: Text | None = None
    max_output_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    temperature: float | None = None
    top_p: float | None = None
    stream: bool = False
    tools: list[dict[str, Any]] = []
    tool_choice: Text | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    text: TextOptions = TextOptions()
    reasoning: ReasoningOptions = ReasoningOptions()
    truncation: Literal["disabled"] = "disabled"
    include: list[Text] = []
    store: bool = False
    background: bool = False
    previous_response_id: Text | None = None
    conversation: Any = None
    prompt: Any = None
    max_tool_calls: int | None = None
    top_logprobs: int | None = Field(None, ge=0, le=0, description="0: logprobs are those of chat completions")
    stream_options: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _supported(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        given = {name: value for name, value in data.items() if value is not None and name not in _NO_EFFECT}
        for name in ("previous_response_id", "conversation", "prompt", "max_tool_calls"):
            if given.get(name):
                raise ResponseErrors.STATELESS(param=name)
        for name in ("store", "background"):
            if given.get(name) is True:
                raise ResponseErrors.STATELESS(param=name)
        if any(each != _INCLUDED for each in given.get("include") or ()):
            raise ResponseErrors.NOT_INCLUDED(param="include", value=given["include"])
        return given

    def chat(self) -> ChatBody:
        """Return the equivalent chat completion. Raises ApiError."""
        messages = [{"role": "system", "content": self.instructions}] if self.instructions else []
        asked: Json = {
            "messages": messages + _messages(self.input),
            "model": self.model,
            "max_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "stream": self.stream,
            "tools": [_chat_tool(tool) for tool in self.tools],
            "tool_choice": self.tool_choice,
            "parallel_tool_calls": self.parallel_tool_calls,
            "reasoning_effort": self.reasoning.effort,
            "response_format": self.text.format,
        }
        form = self.text.format
        if form is not None and form.get("type") == "json_schema":
            described = {name: value for name, value in form.items() if name != "type"}
            asked["response_format"] = {"type": "json_schema", "json_schema": described}
        if isinstance(self.tool_choice, dict) and "name" in self.tool_choice:
            asked["tool_choice"] = {"type": "function", "function": {"name": self.tool_choice["name"]}}
        return validated(given(asked), ChatBody)


def _chat_tool(tool: Json) -> Json:
    if tool.get("type") != "function":
        raise ResponseErrors.NOT_A_TOOL(param="tools")
    function = {name: tool[name] for name in ("name", "description", "parameters", "strict") if name in tool}
    return {"type": "function", "function": {name: value for name, value in function.items() if value is not None}}


def _messages(items: str | list[Json]) -> list[Json]:
    """Return the messages of a conversation's items. Consecutive items of the assistant are merged into one message."""
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    messages: list[Json] = []
    for item in items:
        kind = item.get("type", "message")
        if kind == "message" and item.get("role") != "assistant":
            messages.append({"role": item.get("role"), "content": _content(item.get("content"))})
        elif kind == "function_call_output":
            output = _content(item.get("output"))
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
        elif kind in ("message", "function_call", "reasoning"):
            last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
            if last is None or (kind == "reasoning" and len(last) > 1) or (kind == "message" and "content" in last):
                last = {"role": "assistant"}
                messages.append(last)
            if kind == "message":
                last["content"] = _content(item.get("content"))
            elif kind == "reasoning":
                parts = item.get("content") or item.get("summary") or []
                texts = [str(part.get("text", "")) for part in parts if isinstance(part, dict)]
                last["reasoning_content"] = "\n".join(texts)
            else:
                function = {"name": item.get("name"), "arguments": item.get("arguments", "")}
                last.setdefault("tool_calls", []).append({"id": item.get("call_id"), "function": function})
        else:
            raise ResponseErrors.NOT_AN_ITEM(param="input", type=str(kind))
    # Reasoning with nothing after it was cut off; chat templates do not support such a message.
    return [message for message in messages if set(message) != {"role", "reasoning_content"}]


_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")


def _content(content: Any) -> Any:
    """Return a content in the form of chat completions."""
    if not isinstance(content, list):
        return content
    parts = []
    for part in content:
        if isinstance(part, dict) and part.get("type") in _TEXTS:
            parts.append({"type": "text", "text": part.get("text")})
        else:
            parts.append(part)
    return parts


class ResponsesFormat(Format):
    """Format of /v1/responses.

    Args:
        body: the request.
        model: name of the model.
        reader: splits the answer into thoughts, text and tool calls.
        count: returns the number of tokens of a text.
    """

    def __init__(self, body: ResponsesBody, model: str, reader: AnswerReader, count: Callable[[str], int]) -> None:
        self._body, self._model, self._reader, self._count = body, model, reader, count
        self._id, self._created = f"resp_{uuid.uuid4().hex}", int(time.time())
        self._output: list[Json] = []
        self._open: str | None = None  # kind of the last item while it is incomplete
        self._number = 0
        self._began = False
        self._reason = "stop"

    def whole(self, completions: Sequence[Completion], per_prompt: int) -> Json:
        (done,) = completions
        self._reason = FINISH_REASONS[done.finish]
        for part in self._reader.push(done.text) + self._reader.finish():
            self._add(part)
        self._close()
        return self._response(self._status(), counts_of(completions, per_prompt))

    def events(self, index: int, piece: Piece, counts: Counts) -> list[bytes]:
        events: list[bytes] = []
        if not self._began:
            self._began = True
            response = self._response("in_progress", None)
            events += [self._event("response.created", response=response)]
            events += [self._event("response.in_progress", response=response)]
        parts = self._reader.push(piece.text) if piece.text else []
        if piece.finish is not None:
            self._reason = FINISH_REASONS[piece.finish]
            parts = parts + self._reader.finish()
        for part in parts:
            events += self._add(part)
        return events

    def closing(self, counts: Counts) -> list[bytes]:
        events = self._close()
        status = self._status()
        return [*events, self._event(f"response.{status}", response=self._response(status, counts))]

    def failing(self, error: ApiError) -> list[bytes]:
        response = self._response("failed", None)
        response["error"] = {"code": error.code or "server_error", "message": str(error)}
        return [self._event("response.failed", response=response)]

    def _status(self) -> str:
        return "incomplete" if self._reason == "length" else "completed"

    def _add(self, part: Part) -> list[bytes]:
        """Add a part to the output. Return its events."""
        if isinstance(part, Call):
            return self._close() + self._add_call(part)
        kind = "reasoning" if isinstance(part, Thought) else "message"
        events = [] if self._open == kind else self._close() + self._begin(kind)
        item = self._output[-1]
        item["content"][0]["text"] += part.text
        name = "response.reasoning_text.delta" if kind == "reasoning" else "response.output_text.delta"
        more: Json = {} if kind == "reasoning" else {"logprobs": []}
        return [*events, self._event(name, **self._place(0), delta=part.text, **more)]

    def _begin(self, kind: str) -> list[bytes]:
        self._open = kind
        if kind == "reasoning":
            part: Json = {"type": "reasoning_text", "text": ""}
            item: Json = {"type": "reasoning", "id": f"rs_{uuid.uuid4().hex}", "summary": [], "status": "in_progress"}
        else:
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            item = {"type": "message", "id": f"msg_{uuid.uuid4().hex}", "role": "assistant", "status": "in_progress"}
        self._output.append(item | {"content": []})
        added = self._event("response.output_item.added", output_index=len(self._output) - 1, item=self._output[-1])
        self._output[-1]["content"].append(part)
        return [added, self._event("response.content_part.added", **self._place(0), part=part)]

    def _close(self) -> list[bytes]:
        """Complete the last item if it is open. Return its events."""
        kind, self._open = self._open, None
        if kind is None:
            return []
        item = self._output[-1]
        item["status"] = "completed" if self._reason != "length" else "incomplete"
        part = item["content"][0]
        name = "response.reasoning_text.done" if kind == "reasoning" else "response.output_text.done"
        more: Json = {} if kind == "reasoning" else {"logprobs": []}
        return [
            self._event(name, **self._place(0), text=part["text"], **more),
            self._event("response.content_part.done", **self._place(0), part=part),
            self._event("response.output_item.done", output_index=len(self._output) - 1, item=item),
        ]

    def _add_call(self, call: Call) -> list[bytes]:
        item: Json = {
            "type": "function_call",
            "id": f"fc_{uuid.uuid4().hex}",
            "call_id": f"call_{uuid.uuid4().hex[:24]}",
            "name": call.name,
            "arguments": "",
            "status": "in_progress",
        }
        self._output.append(item)
        place = {"output_index": len(self._output) - 1}
        events = [self._event("response.output_item.added", **place, item=item)]
        item["arguments"], item["status"] = call.arguments, "completed"
        place["item_id"] = item["id"]
        return [
            *events,
            self._event("response.function_call_arguments.delta", **place, delta=call.arguments),
            self._event("response.function_call_arguments.done", **place, name=call.name, arguments=call.arguments),
            self._event("response.output_item.done", output_index=place["output_index"], item=item),
        ]

    def _place(self, content: int) -> Json:
        return {
            "item_id": self._output[-1]["id"],
            "output_index": len(self._output) - 1,
            "content_index": content,
        }

    def _event(self, kind: str, **fields: Any) -> bytes:
        made = event({"type": kind, "sequence_number": self._number, **fields}, kind)
        self._number += 1
        return made

    def _response(self, status: str, counts: Counts | None) -> Json:
        body = self._body
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": {},
            "model": self._model,
            "output": list(self._output),
            "parallel_tool_calls": body.parallel_tool_calls,
            "previous_response_id": None,
            "reasoning": {"effort": body.reasoning.effort, "summary": None},
            "store": False,
            "temperature": body.temperature,
            "text": {"format": body.text.format or {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools,
            "top_p": body.top_p,
            "truncation": body.truncation,
            "usage": None if counts is None else self._usage(counts),
            "user": None,
        }

    def _usage(self, counts: Counts) -> Json:
        thoughts = [item["content"][0]["text"] for item in self._output if item["type"] == "reasoning"]
        return {
            "input_tokens": counts.prompt,
            "input_tokens_details": {"cached_tokens": counts.cached},
            "output_tokens": counts.new,
            "output_tokens_details": {"reasoning_tokens": sum(map(self._count, thoughts))},
            "total_tokens": counts.prompt + counts.new,
        }


