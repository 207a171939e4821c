"""Request bodies of OpenAI's protocol, as far as this engine can honour it, with the extra fields of vLLM.

Every parameter is honoured, or refused by name. The only ignored parameters are those that do not affect the answer
(NO_EFFECT). Parameters of unsupported features (UNSUPPORTED) are accepted only with values that do not use the feature.
null always means the default.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    TypeAdapter,
    WithJsonSchema,
    model_validator,
)

from sscc.runtime.serving.server.api_errors import ApiKind, Http
from sscc.runtime.serving.server.conversation import Message, Prediction, ToolChoice, Tools, tool_of
from sscc.runtime.serving.server.request_fields import Parameters, Text, ValueKind, refused, whole_characters
from sscc.runtime.session.generation_config import overriding
from sscc.runtime.session.sampling import Sampling
from sscc.runtime.support.serving_options import MAX_CHOICES, MOST_TOKENS
from sscc.runtime.text.chat_formats import Tool
from sscc.runtime.text.grammar import Grammar

MAX_LOGPROBS = 20
MAX_STOPS = 16
MAX_STOP_LENGTH = 1024
MAX_BIASES = 1024
MAX_NAMED_TOKENS = 1 << 16  # in allowed_token_ids and stop_token_ids
MAX_DIGITS = 18  # of a token in logit_bias, so that `int` is cheap
DEFAULT_COMPLETION_TOKENS = 16  # as in OpenAI's /v1/completions

NO_EFFECT = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"})
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "prompt_cache_options": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "verbosity": (),
    "web_search_options": (),
    # vLLM's
    "bad_words": ([],),
    "chat_template": (),
    "early_stopping": (False,),
    "length_penalty": (1,),
    "prompt_logprobs": (),
    "spaces_between_special_tokens": (True,),
    "use_beam_search": (False,),
}
"""Parameters of unsupported features, and the values of each that do not use the feature."""


MOST_TOP_K = 2**31 - 1
MOST_REPETITION_PENALTY = 1000.0
StreamedUsage = Literal["none", "last", "each"]
class ApiValueErrors(ValueKind):
    NO_OBFUSCATION = "include_obfuscation is not supported by this server"
    STOP_NOT_TEXTS = "it must be a string or a list of strings"
    TOO_MANY_STOPS = "there are {stops} stop strings, but at most {most} are allowed"
    STOP_TOO_LONG = "a stop string may have at most {most} characters"
    TOO_MANY_BIASES = "it has {biases} tokens, but at most {most} are allowed"
    BIAS_NOT_OF_TOKEN = "{name!a} is not a token, which must be a non-negative integer"
    BIAS_OF_HUGE_TOKEN = "token {name} is out of range: it has {digits} digits"
    BIAS_OUT_OF_RANGE = "the bias of token {token} must be between -100 and 100"
    NO_PROMPT = "it contains no prompt"
    NOT_A_PROMPT = "it must be a string, a list of tokens, or a list of either"
    TOO_MANY_TOKENS = "it has {tokens} tokens, but at most {most} are allowed"
    NOT_INTEGERS = "it must be a list of integers"
    HUGE_INTEGERS = "its integers must be between -{most} and {most}"


class ApiParameterErrors(ApiKind):
    TWO_GRAMMARS = "{names} cannot be combined: use one of them to constrain the answer"
    NO_SCHEMA = "{param} has no schema"
    SCHEMA_NOT_JSON = "{param} must be a JSON Schema, or a string that contains one"
    CHOICE_WITHOUT_TOOLS = "tool_choice must name one of the tools, and needs tools"
    NOTHING_ASKED = "max_tokens is 0, which is only allowed with echo"
    CONTINUES_WITH_PROMPT = "continue_final_message needs add_generation_prompt = false"
    UNSUPPORTED = "this server does not support parameter {param!r}{allowed_hint}", Http(code="unsupported_parameter")
    STREAM_OPTIONS_WITHOUT_STREAM = "stream_options needs stream = true"
    BEST_OF = (
        "best_of must equal n, which is {n}, got {best_of}",
        Http(code="unsupported_parameter"),
    )
    TOP_LOGPROBS_WITHOUT_LOGPROBS = "top_logprobs needs logprobs = true"
    TWO_LIMITS = "max_tokens is {max_tokens} but max_completion_tokens is {max_completion_tokens}: give one of them"


def _refuse_unsupported(data: Any) -> Any:
    """Return the parameters without nulls and ignored ones. Raises ApiError for the use of an unsupported feature."""
    if not isinstance(data, Mapping):
        return data
    parameters = {name: value for name, value in data.items() if value is not None and name not in NO_EFFECT}
    for name in [name for name in parameters if name in UNSUPPORTED]:
        if parameters.pop(name) not in UNSUPPORTED[name]:
            allowed = " or ".join(json.dumps(value) for value in UNSUPPORTED[name])
            hint = f" (only {allowed} is accepted)" if allowed else ""
            raise ApiParameterErrors.UNSUPPORTED(param=name, allowed_hint=hint)
    return parameters


class StreamOptions(Parameters):
    include_usage: bool = False
    continuous_usage_stats: bool = Field(False, description="vLLM's: with include_usage, usage in every chunk")
    include_obfuscation: bool = False  # OpenAI's padding of streams against traffic analysis; this server never pads

    @model_validator(mode="after")
    def _no_obfuscation(self) -> StreamOptions:
        if self.include_obfuscation:
            raise refused(ApiValueErrors.NO_OBFUSCATION)
        return self


# --------------------------------------------------------------------------------------------- common parameters


def _stops(value: Any) -> Any:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise refused(ApiValueErrors.STOP_NOT_TEXTS)
    stops = [stop for stop in stops if stop]  # empty strings have no effect
    if len(stops) > MAX_STOPS:
        raise refused(ApiValueErrors.TOO_MANY_STOPS, stops=len(stops), most=MAX_STOPS)
    if max(map(len, stops), default=0) > MAX_STOP_LENGTH:
        raise refused(ApiValueErrors.STOP_TOO_LONG, most=MAX_STOP_LENGTH)
    return stops


def _few_biases(value: Any) -> Any:
    if isinstance(value, dict) and len(value) > MAX_BIASES:
        raise refused(ApiValueErrors.TOO_MANY_BIASES, biases=len(value), most=MAX_BIASES)
    return value


def _biases(value: dict[str, float]) -> dict[str, float]:
    for token, addend in value.items():
        if not (token.isascii() and token.isdecimal()):
            raise refused(ApiValueErrors.BIAS_NOT_OF_TOKEN, name=token)
        if len(token) > MAX_DIGITS:
            raise refused(ApiValueErrors.BIAS_OF_HUGE_TOKEN, name=token, digits=len(token))
        if not -100 <= addend <= 100:
            raise refused(ApiValueErrors.BIAS_OUT_OF_RANGE, token=int(token))
    return value


# ------------------------------------------------------------------------------------------- structured answers


class JsonSchemaFormat(Parameters):
    """OpenAI's `json_schema`. The answer is constrained whatever the value of `strict`."""

    name: Text
    description: Text | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Parameters):
    """OpenAI's `response_format`. As in llama.cpp, json_object may have a `schema`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")

    def grammar(self, param: str) -> Grammar | None:
        """Return the grammar of the answer; None for any text. Raises ApiError."""
        if self.type == "text":
            return None
        schema = self.schema_ if self.json_schema is None else self.json_schema.schema_
        if self.type == "json_object":
            return Grammar.json_object() if schema is None else _schema_grammar(schema, param)
        if schema is None:
            raise ApiParameterErrors.NO_SCHEMA(param=param)
        return _schema_grammar(schema, param)


class StructuredOutputs(Parameters):
    """vLLM's `structured_outputs`."""

    json_: dict[str, Any] | bool | Text | None = Field(None, alias="json")
    regex: Text | None = None
    choice: list[Text] | None = None
    grammar: Text | None = None
    json_object: bool | None = None


