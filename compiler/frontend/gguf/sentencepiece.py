"""The parts of a `tokenizers` tokenizer that do what SentencePiece does: merges by score, Unigram, whitespace.

SentencePiece writes a space as U+2581, and a vocabulary of its BPE has no list of merges: of all neighbours whose
concatenation is a token, those are merged next whose token has the highest score, and of these the leftmost ones.
"""

from __future__ import annotations

import base64
import itertools
from collections import Counter
from collections.abc import Callable, Container
from typing import Any

import numpy as np
from gguf.constants import TokenType

from sscc.compiler.frontend.gguf.vocabulary import GgufVocabularyErrors, Vocabulary
from sscc.ir.errors import ErrorKind, InputError

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
CHARSMAP = "tokenizer.ggml.precompiled_charsmap"
MOST_CHARSMAP_BYTES = 1 << 21
"""Published ones have a quarter of a million."""
MOST_CHARSMAP_DEPTH = 64
"""Bytes of the longest text that is replaced. Published ones have at most twenty."""
MOST_SPLIT_LETTERS = 1 << 28
"""Letters in all halves of all tokens together, which are looked up. Published vocabularies have twenty million."""
MOST_UNIGRAM_LETTERS = 1 << 21
"""In all tokens of a Unigram vocabulary, which `tokenizers` keeps as a tree. Published ones have one and a half
million."""
_MERGED = (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED)
"""Types of the tokens that merges make: SentencePiece never makes control, unknown or byte tokens of a text."""

Part = dict[str, Any]
"""A part of a tokenizer.json."""


class GgufSentencepieceErrors(ErrorKind):
    CHARSMAP = InputError, "{path}: metadata {key} is not a table of characters of SentencePiece: {reason}"


