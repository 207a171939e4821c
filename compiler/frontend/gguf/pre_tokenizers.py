"""Table of the pre-tokenizers of BPE vocabularies, by the name that a GGUF file gives them in `tokenizer.ggml.pre`.

A file only names the rules by which a text is split before tokens are merged. The names are those of llama.cpp's
converter (`get_vocab_base_pre` in conversion/base.py, which recognises the tokenizers of published models) and of its
reader (`llama_vocab::impl::load` in src/llama-vocab.cpp, which also has `default`, `glm5`, `jina-de`, `jina-es`,
`llada-moe`, `llama-v3`, `llama3` and `whitespace`).

Regular expressions are those of the models' own tokenizer.json where llama-vocab.cpp quotes them in a comment, and
those of llama-vocab.cpp elsewhere. Flags are those of llama-vocab.cpp. Neither a file nor llama.cpp says if a model
normalizes texts to NFC: `nfc` is set for models that are known to, and a comment names the source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PreTokenizer:
    """Preparation of a text for a BPE vocabulary.

    Attributes:
        splits: regular expressions, in Oniguruma's syntax. Each cuts its matches out of the pieces that the one before
            leaves; matches and the text between them are the next pieces.
        removed: a regular expression whose matches are dropped first; "" for none.
        byte_level: pieces are UTF-8 bytes in GPT-2's alphabet. Otherwise merges run on the text itself, and characters
            without a token fall back to the tokens <0x00> .. <0xFF>.
        escapes_spaces: a space is U+2581, as in SentencePiece.
        nfc: a text is normalized to NFC.
        ignore_merges: a piece that is a token is that token, however its merges would go.
        adds_bos, adds_sep: default of `add_bos_token` and `add_sep_token`.
        always_adds_bos: `add_bos_token` is true whatever the file says.
        lstrip: a token that takes the spaces before it with it; "" for none.
    """

    splits: tuple[str, ...] = ()
    removed: str = ""
    byte_level: bool = True
    escapes_spaces: bool = False
    nfc: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False
    adds_sep: bool = False
    always_adds_bos: bool = False
    lstrip: str = ""


# Pieces of several expressions.

_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEADING = r"[^\r\n\p{L}\p{N}]?"
_CAMEL_WORDS = (f"{_LEADING}{_UPPER}*{_LOWER}+", f"{_LEADING}{_UPPER}+{_LOWER}*")
"""Words that end where an uppercase letter follows a lowercase one."""
_NOT_WORDS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_PATHS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
_ASCII_PUNCTUATION = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""

# Expressions. Letters beyond ASCII are escaped: an editor that normalizes them would change what they match.

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTION}|{_LEADING}\p{{L}}+|\p{{N}}{{1,3}}|{_NOT_WORDS}"
_QWEN2 = rf"{_CONTRACTION}|{_LEADING}\p{{L}}+|\p{{N}}|{_NOT_WORDS}"
_QWEN35 = rf"{_CONTRACTION}|{_LEADING}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
_UFAKZEKA = rf"{_LEADING}\p{{L}}+|\p{{N}}|{_NOT_WORDS}"
_MINICPM5 = rf"{_CONTRACTION}|{_LEADING}\p{{L}}+|\p{{N}}+|{_NOT_WORDS}"
_TEKKEN = rf"{'|'.join(_CAMEL_WORDS)}|\p{{N}}|{_PATHS}"
_GPT4O = rf"{'|'.join(f'{word}{_CONTRACTION}?' for word in _CAMEL_WORDS)}|\p{{N}}{{1,3}}|{_PATHS}"
_YOUTU = rf"{'|'.join(f'{word}{_CONTRACTION}?' for word in _CAMEL_WORDS)}|\p{{N}}|{_PATHS}"
_SEED_CODER = rf"{_CONTRACTION}|{_LEADING}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_EXAONE_MOE = (
    _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_JAIS2 = (
    rf"{_CONTRACTION}|{_LEADING}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|"
    + "".join(rf"\s{{{count}}}(?!\S)|" for count in (512, 256, 128, 64, 32, 16, 8, 4))
    + r"\s{1,2}(?!\S)|\s{1}"
)
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_FALCON_PUNCTUATION = r"[\p{P}\$\+<=>\^~\|`]+"
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_HAN_AND_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_DEEPSEEK3 = _ASCII_PUNCTUATION + r"[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES
_SPARK = _ASCII_PUNCTUATION + r"[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"
_YOUTU_SCRIPTS = (
    "[\uac00-\ud7a3\u3131-\u318e]+"
    "|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    f"|[\u3105-\u312f]+|{_HAN_AND_KANA}"
)
# Digits in groups of three, counted from the right.
_GROUPED_DIGITS = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
_TINY_AYA_DIGITS = r"\d{1,3}(?=(?:\d{3})*\b)"
# llama-vocab.cpp has U+8C48 for U+F900, which it becomes where a source file is normalized to NFC.
_AFMOE_SCRIPTS = (
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f"
    "\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
# Comments of src/unicode.cpp quote this one.
_NOT_HAN_UPPER, _NOT_HAN_LOWER = (f"[{letters[1:-1]}&&[^\\p{{Han}}]]" for letters in (_UPPER, _LOWER))
_KIMI = (
    rf"\p{{Han}}+|{_LEADING}{_NOT_HAN_UPPER}*{_NOT_HAN_LOWER}+{_CONTRACTION}?"
    rf"|{_LEADING}{_NOT_HAN_UPPER}+{_NOT_HAN_LOWER}*{_CONTRACTION}?|\p{{N}}{{1,3}}|{_NOT_WORDS}"
)
_CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-"
    "\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec"
    "\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-"
    "\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17"
    "\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-"
    "\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)

_GROUPS: Mapping[str, PreTokenizer] = {
    # llama.cpp's choice for files that name none; it warns that generation suffers.
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": PreTokenizer(
        (_LLAMA3,), ignore_merges=True, adds_bos=True
    ),
    "dbrx smaug-bpe chatglm-bpe": PreTokenizer((_LLAMA3,)),
    "glm4 glm5": PreTokenizer((_LLAMA3,), ignore_merges=True),
    "minicpm5": PreTokenizer((r"\p{N}{1,3}", _MINICPM5), ignore_merges=True),
    "jais-2": PreTokenizer((_JAIS2,)),
    "gpt-2 phi-2 jina-es jina-de gigachat a.x-4.0 mellum exaone4 jais trillion granite-docling": PreTokenizer((_GPT2,)),
    "jina-v2-es jina-v2-de": PreTokenizer((_GPT2,), lstrip="<mask>"),
    "jina-v1-en roberta-bpe": PreTokenizer((_GPT2,), adds_sep=True),
    "jina-v2-code": PreTokenizer((_GPT2,), adds_sep=True, lstrip="<mask>"),
    # NFC: transformers' GPTNeoXTokenizer, which its mpt and olmo are mapped to; ModernBERT has OLMo's vocabulary.
    "mpt olmo": PreTokenizer((_GPT2,), nfc=True),
    "modern-bert": PreTokenizer((_GPT2,), nfc=True, lstrip="[MASK]"),
    "starcoder refact smollm codeshell exaone minerva-7b mellum2": PreTokenizer((r"\p{N}", _GPT2)),
    # NFC: transformers' CohereTokenizer.
    "command-r": PreTokenizer((r"\p{N}", _GPT2), nfc=True),
    # NFC: transformers' Qwen2Tokenizer and Qwen3_5Tokenizer, Stability's Arcade100kTokenizer, Tencent's HYTokenizer.
    # The others with this expression are not known to normalize.
    "qwen2 deepseek-r1-qwen f2llmv2 stablelm2 hunyuan": PreTokenizer((_QWEN2,), nfc=True),
    "qwen35": PreTokenizer((_QWEN35,), nfc=True),
    "kormo megrez solar-open grok-2": PreTokenizer((_QWEN2,)),
    "ufakzeka": PreTokenizer((_UFAKZEKA,)),
    "laguna": PreTokenizer((r"[^\n]+|[\n]+", _QWEN2)),
    "seed-coder": PreTokenizer((_SEED_CODER,)),
    "bailingmoe bailingmoe2 llada-moe": PreTokenizer((_BAILING,)),
    "exaone-moe": PreTokenizer((_EXAONE_MOE,)),
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, adds_bos=True),
    "gpt-4o llama4 kanana2 talkie minimax-m2": PreTokenizer((_GPT4O,)),
    "granite-embed-multi-97m": PreTokenizer((_GPT4O,), ignore_merges=True),
    "tiny_aya cohere2moe": PreTokenizer((_TINY_AYA_DIGITS, _GPT4O)),
    "kimi-k2": PreTokenizer((_KIMI,)),
    "youtu": PreTokenizer((_YOUTU_SCRIPTS, _YOUTU), ignore_merges=True),
    "falcon": PreTokenizer((_FALCON_PUNCTUATION, _GPT2, "[0-9][0-9][0-9]")),
    "bloom poro-chat gpt3-finnish": PreTokenizer((_BLOOM,)),
    "viking": PreTokenizer((_BLOOM, r"\p{N}")),
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            rf"\s?[{_CASED_LETTERS}]+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"\s+$",
            _CJK,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4": PreTokenizer((r"\p{N}{1,3}", _HAN_AND_KANA, _DEEPSEEK3)),
    "spark2_5": PreTokenizer((r"\p{N}{1,3}", _HAN_AND_KANA, _SPARK, r"\p{N}")),
    "afmoe": PreTokenizer((_GROUPED_DIGITS, _AFMOE_SCRIPTS, _DEEPSEEK3)),
    "superbpe": PreTokenizer((r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
    "chameleon": PreTokenizer(
        (
            "<sentinel:[0-9]+>",
            "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            r"([\t\n]|    |  )",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        adds_bos=True,
    ),
    # llama.cpp splits at newlines, and takes a run of them that is a token whole; merges do the same.
    "gemma4 granite-embed-multi-311m": PreTokenizer(byte_level=False, escapes_spaces=True, always_adds_bos=True),
    "sarvam-moe": PreTokenizer(byte_level=False, escapes_spaces=True),
    "whitespace": PreTokenizer(removed=r"\s+", byte_level=False),
}

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    name: pre_tokenizer for names, pre_tokenizer in _GROUPS.items() for name in names.split()
}

WORD_PIECE_NAMES = frozenset(("bert-bge", "bert-bge-large", "jina-v2-en"))
"""Names that the converter gives to WordPiece vocabularies, whose pre-tokenizer is BERT's."""

DEFAULT_NAMES: Mapping[str, str] = {"gptneox": "mpt"}
"""The name, by architecture, for files older than names. llama.cpp's converter gives it to its own copy of such a
vocabulary (`_set_vocab_builtin`)."""
