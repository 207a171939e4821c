"""Options of the commands that read prompts shortened by a draft, and how it is opened."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sscc.compiler.options.progress import status
from sscc.compiler.tools.commands.engines import open_artifact
from sscc.ir.errors import ErrorKind, UsageError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from sscc.runtime.artifact.signature import Signature
    from sscc.runtime.session.shortening import Shortener

DEFAULT_KEEP = 0.3


class DraftOptionErrors(ErrorKind):
    NO_DRAFT = UsageError, "{option} is for prompts that a draft shortens: give --draft too"


def add_draft_arguments(group: argparse._ArgumentGroup, *, several: bool = False) -> None:
    """The options; with `several` more than one share of a prompt may be asked for."""
    group.add_argument(
        "--draft",
        type=Path,
        metavar="DRAFT.rdu",
        help="a smaller program that says which part of a prompt is read (speculative prefill); best compiled with "
        "--kv-rows indexed",
    )
    group.add_argument(
        "--keep",
        type=float,
        nargs="+" if several else None,
        metavar="SHARE",
        help=f"of a prompt's chunks of 32 tokens that are read (default: {DEFAULT_KEEP:g})",
    )
    group.add_argument(
        "--keep-delimiter",
        metavar="TEXT",
        help="where text is left out, for a draft with another tokenizer (default: a line of three dots)",
    )


def check_draft_arguments(args: argparse.Namespace) -> None:
    """Raises UsageError."""
    from sscc.runtime.session.speculative_prefill import check_keep

    for option in ("keep", "keep_delimiter"):
        if args.draft is None and getattr(args, option) is not None:
            raise DraftOptionErrors.NO_DRAFT(option=f"--{option.replace('_', '-')}")
    for share in keeps_of(args):
        check_keep(share)


def keeps_of(args: argparse.Namespace) -> list[float]:
    """The shares that are asked for."""
    if args.keep is None:
        return [DEFAULT_KEEP]
    return args.keep if isinstance(args.keep, list) else [args.keep]


@contextmanager
def opened_shortener(
    args: argparse.Namespace, signature: Signature, tokenizer: Tokenizer | None
) -> Iterator[Shortener | None]:
    """What shortens prompts for a program, while the block runs; None without --draft. Raises as `open_session` and
    `Shortener` do."""
    if args.draft is None:
        yield None
        return
    from sscc.compiler.driver.sessions import open_session
    from sscc.runtime.session.shortening import Shortener
    from sscc.runtime.session.speculative_prefill import Draft

    draft = open_artifact(args.draft, verify=args.verify)
    with status(f"opening {args.draft.name}"):
        session = open_session(draft, interpreter=args.interpreter, threads=args.threads)
    with closing(session):
        yield Shortener(Draft(session), signature, tokenizer, args.keep_delimiter)
