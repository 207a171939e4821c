"""Prompts for a program, shortened by a draft (`sscc.runtime.speculative_prefill`) of the same or another tokenizer.

Where both have one tokenizer, tokens that are kept stand at their own positions. Where they have two, the draft reads
the prompt's text in its own tokens; the text of the chunks that it keeps is joined, with a delimiter where something is
left out, and tokenised anew: that is a prompt of its own, at fresh positions (arXiv 2603.02631).
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
from tokenizers import Tokenizer

from sscc.ir.errors import InputError, UsageError
from sscc.runtime.artifact.signature import Signature
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.excerpt import Excerpt
from sscc.runtime.session import Session
from sscc.runtime.speculative_prefill import CHUNK, Draft, check_keep, chunks_kept, kept_chunks, kept_positions
from sscc.runtime.text import encode

DELIMITER = "\n...\n"
"""What stands where text is left out."""


class Shortener:
    """Shortens prompts.

    Args:
        draft: scores them.
        signature, tokenizer: of the program that reads what is left; None: it has no tokenizer.
        delimiter: where text is left out, of two tokenizers.

    Raises UsageError where the draft has other tokens, and either has no tokenizer to translate them.
    """

    def __init__(
        self, draft: Draft, signature: Signature, tokenizer: Tokenizer | None, delimiter: str = DELIMITER
    ) -> None:
        self.draft = draft
        self._vocabulary = signature.vocab_size
        self._tokenizer, self._delimiter = tokenizer, delimiter
        self._of_draft = draft_tokenizer(draft.session)
        self.same_tokens = self._same_tokens()

    def _same_tokens(self) -> bool:
        """Whether a token is the same text in both programs."""
        theirs, ours = self._of_draft, self._tokenizer
        if theirs is not None and ours is not None:
            return theirs is ours or dict(theirs.get_vocab()) == dict(ours.get_vocab())
        sizes = self.draft.session.signature.vocab_size, self._vocabulary
        if theirs is ours and sizes[0] == sizes[1]:
            return True
        without = "the draft" if theirs is None else "the program"
        raise UsageError(
            f"{without} has no tokenizer, with vocabularies of {sizes[0]} (draft) and {sizes[1]} tokens: a prompt "
            "cannot be told to both, so compile both with their tokenizers"
        )

    def shorten(self, prompt: Array, keep: float, text: str | None = None, *, special: bool = True) -> Excerpt | Array:
        """What is left of a prompt.

        Args:
            prompt: [n] i64, its tokens.
            keep: the share of chunks of 32 tokens that are kept, above 0, at most 1.
            text: that the tokens are of; None: it is made of them.
            special: whether the tokenizer put special tokens around the text.

        Returns an excerpt of `prompt`, or the tokens of another text. Raises UsageError where the draft cannot read it.
        """
        steps = self.shortening(prompt, keep, text, special=special)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                left: Excerpt | Array = end.value
                return left

    def shortening(
        self, prompt: Array, keep: float, text: str | None = None, *, special: bool = True, steps: int | None = None
    ) -> Generator[None, None, Excerpt | Array]:
        """The same in pieces of so many chunk steps of the draft (`Draft.scoring`)."""
        check_keep(keep)
        if self.same_tokens:
            if chunks_kept(len(prompt), keep) == chunks_kept(len(prompt), 1):
                return Excerpt.whole(prompt)
            self._check_length(len(prompt))
            scores = yield from self.draft.scoring(prompt, steps)
            return Excerpt.of(prompt, kept_positions(scores, keep))
        assert self._tokenizer is not None  # else their tokens would not differ
        assert self._of_draft is not None
        if text is None:
            text = self._tokenizer.decode(prompt.tolist(), skip_special_tokens=False)
            special = False
        encoding = self._of_draft.encode_batch([text], add_special_tokens=True)[0]
        self._check_length(len(encoding.ids))
        if chunks_kept(len(encoding.ids), keep) == chunks_kept(len(encoding.ids), 1):
            return prompt
        scores = yield from self.draft.scoring(np.array(encoding.ids, np.int64), steps)
        left = joined(text, [begin for begin, _ in encoding.offsets], kept_chunks(scores, keep), self._delimiter)
        return np.array(encode(self._tokenizer, left, special=special), np.int64)

    def _check_length(self, length: int) -> None:
        if not 0 < length <= self.draft.longest:
            raise UsageError(
                f"the prompt has {length} of the draft's tokens, it reads 1 .. {self.draft.longest}: compile the draft "
                "with a larger --max-context, or shorten the prompt"
            )


def joined(text: str, begins: list[int], chunks: Array, delimiter: str) -> str:
    """The text of some chunks of tokens.

    Args:
        begins: of every token, the character of the text that it begins with.
        chunks: numbers of those that are kept, ascending.
    """
    edges = [*np.maximum.accumulate(begins)[::CHUNK].tolist(), len(text)]
    edges[0] = 0
    runs = np.split(chunks, np.flatnonzero(np.diff(chunks) > 1) + 1)
    return delimiter.join(text[edges[run[0]] : edges[run[-1] + 1]] for run in runs)


def draft_tokenizer(session: Session) -> Tokenizer | None:
    """The tokenizer of a session's artifact; None where it has none."""
    try:
        return session.tokenizer
    except InputError:
        return None
