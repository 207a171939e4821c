"""A model of transformers in memory as a checkpoint: the one that `save_pretrained` would write, without writing the
weights.

A config and a state dict cannot express everything: a user's own class, adapters and hooks would be lost. So the class
and its modules are compared with transformers' own, and the object's logits with theirs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from sscc.compiler.frontend.checkpoint import Checkpoint, decoder_of, model_weights
from sscc.compiler.frontend.construction import build_skeleton, build_whole, canonical_names, set_attention
from sscc.compiler.frontend.model_config import causal_class, composite_class, quantization_of, read_config
from sscc.compiler.frontend.probe import PROBE_SEED, PROBE_TOKENS, PROBE_TOLERANCE, difference
from sscc.compiler.frontend.quiet import one_line, quiet_libraries
from sscc.compiler.frontend.sources import DictSource
from sscc.compiler.frontend.tokenizer_files import folder_tokenizer
from sscc.compiler.frontend.untouched_model import load_model
from sscc.ir.errors import ErrorKind, InputError, UnsupportedError, UsageError, quoted


class InMemoryErrors(ErrorKind):
    NOT_A_MODULE = UsageError, "sscc.compile takes a path or a causal language model of transformers, not a {name}"
    NOT_OF_TRANSFORMERS = UnsupportedError, (
        "{name} is not a model of transformers (PreTrainedModel): export it with torch.export and compile the .pt2, or "
        "unwrap the model inside it (adapters have merge_and_unload)"
    )
    TOKENIZER = UsageError, "tokenizer must be one of transformers or tokenizers, got a {form}"
    NOT_SAVED = InputError, "{name} cannot be saved by transformers: {cause}"
    QUANTIZED = UnsupportedError, "{name} is quantized in memory (quantization_config): compile its folder"
    OWN_CLASS = UnsupportedError, "{name} is a user's own class: its changes to {base} would be lost"
    WRONG_CLASS = UnsupportedError, (
        "{name} is not the causal language model of a {model_type}, which is {expected} in transformers"
    )
    NO_CLASS = UnsupportedError, "{name} is not a causal language model that can be compiled"
    MODULE_REPLACED = UnsupportedError, (
        "{name}: {module} is a {form}, where transformers has {expected}: merge adapters, and undo replacements"
    )
    MODULE_MISSING = UnsupportedError, "{name} lacks the module {module}, which the class of transformers has"
    NO_VALUES = UnsupportedError, "{name}: {tensor} is on the meta device and has no values: load the weights first"
    ELSEWHERE = UnsupportedError, "{name}: {tensor} is on {device}, but weights are read on the CPU: call model.cpu()"
    DOES_NOT_RUN = UnsupportedError, "{name} does not run: {cause}"
    DIFFERS = UnsupportedError, (
        "{name} does not compute what its config and weights define: over {tokens} tokens its logits differ by "
        "{difference}; hooks, replaced methods and changed tables are not compiled"
    )


def open_model(model: object, tokenizer: object = None, *, weights: bool = True) -> Checkpoint:
    """Return the checkpoint that `model.save_pretrained` and `tokenizer.save_pretrained` would write. Weights are read
    in place when they are needed; the model is not changed.

    Args:
        model: a causal language model of transformers, on the CPU; without weights also on the meta device.
        tokenizer: a tokenizer of transformers or of tokenizers; None for a checkpoint without one.

    Raises:
        UsageError: `model` is not a module, or `tokenizer` not a tokenizer.
        UnsupportedError: not a causal language model of transformers, one that is quantized or on another device, or
            one that does not compute what its config and weights define.
        InputError: transformers cannot write the config or the tokenizer.
    """
    name = type(model).__name__
    _check_kind(model)
    assert isinstance(model, PreTrainedModel)
    whole, files = _written(model, tokenizer)
    config = decoder_of(Path(name), whole)
    _check_modules(model, whole, config)
    if not weights:
        return Checkpoint(Path(name), config, None, None, lambda: files, whole)
    _check_devices(model)
    canonical = canonical_names(model)
    state = {key: tensor for key, tensor in model.state_dict().items() if canonical.get(key, key) == key}
    source, whole, config = model_weights(Path(name), DictSource(state), whole, config)
    checkpoint = Checkpoint(Path(name), config, None, source, lambda: files, whole)
    if config is whole:
        _check_numbers(model, checkpoint)
    return checkpoint


def _check_kind(model: object) -> None:
    name = type(model).__name__
    if not isinstance(model, torch.nn.Module):
        raise InMemoryErrors.NOT_A_MODULE(name=name)
    if not isinstance(model, PreTrainedModel):
        raise InMemoryErrors.NOT_OF_TRANSFORMERS(name=name)


def _written(model: PreTrainedModel, tokenizer: object) -> tuple[PreTrainedConfig, dict[str, bytes]]:
    """Return the config and the files of the tokenizer, as transformers writes them."""
    name = type(model).__name__
    if not isinstance(tokenizer, PreTrainedTokenizerBase | Tokenizer | None):
        raise InMemoryErrors.TOKENIZER(form=type(tokenizer).__name__)
    config: Any = deepcopy(model.config)
    config.dtype, config.architectures = str(model.dtype).removeprefix("torch."), [name]
    with tempfile.TemporaryDirectory() as saved, quiet_libraries():
        folder = Path(saved)
        try:
            config.save_pretrained(folder)
            if model.can_generate():
                deepcopy(model.generation_config).save_pretrained(folder)
            if isinstance(tokenizer, Tokenizer):
                tokenizer.save(str(folder / "tokenizer.json"))
            elif tokenizer is not None:
                tokenizer.save_pretrained(folder)
        except Exception as error:  # any objection of transformers to the config or tokenizer
            raise InMemoryErrors.NOT_SAVED(name=name, cause=quoted(one_line(error))) from error
        read = read_config(folder / "config.json")
        if quantization_of(read):
            raise InMemoryErrors.QUANTIZED(name=name)
        return read, folder_tokenizer(folder)


def _check_modules(model: PreTrainedModel, whole: PreTrainedConfig, config: PreTrainedConfig) -> None:
    """Refuse a model with another class, or with other modules, than transformers creates for its config."""
    name = type(model).__name__
    own = causal_class(config) if config is whole else composite_class(whole)
    if type(model) is not own:
        if own is not None and isinstance(model, own):
            raise InMemoryErrors.OWN_CLASS(name=name, base=own.__name__)
        if own is None:
            raise InMemoryErrors.NO_CLASS(name=name)
        raise InMemoryErrors.WRONG_CLASS(name=name, model_type=whole.model_type, expected=own.__name__)
    skeleton = build_skeleton(config) if config is whole else build_whole(whole)
    theirs = {} if skeleton is None else dict(skeleton.named_modules())
    for path, module in model.named_modules():
        other = theirs.pop(path, None)
        if type(module) is not type(other):
            raise InMemoryErrors.MODULE_REPLACED(
                name=name,
                module=path,
                form=f"{type(module).__module__}.{type(module).__name__}",
                expected="nothing" if other is None else f"a {type(other).__name__}",
            )
    if theirs:
        raise InMemoryErrors.MODULE_MISSING(name=name, module=next(iter(theirs)))


def _check_devices(model: PreTrainedModel) -> None:
    for path, tensor in model.state_dict(keep_vars=True).items():
        if tensor.is_meta:
            raise InMemoryErrors.NO_VALUES(name=type(model).__name__, tensor=path)
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            raise InMemoryErrors.ELSEWHERE(name=type(model).__name__, tensor=path, device=str(tensor.device))


def _check_numbers(model: PreTrainedModel, checkpoint: Checkpoint) -> None:
    """Compare logits of a short random text with those of transformers' model for the config and the weights."""
    vocabulary = model.get_input_embeddings().weight.shape[0]
    ids = torch.randint(0, vocabulary, (1, PROBE_TOKENS), generator=torch.Generator().manual_seed(PROBE_SEED))
    untouched = load_model(checkpoint, model.dtype)
    set_attention(untouched, "eager")
    untouched.set_experts_implementation("eager")  # type: ignore[operator]
    try:
        with torch.no_grad(), _evaluating(model):
            ours, theirs = (each(input_ids=ids, use_cache=False).logits.float() for each in (model, untouched))
    except Exception as error:  # any exception of the class or of a hook
        raise InMemoryErrors.DOES_NOT_RUN(name=type(model).__name__, cause=quoted(one_line(error))) from error
    differs = difference(ours, theirs, PROBE_TOLERANCE.get(model.dtype, PROBE_TOLERANCE[torch.bfloat16]))
    if differs:
        raise InMemoryErrors.DIFFERS(name=type(model).__name__, tokens=PROBE_TOKENS, difference=differs)


@contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Switch to evaluation mode, without dropout, inside the block; afterwards every module is in its former mode."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