def _schema_grammar(schema: Any, param: str) -> Grammar:
    """Return the grammar of a JSON Schema, or of a string that contains one. Raises ApiError, UsageError."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError):
            schema = None
    if not isinstance(schema, dict | bool):
        raise ApiParameterErrors.SCHEMA_NOT_JSON(param=param)
    try:
        return Grammar.json_schema(schema)
    except RecursionError:
        raise ApiParameterErrors.SCHEMA_NOT_JSON(param=param) from None


_GRAMMARS: dict[str, Callable[[Any, str], Grammar]] = {
    "json": _schema_grammar,
    "regex": lambda pattern, param: Grammar.regex(pattern),
    "choice": lambda texts, param: Grammar.choice(texts),
    "grammar": lambda text, param: Grammar.context_free(text),
}
"""Converters of vLLM's kinds of grammars. Their arguments are the value and the name of its parameter."""


def _few_tokens(tokens: list[int] | None) -> list[int] | None:
    if tokens is not None and len(tokens) > MAX_NAMED_TOKENS:
        raise refused(ApiValueErrors.TOO_MANY_TOKENS, tokens=len(tokens), most=MAX_NAMED_TOKENS)
    return tokens


class GenerationBody(Parameters):
    """Common parameters of both endpoints. `model` names the served model, and is optional. The ranges of sampling
    parameters are those of `Sampling`."""

    model: str | None = None
    max_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    temperature: float | None = Field(None, ge=0, le=2, description="0 is greedy; default: the model's")
    top_p: float | None = Field(None, ge=0, le=1, description="0 is greedy; default: the model's")
    n: int = Field(1, ge=1, le=MAX_CHOICES)
    stop: Annotated[list[Text], BeforeValidator(_stops)] = []
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    logit_bias: Annotated[dict[str, float], BeforeValidator(_few_biases), AfterValidator(_biases)] = {}
    stream: bool = False
    stream_options: StreamOptions | None = None
    # vLLM's
    top_k: int | None = Field(None, ge=-1, le=MOST_TOP_K, description="0 and -1 keep every token; default: the model's")
    min_p: float | None = Field(None, ge=0, le=1, description="default: the model's")
    repetition_penalty: float | None = Field(
        None, gt=0, le=MOST_REPETITION_PENALTY, description="default: the model's"
    )
    ignore_eos: bool = False
    min_tokens: int = Field(0, ge=0, le=MOST_TOKENS, description="number of tokens before which the answer cannot end")
    stop_token_ids: Annotated[list[int], AfterValidator(_few_tokens)] = []
    allowed_token_ids: Annotated[list[int] | None, AfterValidator(_few_tokens)] = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = Field(True, description="false: include special tokens in the text")
    truncate_prompt_tokens: int | None = Field(
        None, ge=-1, le=MOST_TOKENS, description="keep only the last tokens of the prompt, this many; -1: all that fit"
    )
    add_special_tokens: bool | None = Field(None, description="add the tokenizer's special tokens around a text")
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | bool | Text | None = None
    guided_regex: Text | None = None
    guided_choice: list[Text] | None = None
    guided_grammar: Text | None = None
    # llama.cpp's
    repeat_penalty: float | None = Field(None, gt=0, le=MOST_REPETITION_PENALTY, description="repetition_penalty")
    grammar: Text | None = Field(None, description="GBNF")
    json_schema: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _supported(cls, data: Any) -> Any:
        return _refuse_unsupported(data)

    @model_validator(mode="after")
    def _streams(self) -> GenerationBody:
        if self.stream_options is not None and not self.stream:
            raise ApiParameterErrors.STREAM_OPTIONS_WITHOUT_STREAM(param="stream_options")
        return self

    def answer_grammar(self) -> Grammar | None:
        """Return the grammar of the answer; None for any text. Raises ApiError, UsageError."""
        ways: dict[str, Callable[[], Grammar | None]] = {}
        if (form := self.response_format) is not None and form.type != "text":
            ways["response_format"] = partial(form.grammar, "response_format")
        given = {f"guided_{kind}": (kind, getattr(self, f"guided_{kind}")) for kind in _GRAMMARS}
        given |= {"grammar": ("grammar", self.grammar), "json_schema": ("json", self.json_schema)}
        if (outputs := self.structured_outputs) is not None:
            own = outputs.model_dump(by_alias=True)
            given |= {f"structured_outputs.{kind}": (kind, own[kind]) for kind in _GRAMMARS}
            if outputs.json_object:
                ways["structured_outputs.json_object"] = Grammar.json_object
        ways |= {
            name: partial(_GRAMMARS[kind], value, name) for name, (kind, value) in given.items() if value is not None
        }
        if len(ways) > 1:
            raise ApiParameterErrors.TWO_GRAMMARS(param=next(iter(ways)), names=" and ".join(ways))
        return next(iter(ways.values()))() if ways else None

    @property
    def streamed_usage(self) -> StreamedUsage:
        """Chunks of a stream that contain the usage."""
        if self.stream_options is None or not self.stream_options.include_usage:
            return "none"
        return "each" if self.stream_options.continuous_usage_stats else "last"

    @property
    def asked_tokens(self) -> int | None:
        """Requested maximum number of new tokens; None if the request has none."""
        return self.max_tokens

    @property
    def default_tokens(self) -> int | None:
        """Default maximum number of new tokens; None for all that fit into the context."""
        return None

    @property
    @abstractmethod
    def alternatives(self) -> int | None:
        """Number of alternatives for each token; None without logprobs."""

    @property
    def prompt_alternatives(self) -> int | None:
        """Number of alternatives for each token of the prompt; None without logprobs of the prompt."""
        return None

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of characters and tokens to convert to a prompt."""

    def sampling(self, seed: int, model: Sampling) -> Sampling:
        """Return the sampling parameters. Raises UsageError.

        Args:
            model: defaults of the model, for parameters that the body does not have.
        """
        stated = overriding(self)
        if self.repeat_penalty is not None:
            stated["repetition_penalty"] = self.repeat_penalty
        if self.top_p == 0:
            stated |= {"temperature": 0.0, "top_p": 1.0}
        return replace(
            model,
            **stated,
            seed=seed,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=tuple((int(token), addend) for token, addend in self.logit_bias.items()),
        )


# ----------------------------------------------------------------------------------------------- /v1/completions


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and all(type(token) is int for token in value)


def _prompts(value: Any) -> Any:
    """Return a list of prompts, each a text or tokens."""
    if isinstance(value, str):
        value = [value]
    if value == []:
        raise refused(ApiValueErrors.NO_PROMPT)
    if _is_tokens(value):
        return [value]
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return [whole_characters(one) for one in value]
    if isinstance(value, list) and all(map(_is_tokens, value)):
        return value
    raise refused(ApiValueErrors.NOT_A_PROMPT)


_Prompt = str | list[str] | list[int] | list[list[int]]


class CompletionBody(GenerationBody):
    """Body of POST /v1/completions."""

    # Validated in Python only: pydantic would visit every token again, while holding the GIL.
    prompt: Annotated[
        list[str] | list[list[int]], PlainValidator(_prompts), WithJsonSchema(TypeAdapter(_Prompt).json_schema())
    ]
    max_tokens: int | None = Field(None, ge=0, le=MOST_TOKENS, description="0 is allowed with echo only")
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    echo: bool = Field(False, description="repeat the prompt in the answer, with logprobs from full attention")
    best_of: int | None = Field(None, ge=1, le=MAX_CHOICES, description="must equal n")

    @model_validator(mode="after")
    def _best_of(self) -> CompletionBody:
        if self.best_of not in (None, self.n):
            raise ApiParameterErrors.BEST_OF(param="best_of", best_of=self.best_of, n=self.n)
        if self.max_tokens == 0 and not self.echo:
            raise ApiParameterErrors.NOTHING_ASKED(param="max_tokens")
        return self

    @property
    def default_tokens(self) -> int | None:
        return DEFAULT_COMPLETION_TOKENS

    @property
    def size(self) -> int:
        return sum(map(len, self.prompt))

    @property
    def asked_tokens(self) -> int | None:
        return None if self.max_tokens is None else max(self.max_tokens, 1)

    @property
    def alternatives(self) -> int | None:
        return self.logprobs

    @property
    def prompt_alternatives(self) -> int | None:
        return self.logprobs if self.echo else None


# ------------------------------------------------------------------------------------------ /v1/chat/completions


def given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a body without null and empty values."""
    return {name: value for name, value in fields.items() if value is not None and value != []}


