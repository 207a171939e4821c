"""Conversion of questions to the tokens of a prompt: text to be continued, or a turn of the checkpoint's chat template.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from sscc.runtime.text.tokenizer import encode

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from sscc.runtime.text.chat_template import ChatTemplate

DAY = datetime(2024, 7, 26)
"""Date for templates that write one, the default of Llama 3's template: prompts are the same every day."""


@dataclass(frozen=True)
class PromptFormat:
    """Format of prompts.

    Attributes:
        tokenizer: tokenizer of the model.
        template: puts the question into a user turn; None for plain text to be continued.
    """

    tokenizer: Tokenizer
    template: ChatTemplate | None = None

    def text(self, question: str, answer_prefix: str = "") -> str:
        """Return the prompt for a question, ending with the beginning of its answer.

        In plain text the answer directly follows the question. With a template it begins behind the generation prompt,
        as in RULER, with one space before it unless the generation prompt ends in white space. Raises UsageError if the
        template refuses the question.
        """
        if self.template is None:
            return question + answer_prefix
        begun = self.template.render([{"role": "user", "content": question}])
        if not answer_prefix or begun[-1:].isspace():
            return begun + answer_prefix.lstrip()
        return f"{begun} {answer_prefix.lstrip()}"

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a result of `text`. A template writes the special tokens itself, so none are added then.
        """
        return encode(self.tokenizer, text, special=self.template is None)

    def encode_answer(self, text: str) -> list[int]:
        """Return the tokens of an answer, which begins with a space, behind a result of `text`: without special tokens,
        and in a turn without the space."""
        return encode(self.tokenizer, text if self.template is None else text.lstrip(), special=False)

    def count_answer(self, text: str) -> int:
        """Return the number of tokens of `encode_answer`."""
        return len(self.encode_answer(text))

    def count(self, text: str) -> int:
        """Return the number of tokens of a result of `text`."""
        return len(self.encode(text))

    def added(self, question: str, answer_prefix: str = "") -> int:
        """Return the number of tokens that the format adds to those of a question and the beginning of its answer."""
        bare = encode(self.tokenizer, question + answer_prefix, special=False)
        return self.count(self.text(question, answer_prefix)) - len(bare)
