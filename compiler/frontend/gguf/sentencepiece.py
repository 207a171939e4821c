"""SentencePiece's algorithms as parts of a tokenizer.json: BPE by score, Unigram, and whitespace.

SentencePiece spells a space as U+2581. Its BPE has no list of merges: it joins the two neighbours whose concatenation
is the token with the highest score, the leftmost pair among equals, until no neighbours make a token.
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
"""Maximum bytes of a table of characters. Published ones have a quarter of a million."""
MOST_CHARSMAP_DEPTH = 64
"""Maximum bytes of a replaced text. Published ones have at most twenty."""
MOST_SPLIT_CHARACTERS = 1 << 28
"""Maximum characters in the halves of all tokens, each of which is looked up. Published vocabularies have twenty
million."""
MOST_UNIGRAM_CHARACTERS = 1 << 21
"""Maximum characters in all tokens of a Unigram vocabulary, which `tokenizers` keeps as a tree. Published ones have one
and a half million."""
_MERGED = (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED)
"""Types of the tokens that merges produce. SentencePiece makes no control, unknown or byte tokens from text."""

Part = dict[str, Any]
"""A part of a tokenizer.json."""


class GgufSentencepieceErrors(ErrorKind):
    CHARSMAP = InputError, "{path}: metadata {key} is not a character map of SentencePiece: {reason}"


def merges_by_score(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Return the list of merges that gives the same tokens as SentencePiece's scores.

    Each way to cut a token into two tokens is a merge. Merges are ordered by the score of the token, and those of one
    token by the length of the left half, longest first.

    Tokens of equal score are the exception: SentencePiece joins the leftmost pair of the text, which a list of merges
    cannot express. The longest left half first gives the same for runs of one character, the usual case (Llama 2's
    runs of spaces), and is the order in which transformers converts all of them.

    Raises:
        UnsupportedError: most tokens have the same score. Converters write that where they do not know the scores.
        InputError: scores are missing or not finite, or tokens are so long that the cuts would take minutes.
    """
    tokens, scores = vocabulary.tokens, vocabulary.scores()
    made = [token for token in vocabulary.of_type(*_MERGED) if len(tokens[token]) > 1]
    characters = sum(len(tokens[token]) ** 2 for token in made)
    if characters > MOST_SPLIT_CHARACTERS:
        raise GgufVocabularyErrors.TOO_LONG(
            path=vocabulary.path, what="halves of its tokens", count=characters, most=MOST_SPLIT_CHARACTERS
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

    The score of an unknown character is 10 below that of the worst normal token. `tokenizers` takes the worst of all
    tokens, so the others, whose scores mean nothing, get the score of the worst normal one.
    """
    vocabulary.check_characters("its vocabulary", range(len(vocabulary.tokens)), MOST_UNIGRAM_CHARACTERS)
    scores = vocabulary.scores()
    normal = [scores[token] for token in vocabulary.of_type(TokenType.NORMAL)]
    worst = min(normal, default=0.0)
    for token, kind in enumerate(vocabulary.types):
        if kind != TokenType.NORMAL:
            scores[token] = 0.0 if kind == TokenType.USER_DEFINED else worst
    return {
        "type": "Unigram",
        "unk_id": vocabulary.roles.get("unk"),
        "vocab": list(zip(vocabulary.tokens, scores, strict=True)),
        "byte_fallback": vocabulary.has_bytes(),
    }


def normalizer(vocabulary: Vocabulary, space_prefix: bool) -> Part:
    """Return the normalizer: replace characters, remove extra spaces, prepend a space, spell spaces as U+2581.

    A space is prepended to the text and to what follows each added token, as in llama.cpp and in the tokenizer.json of
    Llama 2; SentencePiece itself prepends one to the whole text. `tokenizers` replaces characters by grapheme, so a
    joiner (U+200D) after a replaced character is dropped, where SentencePiece keeps it.

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
    """Return the normalizer that spells spaces as U+2581."""
    return {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}


def decoder(space_prefix: bool) -> Part:
    """Return the decoder: restore spaces, join bytes, drop the prepended space."""
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
    """Return a table of characters in base64, checked: `tokenizers` trusts it, and panics on a damaged one.

    The table is the size of a trie in bytes, the trie, and the replacement texts, each of which ends with a zero byte.
    """

    def bad(reason: str) -> Exception:
        return GgufSentencepieceErrors.CHARSMAP(path=vocabulary.path, key=CHARSMAP, reason=reason)

    if table.dtype.itemsize != 1 or len(table) > MOST_CHARSMAP_BYTES:
        raise bad(f"it is {len(table)} numbers of {table.dtype}")
    data = table.tobytes()
    size = int.from_bytes(data[:4], "little")
    if len(data) < 8 or size % 4 or not 0 < size <= len(data) - 4:
        raise bad(f"its trie has {size} bytes, but the table has {len(data)}")
    texts = data[4 + size :]
    try:
        texts.decode()
    except UnicodeDecodeError:
        raise bad("its texts are not UTF-8") from None
    _check_trie(np.frombuffer(data, "<u4", size // 4, 4), texts, bad)
    return base64.b64encode(data).decode()


def _check_trie(units: np.ndarray[Any, Any], texts: bytes, bad: Callable[[str], Exception]) -> None:
    """Check that lookups stay inside the trie, and that its leaves hold offsets of replacement texts.

    The trie is Darts-clone's double array. A unit holds the byte that leads to it (its label), the distance to its
    origin, and a flag for a leaf at the origin, which holds an offset in `texts`. The child with a label is at the
    exclusive or of origin and label, so in the same block of 256 units.
    """
    count = len(units)
    if count % 256:
        raise bad(f"its trie has {count} units, which is not a whole number of blocks")
    starts = np.ones(len(texts) + 1, bool)  # True where a character begins
    starts[:-1] = (np.frombuffer(texts, np.uint8) & 0xC0) != 0x80
    here, unit = np.arange(count), units.astype(np.int64)
    origins = here ^ ((unit >> 10) << ((unit & (1 << 9)) >> 6))
    labels = unit & 0x800000FF
    parents = np.where((labels > 0) & (labels < 256), here ^ (labels & 255), count)  # origins that lead here
    reached, seen = origins[:1], np.zeros(count + 1, bool)
    for _ in range(MOST_CHARSMAP_DEPTH):
        if len(reached) and reached.max() >= count:
            raise bad("its trie refers to units outside of it")
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
            raise bad("a leaf of its trie does not refer to the start of a text")
    raise bad(f"its trie is deeper than {MOST_CHARSMAP_DEPTH}")
