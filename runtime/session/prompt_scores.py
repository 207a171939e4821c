"""Log-probabilities of the tokens of a prompt, by the full attention of its prefill."""

from __future__ import annotations

import numpy as np

from sscc.ir.errors import ErrorKind, UsageError
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.session.samplers import Allowed, BatchSampler, TokenLogprobs
from sscc.runtime.session.sampling import Sampling
from sscc.runtime.session.session import Session


class PromptScoreErrors(ErrorKind):
    TOO_MANY_SLOTS = (
        UsageError,
        "the program has {slots} slots and prompts of at most {tokens} tokens: log-probabilities of prompts need at "
        "least as many",
    )


def check_scores(session: Session) -> None:
    """Check that a program has the entry that `PromptScorer` needs. Raises UsageError."""
    signature = session.signature
    if not signature.scores_prompts:
        raise PromptScoreErrors.TOO_MANY_SLOTS(slots=signature.batch, tokens=signature.scratch_tokens)


class PromptScorer:
    """Scores the tokens of the prompt that a session has prefilled last, one token per slot at a time.

    No other prefill may begin before it is done; decode steps may run in between.

    Args:
        session: has prefilled the prompt from its first token on (without reused chunks).
        tokens: tokens of the prompt, [n] i64.
        top: number of alternatives reported for each token.

    Attributes:
        scores: when done, [n - 1] scores of each token but the first, given those before it.
    """

    def __init__(self, session: Session, tokens: Array, top: int) -> None:
        check_scores(session)
        signature = session.signature
        self._session, self._tokens = session, tokens
        self._slots, self._last = signature.batch, signature.scratch_tokens - signature.batch
        self._sampler = BatchSampler(self._slots, signature.vocab_size, session.host_threads)
        for row in range(self._slots):
            self._sampler.start(row, Sampling(), (), top)
        self._allowed = Allowed.none(self._slots, signature.vocab_size)
        self.scores: list[TokenLogprobs] = []

    @property
    def steps(self) -> int:
        """Number of remaining steps."""
        return -(-(len(self._tokens) - 1 - len(self.scores)) // self._slots)

    def step(self) -> None:
        """Score the next tokens.

        Raises:
            InputError: logits that are not finite.
        """
        position = len(self.scores)
        targets = self._tokens[position + 1 : position + 1 + self._slots]
        first = min(position, self._last)
        rows = np.arange(position - first, position - first + len(targets))
        # A sampler that may pick only one token reports the model's own probability of it.
        bits, constrained = self._allowed.bits, self._allowed.constrained
        bits[...], constrained[...] = 0, False
        constrained[rows] = True
        bits[rows, targets // 32] = np.left_shift(np.uint32(1), (targets % 32).astype(np.uint32))
        self._sampler.pick(self._session.score(first), constrained, self._allowed)
        for row in rows.tolist():
            logprobs = self._sampler.logprobs(row)
            assert logprobs is not None  # logprobs were requested
            self.scores.append(logprobs)
