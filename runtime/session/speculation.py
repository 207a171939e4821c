"""Speculative decoding: several drafted tokens are fed in one step, and those that are equal to the picked ones stay.

A step of the entry `verify` returns the logits after the newest token of a slot and after each drafted one. Tokens are
picked from them in order, exactly as plain decoding picks them: with the same penalties, constraint and random number.
As long as a picked token equals the drafted one, the next logits are those of plain decoding, too. So every answer has
the tokens of plain decoding, also with a temperature. A drafted token is accepted with its probability, which is the
most that is possible for a draft without probabilities (arXiv 2211.17192).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Protocol

import numpy as np

from sscc.runtime.artifact.signature import Signature
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.session.drafting import KINDS, Drafter
from sscc.runtime.session.session_errors import SessionErrors

_CHANCE = np.array([0.0, 0.3, 0.5, 0.65, 0.75])
"""Chance of a drafted token to be accepted, if those before it were, by the kind of the draft, before any was verified.
"""
_WEIGHT = 2.0
"""Number of verified tokens that this chance outweighs."""
_FADING = 0.95
"""Weight of a verified draft relative to that of the next one of the same kind."""
_AVERAGED = 0.2
"""Weight of the latest step in the mean time of a step."""
_FIRST_RATIO = 1.25
"""Time of a step of several tokens relative to one of one token, before both were measured."""
_CREDIT, _MOST_CREDIT, _CREDIT_OF_A_STEP = 1.0, 4.0, 0.01
"""Time that drafts may lose: at the beginning, at most, and for each step of one token; in such steps."""


class Pace:
    """Decides for each step how many tokens are drafted.

    It takes the number with the most expected tokens per time: of n drafted tokens with the chance p each,
    p + p^2 + .. + p^n are accepted. The chance is a mean over the latest drafts of the same kind in the same slot.
    Losses are bounded: a step that gains less time than it costs is paid from a credit, which grows by 1 % of the time
    of plain steps.

    Attributes:
        credit: time that may be lost, in steps of one token.
    """

    def __init__(self, slots: int, drafted: int) -> None:
        self._accepted, self._tried = np.zeros((slots, KINDS)), np.zeros((slots, KINDS))
        self._decode_ns = self._verify_ns = self._draft_ns = 0.0
        self._lengths = np.arange(1, drafted + 1)
        self._rows = np.arange(slots)
        self.credit = _CREDIT

    def start(self, slot: int) -> None:
        """Forget the drafts of a slot's sequence before."""
        self._accepted[slot] = self._tried[slot] = 0.0

    def most(self, kinds: Array, active: Array) -> int:
        """Return the number of tokens to draft in each active slot [B], 0 for a step of one token.

        Args:
            kinds: [B], kinds of the drafts.
        """
        costs = self._costs()
        if not kinds.any() or self.credit < costs[0] - 1:
            return 0
        accepted = self._accepted[self._rows, kinds] + _WEIGHT * _CHANCE[kinds]
        chance = accepted / (self._tried[self._rows, kinds] + _WEIGHT)
        expected = np.cumsum(chance[active][:, None] ** self._lengths, 1).mean(0)
        gains = np.where(self.credit >= costs - 1, (1 + expected) / costs, 0.0)
        best = int(gains.argmax())
        return best + 1 if gains[best] >= 1 else 0

    def _costs(self) -> Array:
        """Return the times of steps with 1 .. V drafted tokens, relative to a step of one token."""
        if not (self._decode_ns and self._verify_ns):
            return np.full(len(self._lengths), _FIRST_RATIO)
        costs: Array = (self._verify_ns + self._lengths * self._draft_ns) / self._decode_ns
        return np.maximum(costs, 1.0)

    def decoded(self, nanoseconds: int) -> None:
        """Record the time of a step of one token."""
        self._decode_ns = _averaged(self._decode_ns, nanoseconds)
        self.credit = min(self.credit + _CREDIT_OF_A_STEP, _MOST_CREDIT)

    def verified(self, kinds: Array, drafted: Array, taken: Array, draft_ns: int, verify_ns: int) -> None:
        """Record a step of several tokens.

        Args:
            kinds, drafted: [B], kinds of the drafts and their lengths.
            taken: [B], tokens that stay in each slot, 0 in slots that were not active.
            draft_ns, verify_ns: times of the drafts and of the step.
        """
        most = max(1, int(drafted.max()))
        self._verify_ns = _averaged(self._verify_ns, verify_ns)
        self._draft_ns = _averaged(self._draft_ns, draft_ns / most)
        slots = np.flatnonzero((kinds > 0) & (taken > 0))
        right = taken[slots] - 1
        for mean, new in ((self._accepted, right), (self._tried, np.minimum(right + 1, drafted[slots]))):
            mean[slots, kinds[slots]] = mean[slots, kinds[slots]] * _FADING + new
        gained = taken.sum() / max(1, np.count_nonzero(taken)) - self._costs()[most - 1]
        self.credit = min(self.credit + gained, _MOST_CREDIT)


def _averaged(mean: float, new: float) -> float:
    """Return a mean with a new number, which counts as at most twice the mean: steps are interrupted."""
    return mean + _AVERAGED * (min(new, 2 * mean) - mean) if mean else new


