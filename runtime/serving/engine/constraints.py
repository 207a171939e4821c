"""Constraints on the next token of each slot of an engine: grammars, minimum lengths, allowed tokens, reasoning.

Masks are computed in a separate thread while the step that needs them is running. `ConstraintTable` is used only by the
executor's thread.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np

from sscc.ir.errors import ErrorKind, UsageError, quoted
from sscc.ir.extras import SERVE, require
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.serving.engine.request import ThoughtBound
from sscc.runtime.session.samplers import Allowed
from sscc.runtime.text.grammar import Grammar
from sscc.runtime.text.token_text import TokenBytes
from sscc.runtime.text.tokenizer import encode

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
    from tokenizers import Tokenizer

_KNOWN_GRAMMARS = 16
"""Number of compiled grammars kept for later requests."""
_MOST_THREADS = 8
_MOST_LEXER_STATES = 20_000
"""Lexer states of a grammar, 1 to 2 kB each, shared by all of its answers. When they are exhausted, an answer continues
with a lexer of its own (`Constraint.renew`)."""
_MOST_GRAMMAR_SIZE = 100_000  # symbols in its productions


class ConstraintErrors(ErrorKind):
    NO_TOKENIZER = UsageError, "a grammar needs a tokenizer, but the engine has none"
    NOT_JOINED = (
        UsageError,
        "a grammar needs a tokenizer whose tokens are bytes of the text (byte-level BPE, sentencepiece)",
    )
    REFUSED = UsageError, "the grammar is invalid or too complex: {cause}"


class GrammarCompiler:
    """Compiler of grammars for the tokens of one tokenizer. Its methods may be called from any thread.

    Args:
        tokenizer: tokenizer of the answers.
        vocab_size: vocabulary size V of the program, which may be larger than the tokenizer's.
        ends: end tokens.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, ends: Sequence[int]) -> None:
        self._tokenizer, self._vocab_size, self._ends = tokenizer, vocab_size, list(ends)
        self._lock = threading.Lock()
        self._known: OrderedDict[str, LLMatcher] = OrderedDict()
        self._made: tuple[LLTokenizer, LLParserLimits] | None = None
        self._first: Array | None = None

    def compile(self, grammar: Grammar) -> LLMatcher:
        """Return a matcher at the beginning of an answer.

        Raises UsageError for a grammar that is wrong, not supported, or too large for llguidance's limits.
        """
        with self._lock:
            known = self._known.get(grammar.source)
            if known is not None:
                copy = known.deep_copy()
                copy.compute_bitmask()
                if not copy.is_error():  # the copies share lexer states, which may be exhausted
                    self._known.move_to_end(grammar.source)
                    return copy
            tokenizer, limits = self._tools()
        from llguidance import LLMatcher

        matcher = LLMatcher(tokenizer, grammar.source, log_level=0, limits=limits)
        if not matcher.is_error():
            matcher.compute_bitmask()  # the first mask may take as long as compiling, and may fail
        if matcher.is_error():
            raise ConstraintErrors.REFUSED(cause=quoted(matcher.get_error().removesuffix("\n<non-verbose/>")))
        with self._lock:
            self._known[grammar.source] = matcher
            while len(self._known) > _KNOWN_GRAMMARS:
                self._known.popitem(last=False)
        return matcher.deep_copy()

    def tokens(self, text: str) -> list[int]:
        """Return tokens that spell a text, for a matcher to consume."""
        with self._lock:
            tokenizer, _ = self._tools()
        return tokenizer.greedy_tokenize(text)

    def text_matcher(self, grammar: Grammar) -> TextMatcher:
        """Return a matcher for texts. Raises UsageError as `compile` does."""
        return TextMatcher(self.compile(grammar), self.tokens)

    def constraint(self, grammar: Grammar, ends: tuple[int, ...], least: int, only: Array | None) -> Constraint:
        """Return the constraint of an answer (`Constraint`). Raises UsageError as `compile` does."""
        matcher = self.compile(grammar)
        renew = partial(self.compile, grammar)
        return Constraint(matcher, ends, least, only, self.first, tuple(self._ends), renew)

    @property
    def first(self) -> Array | None:
        """[ceil(V / 32)] u32, bits of the tokens with which an answer may begin; None for any. Some tokenizers drop a
        space at the beginning of a text, so with them no answer with a grammar may begin with a space."""
        with self._lock:
            self._tools()
            return self._first

    def _tools(self) -> tuple[LLTokenizer, LLParserLimits]:
        if self._made is None:
            require(SERVE, "a grammar")
            import llguidance

            spell = TokenBytes(self._tokenizer)
            if not spell.joins:
                raise ConstraintErrors.NOT_JOINED()
            tokens = [spell(token) for token in range(self._vocab_size)]
            silent = [token for token in range(self._vocab_size) if spell.silent(token)]
            self._made = (
                llguidance.LLTokenizer(self._vocabulary(tokens, silent), eos_token=self._ends or None),
                llguidance.LLParserLimits(
                    max_lexer_states=_MOST_LEXER_STATES, max_grammar_size=_MOST_GRAMMAR_SIZE, verbose_errors=False
                ),
            )
            if spell.drops_first_space:
                self._first = _bits(np.array([not token.startswith(b" ") for token in tokens]))
        return self._made

    def _vocabulary(self, tokens: list[bytes], special: list[int]) -> TokenizerWrapper:
        """Return the tokenizer in the form that llguidance reads."""
        from llguidance import TokenizerWrapper

        tokenizer, ends = self._tokenizer, self._ends
        hidden = frozenset(special)  # special tokens are not text, whatever their names spell
        by_bytes = {token: number for number, token in enumerate(tokens) if token and number not in hidden}
        longest = max(map(len, by_bytes), default=1)

        class Vocabulary(TokenizerWrapper):
            def __init__(self) -> None:
                self.tokens, self.special_token_ids = tokens, special
                self.eos_token_id = ends[0] if ends else special[0] if special else len(tokens) - 1
                self.bos_token_id, self.is_tokenizer_wrapper = None, True

            def __call__(self, text: str) -> list[int]:
                """Tokenize a text that a grammar forces. The tokenizer's own tokens are used if their bytes are those
                of the text; some tokenizers put a space before any text."""
                wanted, found = text.encode(), encode(tokenizer, text, special=False)
                is_text = b"".join(tokens[each] for each in found) == wanted and hidden.isdisjoint(found)
                return found if is_text else greedy(wanted)

        def greedy(text: bytes) -> list[int]:
            found: list[int] = []
            while text:
                length = next((size for size in range(longest, 0, -1) if text[:size] in by_bytes), 0)
                if not length:
                    break  # llguidance continues byte by byte
                found.append(by_bytes[text[:length]])
                text = text[length:]
            return found

        return Vocabulary()


