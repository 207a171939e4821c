"""The kinds of vocabularies that a GGUF file may have, as parts of a tokenizer.json.

    tokenizer.ggml.model   algorithm                                        model of `tokenizers`
    gpt2                   byte-level BPE, a text split as `pre` says       BPE with the file's merges
    gemma4, whitespace     BPE of the text itself                           BPE with the file's merges
    llama                  SentencePiece's BPE                              BPE with merges made of the scores
    t5                     SentencePiece's Unigram                          Unigram
    bert                   WordPiece                                        WordPiece
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gguf.constants import TokenType

from sscc.compiler.frontend.gguf.header import GgufHeader
from sscc.compiler.frontend.gguf.pre_tokenizers import DEFAULT_NAMES, PRE_TOKENIZERS, PreTokenizer
from sscc.compiler.frontend.gguf.sentencepiece import (
    SPACE,
    Part,
    decoder,
    merges_by_score,
    normalizer,
    spaces,
    unigram,
)
from sscc.compiler.frontend.gguf.vocabulary import (
    MODEL,
    NO_VOCABULARY,
    ROLES,
    GgufVocabularyErrors,
    Merges,
    Metadata,
    Vocabulary,
)
from sscc.ir.errors import ErrorKind, UnsupportedError

PRE = "tokenizer.ggml.pre"
SPACE_PREFIX = "tokenizer.ggml.add_space_prefix"
LOWERCASE, STRIP_ACCENTS = "tokenizer.ggml.normalizer.lowercase", "tokenizer.ggml.normalizer.strip_accents"
_MOST_WORD_CHARACTERS = 100
"""Maximum characters of a word that WordPiece cuts into pieces, as in BERT; a longer word is unknown."""
_PHI3_WITHOUT_RSTRIP = frozenset(("<unk>", "<s>", "<|endoftext|>"))
_LSTRIP_ARCHITECTURES = ("nomic-bert-moe", "jina-bert-v3")


class GgufKindErrors(ErrorKind):
    """Unsupported kinds of tokenizers."""

    KIND = UnsupportedError, "{path}: its tokenizer is of kind {kind!r}, which is not supported; supported are {known}"
    NO_PRE_TOKENIZER = (
        UnsupportedError,
        "{path}: metadata {key} is missing, so it is unknown how its tokenizer splits a text: convert the model again "
        "with a llama.cpp of May 2024 or later",
    )
    PRE_TOKENIZER = UnsupportedError, "{path}: its tokenizer splits a text as {name!r} does, which is not supported"


@dataclass(frozen=True)
class KindParts:
    """The parts of a tokenizer.json that depend on the kind of a vocabulary.

    Attributes:
        texts: texts of the tokens, as the model spells them.
        adds: defaults of `add_bos_token`, `add_eos_token` and `add_sep_token`, by role.
        always_adds_bos: True if `add_bos_token` is true whatever the file states.
        first: role of the token that begins a text.
        separates: True if `sep` also ends a text, and not only the first one of a pair.
        lstrip, rstrip: texts of the added tokens that absorb the spaces before or after them.
    """

    texts: Sequence[str]
    model: Part
    normalizer: Part | None
    pre_tokenizer: Part | None
    decoder: Part
    adds: Mapping[str, bool]
    always_adds_bos: bool = False
    first: str = "bos"
    separates: bool = False
    lstrip: frozenset[str] = frozenset()
    rstrip: frozenset[str] = frozenset()


def check_kind(header: GgufHeader) -> None:
    """Check that the kind of a file's vocabulary is supported, if it has one. Raises UnsupportedError."""
    kind = Metadata(header).text(MODEL)
    if kind and kind not in {*_KINDS, *NO_VOCABULARY}:
        raise GgufKindErrors.KIND(path=header.path, kind=kind, known=sorted(_KINDS))


