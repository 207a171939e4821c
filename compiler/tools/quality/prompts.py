"""Conversion of questions to prompts: plain text that the model continues, or a turn of the model's chat template."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from sscc.runtime.text.tokenizer import encode

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from sscc.runtime.text.chat_template import ChatTemplate

DAY = datetime(2024, 7, 26)
"""Fixed date for templates that include one (the default of Llama 3's template), so that prompts are reproducible."""


@dataclass(frozen=True)
class PromptFormat:
    """Format of prompts.

    Attributes:
        tokenizer: tokenizer of the model.
        template: puts the question into a user turn; None for plain text.
    """

    tokenizer: Tokenizer
    template: ChatTemplate | None = None

    def text(self, question: str, answer_prefix: str = "") -> str:
        """Return the prompt for a question, ending with the beginning of its answer.

        In plain text the answer directly follows the question. With a template it follows the generation prompt, as in
        RULER, after one space unless the generation prompt ends in white space. Raises UsageError if the template
        rejects the question.
        """
        if self.template is None:
            return question + answer_prefix
        begun = self.template.render([{"role": "user", "content": question}])
        if not answer_prefix or begun[-1:].isspace():
            return begun + answer_prefix.lstrip()
        return f"{begun} {answer_prefix.lstrip()}"

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a result of `text`. Special tokens are added only without a template, which has its own.
        """
        return encode(self.tokenizer, text, special=self.template is None)

    def encode_answer(self, text: str) -> list[int]:
        """Return the tokens of an answer after a result of `text`, without special tokens. With a template, the space
        at its beginning is dropped."""
        return encode(self.tokenizer, text if self.template is None else text.lstrip(), special=False)

    def count_answer(self, text: str) -> int:
        """Return the number of tokens of `encode_answer`."""
        return len(self.encode_answer(text))

    def count(self, text: str) -> int:
        """Return the number of tokens of a result of `text`."""
        return len(self.encode(text))

    def added(self, question: str, answer_prefix: str = "") -> int:
        """Return the number of tokens that the template adds to a question and the beginning of its answer."""
        bare = encode(self.tokenizer, question + answer_prefix, special=False)
        return self.count(self.text(question, answer_prefix)) - len(bare)