class TextMatcher:
    """Incremental match of a text against a grammar.

    Args:
        matcher: matcher at the beginning of an answer.
        tokens: returns tokens that spell a text.
    """

    def __init__(self, matcher: LLMatcher, tokens: Callable[[str], list[int]]) -> None:
        self._matcher, self._tokens = matcher, tokens

    def push(self, text: str) -> None:
        """Append to the text."""
        self._matcher.consume_tokens(self._tokens(text))

    def matches_with(self, text: str) -> bool:
        """Return True if the text so far, followed by `text`, is a complete match."""
        matcher = self._matcher.deep_copy()
        return matcher.consume_tokens(self._tokens(text)) and matcher.is_accepting()


class ThoughtProgress:
    """Progress of an answer's reasoning, whose length is bounded.

    Attributes:
        over: True if the reasoning has ended, or there is none.
    """

    _LATEST_START = 8  # number of tokens within which reasoning must begin

    def __init__(self, bound: ThoughtBound) -> None:
        self._bound = bound
        self._inside, self._count, self._at = bound.inside, 0, 0
        self._last: deque[int] = deque(maxlen=max(len(bound.start), len(bound.end), 1))
        self.over = False

    @property
    def forced(self) -> int | None:
        """Token that must come next because the reasoning has reached its maximum length; None for any token."""
        due = self._inside and not self.over and self._count >= self._bound.most
        return self._bound.forced[self._at] if due else None

    def advance(self, token: int) -> None:
        """Append a token."""
        if self.over:
            return
        forcing = self.forced is not None
        self._last.append(token)
        self._count += 1
        if forcing:
            self._at += 1
            self.over = self._at == len(self._bound.forced)
        elif self._inside:
            self.over = self._ends_with(self._bound.end)
            if self._count == self._bound.most:  # the model may have begun the end itself; force only the rest
                forced = self._bound.forced
                begun = (size for size in range(len(forced) - 1, 0, -1) if self._ends_with(forced[:size]))
                self._at = next(begun, 0)
        elif self._ends_with(self._bound.start):
            self._inside, self._count = True, 0
        else:
            self.over = self._count >= self._LATEST_START

    def _ends_with(self, tokens: tuple[int, ...]) -> bool:
        return tuple(self._last)[-len(tokens) :] == tokens


