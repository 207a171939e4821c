"""The tokens that each slot of an engine may pick next: what a grammar allows, and least lengths.

Masks are computed in a thread of their own while the step runs that they are for. Only the executor's thread calls a
`ConstraintTable`.
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
"""Compiled grammars that are kept for requests to come."""
_MOST_THREADS = 8
_MOST_LEXER_STATES = 20_000
"""States of the lexer of a grammar, 1 to 2 kB each, which answers share. Where they are used up, an answer goes on with
a lexer of its own (`Constraint`)."""
_MOST_GRAMMAR_SIZE = 100_000  # symbols of its productions


class ConstraintErrors(ErrorKind):
    NO_TOKENIZER = UsageError, "a grammar needs a tokenizer, and the engine has none"
    NOT_JOINED = (
        UsageError,
        "a grammar needs a tokenizer whose texts are the bytes of their tokens (byte-level BPE, sentencepiece)",
    )
    REFUSED = UsageError, "the grammar is refused: {cause}"


class GrammarCompiler:
    """Compiles grammars for the tokens of one tokenizer. Its methods are safe in any thread.

    Args:
        tokenizer: makes the text of answers.
        vocab_size: V of the program, which may be more than the tokenizer has.
        ends: tokens that end a text.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, ends: Sequence[int]) -> None:
        self._tokenizer, self._vocab_size, self._ends = tokenizer, vocab_size, list(ends)
        self._lock = threading.Lock()
        self._known: OrderedDict[str, LLMatcher] = OrderedDict()
        self._made: tuple[LLTokenizer, LLParserLimits] | None = None
        self._first: Array | None = None

    def compile(self, grammar: Grammar) -> LLMatcher:
        """Return a matcher at the beginning of an answer.

        Raises UsageError for a grammar that is wrong, not supported, or too large for the bounds of a step.
        """
        with self._lock:
            known = self._known.get(grammar.source)
            if known is not None:
                copy = known.deep_copy()
                copy.compute_bitmask()
                if not copy.is_error():  # its lexer has states left
                    self._known.move_to_end(grammar.source)
                    return copy
            tokenizer, limits = self._tools()
        from llguidance import LLMatcher

        matcher = LLMatcher(tokenizer, grammar.source, log_level=0, limits=limits)
        if not matcher.is_error():
            matcher.compute_bitmask()  # the first step may take as long as compiling, and may fail
        if matcher.is_error():
            raise ConstraintErrors.REFUSED(cause=quoted(matcher.get_error().removesuffix("\n<non-verbose/>")))
        with self._lock:
            self._known[grammar.source] = matcher
            while len(self._known) > _KNOWN_GRAMMARS:
                self._known.popitem(last=False)
        return matcher.deep_copy()

    def tokens(self, text: str) -> list[int]:
        """Return tokens that have the bytes of a text, for a matcher to consume."""
        with self._lock:
            tokenizer, _ = self._tools()
        return tokenizer.greedy_tokenize(text)

    def text_matcher(self, grammar: Grammar) -> TextMatcher:
        """Return a matcher of texts. Raises UsageError as `compile` does."""
        return TextMatcher(self.compile(grammar), self.tokens)

    def constraint(self, grammar: Grammar, ends: tuple[int, ...], least: int, only: Array | None) -> Constraint:
        """Return the constraint of an answer (`Constraint`). Raises UsageError as `compile` does."""
        matcher = self.compile(grammar)
        renew = partial(self.compile, grammar)
        return Constraint(matcher, ends, least, only, self.first, tuple(self._ends), renew)

    @property
    def first(self) -> Array | None:
        """[ceil(V / 32)] u32, the bits of tokens that an answer may begin with; None where it may begin with any. A
        space at the beginning of a text is lost in some tokenizers, so no answer that must match begins with one."""
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
        """Return the tokenizer as llguidance reads it."""
        from llguidance import TokenizerWrapper

        tokenizer, ends = self._tokenizer, self._ends
        hidden = frozenset(special)  # which are no text, whatever they are called
        by_bytes = {token: number for number, token in enumerate(tokens) if token and number not in hidden}
        longest = max(map(len, by_bytes), default=1)

        class Vocabulary(TokenizerWrapper):
            def __init__(self) -> None:
                self.tokens, self.special_token_ids = tokens, special
                self.eos_token_id = ends[0] if ends else special[0] if special else len(tokens) - 1
                self.bos_token_id, self.is_tokenizer_wrapper = None, True

            def __call__(self, text: str) -> list[int]:
                """Return tokens whose bytes are those of a text that a grammar forces, the tokenizer's own where they
                are: some tokenizers put a space before any text."""
                wanted, found = text.encode(), encode(tokenizer, text, special=False)
                is_text = b"".join(tokens[each] for each in found) == wanted and hidden.isdisjoint(found)
                return found if is_text else greedy(wanted)

        def greedy(text: bytes) -> list[int]:
            found: list[int] = []
            while text:
                length = next((size for size in range(longest, 0, -1) if text[:size] in by_bytes), 0)
                if not length:
                    break  # llguidance goes on byte by byte
                found.append(by_bytes[text[:length]])
                text = text[length:]
            return found

        return Vocabulary()


class TextMatcher:
    """Tells whether texts match a grammar.

    Args:
        matcher: at the beginning of an answer.
        tokens: gives tokens with the bytes of a text.
    """

    def __init__(self, matcher: LLMatcher, tokens: Callable[[str], list[int]]) -> None:
        self._matcher, self._tokens = matcher, tokens

    def push(self, text: str) -> None:
        """Go on with more of the text."""
        self._matcher.consume_tokens(self._tokens(text))

    def matches_with(self, text: str) -> bool:
        """Return True if what was pushed, followed by `text`, matches as a whole."""
        matcher = self._matcher.deep_copy()
        return matcher.consume_tokens(self._tokens(text)) and matcher.is_accepting()