class ChatBody(GenerationBody):
    """Body of POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1, fail_fast=True)  # errors of a million messages would take gigabytes
    max_completion_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    logprobs: bool = False
    tools: Tools = []
    tool_choice: ToolChoice | None = Field(None, description="default: auto if there are tools")
    parallel_tool_calls: bool = Field(True, description="false: at most one call per answer")
    reasoning_effort: Text | None = Field(None, description="for templates that read it; none disables reasoning")
    # vLLM's
    include_reasoning: bool = Field(True, description="false: leave the reasoning out of the answer")
    thinking_token_budget: int | None = Field(None, ge=0, le=MOST_TOKENS, description="maximum tokens of the reasoning")
    thinking_budget_tokens: int | None = Field(None, ge=0, le=MOST_TOKENS, description="llama.cpp's name for the same")
    add_generation_prompt: bool = Field(True, description="false: the answer begins where the last message ends")
    continue_final_message: bool = Field(False, description="the answer continues the last message")
    chat_template_kwargs: dict[str, Any] = Field({}, description="variables of the chat template")
    documents: list[dict[str, Any]] | None = Field(None, description="for templates that read them")
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    prediction: Prediction | None = Field(None, description="text that the answer is expected to resemble, as a draft")

    @model_validator(mode="after")
    def _consistent(self) -> ChatBody:
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiParameterErrors.TOP_LOGPROBS_WITHOUT_LOGPROBS(param="top_logprobs")
        limits = {limit for limit in (self.max_tokens, self.max_completion_tokens) if limit is not None}
        if len(limits) == 2:
            raise ApiParameterErrors.TWO_LIMITS(
                param="max_tokens", max_tokens=self.max_tokens, max_completion_tokens=self.max_completion_tokens
            )
        if self.continue_final_message and self.add_generation_prompt:
            raise ApiParameterErrors.CONTINUES_WITH_PROMPT(param="continue_final_message")
        named = self.tool_choice["name"] if isinstance(self.tool_choice, dict) else None
        if self.tool_choice not in (None, "none", "auto") and not self.tools:
            raise ApiParameterErrors.CHOICE_WITHOUT_TOOLS(param="tool_choice")
        if named is not None and named not in {tool["function"]["name"] for tool in self.tools}:
            raise ApiParameterErrors.CHOICE_WITHOUT_TOOLS(param="tool_choice")
        return self

    @property
    def callable_tools(self) -> tuple[Tool, ...]:
        """Tools that the answer may call."""
        named = self.tool_choice["name"] if isinstance(self.tool_choice, dict) else None
        if self.tool_choice == "none":
            return ()
        return tuple(tool_of(tool) for tool in self.tools if named in (None, tool["function"]["name"]))

    @property
    def longest_thought(self) -> int | None:
        """Maximum number of tokens of the reasoning; None for any number."""
        budget, other_name = self.thinking_token_budget, self.thinking_budget_tokens
        return other_name if budget is None else budget

    @property
    def must_call(self) -> bool:
        """True if the answer must call a tool."""
        return bool(self.tools) and self.tool_choice not in (None, "none", "auto")

    @property
    def most_calls(self) -> int | None:
        """Maximum number of calls in an answer; None for any number."""
        return 1 if isinstance(self.tool_choice, dict) or not self.parallel_tool_calls else None

    @property
    def asked_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def alternatives(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def size(self) -> int:
        return sum(message.size for message in self.messages) + sum(len(str(tool)) for tool in self.tools)