@dataclass
class Constraint:
    """Constraint on the tokens of one answer.

    Attributes:
        matcher: matcher of its grammar, after the tokens so far; None without a grammar.
        ends: end tokens of the request. They are allowed only where the grammar is matched completely.
        least: number of tokens before which none of `ends` is allowed, unless the grammar allows nothing else.
        only: [ceil(V / 32)] u32, bits of the only tokens allowed besides `ends`; None for any.
        first: the same for the first token.
        program_ends: tokens that llguidance allows at the end of a match; those not in `ends` are masked out.
        thought: progress of its reasoning, if the reasoning is bounded.
        renew: returns a matcher at the beginning of an answer, to replace one whose lexer states are exhausted.
        tokens: tokens so far, for an answer with a grammar.
        made: number of tokens so far.
        failure: reason why the grammar allows no further token; None if it does.
    """

    matcher: LLMatcher | None
    ends: tuple[int, ...]
    least: int = 0
    only: Array | None = None
    first: Array | None = None
    program_ends: tuple[int, ...] = ()
    renew: Callable[[], LLMatcher] | None = None
    thought: ThoughtProgress | None = None
    tokens: list[int] = field(default_factory=list)
    made: int = 0
    failure: str | None = None

    @property
    def complete(self) -> bool:
        """True if the grammar is matched completely, and nothing may follow."""
        return self.matcher is not None and self.failure is None and self.matcher.is_stopped()

    @property
    def binds(self) -> bool:
        """True if some tokens are not allowed next."""
        forced = self.thought is not None and self.thought.forced is not None
        return self.matcher is not None or self.only is not None or self.made < self.least or forced

    @property
    def follows(self) -> bool:
        """True if the constraint must see further tokens."""
        return self.binds or (self.thought is not None and not self.thought.over)

    def advance(self, token: int) -> None:
        """Append a token that was picked."""
        self.made += 1
        if self.thought is not None:
            self.thought.advance(token)
        if self.matcher is None or self.failure is not None or token in self.ends:
            return
        self.tokens.append(token)
        if not self.matcher.consume_token(token):
            self._recover()

    def _recover(self) -> None:
        """Continue with a new matcher. If that fails too, the answer ends here."""
        assert self.matcher is not None
        self.failure = self.matcher.get_error()
        if self.renew is not None:
            try:
                matcher = self.renew()
            except UsageError:
                return
            if matcher.consume_tokens(self.tokens):
                self.matcher, self.failure = matcher, None

    def restrict(self, row: Array) -> None:
        """Write the mask of the allowed next tokens.

        Args:
            row: [ceil(V / 32)] u32; on entry the matcher's mask, if there is a matcher.
        """
        matcher = self.matcher
        whole = True
        if matcher is None:
            row[:] = ~np.uint32(0) if self.only is None else self.only
        elif matcher.is_error() and not self._refilled(row):
            return
        else:
            matcher = self.matcher
            assert matcher is not None
            whole = matcher.is_accepting()
            if self.first is not None and self.made == 0:
                row &= self.first
            if self.only is not None:
                row &= self.only
        _set(row, (*self.ends, *self.program_ends), False)
        if whole and (self.made >= self.least or not row.any()):
            _set(row, self.ends, True)
        if self.thought is not None and self.thought.forced is not None:
            row[:] = 0
            _set(row, (self.thought.forced,), True)
        if not row.any() and not self.complete:
            self.failure = "no token of the vocabulary can continue the text"

    def _refilled(self, row: Array) -> bool:
        """Recompute a mask with a new matcher. Return False if the answer ends here."""
        self._recover()
        if self.matcher is not None and self.failure is None:
            _fill([(self.matcher, 0)], row[None])
            if self.matcher.is_error():
                self.failure = self.matcher.get_error()
        return self.failure is None


_News = tuple[int, Constraint, int | None]
"""A slot, its constraint, and the token picked for it; None before the first token."""