def merges_by_score(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Return merges, the first one first, that do what SentencePiece's scores do.

    A merge is one way to cut a token in two that are tokens. Merges of different scores come in the order of the
    scores; those of one token, with the longer left half first, are never in each other's way. Between tokens of the
    same score SentencePiece takes the leftmost pair of a text, which no order of merges expresses; the longer left
    half first gives the same for the usual ones, which are runs of one letter, and is the order that transformers
    gives them.

    Raises:
        UnsupportedError: most tokens have the same score, so that scores say nothing. A converter writes them so where
            it does not know them.
        InputError: scores that lack, or are no numbers; a vocabulary of tokens so long that this would take minutes.
    """
    tokens, scores = vocabulary.tokens, vocabulary.scores()
    made = [token for token in vocabulary.of_type(*_MERGED) if len(tokens[token]) > 1]
    letters = sum(len(tokens[token]) ** 2 for token in made)
    if letters > MOST_SPLIT_LETTERS:
        raise GgufVocabularyErrors.TOO_LONG(
            path=vocabulary.path, what="halves of its tokens", count=letters, most=MOST_SPLIT_LETTERS
        )
    _check_ranked(vocabulary, [scores[token] for token in made])
    halves = {tokens[token] for token in vocabulary.of_type(*_MERGED)}
    merges: list[tuple[str, str]] = []
    made.sort(key=lambda token: -scores[token])
    for _, same_score in itertools.groupby(made, scores.__getitem__):
        group = [tokens[token] for token in same_score]
        cuts = [(text, middle) for text in group for middle in _middles(text, halves)]
        if len(group) > 1:
            cuts.sort(key=lambda cut: (-cut[1], cut[1] - len(cut[0])))
        merges += [(text[:middle], text[middle:]) for text, middle in cuts]
    return merges


def _middles(text: str, halves: Container[str]) -> list[int]:
    """Return where `text` can be cut in two `halves`, the last place first."""
    return [middle for middle in range(len(text) - 1, 0, -1) if text[:middle] in halves and text[middle:] in halves]


def _check_ranked(vocabulary: Vocabulary, scores: list[float]) -> None:
    if not scores:
        return
    score, count = Counter(scores).most_common(1)[0]
    if count > 1 and 2 * count > len(scores):
        raise GgufVocabularyErrors.UNRANKED(path=vocabulary.path, count=count, tokens=len(scores), score=score)


def unigram(vocabulary: Vocabulary) -> Part:
    """Return the model of a Unigram vocabulary.

    An unknown letter costs 10 more than the worst normal token. `tokenizers` takes the worst of all tokens, so that the
    others, whose scores mean nothing, are given that of the worst normal one.
    """
    vocabulary.check_letters("its vocabulary", range(len(vocabulary.tokens)), MOST_UNIGRAM_LETTERS)
    scores = vocabulary.scores()
    normal = [scores[token] for token in vocabulary.of_type(TokenType.NORMAL)]
    worst = min(normal, default=0.0)
    kept = {int(TokenType.NORMAL): None, int(TokenType.USER_DEFINED): 0.0}
    pieces = [
        [text, (score if kept[kind] is None else kept[kind]) if kind in kept else worst]
        for text, score, kind in zip(vocabulary.tokens, scores, vocabulary.types, strict=True)
    ]
    return {
        "type": "Unigram",
        "unk_id": vocabulary.roles.get("unk"),
        "vocab": pieces,
        "byte_fallback": vocabulary.has_bytes(),
    }


def normalizer(vocabulary: Vocabulary, space_prefix: bool) -> Part:
    """Return the normalizer: a table of characters, extra spaces removed, a space before the text, spaces as U+2581.

    Args:
        space_prefix: the default of `add_space_prefix`.
    """
    metadata = vocabulary.metadata
    steps: list[Part] = []
    table = metadata.numbers(CHARSMAP, "iu", "an array of bytes")
    if table is not None and len(table):
        steps.append({"type": "Precompiled", "precompiled_charsmap": _charsmap(vocabulary, table)})
    if metadata.flag("tokenizer.ggml.remove_extra_whitespaces", False):
        steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    if metadata.flag("tokenizer.ggml.add_space_prefix", space_prefix):
        steps.append({"type": "Prepend", "prepend": SPACE})
    steps.append(spaces())
    return {"type": "Sequence", "normalizers": steps}


def spaces() -> Part:
    """Return the normalizer that writes spaces as U+2581."""
    return {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}


def decoder(space_prefix: bool) -> Part:
    """Return the decoder: U+2581 is a space, bytes are joined, the space before the text is dropped."""
    steps: list[Part] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if space_prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


# ------------------------------------------------------------------------------------------ the table of characters


def _charsmap(vocabulary: Vocabulary, table: np.ndarray[Any, np.dtype[Any]]) -> str:
    """Return a table of characters in base64, checked: `tokenizers` trusts it, and ends the process where it is wrong.

    The table is the size of a trie in bytes, the trie, and the texts that it leads to, each of which ends with a zero.
    """

    def bad(reason: str) -> Exception:
        return GgufSentencepieceErrors.CHARSMAP(path=vocabulary.path, key=CHARSMAP, reason=reason)

    if table.dtype.itemsize != 1 or len(table) > MOST_CHARSMAP_BYTES:
        raise bad(f"it is {len(table)} numbers of {table.dtype}")
    data = table.tobytes()
    size = int.from_bytes(data[:4], "little")
    if len(data) < 8 or size % 4 or not 0 < size <= len(data) - 4:
        raise bad(f"its trie has {size} bytes, the table {len(data)}")
    texts = data[4 + size :]
    try:
        texts.decode()
    except UnicodeDecodeError:
        raise bad("its texts are not UTF-8") from None
    _check_trie(np.frombuffer(data, "<u4", size // 4, 4), texts, bad)
    return base64.b64encode(data).decode()


def _check_trie(units: np.ndarray[Any, Any], texts: bytes, bad: Callable[[str], Exception]) -> None:
    """Check that no text leads out of the trie, and every leaf to the start of one of the `texts`.

    The trie is Darts-clone's double array. A unit holds the letter that leads to it, the place from which its children
    are counted (as an exclusive or with its own), and whether one of these is a leaf, which holds a place among the
    texts. A child is at the exclusive or of that place and its letter, so in the same block of 256.
    """
    count = len(units)
    if count % 256:
        raise bad(f"its trie has {count} units, which are no whole blocks")
    starts = np.ones(len(texts) + 1, bool)  # may a text begin here
    starts[:-1] = (np.frombuffer(texts, np.uint8) & 0xC0) != 0x80
    here, unit = np.arange(count), units.astype(np.int64)
    origins = here ^ ((unit >> 10) << ((unit & (1 << 9)) >> 6))
    letters = unit & 0x800000FF
    parents = np.where((letters > 0) & (letters < 256), here ^ (letters & 255), count)  # their origins
    reached, seen = origins[:1], np.zeros(count + 1, bool)
    for _ in range(MOST_CHARSMAP_DEPTH):
        if len(reached) and reached.max() >= count:
            raise bad("its trie leads out of itself")
        reached = reached[~seen[reached]]
        if not len(reached):
            return
        seen[reached] = True
        current = np.zeros(count + 1, bool)
        current[reached] = True
        children = here[current[parents]]
        reached = np.unique(origins[children])
        leaves = origins[children][(unit[children] & (1 << 8)) != 0]
        found = unit[leaves[leaves < count]] & 0x7FFFFFFF
        if len(found) and (found.max() >= len(starts) or not starts[found].all()):
            raise bad("its trie leads to no text")
    raise bad(f"its trie is deeper than {MOST_CHARSMAP_DEPTH}")
