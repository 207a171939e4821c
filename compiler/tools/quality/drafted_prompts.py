"""Examples with prompts shortened by a draft. The draft scores each prompt once for all cells and fractions."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from sscc.compiler.driver.sessions import open_session
from sscc.compiler.tools.quality.eval_options import EvalOptions
from sscc.compiler.tools.quality.example import Example
from sscc.ir.errors import ErrorKind, InternalError
from sscc.runtime.artifact.signature import Signature
from sscc.runtime.session.excerpt import PromptTokens
from sscc.runtime.session.session import Session
from sscc.runtime.session.shortening import ScoredPrompt, Shortener
from sscc.runtime.session.speculative_prefill import Draft

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class DraftedPromptErrors(ErrorKind):
    NO_DRAFT = InternalError, "the evaluation has no draft to shorten a prompt with"


class DraftedPrompts:
    """A context manager that keeps the draft open after its first use.

    Args:
        options: options with the draft.
        tokenizer: tokenizer of the evaluated model.
    """

    def __init__(self, options: EvalOptions, tokenizer: Tokenizer | None) -> None:
        self._options, self._tokenizer = options, tokenizer
        self._session: Session | None = None
        self._shortener: Shortener | None = None
        self._scored: dict[str, ScoredPrompt] = {}

    def left(self, example: Example, keep: float, signature: Signature) -> PromptTokens:
        """Return the prompt of an example, shortened to the fraction `keep`, for a program with this signature. Raises
        the errors of `Shortener`."""
        scored = self._scored.get(example.name)
        if scored is None:
            # Text from a chat template contains its special tokens; an example of tokens is decoded to text.
            text = None if self._options.chat else example.text or None
            prompt = np.array(example.prompt, np.int64)
            scored = self._scored[example.name] = self._opened(signature).scored(prompt, text)
        return scored.left(keep)

    def _opened(self, signature: Signature) -> Shortener:
        if self._shortener is None:
            options, artifact = self._options, self._options.drafted_by
            if artifact is None:
                raise DraftedPromptErrors.NO_DRAFT()
            self._session = open_session(artifact, interpreter=options.interpreter, threads=options.threads)
            self._shortener = Shortener(Draft(self._session), signature, self._tokenizer, options.delimiter)
        return self._shortener

    def __enter__(self) -> DraftedPrompts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            self._session.close()
