"""Heads that a config ties to the embedding, and checkpoints that store both.

As in transformers, the stored tensors decide: if only one of the two is stored, it is used for both; if both are stored
and equal, they are one; if they differ, both are used as stored, with a warning. The config of the checkpoint then has
the tie removed (`tie_word_embeddings`).
"""

from __future__ import annotations

from collections.abc import Container
from copy import deepcopy
from pathlib import Path

import torch
from transformers import PreTrainedConfig

from sscc.compiler.frontend.model_config import causal_class
from sscc.compiler.frontend.naming import RenamedSource
from sscc.compiler.frontend.sources import TensorSource
from sscc.compiler.options.warning import SsccWarning, warn
from sscc.ir.errors import ErrorKind, InputError

COMPARED_ELEMENTS = 1 << 22
"""Number of elements of each of two tensors that are compared at once."""


class TyingErrors(ErrorKind):
    PROGRAM_IS_TIED = (
        InputError,
        "{path} stores {head!r} with other values than {embedding!r}, but the program has one weight for both: compile "
        "from this checkpoint, or from its config with tie_word_embeddings: false",
    )


class TyingWarnings(ErrorKind):
    NOT_TIED = (
        SsccWarning,
        "{path} stores {head!r} with other values than {embedding!r}, although its config ties them "
        "(tie_word_embeddings): both are used as stored, as transformers does; set tie_word_embeddings to false in the "
        "config to silence this warning",
    )


def possible_ties(config: PreTrainedConfig | None) -> dict[str, str]:
    """Return which parameters a model of this config may tie: name of the head -> name of the embedding."""
    keys = None if config is None else getattr(causal_class(config), "_tied_weights_keys", None)
    return dict(keys or {})


def untied_as_stored(path: Path, source: RenamedSource, config: PreTrainedConfig) -> bool:
    """Return True, with a warning, if a checkpoint stores a head with other values than the embedding to which its
    config ties it.

    Adds the embedding to `source` if only the head is stored. If one pair is untied, adds the missing name of every
    other pair of which one is stored.

    Args:
        path: checkpoint, for the warning.
    """
    if not getattr(config, "tie_word_embeddings", False):
        return False
    ties = possible_ties(config)
    for head, embedding in ties.items():
        names = source.names()
        if head in names and embedding not in names:
            source.rename(head, embedding)
    differing = [head for head, embedding in ties.items() if differ(source, head, embedding)]
    for head in differing:
        warn(TyingWarnings.NOT_TIED(path=path, head=head, embedding=ties[head]))
    for head, embedding in ties.items() if differing else ():
        if embedding in source.names() and head not in source.names():
            source.share(embedding, head)
    return bool(differing)


def untied(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return a copy of a config that ties nothing."""
    copy = deepcopy(config)
    copy.tie_word_embeddings = False
    return copy


def check_ties(path: Path, source: TensorSource, config: PreTrainedConfig | None, wanted: Container[str]) -> None:
    """Check that a checkpoint fits a program that has one weight for embedding and head.

    Args:
        path: checkpoint, for messages.
        config: config of the checkpoint.
        wanted: names of the tensors from which the program's weights are made.

    Raises InputError if the checkpoint stores a head with other values.
    """
    for head, embedding in possible_ties(config).items():
        for one, other in ((head, embedding), (embedding, head)):
            if one in wanted and other not in wanted and differ(source, head, embedding):
                raise TyingErrors.PROGRAM_IS_TIED(path=path, head=head, embedding=embedding)


def differ(source: TensorSource, first: str, second: str) -> bool:
    """Return True if both tensors are stored, with other shapes or values. Reads both up to the first difference."""
    names = source.names()
    if first not in names or second not in names:
        return False
    if names[first][0] != names[second][0] or source.stored_form(first) != source.stored_form(second):
        return True
    one, other = source.tensor(first), source.tensor(second)
    if one.data_ptr() == other.data_ptr() and (one.dtype, one.stride()) == (other.dtype, other.stride()):
        return False
    dtype = torch.promote_types(one.dtype, other.dtype)
    rows = max(1, COMPARED_ELEMENTS * len(one) // max(1, one.numel())) if one.dim() else 1
    pairs = zip(one.split(rows), other.split(rows), strict=True) if one.dim() else [(one, other)]
    return not all(torch.equal(a.to(dtype), b.to(dtype)) for a, b in pairs)
