"""Prompts for a program, shortened by a draft (`speculative_prefill`) of the same or another tokenizer.

Where both have one tokenizer, tokens that are kept stand at their own positions. Where they have two, the draft reads
the prompt's text in its own tokens; the text of the chunks that it keeps is joined, with a delimiter where something is
left out, and tokenised anew: that is a prompt of its own, at fresh positions (arXiv 2603.02631).
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
"""What stands where text is left out."""


class ShorteningErrors(ErrorKind):
    NO_TOKENIZER = (
        UsageError,
        "{without} has no tokenizer, with vocabularies of {draft} (draft) and {program} tokens: a prompt cannot be "
        "told to both, so compile both with their tokenizers",
    )
    PROMPT_TOO_LONG = (
        UsageError,
        "the prompt has {length} of the draft's tokens, it reads 1 .. {longest}: compile the draft with a larger "
        "--max-context, or shorten the prompt",
    )


@dataclass(frozen=True, eq=False)
class ScoredPrompt:
    """A prompt whose tokens a draft has scored, or was not asked to.

    Attributes:
        tokens: [n] i64, of the program that reads what is left.
        scores: [m] f32, of the draft's tokens; None where there is one chunk of them, which always stays.
        begins: of each of the draft's tokens, the character of `text` that it begins with; None where its tokens are
            those of the program.
        text: of the prompt, for a draft with another tokenizer.
        encode: makes the program's tokens of text.
        delimiter: where text is left out.
    """

    tokens: Array
    scores: Array | None = None
    begins: list[int] | None = None
    text: str = ""
    encode: Callable[[str], list[int]] | None = None
    delimiter: str = DELIMITER

    def left(self, keep: float) -> Excerpt | Array:
        """An excerpt of the prompt's tokens, or the tokens of another text, with this share of the chunks. Raises
        UsageError for a share that is none."""
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
        signature, tokenizer: of the program that reads what is left; None: it has no tokenizer.
        delimiter: where text is left out, of two tokenizers; None: `DELIMITER`.

    Raises UsageError where the draft has other tokens, and either has no tokenizer to translate them.
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
        """Whether a token is the same text in both programs."""
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
        """What is left of a prompt.

        Args:
            prompt: [n] i64, its tokens.
            keep: the share of chunks of 32 tokens that are kept, above 0, at most 1.
            text: that the tokens are of; None: it is made of them.
            special: whether the tokenizer put special tokens around the text.

        Returns an excerpt of `prompt`, or the tokens of another text. Raises UsageError where the draft cannot read it.
        """
        check_keep(keep)
        return self.scored(prompt, text, special=special).left(keep)

    def scored(self, prompt: Array, text: str | None = None, *, special: bool = True) -> ScoredPrompt:
        """A prompt with its scores, of which any share can be kept. Arguments and errors are those of `shorten`."""
        return result_of(self.scoring(prompt, text, special=special))

    def scoring(
        self, prompt: Array, text: str | None = None, *, special: bool = True, steps: int | None = None
    ) -> Generator[None, None, ScoredPrompt]:
        """The same in pieces of so many chunk steps of the draft (`Draft.scoring`)."""
        if self.same_tokens:
            if chunks_kept(len(prompt), 1) < 2:
                return ScoredPrompt(prompt)
            self._check_length(len(prompt))
            return ScoredPrompt(prompt, (yield from self.draft.scoring(prompt, steps)))
        assert self._tokenizer is not None  # else their tokens would not differ
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
    """The text of some chunks of tokens.

    Args:
        begins: of every token, the character of the text that it begins with.
        chunks: numbers of those that are kept, ascending.
    """
    edges = [*np.maximum.accumulate(begins)[::CHUNK].tolist(), len(text)]
    edges[0] = 0
    runs = np.split(chunks, np.flatnonzero(np.diff(chunks) > 1) + 1)
    return delimiter.join(text[edges[run[0]] : edges[run[-1] + 1]] for run in runs)


def tokenizer_of(session: Session) -> Tokenizer | None:
    """The tokenizer of a session's artifact; None where it has none."""
    try:
        return session.tokenizer
    except InputError:
        return None
