"""Options of the commands that make text: the prompt, and how tokens are chosen."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sscc.ir.errors import ErrorKind, InputError, InternalError, UsageError
from sscc.ir.files import read_text

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from sscc.runtime.session.artifact import Artifact
    from sscc.runtime.session.sampling import Sampling
    from sscc.runtime.text.chat_template import ChatTemplate


LONGEST_TOKEN = 18
"""Digits of a token that is read as a number of 64 bits."""


class PromptOptionErrors(ErrorKind):
    NO_TOKENIZER = InputError, "{artifact} has no tokenizer: give --token-ids"
    TEXT_WITHOUT_TOKENIZER = InternalError, "a prompt of text has no tokenizer"
    NOT_A_TOKEN = UsageError, "--token-ids has {word!r}, but a token is a number from 0 up"


def add_prompt_arguments(group: argparse._MutuallyExclusiveGroup, text: str = "the prompt, as it is") -> None:
    """Add the options that give the prompt.

    Args:
        text: help for a prompt of text.
    """
    group.add_argument("--prompt", metavar="TEXT", help=text)
    group.add_argument(
        "--prompt-file", type=Path, metavar="FILE", help="UTF-8, - for stdin; the newline that ends it is dropped"
    )
    group.add_argument("--token-ids", metavar="IDS", help="1,2,3 or @FILE with such a list, @- for stdin")


def add_sampling_arguments(group: argparse._ArgumentGroup) -> None:
    """Add an option for each field of `Sampling`. Where one of `MODEL_SAMPLING` is not given, the model says it."""
    group.add_argument(
        "--temperature",
        type=float,
        metavar="T",
        help="0 is greedy; where this or one of the next four is not given, the model's generation_config.json counts",
    )
    group.add_argument("--top-k", type=int, metavar="K", help="draw from the K likeliest; 0: all")
    group.add_argument("--top-p", type=float, metavar="P", help="draw from the likeliest of total P; 1: all")
    group.add_argument(
        "--min-p", type=float, metavar="P", help="drop what is less likely than P times the likeliest; 0: nothing"
    )
    group.add_argument(
        "--repetition-penalty", type=float, metavar="X", help="of tokens of prompt and text; above 1: fewer"
    )
    group.add_argument(
        "--presence-penalty", type=float, default=0.0, metavar="X", help="of every token that the text has, -2 .. 2"
    )
    group.add_argument(
        "--frequency-penalty", type=float, default=0.0, metavar="X", help="the same for each time that it has it"
    )
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of the draws")


def sampling_of(args: argparse.Namespace, artifact: Artifact | None = None) -> Sampling:
    """Return the sampling that the options say.

    Args:
        artifact: states what they do not say; None to check the options before it is read.

    Raises:
        UsageError: a value out of range.
        InputError: a damaged generation_config.json.
    """
    from sscc.runtime.session.generation_config import default_sampling
    from sscc.runtime.session.sampling import Sampling

    model = Sampling() if artifact is None else default_sampling(artifact.tokenizer, artifact.tokenizer_files)
    given = {field.name: getattr(args, field.name, None) for field in fields(Sampling)}
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
    """Return the tokens of the prompt that `add_prompt_arguments` took.

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
    """The text of the prompt that `add_prompt_arguments` took; None where it is tokens. Stdin is read once."""
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
