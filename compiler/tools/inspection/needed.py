"""The attention of an answer to evicted text: the compiled model is run once with a full cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sscc.compiler.driver.referred_checkpoints import recalled
from sscc.ir.errors import ErrorKind, UsageError

if TYPE_CHECKING:
    from sscc.compiler.frontend.full_attention import Needed
    from sscc.runtime.session.artifact import Artifact
    from sscc.runtime.session.kept_positions import Kept


class NeededTextErrors(ErrorKind):
    NO_MODEL = (
        UsageError,
        "--show-needed runs the model with a full cache, but {artifact} contains only packed weights: give the "
        "compiled model with --checkpoint",
    )
    NOT_RUNNABLE = UsageError, "--show-needed: {checkpoint} has no model that runs with a full cache"


def checkpoint_of(artifact: Artifact, checkpoint: Path | None) -> Path:
    """Return the model of an artifact: the given one, or the one it was compiled from, if it refers to it.

    Raises UsageError if there is neither, and InputError if the latter is not remembered.
    """
    if checkpoint is not None:
        return checkpoint
    record = artifact.manifest.weights
    if record.mode != "reference" or not record.digest:
        raise NeededTextErrors.NO_MODEL(artifact=artifact.path)
    return recalled(record.digest, artifact.path)


def needed_of(artifact: Artifact, checkpoint: Path, tokens: Sequence[int], kept: Kept) -> Needed:
    """Run the model in eager PyTorch, in the program's dtype, with full attention over `tokens`, those of the prompt
    and the fed ones of the answer. Weights that the program has quantised are dequantised from its codes.

    This takes the time of one forward of these tokens, and the memory of the model's numbers.

    Raises:
        InputError: the checkpoint cannot be read, or has other shapes.
        UnsupportedError: the model has attention in other layers than the program.
    """
    from sscc.compiler.frontend.checkpoint import open_checkpoint
    from sscc.compiler.frontend.eager import Model
    from sscc.compiler.frontend.frequencies import fix_frequencies
    from sscc.compiler.frontend.full_attention import needed
    from sscc.compiler.frontend.untouched_model import load_model
    from sscc.runtime.backends.reference.arrays import TORCH_DTYPES

    opened, context = open_checkpoint(checkpoint), artifact.signature.geometry.max_context
    model: Model | None = opened.program
    if opened.config is not None:
        loaded = load_model(opened, TORCH_DTYPES[artifact.signature.dtype], layout=artifact.layout)
        fix_frequencies(loaded, context)
        model = loaded
    if model is None:
        raise NeededTextErrors.NOT_RUNNABLE(checkpoint=checkpoint)
    return needed(model, tokens, kept.prompt_len, kept, context)
