"""Attention of an answer to evicted text, measured by one run of the model with a full cache."""

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
    """Return the model of an artifact: `checkpoint`, or by default the checkpoint that the artifact refers to.

    Raises UsageError if there is neither, and InputError if the user's cache does not record the latter.
    """
    if checkpoint is not None:
        return checkpoint
    record = artifact.manifest.weights
    if record.mode != "reference" or not record.digest:
        raise NeededTextErrors.NO_MODEL(artifact=artifact.path)
    return recalled(record.digest, artifact.path)


def needed_of(artifact: Artifact, checkpoint: Path, tokens: Sequence[int], kept: Kept) -> Needed:
    """Run the model in eager PyTorch, in the program's dtype, with full attention over `tokens`: the prompt, and the
    tokens of the answer that were fed back. Quantized weights are dequantized from the program's codes.

    The cost is the time of one forward pass over these tokens, and memory for all weights in the program's dtype.

    Raises:
        InputError: the checkpoint cannot be read, or has other shapes.
        UnsupportedError: the model and the program have attention in different layers.
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