class ConstraintTable:
    """Constraints of the slots of an engine.

    Args:
        slots, vocab_size: number of slots B, and vocabulary size V.
    """

    def __init__(self, slots: int, vocab_size: int) -> None:
        self._allowed = Allowed.none(slots, vocab_size)
        self._constraints: dict[int, Constraint] = {}
        self._worker: ThreadPoolExecutor | None = None
        self._pending: Future[None] | None = None

    def start(self, slot: int, constraint: Constraint | None) -> None:
        """Begin an answer in a slot, in place of the previous one."""
        self._wait()
        self._constraints.pop(slot, None)
        self._allowed.constrained[slot] = False  # a computation that ended after `stop` may have set it
        if constraint is not None:
            self._constraints[slot] = constraint
            self._allowed.constrained[slot] = True
            self._begin([(slot, constraint, None)])

    def stop(self, slot: int) -> None:
        """End the answer of a slot, without waiting for the computation of its mask."""
        if self._constraints.pop(slot, None) is not None:
            self._allowed.constrained[slot] = False

    def advance(self, tokens: Array, picked: Array) -> None:
        """Begin to compute the masks after newly picked tokens.

        Args:
            tokens: [B] i64.
            picked: [B] bool, slots for which a token was picked.
        """
        if self._constraints:
            following = [(slot, each) for slot, each in self._constraints.items() if picked[slot] and each.follows]
            self._begin([(slot, each, int(tokens[slot])) for slot, each in following])

    def ready(self) -> Allowed | None:
        """Wait for the masks and return them; None if no slot is constrained."""
        if not self._constraints:
            return None
        self._wait()
        return self._allowed

    def over(self, active: Array) -> dict[int, str | None]:
        """Return the active slots for which no further token can be picked, each with the reason: a failure, or None if
        the answer is complete and its request has no end tokens."""
        ended = {}
        for slot, constraint in self._constraints.items():
            if active[slot] and (constraint.failure is not None or (constraint.complete and not constraint.ends)):
                ended[slot] = constraint.failure
        return ended

    def _begin(self, news: Sequence[_News]) -> None:
        self._wait()
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, "sscc-masks")
        self._pending = self._worker.submit(self._compute, news)

    def _wait(self) -> None:
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.result()

    def _compute(self, news: Sequence[_News]) -> None:
        """Advance constraints by their tokens, and write the masks of their slots."""
        bits, constrained = self._allowed.bits, self._allowed.constrained
        for _, constraint, token in news:
            if token is not None:
                constraint.advance(token)
        matchers = [(each.matcher, slot) for slot, each, _ in news if each.matcher is not None and each.failure is None]
        if matchers:
            _fill(matchers, bits)
        for slot, constraint, _ in news:
            if constraint.binds:
                constraint.restrict(bits[slot])
            constrained[slot] = constraint.binds


def _fill(matchers: list[tuple[LLMatcher, int]], bits: Array) -> None:
    """Write the masks of the tokens that matchers allow next into the rows of their slots."""
    executor, row_bytes = _executor(), bits.shape[1] * bits.itemsize
    if executor is not None:
        executor.unsafe_compute_mask_ptr(matchers, bits.ctypes.data, row_bytes, len(bits))
        return
    for matcher, slot in matchers:
        matcher.unsafe_compute_mask_ptr(bits.ctypes.data + slot * row_bytes, row_bytes)


@cache
def _executor() -> LLExecutor | None:
    """Return a thread pool for the masks of a step; None on machines with few processors, where its idle threads would
    take time from the step."""
    import llguidance

    threads = min((os.cpu_count() or 1) // 4, _MOST_THREADS)
    return llguidance.LLExecutor(threads) if threads > 1 else None


def _bits(members: Array) -> Array:
    """Return [V] bool as [ceil(V / 32)] u32."""
    padded = np.zeros((len(members) + 31) // 32 * 32, np.bool_)
    padded[: len(members)] = members
    return np.packbits(padded, bitorder="little").view("<u4").astype(np.uint32)


def token_bits(tokens: Sequence[int], vocab_size: int) -> Array:
    """Return [ceil(V / 32)] u32 with the bits of some tokens."""
    members = np.zeros(vocab_size, np.bool_)
    members[list(tokens)] = True
    return _bits(members)


def _set(row: Array, tokens: Sequence[int], value: bool) -> None:
    for token in tokens:
        bit = np.uint32(1 << (token % 32))
        row[token // 32] = row[token // 32] | bit if value else row[token // 32] & ~bit
