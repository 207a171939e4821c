"""The functions behind `sscc.compile` and `sscc.load`. Heavy modules are imported only when one of them is called."""

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
    OWN_TOKENIZER = UsageError, "`tokenizer` applies to models in memory, but {model} has its own"
    OPTION_OF_FILES = UsageError, "a model in memory has its own config and weights: leave {option} out"
    NO_REFERENCE = (
        UsageError,
        "weights='reference' refers to a checkpoint, but this model is in memory: embed its weights",
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
            causal language model of transformers in memory, which gives the same artifact, bit for bit, as the folder
            that its `save_pretrained` writes, and which is not modified. Without `output` the artifact is named after
            its class.
        tokenizer: tokenizer of a model in memory; without one the artifact works on tokens only.
        options: fields of `CompileOptions`; `weights` as on the command line ("reference,int4:64").

    Raises:
        SsccError: the subclass tells the kind of error, and the message how to fix it.
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

    A session's logits are float32 numpy arrays, [V] from `prefill` and [batch, V] from `decode`.

    Args:
        checkpoint: weights to use instead of the artifact's, with the same names and shapes.
        interpreter: name of the interpreter that executes the program.
        threads: number of threads of the interpreter; None for its default.
        verify: compare the weights with their digests, unless their files have not changed since the last comparison.

    Raises:
        UsageError: there is no such interpreter.
        InputError: missing, truncated or damaged files, or a newer format.
    """
    from sscc.compiler.driver.sessions import open_session
    from sscc.runtime.session.artifact import Artifact

    checkpoint_path = None if checkpoint is None else Path(checkpoint)
    return open_session(Artifact.load(path, verify=verify), checkpoint_path, interpreter=interpreter, threads=threads)
