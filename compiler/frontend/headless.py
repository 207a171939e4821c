"""Text decoders inside composite models for which transformers has a model class but no causal language model class.

The decoder of Qwen2.5-VL, for example, is a model without a head; the head belongs to the class of the composite model.
Here both are combined into a causal language model: the unmodified model, and a linear layer on its hidden states. That
the composite model does the same with text alone is not assumed: the probe runs its class, around the same decoder and
head.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from transformers import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_MAPPING,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, model_type_to_module_name
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from sscc.compiler.frontend.quiet import one_line
from sscc.ir.errors import ErrorKind, UnsupportedError


class HeadlessErrors(ErrorKind):
    NO_WHOLE = (
        UnsupportedError,
        "{model} cannot be compared with {whole}, whose text decoder it is ({cause}): give the config.json of the "
        "whole model",
    )


class Headed:
    """Marks the classes of `headed_class`.

    Class attributes:
        whole: class of the composite model.
        decoder: class of its text decoder.
    """

    whole: type[PreTrainedModel]
    decoder: type[PreTrainedModel]


def headed_class(config: PreTrainedConfig) -> type[PreTrainedModel] | None:
    """Return a causal language model class for the text decoder with this config, with the head of its composite model;
    None if transformers has no such decoder or composite model."""
    known = type(config)
    if known not in _HEADED:
        _HEADED[known] = _headed(known)
    return _HEADED[known]


_HEADED: dict[type[PreTrainedConfig], type[PreTrainedModel] | None] = {}


def _headed(config_class: type[PreTrainedConfig]) -> type[PreTrainedModel] | None:
    try:
        decoder = MODEL_MAPPING.get(config_class, None)
    except ValueError:  # transformers lists a class that its package lacks (voxtral_realtime_text)
        return None
    whole = _whole_of(config_class)
    if not isinstance(decoder, type) or whole is None:
        return None
    base: Any = decoder.__mro__[1]
    if not issubclass(base, PreTrainedModel):
        return None

    class TextDecoder(base, Headed):
        base_model_prefix = "model"
        _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

        def __init__(self, config: PreTrainedConfig) -> None:
            super().__init__(config)
            self.model = decoder(config)
            self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
            self.post_init()

        def forward(
            self, input_ids: Tensor, position_ids: Tensor | None = None, logits_to_keep: Any = 0, **keywords: Any
        ) -> CausalLMOutputWithPast:
            hidden = self.model(input_ids=input_ids, position_ids=position_ids, **keywords).last_hidden_state
            kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            return CausalLMOutputWithPast(logits=self.lm_head(hidden[:, kept]))

    TextDecoder.config_class, TextDecoder.whole, TextDecoder.decoder = config_class, whole, decoder
    TextDecoder.__module__ = decoder.__module__
    return TextDecoder


def _whole_of(config_class: type[PreTrainedConfig]) -> type[PreTrainedModel] | None:
    """Return the class of composite models, in the same package of transformers, with such a config for its text."""
    package = config_class.__module__.rpartition(".")[0].rpartition(".")[2]
    for name in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        if model_type_to_module_name(name) != package:
            continue
        whole_config = CONFIG_MAPPING[name]
        cls = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING.get(whole_config, None)
        if isinstance(cls, type) and whole_config.sub_configs.get("text_config") is config_class:
            return cls
    return None


def around(model: Any, whole_config: PreTrainedConfig | None) -> torch.nn.Module:
    """Return the composite model around a model of `headed_class`. Its text decoder and head are those of `model`; all
    other modules are on the meta device, because text alone does not run them.

    Args:
        whole_config: config of the composite model; if None or another one, all other modules have default sizes.

    Raises:
        UnsupportedError: default sizes do not fit the text decoder's.
    """
    config_class: Any = type(model).whole.config_class
    fields = whole_config.to_dict() if whole_config is not None and type(whole_config) is config_class else {}
    try:
        config = config_class.from_dict(fields | {"text_config": deepcopy(model.config).to_dict()})
    except Exception as error:  # any exception of the class's checks
        raise HeadlessErrors.NO_WHOLE(
            model=model.config.model_type, whole=type(model).whole.__name__, cause=one_line(error)
        ) from error
    with torch.device("meta"):
        whole: torch.nn.Module = type(model).whole._from_config(config)
    inside = [name for name, part in whole.named_modules() if type(part) is type(model).decoder]
    (name,) = inside
    whole.set_submodule(name, model.model)
    whole.set_output_embeddings(model.lm_head)  # type: ignore[operator]
    return whole.eval()
