"""Names in a checkpoint and names in the model: transformers renames parameters between versions, and joins some.

A current model reads checkpoints of any age, because transformers keeps a table per model class: of renamings (GPT-
NeoX's `embed_out.` is `lm_head.` now), and of tensors that are stored separately and form one parameter (the matrices
of experts). It also adds or drops the base model's prefix (the first GPT-2 has none). The same rules are applied here,
so that the rest of the compiler knows only the model's parameters.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Container, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

from sscc.compiler.frontend.construction import build_skeleton, build_whole
from sscc.compiler.frontend.model_config import causal_class
from sscc.compiler.frontend.quantized_source import QuantizedSource
from sscc.compiler.frontend.quiet import one_line
from sscc.compiler.frontend.sources import StoredForm, TensorInfo, TensorSource
from sscc.ir.errors import ErrorKind, InputError, quoted
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.backends.reference.arrays import to_array, to_tensors
from sscc.runtime.support.quantization import Parts

_TEXT_DECODER = re.compile(r"(^|\.)language_model\.")


class NamingErrors(ErrorKind):
    NOT_JOINED = InputError, "{parameter} cannot be joined from {tensors} tensors ({first}, ..): {cause}"


@dataclass(frozen=True)
class Joined:
    """A parameter that is stored in parts, or as a part of a tensor.

    Attributes:
        name: name of the parameter.
        model: model of the parameter, with names and shapes.
        converter: transformers' rule that joins the parts, or splits the tensor.
        key: name of the rule's result: that of the first parameter, if it splits a tensor.
        parts: pattern of the rule that each stored name matches, in the order of numbers in the names.
    """

    name: str
    converter: WeightConverter
    model: PreTrainedModel
    key: str
    parts: dict[str, str] = field(default_factory=dict)

    def join(self, read: Callable[[str], torch.Tensor]) -> torch.Tensor:
        """Return the parameter, joined from the parts that `read` returns. Raises InputError if they do not fit
        together."""
        converter = deepcopy(self.converter)
        for part, pattern in self.parts.items():
            converter.add_tensor(self.key, part, pattern, read(part))
        try:
            result: torch.Tensor = converter.convert(self.key, model=self.model, config=self.model.config)[self.name]
        except Exception as error:  # any exception of transformers' rules
            first = next(iter(self.parts))
            raise NamingErrors.NOT_JOINED(
                parameter=self.name, tensors=len(self.parts), first=first, cause=quoted(one_line(error))
            ) from None
        return result


@dataclass(frozen=True)
class StoredNames:
    """Stored tensors of a model.

    Attributes:
        renamed: stored name of every tensor by the model's name; tensors that the model does not know keep their names.
        joined: parameters that are stored in parts, by the model's name.
    """

    renamed: dict[str, str]
    joined: dict[str, Joined] = field(default_factory=dict)


class RenamedSource(TensorSource):
    """A source under the model's names. Tensors that the model does not know keep their names.

    Args:
        whole: config of the composite model, if the source belongs to one and the model is its text decoder.
    """

    def __init__(self, source: TensorSource, config: PreTrainedConfig, whole: PreTrainedConfig | None = None) -> None:
        self._source = source
        self._config = config
        self._whole = whole

    @cached_property
    def _stored(self) -> StoredNames:
        names = list(self._source.names())
        return stored_names(self._config, names) if self._whole is None else names_in(self._whole, self._config, names)

    @cached_property
    def _infos(self) -> dict[str, TensorInfo]:
        held = self._source.names()
        infos = {name: held[stored] for name, stored in self._stored.renamed.items()}
        for name, joined in self._stored.joined.items():
            whole = joined.join(lambda part: _meta(held, part))
            infos[name] = (tuple(whole.shape), whole.dtype)
        return infos

    def names(self) -> dict[str, TensorInfo]:
        return self._infos

    def rename(self, name: str, other: str) -> None:
        """Rename a tensor that is stored whole."""
        self.share(name, other)
        del self._stored.renamed[name], self._infos[name]

    def share(self, name: str, other: str) -> None:
        """Give a tensor that is stored whole a second name."""
        self._stored.renamed[other], self._infos[other] = self._stored.renamed[name], self._infos[name]

    def tensor(self, name: str) -> torch.Tensor:
        joined = self._stored.joined.get(name)
        if joined is not None:
            return joined.join(self._source.tensor)
        return self._source.tensor(self._stored.renamed[name])

    def stored_form(self, name: str) -> StoredForm | None:
        """Return the stored form; for a joined parameter that of its parts, with a format if codes are joined as
        numbers are."""
        joined = self._stored.joined.get(name)
        if joined is None:
            return self._source.stored_form(self._stored.renamed[name])
        forms = {self._source.stored_form(part) for part in joined.parts}
        form = forms.pop()
        if form is None or forms:
            return None
        return form if self._joins_codes(name, joined, form) else replace(form, format=None)

    def _joins_codes(self, name: str, joined: Joined, form: StoredForm) -> bool:
        """Return True if joining each part of the stored codes by the rule for numbers gives the parts of the joined
        weight."""
        if form.format is None or form.transposed or form.ordered:
            return False
        shape, _ = self.names()[name]
        held = self._source.names()
        for kind in form.format.parts:
            stored = {part: (form.format.stored(kind.name, *held[part][0]), torch.int8) for part in joined.parts}
            try:
                whole = joined.join(partial(_meta, stored))
            except InputError:
                return False
            if tuple(whole.shape) != form.format.stored(kind.name, *shape):
                return False
        return True

    def parts(self, name: str) -> Parts:
        joined = self._stored.joined.get(name)
        if joined is None:
            return self._source.parts(self._stored.renamed[name])
        stored = {part: self._source.parts(part) for part in joined.parts}
        whole: dict[str, Array] = {}
        for kind in next(iter(stored.values())):
            tensors = to_tensors({part: parts[kind] for part, parts in stored.items()})
            whole[kind] = to_array(joined.join(tensors.__getitem__))
        return whole

    def update_digest(self, digest: hashlib._Hash) -> None:
        """Feed the stored tensors, to avoid computing numbers."""
        if isinstance(self._source, QuantizedSource):
            self._source.update_digest(digest)
        else:
            super().update_digest(digest)


def _meta(held: Mapping[str, TensorInfo], name: str) -> torch.Tensor:
    shape, dtype = held[name]
    return torch.empty(shape, dtype=dtype, device="meta")


def text_names(stored: Iterable[str]) -> dict[str, str]:
    """Return the stored names of a composite model's text decoder, by the names that the decoder alone would have.

    Composite models of transformers hold their text decoder as `language_model`, anywhere in the path; its head may be
    beside it. In checkpoints without this word all names may be those of the decoder.
    """
    names = list(stored)
    inside = {_TEXT_DECODER.sub(r"\1", name): name for name in names if _TEXT_DECODER.search(name)}
    heads = {name: name for name in names if name.startswith("lm_head.")}
    return heads | inside if inside else {name: name for name in names}


def names_in(whole: PreTrainedConfig, config: PreTrainedConfig, stored: Iterable[str]) -> StoredNames:
    """Return the text decoder's names of the tensors in a checkpoint of a composite model with this config.

    The decoder's own rules apply if its names can be identified (`text_names`) and none is missing. Otherwise the
    composite model's rules apply: they join and rename other names than those of the decoder alone (GLM-4.5V), and the
    decoder may be under another name (SmolVLM).
    """
    names = list(stored)
    decoder = build_skeleton(config)
    decoder_names = text_names(names)
    by_word = _stored_names(decoder, decoder_names)
    own = StoredNames(
        {name: decoder_names[stored] for name, stored in by_word.renamed.items()},
        {
            name: replace(each, parts={decoder_names[part]: pattern for part, pattern in each.parts.items()})
            for name, each in by_word.joined.items()
        },
    )
    if not _missing(decoder, own):
        return own
    inside = _names_inside(whole, decoder, names)
    return own if inside is None else inside


def _missing(model: PreTrainedModel, stored: StoredNames) -> set[str]:
    """Return the parameters that a checkpoint lacks, except those that are tied to others."""
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    return {name for name, _ in model.named_parameters()} - stored.renamed.keys() - stored.joined.keys() - tied.keys()


def _names_inside(whole: PreTrainedConfig, decoder: PreTrainedModel, names: list[str]) -> StoredNames | None:
    """Return the names by the rules of the composite model; None if transformers cannot build it (it may need another
    package)."""
    try:
        model = build_whole(whole)
    except InputError:
        return None
    parts = [] if model is None else [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    part = next((part for part in parts if type(part.config) is type(decoder.config)), None)
    if model is None or part is None:
        return None
    known, prefix = decoder.state_dict(), decoder.base_model_prefix
    place = _path(model, part)
    head, own_head = (_path(each, each.get_output_embeddings()) for each in (model, decoder))
    in_whole = _stored_names(model, names)
    inside = StoredNames({}, {})
    for name in (*in_whole.renamed, *in_whole.joined):
        if place and name.startswith(f"{place}."):
            decoder_name = _model_name(name.removeprefix(f"{place}."), [], known, prefix)
        elif head and own_head and name.startswith(f"{head}."):
            decoder_name = own_head + name.removeprefix(head)
        else:
            continue
        if name in in_whole.renamed:
            inside.renamed[decoder_name] = in_whole.renamed[name]
        else:
            inside.joined[decoder_name] = in_whole.joined[name]
    return inside


def _path(model: PreTrainedModel, part: torch.nn.Module | None) -> str:
    """Return the path of a module in a model; "" if it is not in it."""
    return next((name for name, module in model.named_modules() if module is part), "")


def stored_names(config: PreTrainedConfig, stored: Iterable[str]) -> StoredNames:
    """Return the model's names of the tensors in a checkpoint, by transformers' own rules."""
    names = list(stored)
    if causal_class(config) is None:
        return StoredNames({name: name for name in names})
    return _stored_names(build_skeleton(config), names)


def _stored_names(model: PreTrainedModel, stored: Iterable[str]) -> StoredNames:
    """Return `stored_names` for a model of names and shapes."""
    names = list(stored)
    known, prefix = model.state_dict(), model.base_model_prefix
    rules = get_model_conversion_mapping(model)
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter) and _is_read(rule)]
    stored_as = StoredNames({name: name for name in names if name in known})
    for name in sorted((name for name in names if name not in known), key=_natural_key):
        key, pattern = rename_source_key(name, renamings, converters, prefix, known)
        if pattern is not None and key in known and key not in stored_as.renamed:
            rule = next(rule for rule in converters if pattern in rule.source_patterns)
            for target in rule.target_patterns:
                whole = key.replace(rule.target_patterns[0], target)
                stored_as.joined.setdefault(whole, Joined(whole, rule, model, key)).parts[name] = pattern
            continue
        renamed = _model_name(name, renamings, known, prefix)
        stored_as.renamed.setdefault(name if renamed in stored_as.renamed else renamed, name)
    return stored_as


def _is_read(rule: WeightConverter) -> bool:
    """Return True for a rule that makes one parameter of its tensors, or several of one tensor."""
    return len(rule.target_patterns) == 1 or len(rule.source_patterns) == 1


def _natural_key(name: str) -> tuple[Any, ...]:
    try:
        key: tuple[Any, ...] = dot_natural_key(name)
    except ValueError:  # a number of thousands of digits
        key = ((1, name),)
    return key


def _model_name(name: str, renamings: list[WeightRenaming], known: Container[str], prefix: str) -> str:
    """Return the model's name of the tensor stored as `name`; `name` itself if the model has no such tensor."""
    renamed = name
    for renaming in renamings:
        renamed = renaming.rename_source_key(renamed)[0]
    bare = renamed.removeprefix(f"{prefix}.")
    candidates = (renamed, f"{prefix}.{renamed}", bare, f"{prefix}.{name}")
    return next((candidate for candidate in candidates if candidate in known), name)
