"""Prompt and sampling options of the commands that generate text."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sscc.ir.errors import ErrorKind, InputError, InternalError, UsageError
from sscc.ir.files import read_text
from sscc.ir.option import option, records_of
from sscc.runtime.session.sampling import Sampling

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from sscc.runtime.session.artifact import Artifact
    from sscc.runtime.text.chat_template import ChatTemplate


GENERATION = "generation"
"""Heading of these options in `--help`."""
LONGEST_TOKEN = 18
"""Maximum digits of a token id, which must fit 64 bits."""


class PromptOptionErrors(ErrorKind):
    NO_TOKENIZER = InputError, "{artifact} has no tokenizer: give --token-ids"
    TEXT_WITHOUT_TOKENIZER = InternalError, "there is no tokenizer for a text prompt"
    NOT_A_TOKEN = UsageError, "--token-ids contains {word!r}, which is not a token id (a number from 0 up)"


@dataclass(frozen=True)
class PromptOptions:
    """Options for the prompt, which exclude each other."""

    prompt: str | None = option(
        None, "text of the prompt; a user's message if the model has a chat template", "TEXT", one_of="prompt"
    )
    prompt_file: Path | None = option(
        None, "UTF-8 file of the prompt, without its final newline; - for stdin", "FILE", one_of="prompt"
    )
    token_ids: str | None = option(
        None, "token ids of the prompt: 1,2,3 or @FILE with such a list; @- for stdin", "IDS", one_of="prompt"
    )


def sampling_of(args: argparse.Namespace, artifact: Artifact) -> Sampling:
    """Return the sampling options of a command line, with the model's defaults for those not given. Raises InputError
    for a damaged generation_config.json."""
    from sscc.runtime.session.generation_config import default_sampling

    model = default_sampling(artifact.tokenizer, artifact.tokenizer_files)
    given = {name: getattr(args, name, None) for name in records_of(Sampling)}
    return replace(model, **{name: value for name, value in given.items() if value is not None})


def tokenizer_of(artifact: Artifact, *, needed: bool) -> Tokenizer | None:
    """Return an artifact's tokenizer, or None without one. Raises InputError if there is none, but one is needed."""
    from sscc.runtime.text.tokenizer import load_tokenizer

    if artifact.tokenizer_file is not None:
        return load_tokenizer(artifact.tokenizer_file)
    if needed:
        raise PromptOptionErrors.NO_TOKENIZER(artifact=artifact.path)
    return None


def template_of(artifact: Artifact) -> ChatTemplate | None:
    """Return the chat template of an artifact, or None without one. Raises InputError for a damaged template."""
    if artifact.tokenizer is None or not _names_template(artifact.tokenizer, artifact.tokenizer_files):
        return None
    from sscc.runtime.text.chat_template import ChatTemplate

    return ChatTemplate.load(artifact.tokenizer, names=artifact.tokenizer_files)


def _names_template(folder: Path, files: Collection[str]) -> bool:
    """Return True if a tokenizer may have a chat template. Otherwise Jinja need not be imported."""
    if "chat_template.jinja" in files:
        return True
    return "tokenizer_config.json" in files and "chat_template" in read_text(folder / "tokenizer_config.json")


def prompt_of(
    tokenizer: Tokenizer | None, args: argparse.Namespace, template: ChatTemplate | None = None
) -> list[int]:
    """Return the tokens of the prompt of `PromptOptions`.

    Args:
        tokenizer: tokenizer of the model; None is enough for `--token-ids`.
        args: parsed options; `prompt` and `prompt_file` are updated.
        template: chat template that turns the text into a user's message; None encodes the text alone.

    Raises:
        InputError: the prompt's file cannot be read.
        UsageError: `--token-ids` has something else than ids.
    """
    from sscc.runtime.text.tokenizer import encode

    text = prompt_text(args)
    if text is None:
        return parse_token_ids(args.token_ids)
    if tokenizer is None:
        raise PromptOptionErrors.TEXT_WITHOUT_TOKENIZER()
    if template is not None:
        args.prompt = template.render([{"role": "user", "content": text}])
        return encode(tokenizer, args.prompt, special=False)
    return encode(tokenizer, text)


def prompt_text(args: argparse.Namespace) -> str | None:
    """Return the prompt's text, or None for `--token-ids`. The text of a file is kept in `args.prompt`, because stdin
    cannot be read twice."""
    from sscc.runtime.text.tokenizer import read_prompt

    if args.prompt is None and args.prompt_file is not None:
        args.prompt, args.prompt_file = read_prompt(args.prompt_file), None
    text: str | None = args.prompt
    return text


def parse_token_ids(text: str) -> list[int]:
    """Return the ids of "1,2,3" (separated by commas or spaces), or of the file of "@FILE". Raises UsageError."""
    from sscc.ir.files import read_text

    listed = read_text(Path(text[1:])) if text.startswith("@") else text
    words = listed.replace(",", " ").split()
    for word in words:
        if not word.isdecimal() or len(word) > LONGEST_TOKEN:
            raise PromptOptionErrors.NOT_A_TOKEN(word=word)
    return [int(word) for word in words]
