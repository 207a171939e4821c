"""Messages and tools of a conversation, in the form of OpenAI's chat completions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema, model_validator

from sscc.runtime.serving.server.request_fields import Parameters, Text, ValueKind, refused
from sscc.runtime.text.chat_formats import Tool

MOST_TOOLS = 128
_TOOL_NAME = re.compile(r"[\w.:/-]{1,128}")

Role = Literal["system", "developer", "user", "assistant", "tool"]


class ChatMessageErrors(ValueKind):
    NOT_A_CONTENT = "it must be a string or a list of text parts"
    PART_NOT_TEXT = "parts of type {type!r} are not supported, only text"
    NOT_A_TEXT_PART = "a part of type 'text' must have a string `text` and no other fields"
    NO_CONTENT = "a message of role {role} must have a content"
    CALLS_OF_OTHERS = "only messages of an assistant can have tool calls, not those of role {role}"
    NOT_A_TOOL = "a tool must be an object of type 'function', with a name of letters, digits, _ . : / or -"
    NOT_PARAMETERS = "the parameters of a tool must be a JSON Schema of type object"
    TOO_MANY_TOOLS = "there are {tools} tools, but at most {most} are allowed"
    TWO_TOOLS = "two tools have the name {name!r}"
    NOT_A_CHOICE = "it must be 'none', 'auto', 'required', or an object that names a function"


def _text(value: Any) -> Any:
    """Return the text of a message's content, with text parts joined by newlines."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list) or not all(isinstance(part, dict) for part in value):
        raise refused(ChatMessageErrors.NOT_A_CONTENT)
    for part in value:
        if part.get("type") != "text":
            raise refused(ChatMessageErrors.PART_NOT_TEXT, type=_type_name(part.get("type")))
        # `cache_control` asks another service to cache the part; it has no effect here.
        if set(part) - {"cache_control"} != {"type", "text"} or not isinstance(part["text"], str):
            raise refused(ChatMessageErrors.NOT_A_TEXT_PART)
    return "\n".join(part["text"] for part in value)


def _type_name(value: Any) -> str:
    """Return the type of a message part for an error message. It may be any JSON value."""
    return value if isinstance(value, str) else type(value).__name__


class CalledFunction(Parameters):
    """Function of a tool call. `arguments` is a JSON object, as text."""

    name: Text
    arguments: Text | dict[str, Any] = ""

    def for_template(self) -> dict[str, Any]:
        """Return the function in the form that chat templates read: arguments as an object, or unchanged if they are
        not one."""
        arguments: Any = self.arguments
        if isinstance(arguments, str):
            try:
                parsed = json.loads(arguments or "{}")
            except (ValueError, RecursionError):
                parsed = None
            arguments = parsed if isinstance(parsed, dict) else arguments
        return {"name": self.name, "arguments": arguments}


class MadeCall(Parameters):
    """A tool call of an assistant. `index` is its number in a stream."""

    id: Text | None = None
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


class Prediction(Parameters):
    """A text that the answer is expected to resemble."""

    type: Literal["content"] = "content"
    content: Annotated[Text, BeforeValidator(_text)]


class Message(Parameters):
    """One message of a conversation. The role "developer" is OpenAI's newer name for "system"."""

    role: Role
    content: Annotated[Text | None, BeforeValidator(_text)] = None
    name: Text | None = Field(None, description="for templates that read it")
    reasoning_content: Text | None = Field(None, description="reasoning of an answer, for templates that read it")
    reasoning: Text | None = Field(None, description="another name for reasoning_content")
    tool_calls: list[MadeCall] = Field([], description="tool calls of an assistant")
    tool_call_id: Text | None = Field(None, description="id of the call that a tool answers")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        """Drop nulls and empty lists, which clients include when they send an answer back. A null content of an
        assistant becomes "", unless the message has tool calls."""
        if not isinstance(data, dict):
            return data
        given = {name: value for name, value in data.items() if value is not None and value != []}
        if data.get("role") == "assistant" and "content" in data and "tool_calls" not in given:
            return {"content": ""} | given
        return given

    @model_validator(mode="after")
    def _whole(self) -> Message:
        if self.tool_calls and self.role != "assistant":
            raise refused(ChatMessageErrors.CALLS_OF_OTHERS, role=self.role)
        if self.content is None and not self.tool_calls:
            raise refused(ChatMessageErrors.NO_CONTENT, role=self.role)
        return self

    @property
    def size(self) -> int:
        """Maximum number of characters that a template may render from the message."""
        calls = sum(len(call.function.name) + len(str(call.function.arguments)) for call in self.tool_calls)
        return len(self.content or "") + len(self.reasoning_content or self.reasoning or "") + calls

    def for_template(self) -> dict[str, Any]:
        """Return the message in the form that chat templates read."""
        message: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": self.content,
            "name": self.name,
            "reasoning_content": self.reasoning_content if self.reasoning is None else self.reasoning,
            "tool_call_id": self.tool_call_id,
        }
        if self.tool_calls:
            message["tool_calls"] = [
                ({} if call.id is None else {"id": call.id})
                | {"type": call.type, "function": call.function.for_template()}
                for call in self.tool_calls
            ]
        return message


def _tools(value: Any) -> Any:
    """Check a list of tools, and return it unchanged."""
    if not isinstance(value, list):
        raise refused(ChatMessageErrors.NOT_A_TOOL)
    if len(value) > MOST_TOOLS:
        raise refused(ChatMessageErrors.TOO_MANY_TOOLS, tools=len(value), most=MOST_TOOLS)
    names: set[str] = set()
    for tool in value:
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
            raise refused(ChatMessageErrors.NOT_A_TOOL)
        assert isinstance(function, dict)
        parameters = function.get("parameters") or {}
        if not isinstance(parameters, dict) or parameters.get("type", "object") != "object":
            raise refused(ChatMessageErrors.NOT_PARAMETERS)
        if name in names:
            raise refused(ChatMessageErrors.TWO_TOOLS, name=name)
        names.add(name)
    return value


Tools = Annotated[list[dict[str, Any]], PlainValidator(_tools), WithJsonSchema({"type": "array", "items": {}})]
"""Tools in OpenAI's form, passed to chat templates unchanged."""


def tool_of(tool: Mapping[str, Any]) -> Tool:
    """Return the tool described by an element of `Tools`."""
    function = tool["function"]
    return Tool(function["name"], function.get("parameters") or {})


def _choice(value: Any) -> Any:
    """Return "none", "auto" or "required", or an object with the name of a function."""
    if value in ("none", "auto", "required"):
        return value
    function = value.get("function") if isinstance(value, dict) and value.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise refused(ChatMessageErrors.NOT_A_CHOICE)
    return {"name": name}


ToolChoice = Annotated[str | dict[str, str], PlainValidator(_choice), WithJsonSchema({})]
"""The choice of a tool: "none", "auto", "required", or the name of a function."""
