"""A run of the program on a user's prompt, with a record of the tokens that the cache keeps."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from sscc.compiler.driver.sessions import open_session
from sscc.compiler.options.progress import prompt_bar
from sscc.compiler.tools.inspection.kept_tokens import token_texts
from sscc.ir.errors import ErrorKind, UsageError
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.session.kept_positions import Kept
from sscc.runtime.text.tokenizer import encode, read_prompt

ANSWER_TOKENS = 32
"""Number of generated tokens, if they fit the context, so that decode steps read the cache."""


class ReportTextErrors(ErrorKind):
    SEVERAL_RANKS = (
        UsageError,
        "--prompt-file needs a program of one rank, but {artifact} is for {ranks}, each of which has only the "
        "selected positions of its own heads: compile it without --tp",
    )


@dataclass(frozen=True)
class Text:
    """A prompt and its answer.

    Attributes:
        texts: text of each token that was fed to the program, in order.
        kept: positions in the slot after the last step.
    """

    texts: tuple[str, ...]
    kept: Kept


def run_text(artifact: Artifact, prompt: Path) -> Text:
    """Run a prompt greedily, in the native interpreter.

    Raises:
        UsageError: the prompt does not fit the context, or the program has several ranks.
        InputError: the file cannot be read, or the artifact has no tokenizer or lacks its weights.
    """
    if artifact.program.ranks > 1:
        raise ReportTextErrors.SEVERAL_RANKS(artifact=artifact.path, ranks=artifact.program.ranks)
    text = read_prompt(prompt)
    with closing(open_session(artifact)) as session:
        tokens = encode(session.tokenizer, text)
        room = artifact.signature.geometry.max_context - len(tokens)
        with prompt_bar(len(tokens)) as seen:
            made = list(session.generate(tokens, max(1, min(ANSWER_TOKENS, room)), eos=(), seen=seen))
        kept = session.kept(0)
        return Text(tuple(token_texts(session.tokenizer, [*tokens, *made][: kept.length])), kept)
