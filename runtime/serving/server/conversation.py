"""The messages of a conversation and the tools that it offers, as OpenAI's chat completions have them."""

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
    NOT_A_CONTENT = "it must be a string or a list of parts of text"
    PART_NOT_TEXT = "a part of type {type!r} is not supported, only text is"
    NOT_A_TEXT_PART = "a part of type 'text' has a string `text` and nothing else"
    NO_CONTENT = "a message of role {role} has a content"
    CALLS_OF_OTHERS = "only an assistant calls tools, not a {role}"
    NOT_A_TOOL = "a tool is an object of type 'function' whose `function` has a name of letters, digits, _ . : / or -"
    NOT_PARAMETERS = "the parameters of a tool are a JSON Schema of type object"
    TOO_MANY_TOOLS = "{tools} tools, at most {most} are possible"
    TWO_TOOLS = "two tools are called {name!r}"
    NOT_A_CHOICE = "it must be 'none', 'auto', 'required', or an object that names a function"


def _text(value: Any) -> Any:
    """Return the text of a message's content: of parts of text, theirs joined by newlines."""
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
    """Return the type of a part of a message as an error shows it, which may be anything that JSON has."""
    return value if isinstance(value, str) else type(value).__name__


class CalledFunction(Parameters):
    """The function of a call that an assistant has made. `arguments` is a JSON object, as text."""

    name: Text
    arguments: Text | dict[str, Any] = ""

    def for_template(self) -> dict[str, Any]:
        """Return the function as templates read it: its arguments as an object, or as they are where they are none."""
        arguments: Any = self.arguments
        if isinstance(arguments, str):
            try:
                parsed = json.loads(arguments or "{}")
            except (ValueError, RecursionError):
                parsed = None
            arguments = parsed if isinstance(parsed, dict) else arguments
        return {"name": self.name, "arguments": arguments}


class MadeCall(Parameters):
    """A call that an assistant has made. `index` is what streams number it by."""

    id: Text | None = None
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


class Message(Parameters):
    """One message of a conversation. The role "developer" is OpenAI's newer name of "system"."""

    role: Role
    content: Annotated[Text | None, BeforeValidator(_text)] = None
    name: Text | None = Field(None, description="for templates that read it")
    reasoning_content: Text | None = Field(None, description="of an answer, for templates that read it")
    reasoning: Text | None = Field(None, description="another name of reasoning_content")
    tool_calls: list[MadeCall] = Field([], description="of an assistant")
    tool_call_id: Text | None = Field(None, description="the call that a tool answers")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        """Return a message without the nulls and empty lists with which clients send an answer back. An answer whose
        content is null is empty, unless it calls tools."""
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
        """Letters that a template may write of it."""
        calls = sum(len(call.function.name) + len(str(call.function.arguments)) for call in self.tool_calls)
        return len(self.content or "") + len(self.reasoning_content or self.reasoning or "") + calls

    def for_template(self) -> dict[str, Any]:
        """Return the message as templates read it."""
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
    """Return tools as they are, where they are such."""
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
"""Tools in OpenAI's form, which templates get as they came."""


def tool_of(tool: Mapping[str, Any]) -> Tool:
    """Return the tool of an object of `Tools`."""
    function = tool["function"]
    return Tool(function["name"], function.get("parameters") or {})


def _choice(value: Any) -> Any:
    """Return "none", "auto" or "required", or the name of a function in an object."""
    if value in ("none", "auto", "required"):
        return value
    function = value.get("function") if isinstance(value, dict) and value.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise refused(ChatMessageErrors.NOT_A_CHOICE)
    return {"name": name}


ToolChoice = Annotated[str | dict[str, str], PlainValidator(_choice), WithJsonSchema({})]
"""The choice of a tool: "none", "auto", "required", or the name of a function."""
