"""From a question to the tokens of a prompt: text to be continued, or a turn of the checkpoint's own chat template."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from sscc.runtime.text.tokenizer import encode

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from sscc.runtime.text.chat_template import ChatTemplate

DAY = datetime(2024, 7, 26)
"""The date for templates that write one, the one that Llama 3's has without a clock: prompts are the same every day."""


@dataclass(frozen=True)
class PromptFormat:
    """How prompts are written.

    Attributes:
        tokenizer: of the model.
        template: puts the question into a turn of the user; None for plain text to be continued.
    """

    tokenizer: Tokenizer
    template: ChatTemplate | None = None

    def text(self, question: str, answer_prefix: str = "") -> str:
        """The prompt for a question, ending with the beginning of its answer.

        In plain text the two follow each other as they are. With a template the answer begins behind the generation
        prompt, as RULER has it, with one space before it where the generation prompt does not end in white space.
        Raises UsageError where the template refuses the question.
        """
        if self.template is None:
            return question + answer_prefix
        begun = self.template.render([{"role": "user", "content": question}])
        if not answer_prefix or begun[-1:].isspace():
            return begun + answer_prefix.lstrip()
        return f"{begun} {answer_prefix.lstrip()}"

    def encode(self, text: str) -> list[int]:
        """Tokens of what `text` gave. A template writes the special tokens itself, so none are added to its own."""
        return encode(self.tokenizer, text, special=self.template is None)

    def encode_answer(self, text: str) -> list[int]:
        """Tokens of an answer, which begins with a space, behind what `text` gave: no special ones, and in a turn no
        space."""
        return encode(self.tokenizer, text if self.template is None else text.lstrip(), special=False)

    def count_answer(self, text: str) -> int:
        """How many `encode_answer` gives."""
        return len(self.encode_answer(text))

    def count(self, text: str) -> int:
        """Tokens of what `text` gave."""
        return len(self.encode(text))

    def added(self, question: str, answer_prefix: str = "") -> int:
        """How many tokens the format adds to the bare ones of a question and the beginning of its answer."""
        bare = encode(self.tokenizer, question + answer_prefix, special=False)
        return self.count(self.text(question, answer_prefix)) - len(bare)
