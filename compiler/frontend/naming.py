"""Names in a checkpoint and names in the model: transformers renames parameters between its versions.

A model of today reads checkpoints of every age, because transformers keeps a table of renamings per model class (GPT-
NeoX's `embed_out.` is `lm_head.` now) and adds or drops the base model's prefix (the first GPT-2 has none). The same
rules apply here, so that the rest of the compiler knows the model's names only.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming

from sscc.compiler.frontend.construction import build_skeleton
from sscc.compiler.frontend.sources import TensorInfo, TensorSource


class RenamedSource(TensorSource):
    """A source under the model's names; what the model does not know keeps its own name."""

    def __init__(self, source: TensorSource, config: PreTrainedConfig) -> None:
        self._source = source
        self._config = config

    @cached_property
    def _stored(self) -> dict[str, str]:
        """Name in the model -> name in the source."""
        return stored_names(self._config, self._source.names())

    def names(self) -> dict[str, TensorInfo]:
        held = self._source.names()
        return {name: held[stored] for name, stored in self._stored.items()}

    def tensor(self, name: str) -> torch.Tensor:
        return self._source.tensor(self._stored[name])


def stored_names(config: PreTrainedConfig, stored: Iterable[str]) -> dict[str, str]:
    """The model's name of every stored tensor -> its stored name, by transformers' own rules.

    Renamings only: where transformers would join or split tensors, names stay as they are stored.
    """
    names = list(stored)
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return {name: name for name in names}
    model = build_skeleton(config)
    known = set(model.state_dict())
    renamings = [item for item in get_model_conversion_mapping(model) if isinstance(item, WeightRenaming)]
    by_model_name = {name: name for name in names if name in known}
    for name in names:
        if name not in known:
            renamed = _model_name(name, renamings, known, model.base_model_prefix)
            by_model_name.setdefault(name if renamed in by_model_name else renamed, name)
    return by_model_name


def _model_name(name: str, renamings: list[WeightRenaming], known: set[str], prefix: str) -> str:
    """What the model calls the tensor stored as `name`; `name` itself where it knows no such tensor."""
    renamed = name
    for renaming in renamings:
        renamed = renaming.rename_source_key(renamed)[0]
    bare = renamed.removeprefix(f"{prefix}.")
    candidates = (renamed, f"{prefix}.{renamed}", bare, f"{prefix}.{name}")
    return next((candidate for candidate in candidates if candidate in known), name)
