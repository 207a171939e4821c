"""The functions behind `sscc.compile` and `sscc.load`; heavy modules are imported only when one is called."""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from sscc.compiler.driver.compile_result import CompileResult
from sscc.compiler.options.compile_options import CompileArguments, compile_options_of
from sscc.compiler.options.warning import collecting
from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.extras import COMPILE, require
from sscc.runtime.backends.registry import DEFAULT_BACKEND

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from sscc.runtime.session.session import Session


class CompileCallErrors(ErrorKind):
    OWN_TOKENIZER = UsageError, "tokenizer is for a model in memory, {model} brings its own"
    OPTION_OF_FILES = UsageError, "a model in memory brings its config and its weights: leave {option} out"
    NO_REFERENCE = (
        UsageError,
        "weights='reference' refers to a checkpoint, and this model is in memory: embed its weights",
    )


def compile(
    model: str | PathLike[str] | PreTrainedModel,
    *,
    tokenizer: PreTrainedTokenizerBase | Tokenizer | None = None,
    **options: Unpack[CompileArguments],
) -> CompileResult:
    """Compile `model` into an artifact.

    Args:
        model: a Hugging Face folder, a .gguf, .pt, .pth or .pt2 file, or with `compile_from` a dumped .mlir file; or a
            causal language model of transformers that is in memory, which gives what a folder of its `save_pretrained`
            does, bit for bit, and stays as it is. Its result is called after its class where `output` does not say.
        tokenizer: of a model in memory; the artifact is one of tokens alone without.
        options: fields of `CompileOptions`; `weights` as on the command line ("reference,int4:64").

    Raises:
        SsccError: the subclass says what kind, the message what to change.
    """
    require(COMPILE, "sscc.compile")
    from sscc.compiler.driver.driver import compile_model

    if isinstance(model, str | PathLike):
        if tokenizer is not None:
            raise CompileCallErrors.OWN_TOKENIZER(model=os.fspath(model))
        return compile_model(compile_options_of(model, options))
    from sscc.compiler.frontend.in_memory import open_model

    for option in ("config", "compile_from", "checkpoint"):
        if options.get(option) is not None:
            raise CompileCallErrors.OPTION_OF_FILES(option=option)
    settled = compile_options_of(type(model).__name__, options)
    if settled.weights == "reference":
        raise CompileCallErrors.NO_REFERENCE()
    with collecting():
        return compile_model(settled, open_model(model, tokenizer, weights=settled.weights != "none"))


def load(
    path: str | PathLike[str],
    checkpoint: str | PathLike[str] | None = None,
    *,
    interpreter: str = DEFAULT_BACKEND,
    threads: int | None = None,
    verify: bool = True,
) -> Session:
    """Open the artifact in `path` and return a session, ready to generate.

    A session's logits are float32 numpy arrays, [V] of `prefill` and [batch, V] of `decode`.

    Args:
        checkpoint: run these weights, of the same names and shapes, instead of the artifact's.
        interpreter: what executes it, by name.
        threads: how many the interpreter may use; None leaves it to the interpreter.
        verify: compare the weights with their digests, unless their files did not change since that was last done.

    Raises:
        UsageError: there is no such interpreter.
        InputError: missing, truncated, damaged, or of a newer format.
    """
    from sscc.compiler.driver.sessions import open_session
    from sscc.runtime.session.artifact import Artifact

    checkpoint_path = None if checkpoint is None else Path(checkpoint)
    return open_session(Artifact.load(path, verify=verify), checkpoint_path, interpreter=interpreter, threads=threads)