class ThoughtProgress:
    """A thought on its way, of which a bound is kept.

    Attributes:
        over: it has ended, or there is none.
    """

    _LATEST_START = 8  # tokens in which a thought begins, if there is one

    def __init__(self, bound: ThoughtBound) -> None:
        self._bound = bound
        self._inside, self._count, self._at = bound.inside, 0, 0
        self._last: deque[int] = deque(maxlen=max(len(bound.start), len(bound.end), 1))
        self.over = False

    @property
    def forced(self) -> int | None:
        """The token that must come next, because the thought is long enough; None where any may."""
        due = self._inside and not self.over and self._count >= self._bound.most
        return self._bound.forced[self._at] if due else None

    def advance(self, token: int) -> None:
        """Go on with a token."""
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
            if self._count == self._bound.most:  # the end may have begun already
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
    """The tokens that one answer may have.

    Attributes:
        matcher: of its grammar, after the tokens so far; None: there is none.
        ends: tokens that end it. They are allowed where the grammar is matched as a whole, and no sooner.
        least: tokens before which none of `ends` is allowed, unless the grammar allows nothing else.
        only: [ceil(V / 32)] u32, bits of the only tokens that it may have besides `ends`; None: any.
        first: likewise, of its first token.
        program_ends: tokens that llguidance allows at the end, which must also be in `ends`.
        thought: the thought that it begins with, if that has a bound.
        renew: gives a matcher at the beginning of an answer, in place of one whose lexer other answers have used up.
        tokens: those so far, of an answer with a grammar.
        made: how many there are.
        failure: why the grammar allows no token any more; None: it does.
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
        """True where the grammar is matched as a whole, and nothing may follow."""
        return self.matcher is not None and self.failure is None and self.matcher.is_stopped()

    @property
    def binds(self) -> bool:
        """True where not every token may come next."""
        forced = self.thought is not None and self.thought.forced is not None
        return self.matcher is not None or self.only is not None or self.made < self.least or forced

    @property
    def follows(self) -> bool:
        """True where tokens to come are of interest."""
        return self.binds or (self.thought is not None and not self.thought.over)

    def advance(self, token: int) -> None:
        """Go on with a token that was picked."""
        self.made += 1
        if self.thought is not None:
            self.thought.advance(token)
        if self.matcher is None or self.failure is not None or token in self.ends:
            return
        self.tokens.append(token)
        if not self.matcher.consume_token(token):
            self._recover()

    def _recover(self) -> None:
        """Go on with a new matcher; where that fails too, the answer is at its end."""
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
        """Write the tokens that may come next.

        Args:
            row: [ceil(V / 32)] u32; what the matcher allows, where there is one.
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
            self.failure = "no token of the vocabulary goes on with it"

    def _refilled(self, row: Array) -> bool:
        """Compute a row again with a new matcher. Return False where the answer is at its end."""
        self._recover()
        if self.matcher is not None and self.failure is None:
            _fill([(self.matcher, 0)], row[None])
            if self.matcher.is_error():
                self.failure = self.matcher.get_error()
        return self.failure is None


_News = tuple[int, Constraint, int | None]
"""A slot, its constraint, and the token that it got; None: nothing yet."""


class ConstraintTable:
    """The constraints of the slots of an engine.

    Args:
        slots, vocab_size: B and V.
    """

    def __init__(self, slots: int, vocab_size: int) -> None:
        self._allowed = Allowed.none(slots, vocab_size)
        self._constraints: dict[int, Constraint] = {}
        self._worker: ThreadPoolExecutor | None = None
        self._pending: Future[None] | None = None

    def start(self, slot: int, constraint: Constraint | None) -> None:
        """Begin an answer in a slot, in place of the one there."""
        self._wait()
        self._constraints.pop(slot, None)
        self._allowed.constrained[slot] = False  # what was computed after `stop` may have set it
        if constraint is not None:
            self._constraints[slot] = constraint
            self._allowed.constrained[slot] = True
            self._begin([(slot, constraint, None)])

    def stop(self, slot: int) -> None:
        """End the answer of a slot, if it has a constraint. What is being computed for it is not waited for."""
        if self._constraints.pop(slot, None) is not None:
            self._allowed.constrained[slot] = False

    def advance(self, tokens: Array, picked: Array) -> None:
        """Begin to compute what may come after some tokens.

        Args:
            tokens: [B] i64.
            picked: [B] bool, the slots that got theirs.
        """
        if self._constraints:
            following = [(slot, each) for slot, each in self._constraints.items() if picked[slot] and each.follows]
            self._begin([(slot, each, int(tokens[slot])) for slot, each in following])

    def ready(self) -> Allowed | None:
        """Return what slots may pick next, once it is computed; None where no slot is constrained."""
        if not self._constraints:
            return None
        self._wait()
        return self._allowed

    def over(self, active: Array) -> dict[int, str | None]:
        """Return the active slots of which no token can be picked any more: why, or None where the answer is whole and
        its request names no token that ends it."""
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
        """Go on with tokens, and write the rows of their slots."""
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
    """Write the bits of the tokens that matchers allow next into their rows."""
    executor, row_bytes = _executor(), bits.shape[1] * bits.itemsize
    if executor is not None:
        executor.unsafe_compute_mask_ptr(matchers, bits.ctypes.data, row_bytes, len(bits))
        return
    for matcher, slot in matchers:
        matcher.unsafe_compute_mask_ptr(bits.ctypes.data + slot * row_bytes, row_bytes)


@cache
def _executor() -> LLExecutor | None:
    """Return threads that share the masks of a step; None where the processors are too few for that: threads that wait
    for work would take time from the step."""
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