def kind_parts(vocabulary: Vocabulary) -> KindParts:
    """Return the parts that depend on the kind of a vocabulary. It must be a supported one (`check_kind`).

    Raises:
        UnsupportedError: an unknown pre-tokenizer, or scores that define no order.
        InputError: inconsistent merges, scores or other metadata.
    """
    return _KINDS[vocabulary.kind](vocabulary)


# --------------------------------------------------------------------------------------------- BPE with merges


def _with_merges(vocabulary: Vocabulary) -> KindParts:
    pre_tokenizer = _pre_tokenizer(vocabulary)
    vocabulary.metadata.flag(SPACE_PREFIX, False)  # has no effect here, as in llama.cpp
    steps: list[Part] = [_split(pre_tokenizer.removed, "Removed")] if pre_tokenizer.removed else []
    steps += [_split(expression, "Isolated") for expression in pre_tokenizer.splits]
    written: Part = {"type": "Fuse"}
    if pre_tokenizer.byte_level:
        written = _byte_level(add_prefix_space=True, use_regex=True)
        steps.append(_byte_level(add_prefix_space=False, use_regex=False))
    elif pre_tokenizer.escapes_spaces:
        written = decoder(space_prefix=False)
    of_text = not pre_tokenizer.byte_level
    return KindParts(
        texts=vocabulary.tokens,
        model=_bpe(vocabulary, vocabulary.merges(), of_text=of_text, ignore_merges=pre_tokenizer.ignore_merges),
        normalizer=_text_normalizer(vocabulary, pre_tokenizer),
        pre_tokenizer={"type": "Sequence", "pretokenizers": steps} if steps else None,
        decoder=written,
        adds={"bos": pre_tokenizer.adds_bos, "sep": pre_tokenizer.adds_sep},
        always_adds_bos=pre_tokenizer.always_adds_bos,
        lstrip=frozenset([pre_tokenizer.lstrip]) - {""},
    )


def _pre_tokenizer(vocabulary: Vocabulary) -> PreTokenizer:
    """Return the pre-tokenizer that a file names.

    A file that names none is refused, although llama.cpp uses `default` for it: that is wrong for most models, as
    llama.cpp itself warns.
    """
    name = vocabulary.metadata.text(PRE) or DEFAULT_NAMES.get(vocabulary.architecture, "")
    name = vocabulary.kind if vocabulary.kind != "gpt2" else name  # gemma4 and whitespace have their own pre-tokenizers
    if not name:
        raise GgufKindErrors.NO_PRE_TOKENIZER(path=vocabulary.path, key=PRE)
    if name not in PRE_TOKENIZERS:
        raise GgufKindErrors.PRE_TOKENIZER(path=vocabulary.path, name=name)
    return PRE_TOKENIZERS[name]


def _text_normalizer(vocabulary: Vocabulary, pre_tokenizer: PreTokenizer) -> Part | None:
    steps: list[Part] = [{"type": "NFC"}] if pre_tokenizer.nfc else []
    if vocabulary.metadata.flag(LOWERCASE, False):  # the converter writes it for every lowercasing tokenizer
        steps.append({"type": "Lowercase"})
    if pre_tokenizer.escapes_spaces:
        steps.append(spaces())
    return {"type": "Sequence", "normalizers": steps} if steps else None


def _split(expression: str, behavior: str) -> Part:
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": behavior, "invert": False}


def _byte_level(add_prefix_space: bool, use_regex: bool) -> Part:
    return {
        "type": "ByteLevel",
        "add_prefix_space": add_prefix_space,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _bpe(vocabulary: Vocabulary, merges: Merges, *, of_text: bool, ignore_merges: bool = False) -> Part:
    """Return a BPE model.

    Args:
        of_text: True if tokens are text, not bytes in GPT-2's alphabet. Characters without a token fall back to byte
            tokens, or to the unknown one.
    """
    unknown = vocabulary.roles.get("unk") if of_text else None
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None if unknown is None else vocabulary.tokens[unknown],
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": of_text,
        "byte_fallback": of_text and vocabulary.has_bytes(),
        "ignore_merges": ignore_merges,
        "vocab": vocabulary.ids,
        "merges": merges,
    }


