"""Prompts: the check before one is prefilled, and the record of one that was."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sscc.runtime.artifact.signature import Signature
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.session.excerpt import Excerpt, PromptTokens
from sscc.runtime.session.kept_positions import Selected
from sscc.runtime.session.kept_rows import Copy
from sscc.runtime.session.session_errors import SessionErrors


@dataclass(frozen=True, eq=False)
class Prompt:
    """A prompt that was prefilled, and its results other than cache rows.

    Attributes:
        tokens: the n tokens that were prefilled.
        logits: [V] f32, after the last token.
        selected: positions that the end of the prompt selected, if no state of the program holds them.
    """

    tokens: Excerpt
    logits: Array = field(repr=False)
    selected: Selected = field(default_factory=dict, repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of tokens and logits."""
        return self.tokens.nbytes + self.logits.nbytes


@dataclass(frozen=True)
class Snapshot:
    """A copy of a slot right after its prompt: everything that decoding reads. It can be restored into any slot.

    Attributes:
        prompt: the slot's prompt.
        slot: the slot that was copied.
        rows: the slot's part of the program's states, without rows that are not valid.
    """

    prompt: Prompt
    slot: int
    rows: Copy

    @property
    def selected(self) -> Selected:
        return self.prompt.selected

    @property
    def nbytes(self) -> int:
        """Bytes of the states, on all ranks together, and of the selected positions."""
        return self.rows.nbytes + selected_bytes(self.selected)


def selected_bytes(selected: Selected) -> int:
    """Bytes of selected positions."""
    return sum(positions.nbytes for positions in selected.values())


def checked_prompt(tokens: PromptTokens, signature: Signature) -> Excerpt:
    """Return a prompt that the program can prefill, with tokens [n] i64.

    Raises UsageError for an empty prompt, one longer than max_context, and tokens outside the vocabulary.
    """
    if isinstance(tokens, Excerpt):
        return Excerpt(_checked_tokens(tokens.tokens, tokens.text_length, signature), tokens.positions)
    return Excerpt.whole(_checked_tokens(tokens, len(tokens), signature))


def checked_request(tokens: PromptTokens, max_new_tokens: int, signature: Signature) -> Excerpt:
    """Return a prompt that fits into max_context together with its answer. Raises UsageError if it does not."""
    prompt = checked_prompt(tokens, signature)
    if max_new_tokens < 1:
        raise SessionErrors.MAX_NEW_TOKENS(value=max_new_tokens)
    length, limit = prompt.text_length, signature.geometry.max_context
    if length + max_new_tokens > limit:
        raise SessionErrors.REQUEST_TOO_LONG(tokens=length, max_new_tokens=max_new_tokens, max_context=limit)
    return prompt


def _checked_tokens(tokens: Sequence[int] | Array, text_length: int, signature: Signature) -> Array:
    limit, vocabulary = signature.geometry.max_context, signature.vocab_size
    if len(tokens) == 0:
        raise SessionErrors.EMPTY_PROMPT()
    if text_length > limit:
        raise SessionErrors.PROMPT_TOO_LONG(tokens=text_length, max_context=limit)
    if isinstance(tokens, np.ndarray) and tokens.dtype == np.int64:
        prompt: Array = tokens
    else:
        # A token may be too large for an i64, so each is compared as a Python integer.
        whole = [operator.index(token) for token in tokens]
        prompt = np.array([token if 0 <= token < vocabulary else -1 for token in whole], np.int64)
    wrong = np.flatnonzero((prompt < 0) | (prompt >= vocabulary))
    if len(wrong):
        position = int(wrong[0])
        token = operator.index(tokens[position])
        raise SessionErrors.PROMPT_TOKEN(token=token, position=position, last=vocabulary - 1)
    return prompt


def checked_token(token: int, slot: int, signature: Signature) -> int:
    """Return a token of a decode step. Raises UsageError for one outside the vocabulary."""
    value = operator.index(token)
    if not 0 <= value < signature.vocab_size:
        raise SessionErrors.TOKEN(token=value, slot=slot, last=signature.vocab_size - 1)
    return value
