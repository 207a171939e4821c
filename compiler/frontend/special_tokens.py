"""Special tokens of a checkpoint: those that end an answer, and those that the model lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer
from transformers import PreTrainedConfig

from sscc.compiler.frontend.model_config import parse_json, states_end, token_ids
from sscc.compiler.options.warning import SsccWarning, warn
from sscc.ir.errors import ErrorKind, InputError, quoted
from sscc.runtime.session.generation_config import GENERATION_FILE
from sscc.runtime.text.chat_template import CONFIG_FILE, SPECIAL_TOKENS_FILE, special_token_texts
from sscc.runtime.text.tokenizer import encode, encode_whole

TOKENIZER_FILE = "tokenizer.json"
SHOWN = 8
"""Maximum number of tokens that a warning names."""


class TokenErrors(ErrorKind):
    NO_TOKENIZER = InputError, "{origin} is not a readable tokenizer: {cause}"
    END_BEYOND_VOCABULARY = (
        InputError,
        "{path}: {field} has the token {token}, but the model's vocabulary is 0 .. {last}: an answer would never end "
        "with it",
    )
    BOS_BEYOND_VOCABULARY = (
        InputError,
        "{path}: the tokenizer begins a text with {text!r}, which is the token {token}, but the model's vocabulary is "
        "0 .. {last}",
    )


class TokenWarnings(ErrorKind):
    BEYOND_VOCABULARY = (
        SsccWarning,
        "{path}: {count} tokens of the tokenizer are beyond the model's vocabulary of {size}, and prompts with them "
        "are refused: {tokens!r}{hint}",
    )


def tokenizer_of(files: Mapping[str, bytes], origin: str = TOKENIZER_FILE) -> Tokenizer | None:
    """Return the tokenizer among a checkpoint's files; None if there is none. Raises InputError if it is damaged."""
    data = files.get(TOKENIZER_FILE)
    try:
        return None if data is None else _parsed(data)
    except Exception as error:  # the library raises bare Exception
        raise TokenErrors.NO_TOKENIZER(origin=origin, cause=quoted(error)) from None


@lru_cache(maxsize=1)
def _parsed(data: bytes) -> Tokenizer:
    return encode_whole(Tokenizer.from_str(data.decode()))


def stated_ends(
    config: PreTrainedConfig | None, whole: PreTrainedConfig | None, files: Mapping[str, bytes]
) -> dict[str, tuple[int, ...]]:
    """Return the tokens that end an answer, by the place that states them.

    The default of a config's class counts only if no other place states one.

    Args:
        config: config of the decoder that is compiled.
        whole: config of the composite model around it.
        files: files of the tokenizer, by name.
    """
    ends: dict[str, tuple[int, ...]] = {}
    generation = files.get(GENERATION_FILE)
    if generation is not None:
        ends[f"eos_token_id of {GENERATION_FILE}"] = token_ids(
            parse_json(generation, GENERATION_FILE).get("eos_token_id"), GENERATION_FILE
        )
    parts = {"the config": config, "the whole model's config": None if whole is config else whole}
    for name, part in parts.items():
        if part is not None and states_end(part):
            ends[f"eos_token_id of {name}"] = token_ids(part.eos_token_id, name)
    text = _special_tokens(files).get("eos_token")
    tokenizer = tokenizer_of(files)
    token = None if text is None or tokenizer is None else tokenizer.token_to_id(text)
    if token is not None:
        ends["eos_token of the tokenizer"] = (token,)
    if not any(ends.values()):
        ends["eos_token_id of the config"] = token_ids(getattr(config, "eos_token_id", None), "config")
    return ends


def check_vocabulary(path: Path, ends: Mapping[str, Sequence[int]], files: Mapping[str, bytes], size: int) -> None:
    """Check the tokens that every conversation needs against a vocabulary of `size` tokens, and warn of others beyond
    it.

    Args:
        path: the checkpoint, for messages.
        ends: result of `stated_ends`.
        files: files of the tokenizer, by name.

    Raises:
        InputError: a token that ends an answer, or begins a text, is not in the vocabulary.
    """
    for field, tokens in ends.items():
        for token in tokens:
            if token >= size:
                raise TokenErrors.END_BEYOND_VOCABULARY(path=path, field=field, token=token, last=size - 1)
    tokenizer = tokenizer_of(files, str(path / TOKENIZER_FILE))
    if tokenizer is None:
        return
    bos = _special_tokens(files).get("bos_token")
    stated = None if bos is None else tokenizer.token_to_id(bos)
    for token in [*encode(tokenizer, ""), *([] if stated is None else [stated])]:
        if token >= size:
            text = tokenizer.id_to_token(token)
            raise TokenErrors.BOS_BEYOND_VOCABULARY(path=path, text=text, token=token, last=size - 1)
    beyond = sorted((token, text) for text, token in tokenizer.get_vocab().items() if token >= size)
    if beyond:
        warn(
            TokenWarnings.BEYOND_VOCABULARY(
                path=path,
                count=len(beyond),
                size=size,
                tokens=[text for _, text in beyond[:SHOWN]],
                hint=" and others" if len(beyond) > SHOWN else "",
            )
        )


def _special_tokens(files: Mapping[str, bytes]) -> dict[str, str]:
    """Return the texts of a tokenizer's special tokens by name, as transformers reads them."""
    config = parse_json(files.get(CONFIG_FILE, b"{}"), CONFIG_FILE)
    if "added_tokens_decoder" in config:
        return special_token_texts(config)
    return special_token_texts(config, parse_json(files.get(SPECIAL_TOKENS_FILE, b"{}"), SPECIAL_TOKENS_FILE))
