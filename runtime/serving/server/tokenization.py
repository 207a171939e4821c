"""/tokenize and /detokenize, with the fields of vLLM, and llama.cpp's names for some of them."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from sscc.runtime.serving.server.api_errors import ApiKind
from sscc.runtime.serving.server.conversation import Message, Tools
from sscc.runtime.serving.server.engine_requests import Model, ServedPrompt, chat_prompts, completion_prompts
from sscc.runtime.serving.server.openai import ChatBody, CompletionBody, given
from sscc.runtime.serving.server.request_bodies import validated
from sscc.runtime.serving.server.request_fields import Parameters, Text
from sscc.runtime.support.serving_options import RequestLimits
from sscc.runtime.text.tokenizer import decode

Json = dict[str, Any]


class TokenizationErrors(ApiKind):
    NOT_ONE_TEXT = "give exactly one of prompt, messages and content"
    NO_SUCH_TOKEN = "token {token} is out of range: the vocabulary is 0 .. {last}"


class TokenizeBody(Parameters):
    """Body of POST /tokenize: a text or a conversation."""

    model: Text | None = None
    prompt: Text | None = None
    content: Text | None = Field(None, description="llama.cpp's name for prompt")
    messages: list[Message] | None = Field(None, fail_fast=True)
    add_special_tokens: bool | None = None
    add_special: bool | None = Field(None, description="llama.cpp's name for add_special_tokens")
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}
    tools: Tools = []
    return_token_strs: bool = False

    @model_validator(mode="before")
    @classmethod
    def _given(cls, data: Any) -> Any:
        return {name: value for name, value in data.items() if value is not None} if isinstance(data, dict) else data

    @property
    def size(self) -> int:
        """Number of characters to tokenize."""
        text = self.prompt or self.content or ""
        return len(text) + sum(message.size for message in self.messages or ())

    def tokens(self, model: Model, limits: RequestLimits) -> ServedPrompt:
        """Return the tokens of the text. Raises ApiError."""
        texts = [text for text in (self.prompt, self.content) if text is not None]
        if len(texts) + (self.messages is not None) != 1:
            raise TokenizationErrors.NOT_ONE_TEXT(param="prompt")
        special = self.add_special_tokens if self.add_special is None else self.add_special
        if self.messages is None:
            if self.content is not None and special is None:
                special = False  # llama.cpp's default
            asked: Json = {} if special is None else {"add_special_tokens": special}
            return completion_prompts(validated({"prompt": texts, **asked}, CompletionBody), model, limits)[0]
        asked = {
            "messages": self.messages,
            "add_special_tokens": special,
            "add_generation_prompt": self.add_generation_prompt,
            "continue_final_message": self.continue_final_message,
            "chat_template_kwargs": self.chat_template_kwargs,
            "tools": self.tools,
        }
        return chat_prompts(validated(given(asked), ChatBody), model, limits)[0]


class DetokenizeBody(Parameters):
    """Body of POST /detokenize."""

    tokens: list[int]
    model: Text | None = None

    @property
    def size(self) -> int:
        """Number of tokens to decode."""
        return len(self.tokens)

    def text(self, model: Model) -> str:
        """Return the text of the tokens, special ones included. Raises ApiError."""
        for token in self.tokens:
            if not 0 <= token < model.vocab_size:
                raise TokenizationErrors.NO_SUCH_TOKEN(param="tokens", token=token, last=model.vocab_size - 1)
        return decode(model.tokenizer, self.tokens, special=True)
