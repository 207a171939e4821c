"""Prompts and sampling of the commands that generate text."""

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
"""Heading of help."""
LONGEST_TOKEN = 18
"""Digits of a token that is read as a number of 64 bits."""


class PromptOptionErrors(ErrorKind):
    NO_TOKENIZER = InputError, "{artifact} has no tokenizer: give --token-ids"
    TEXT_WITHOUT_TOKENIZER = InternalError, "a prompt of text has no tokenizer"
    NOT_A_TOKEN = UsageError, "--token-ids has {word!r}, but a token is a number from 0 up"


@dataclass(frozen=True)
class PromptOptions:
    """Options that give a prompt. A command line has one of them at most."""

    prompt: str | None = option(
        None, "text of the prompt; a user's message if the model has a chat template", "TEXT", one_of="prompt"
    )
    prompt_file: Path | None = option(
        None, "UTF-8 file of the prompt, read as it is but for a final newline; - for stdin", "FILE", one_of="prompt"
    )
    token_ids: str | None = option(
        None, "tokens of the prompt: 1,2,3 or @FILE with such a list, @- for stdin", "IDS", one_of="prompt"
    )


def sampling_of(args: argparse.Namespace, artifact: Artifact) -> Sampling:
    """Return the sampling of a command line, with the model's where no option says it. Raises InputError for a damaged
    generation_config.json."""
    from sscc.runtime.session.generation_config import default_sampling

    model = default_sampling(artifact.tokenizer, artifact.tokenizer_files)
    given = {name: getattr(args, name, None) for name in records_of(Sampling)}
    return replace(model, **{name: value for name, value in given.items() if value is not None})


def tokenizer_of(artifact: Artifact, *, needed: bool) -> Tokenizer | None:
    """The artifact's tokenizer; None where it has none and none is needed."""
    from sscc.runtime.text.tokenizer import load_tokenizer

    if artifact.tokenizer_file is not None:
        return load_tokenizer(artifact.tokenizer_file)
    if needed:
        raise PromptOptionErrors.NO_TOKENIZER(artifact=artifact.path)
    return None


def template_of(artifact: Artifact) -> ChatTemplate | None:
    """Return the chat template of an artifact; None where it has none. Raises InputError for a damaged one."""
    if artifact.tokenizer is None or not _names_template(artifact.tokenizer, artifact.tokenizer_files):
        return None
    from sscc.runtime.text.chat_template import ChatTemplate

    return ChatTemplate.load(artifact.tokenizer, names=artifact.tokenizer_files)


def _names_template(folder: Path, files: Collection[str]) -> bool:
    """Return False if a tokenizer has no chat template for certain, so that Jinja need not be imported."""
    if "chat_template.jinja" in files:
        return True
    return "tokenizer_config.json" in files and "chat_template" in read_text(folder / "tokenizer_config.json")


def prompt_of(
    tokenizer: Tokenizer | None, args: argparse.Namespace, template: ChatTemplate | None = None
) -> list[int]:
    """Return the tokens of the prompt that `PromptOptions` has.

    Args:
        template: makes a message of the user of `--prompt`; None for the text as it is.

    Raises InputError and UsageError.
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
    """The text of the prompt that `PromptOptions` has; None where it is tokens. Stdin is read once."""
    from sscc.runtime.text.tokenizer import read_prompt

    if args.prompt is None and args.prompt_file is not None:
        args.prompt, args.prompt_file = read_prompt(args.prompt_file), None
    text: str | None = args.prompt
    return text


def parse_token_ids(text: str) -> list[int]:
    """The ids in "1,2,3" (spaces do as well as commas), or in the file that "@FILE" names. Raises UsageError."""
    from sscc.ir.files import read_text

    listed = read_text(Path(text[1:])) if text.startswith("@") else text
    words = listed.replace(",", " ").split()
    for word in words:
        if not word.isdecimal() or len(word) > LONGEST_TOKEN:
            raise PromptOptionErrors.NOT_A_TOKEN(word=word)
    return [int(word) for word in words]
