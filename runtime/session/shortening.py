"""Prompts for a program, shortened by a draft (`speculative_prefill`) with the same or another tokenizer.

With the same tokenizer, kept tokens keep their positions. With different ones, the draft reads the prompt's text in its
own tokens; the text of the chunks that it keeps is joined, with a delimiter in place of omissions, and tokenised again:
the result is a new prompt with consecutive positions (arXiv 2603.02631).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial

import numpy as np
from tokenizers import Tokenizer

from sscc.ir.errors import ErrorKind, InputError, UsageError
from sscc.runtime.artifact.signature import Signature
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.session.excerpt import Excerpt
from sscc.runtime.session.session import Session
from sscc.runtime.session.speculative_prefill import (
    CHUNK,
    Draft,
    check_keep,
    chunks_kept,
    kept_chunks,
    kept_positions,
    result_of,
)
from sscc.runtime.text.tokenizer import encode

DELIMITER = "\n...\n"
"""Text in place of omissions."""


class ShorteningErrors(ErrorKind):
    NO_TOKENIZER = (
        UsageError,
        "{without} has no tokenizer, and the vocabularies of {draft} (draft) and {program} tokens differ: compile "
        "both with their tokenizers",
    )
    PROMPT_TOO_LONG = (
        UsageError,
        "the prompt has {length} of the draft's tokens, but the draft accepts 1 .. {longest}: compile the draft with "
        "a larger "
        "--max-context, or shorten the prompt",
    )


@dataclass(frozen=True, eq=False)
class ScoredPrompt:
    """A prompt whose tokens a draft has scored, unless that was unnecessary.

    Attributes:
        tokens: [n] i64, tokens of the program that reads the result.
        scores: [m] f32, for the draft's tokens; None for a single chunk, which always stays.
        begins: for each of the draft's tokens, the index of its first character in `text`; None if its tokens are those
            of the program.
        text: text of the prompt, for a draft with another tokenizer.
        encode: converts text to the program's tokens.
        delimiter: text in place of omissions.
    """

    tokens: Array
    scores: Array | None = None
    begins: list[int] | None = None
    text: str = ""
    encode: Callable[[str], list[int]] | None = None
    delimiter: str = DELIMITER

    def left(self, keep: float) -> Excerpt | Array:
        """Return an excerpt of the prompt's tokens, or the tokens of another text, with this fraction of the chunks.
        Raises UsageError for an invalid fraction."""
        check_keep(keep)
        if self.scores is None or chunks_kept(len(self.scores), keep) == chunks_kept(len(self.scores), 1):
            return Excerpt.whole(self.tokens)
        if self.begins is None or self.encode is None:
            return Excerpt.of(self.tokens, kept_positions(self.scores, keep))
        text = joined(self.text, self.begins, kept_chunks(self.scores, keep), self.delimiter)
        return np.array(self.encode(text), np.int64)


class Shortener:
    """Shortens prompts.

    Args:
        draft: scores them.
        signature, tokenizer: those of the program that reads the result; None without a tokenizer.
        delimiter: text in place of omissions, for different tokenizers; None for `DELIMITER`.

    Raises UsageError if the draft has other tokens, and either has no tokenizer for converting them.
    """

    def __init__(
        self, draft: Draft, signature: Signature, tokenizer: Tokenizer | None, delimiter: str | None = None
    ) -> None:
        self.draft = draft
        self._vocabulary = signature.vocab_size
        self._tokenizer, self._delimiter = tokenizer, DELIMITER if delimiter is None else delimiter
        self._of_draft = tokenizer_of(draft.session)
        self.same_tokens = self._same_tokens()

    def _same_tokens(self) -> bool:
        """True if tokens have the same text in both programs."""
        theirs, ours = self._of_draft, self._tokenizer
        if theirs is not None and ours is not None:
            same: bool = theirs.get_vocab() == ours.get_vocab()
            return same
        sizes = self.draft.session.signature.vocab_size, self._vocabulary
        if theirs is ours and sizes[0] == sizes[1]:
            return True
        without = "the draft" if theirs is None else "the program"
        raise ShorteningErrors.NO_TOKENIZER(without=without, draft=sizes[0], program=sizes[1])

    def shorten(self, prompt: Array, keep: float, text: str | None = None, *, special: bool = True) -> Excerpt | Array:
        """Return the shortened prompt.

        Args:
            prompt: [n] i64, its tokens.
            keep: fraction of chunks of 32 tokens that are kept, above 0, at most 1.
            text: text of the tokens; None to decode them.
            special: True if the tokenizer has added special tokens to the text.

        Returns an excerpt of `prompt`, or the tokens of another text. Raises UsageError if the draft cannot read it.
        """
        check_keep(keep)
        return self.scored(prompt, text, special=special).left(keep)

    def scored(self, prompt: Array, text: str | None = None, *, special: bool = True) -> ScoredPrompt:
        """Return a prompt with its scores, of which any fraction can be kept. Arguments and errors are those of
        `shorten`."""
        return result_of(self.scoring(prompt, text, special=special))

    def scoring(
        self, prompt: Array, text: str | None = None, *, special: bool = True, steps: int | None = None
    ) -> Generator[None, None, ScoredPrompt]:
        """Do the same in pieces of `steps` chunk steps of the draft (`Draft.scoring`)."""
        if self.same_tokens:
            if chunks_kept(len(prompt), 1) < 2:
                return ScoredPrompt(prompt)
            self._check_length(len(prompt))
            return ScoredPrompt(prompt, (yield from self.draft.scoring(prompt, steps)))
        assert self._tokenizer is not None  # otherwise their tokens would not differ
        assert self._of_draft is not None
        if text is None:
            text = self._tokenizer.decode(prompt.tolist(), skip_special_tokens=False)
            special = False
        encoding = self._of_draft.encode_batch([text], add_special_tokens=True)[0]
        if chunks_kept(len(encoding.ids), 1) < 2:
            return ScoredPrompt(prompt)
        self._check_length(len(encoding.ids))
        scores = yield from self.draft.scoring(np.array(encoding.ids, np.int64), steps)
        begins = [begin for begin, _ in encoding.offsets]
        encoded = partial(encode, self._tokenizer, special=special)
        return ScoredPrompt(prompt, scores, begins, text, encoded, self._delimiter)

    def _check_length(self, length: int) -> None:
        if not 0 < length <= self.draft.longest:
            raise ShorteningErrors.PROMPT_TOO_LONG(length=length, longest=self.draft.longest)


def joined(text: str, begins: list[int], chunks: Array, delimiter: str) -> str:
    """Return the text of some chunks of tokens.

    Args:
        begins: for every token, the index of its first character in the text.
        chunks: numbers of the kept chunks, ascending.
    """
    edges = [*np.maximum.accumulate(begins)[::CHUNK].tolist(), len(text)]
    edges[0] = 0
    runs = np.split(chunks, np.flatnonzero(np.diff(chunks) > 1) + 1)
    return delimiter.join(text[edges[run[0]] : edges[run[-1] + 1]] for run in runs)


def tokenizer_of(session: Session) -> Tokenizer | None:
    """Return the tokenizer of a session's artifact; None if it has none."""
    try:
        return session.tokenizer
    except InputError:
        return None