@dataclass(frozen=True)
class Plan:
    """A step of several tokens.

    Attributes:
        tokens: [B, V + 1], the newest token of each slot and its draft.
        count: [B], number of tokens of each slot.
    """

    tokens: Array
    count: Array

    @property
    def drafted(self) -> Array:
        """Number of drafted tokens of each slot [B]."""
        drafted: Array = np.maximum(self.count - 1, 0)
        return drafted

    def next_of(self, row: int, picked: Array) -> Array:
        """Return the slots [B] whose token `row` + 1 is the one that was picked after token `row`."""
        if row + 1 == self.tokens.shape[1]:
            return np.zeros(len(picked), np.bool_)
        same: Array = (self.count > row + 1) & (self.tokens[:, row + 1] == picked)
        return same


class Speculation:
    """Drafts for the slots of a session, and the decision when to verify them.

    Args:
        always: verify every draft, whether or not it pays.

    Raises UsageError for a program without steps of several tokens.

    Attributes:
        steps, drafted, accepted: numbers of steps of several tokens, of tokens drafted for them, and of those accepted.
    """

    def __init__(self, signature: Signature, drafter: Drafter, *, always: bool = False) -> None:
        if not signature.drafted:
            raise SessionErrors.NO_VERIFY()
        self._drafter, self._always = drafter, always
        self._most = signature.drafted
        self._pace = Pace(signature.batch, signature.drafted)
        self._tokens = np.zeros((signature.batch, signature.drafted + 1), np.int64)
        self._kinds = np.zeros(signature.batch, np.int64)
        self._began = self._drafted_at = self._verify_ns = 0
        self._planned = False
        self.steps = self.drafted = self.accepted = 0

    def start(self, slot: int, prompt: Array, predicted: Array | None = None) -> None:
        """Begin a sequence: see `Drafter.start`."""
        self._pace.start(slot)
        self._drafter.start(slot, prompt, predicted)

    def stop(self, slot: int) -> None:
        """Forget a slot's sequence."""
        self._drafter.stop(slot)

    def extend(self, tokens: Array, receivers: Array) -> None:
        """Append a token to some of the sequences: see `Drafter.extend`."""
        self._drafter.extend(tokens, receivers)

    def plan(self, newest: Array, active: Array, left: Array) -> Plan | None:
        """Return a step of several tokens; None for a step of one.

        Args:
            newest: [B] i64, the token to feed to each slot.
            active: [B] bool.
            left: [B] i64, tokens that each slot may still pick.
        """
        self._began = perf_counter_ns()
        room = np.clip(left - 1, 0, self._most) * active
        self._kinds = self._drafter.find(room)
        most = self._most * bool(self._kinds.any()) if self._always else self._pace.most(self._kinds, active)
        self._planned = most > 0
        if not most:
            return None
        self._tokens[:, 0] = newest
        self._tokens[:, 1:], drafted = self._drafter.draft(np.minimum(room, most))
        self._drafted_at = perf_counter_ns()
        return Plan(self._tokens, (drafted + 1) * active)

    def ran(self) -> None:
        """Record that the step that followed `plan` is done."""
        now = perf_counter_ns()
        if self._planned:
            self._verify_ns = now - self._drafted_at
        else:
            self._pace.decoded(now - self._began)

    def verified(self, plan: Plan, taken: Array) -> None:
        """Record that of the tokens of this step `taken` [B] stay."""
        drafted = plan.drafted
        self._pace.verified(self._kinds, drafted, taken, self._drafted_at - self._began, self._verify_ns)
        self.steps += 1
        self.drafted += int(drafted.sum())
        self.accepted += int(np.maximum(taken - 1, 0).sum())

    def close(self) -> None:
        """Release what the drafter has opened."""
        self._drafter.close()


class Steps(Protocol):
    """The part of a session that decodes."""

    signature: Signature

    def decode(self, tokens: Mapping[int, int]) -> Array:
        """See `Session.decode`."""

    def verify_step(self, tokens: Array, count: Array) -> Array:
        """See `Session.verify_step`."""

    def accept(self, count: Array) -> None:
        """See `Session.accept`."""


class SpeculativeSlot:
    """Decoding in one slot of a session, as by `Session.decode`, with logits of drafted tokens computed ahead.

    Args:
        left: tokens that may still be picked after the prompt.
    """

    def __init__(self, session: Steps, slot: int, speculation: Speculation, prompt: Array, left: int) -> None:
        self._session, self._slot, self._speculation = session, slot, speculation
        speculation.start(slot, prompt)
        self._active = np.arange(session.signature.batch) == slot
        self._newest = np.zeros(session.signature.batch, np.int64)
        self._left = left
        self._plan: Plan | None = None
        self._logits: Array | None = None
        self._row = 0

    def decode(self, token: int) -> Array:
        """Feed a token to the slot. Return the logits [vocabulary] f32 after it."""
        self._newest[self._slot] = token
        self._left -= 1
        self._speculation.extend(self._newest, self._active)
        plan = self._plan
        if plan is not None and plan.next_of(self._row, self._newest)[self._slot]:
            self._row += 1
            return self._accepted()
        self._finish()
        self._plan = self._speculation.plan(self._newest, self._active, self._active * self._left)
        if self._plan is None:
            logits: Array = self._session.decode({self._slot: token})[self._slot]
            self._speculation.ran()
            return logits
        self._row = 0
        live = self._session.verify_step(self._plan.tokens, self._plan.count)
        self._speculation.ran()
        self._logits = np.array(live[self._slot], np.float32)
        return self._accepted()

    def _accepted(self) -> Array:
        """Keep the token whose logits are the next ones, and return them."""
        assert self._logits is not None
        self._session.accept(self._active.astype(np.int64))
        logits: Array = self._logits[self._row]
        return logits

    def _finish(self) -> None:
        if self._plan is not None:
            self._speculation.verified(self._plan, self._active * (self._row + 1))