# ------------------------------------------------------------------------------------------------ SentencePiece


def _sentencepiece_bpe(vocabulary: Vocabulary) -> KindParts:
    return KindParts(
        texts=vocabulary.tokens,
        model=_bpe(vocabulary, merges_by_score(vocabulary), of_text=True),
        normalizer=normalizer(vocabulary, space_prefix=True),
        pre_tokenizer=None,
        decoder=decoder(vocabulary.metadata.flag(SPACE_PREFIX, True)),
        adds={"bos": True},
        rstrip=_phi3_rstrip(vocabulary),
    )


def _phi3_rstrip(vocabulary: Vocabulary) -> frozenset[str]:
    """Return Phi-3's tokens that take the spaces after them with them, of which no file says so."""
    name = vocabulary.metadata.text("general.name").lower()
    if vocabulary.architecture != "phi3" and "phi-3" not in name and "phi3" not in name:
        return frozenset()
    return frozenset(vocabulary.tokens[token] for token in vocabulary.added_tokens()) - _PHI3_WITHOUT_RSTRIP


def _unigram(vocabulary: Vocabulary) -> KindParts:
    if "unk" not in vocabulary.roles:
        raise GgufVocabularyErrors.MISSING(path=vocabulary.path, key=ROLES["unk"][0])
    return KindParts(
        texts=vocabulary.tokens,
        model=unigram(vocabulary),
        normalizer=normalizer(vocabulary, space_prefix=False),
        pre_tokenizer=None,
        decoder=decoder(vocabulary.metadata.flag(SPACE_PREFIX, False)),
        adds={"eos": True},
        lstrip=frozenset(["<mask>"] if vocabulary.architecture in _LSTRIP_ARCHITECTURES else []),
    )


# --------------------------------------------------------------------------------------------------- WordPiece


def _word_piece(vocabulary: Vocabulary) -> KindParts:
    if "unk" not in vocabulary.roles:
        raise GgufVocabularyErrors.MISSING(path=vocabulary.path, key=ROLES["unk"][0])
    texts = _word_piece_texts(vocabulary)
    lowercase = vocabulary.metadata.flag(LOWERCASE, True)
    return KindParts(
        texts=texts,
        model={
            "type": "WordPiece",
            "unk_token": texts[vocabulary.roles["unk"]],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": _MOST_WORD_CHARACTERS,
            "vocab": {text: token for token, text in enumerate(texts)},
        },
        normalizer={
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": vocabulary.metadata.flag(STRIP_ACCENTS, lowercase),
            "lowercase": lowercase,
        },
        pre_tokenizer={"type": "BertPreTokenizer"},
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
        adds={"bos": True, "sep": True},
        first="bos" if "bos" in vocabulary.roles else "cls",
        separates=True,
    )


def _word_piece_texts(vocabulary: Vocabulary) -> list[str]:
    """Return the tokens as BERT spells them: a file marks tokens that begin a word with U+2581, BERT marks the others
    with `##`.

    Control tokens have the same spelling in both. Converters before 2025 leave everything in brackets unchanged.
    """

    def spelled(token: int) -> str:
        text = vocabulary.tokens[token]
        if vocabulary.types[token] in (TokenType.CONTROL, TokenType.UNKNOWN) or (text[0] == "[" and text[-1] == "]"):
            return text
        return text[1:] if text.startswith(SPACE) else f"##{text}"

    texts = [spelled(token) for token in range(len(vocabulary.tokens))]
    ids: dict[str, int] = {}
    for token, text in enumerate(texts):
        first = ids.setdefault(text, token)
        if first != token:
            raise GgufVocabularyErrors.TWICE(path=vocabulary.path, first=first, second=token, text=text)
    return texts


_KINDS: Mapping[str, Callable[[Vocabulary], KindParts]] = {
    "gpt2": _with_merges,
    "gemma4": _with_merges,
    "whitespace": _with_merges,
    "llama": _sentencepiece_bpe,
    "t5": _unigram,
    "bert": _word_piece,
}
