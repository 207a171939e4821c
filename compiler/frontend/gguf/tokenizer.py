"""The files of a Hugging Face tokenizer, made of a GGUF file's metadata.

The files are tokenizer.json, those that name special tokens and the tokens that end an answer, and the chat template.
An unknown pre-tokenizer is refused: with a wrong one a model would still answer, only worse.
"""

from __future__ import annotations

import json
from typing import Any

from gguf.constants import TokenType

from sscc.compiler.frontend.gguf.header import GgufHeader
from sscc.compiler.frontend.gguf.sentencepiece import Part
from sscc.compiler.frontend.gguf.tokenizer_kinds import KindParts, check_kind, kind_parts
from sscc.compiler.frontend.gguf.vocabulary import ROLES, GgufVocabularyErrors, Metadata, Vocabulary, read_vocabulary
from sscc.compiler.options.warning import SsccWarning, warn
from sscc.ir.errors import ErrorKind, InputError
from sscc.runtime.session.generation_config import GENERATION_FILE

CHAT_TEMPLATE = "tokenizer.chat_template"
MOST_TEMPLATE_CHARACTERS = 1 << 20
"""Maximum characters of a chat template. Published ones have about ten thousand."""
_NAMED_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
"""Roles that a tokenizer's configuration names, "bos" as `bos_token`."""


SAMPLING = "general.sampling."
_SAMPLED = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
"""Keys below `SAMPLING`, llama.cpp's default sampling parameters."""


class GgufTokenizerWarnings(ErrorKind):
    SAMPLING = SsccWarning, "{path}: metadata {key} is not supported"


class GgufTokenizerErrors(ErrorKind):
    NO_TOKEN = InputError, "{path}: metadata {flag} is true, but {key} is missing"


def tokenizer_files(header: GgufHeader) -> dict[str, bytes]:
    """Return the files of the tokenizer by name; none if the file has no vocabulary.

    Only the default chat template is kept, since the runtime renders no other.

    Raises:
        UnsupportedError: an unknown kind of tokenizer or pre-tokenizer, or scores that define no order.
        InputError: inconsistent metadata.
    """
    check_kind(header)
    vocabulary = read_vocabulary(header)
    if vocabulary is None:
        return {}
    parts = kind_parts(vocabulary)
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(vocabulary, parts),
        "normalizer": parts.normalizer,
        "pre_tokenizer": parts.pre_tokenizer,
        "post_processor": _post_processor(vocabulary, parts),
        "decoder": parts.decoder,
        "model": parts.model,
    }
    roles = vocabulary.roles
    named = {f"{role}_token": parts.texts[roles[role]] for role in _NAMED_ROLES if role in roles}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **named}
    generation: dict[str, Any] = {f"{role}_token_id": roles[role] for role in ("bos", "pad") if role in roles}
    generation["eos_token_id"] = vocabulary.end_tokens()
    generation |= _sampling(vocabulary.metadata)
    files = {
        "tokenizer.json": _json(tokenizer),
        "tokenizer_config.json": _json(config, indent=2),
        "special_tokens_map.json": _json(named, indent=2),
        GENERATION_FILE: _json(generation, indent=2),
    }
    template = _chat_template(vocabulary)
    return files | {"chat_template.jinja": template.encode()} if template else files


def _sampling(metadata: Metadata) -> dict[str, Any]:
    """Return the sampling that a file states, by the names of a generation_config.json, and warn of other keys."""
    stated: dict[str, Any] = {}
    for key in metadata.keys_below(SAMPLING):
        name = _SAMPLED.get(key.removeprefix(SAMPLING))
        if name is None:
            warn(GgufTokenizerWarnings.SAMPLING(path=metadata.path, key=key))
        else:
            number = metadata.number(key)
            stated[name] = int(number) if name == "top_k" else float(f"{number:.7g}")  # undoes the rounding to f32
    return stated | ({"do_sample": True} if stated else {})


def _json(value: Any, indent: int | None = None) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=indent).encode()


def _chat_template(vocabulary: Vocabulary) -> str:
    """Return the default template, "" for none; others are checked all the same."""
    metadata = vocabulary.metadata
    for key in [CHAT_TEMPLATE, *metadata.keys_below(f"{CHAT_TEMPLATE}.")]:
        count = len(metadata.text(key))
        if count > MOST_TEMPLATE_CHARACTERS:
            raise GgufVocabularyErrors.TOO_LONG(
                path=vocabulary.path, what=f"metadata {key}", count=count, most=MOST_TEMPLATE_CHARACTERS
            )
    return metadata.text(CHAT_TEMPLATE)


def _added_tokens(vocabulary: Vocabulary, parts: KindParts) -> list[Part]:
    """Return the added tokens, which `tokenizers` finds in a text before it normalizes it.

    User-defined tokens are not special: they are part of an answer's text.
    """
    return [
        {
            "id": token,
            "content": parts.texts[token],
            "single_word": False,
            "lstrip": parts.texts[token] in parts.lstrip,
            "rstrip": parts.texts[token] in parts.rstrip,
            "normalized": False,
            "special": vocabulary.types[token] != TokenType.USER_DEFINED,
        }
        for token in vocabulary.added_tokens()
    ]


# ------------------------------------------------------------------------------------------ tokens around a text


def _post_processor(vocabulary: Vocabulary, parts: KindParts) -> Part | None:
    """Return the template that adds BOS, EOS and separators; None if it adds none."""
    first = [parts.first] if _adds(vocabulary, parts, "bos", parts.first) else []
    end = ["eos"] if _adds(vocabulary, parts, "eos") else []
    between = ["sep"] if _adds(vocabulary, parts, "sep") else []
    if parts.separates:
        between, end = [], between + end
    added = {role: vocabulary.roles[role] for role in (*first, *between, *end)}
    if not added:
        return None

    def special(roles: list[str], type_id: int) -> list[Part]:
        return [{"SpecialToken": {"id": parts.texts[added[role]], "type_id": type_id}} for role in roles]

    second = int(parts.separates)  # BERT's token types: 0 for the first text of a pair, 1 for the second one
    one = [*special(first, 0), {"Sequence": {"id": "A", "type_id": 0}}, *special(end, 0)]
    other = [*special(between, 0), {"Sequence": {"id": "B", "type_id": second}}, *special(end, second)]
    texts = {token: parts.texts[token] for token in added.values()}
    return {
        "type": "TemplateProcessing",
        "single": one,
        "pair": one + other,
        "special_tokens": {text: {"id": text, "ids": [token], "tokens": [text]} for token, text in texts.items()},
    }


def _adds(vocabulary: Vocabulary, parts: KindParts, role: str, stands_in: str = "") -> bool:
    """Return True if the tokenizer adds the token of `role`, or the one that stands in for it.

    A default counts only if the vocabulary has such a token: llama.cpp's default lets all texts with Llama 3's
    splitting begin with a BOS, but Falcon 3 has none.
    """
    flag, token = f"tokenizer.ggml.add_{role}_token", stands_in or role
    adds = vocabulary.metadata.flag(flag, parts.adds.get(role, False))
    if role == "bos" and parts.always_adds_bos:
        adds = True
    if adds and token not in vocabulary.roles:
        if vocabulary.metadata.flag(flag, False):
            raise GgufTokenizerErrors.NO_TOKEN(path=vocabulary.path, flag=flag, key=ROLES[token][0])
        return False
    return adds
