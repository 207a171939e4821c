"""The passes of a compilation, in order, and all passes by name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

from sscc.ir.choices import LEVELS, OPT_LEVELS
from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.suggestions import did_you_mean
from sscc.ir.weight_formats.registry import Weights
from sscc.passes.absorb_latent import AbsorbLatent
from sscc.passes.base import Pass, options_of, step_text
from sscc.passes.build_entries import BuildEntries
from sscc.passes.form_stages import FormStages
from sscc.passes.fuse_compressed_attention import FuseCompressedAttention
from sscc.passes.kernel_looping import KernelLooping
from sscc.passes.lower_torch import LowerTorch
from sscc.passes.merge_equal_kernels import MergeEqualKernels
from sscc.passes.outline_kernels import OutlineKernels
from sscc.passes.place_stages import PlaceStages
from sscc.passes.quantize_weights import QuantizeWeights
from sscc.passes.repeat_layers import RepeatLayers
from sscc.passes.shard import Shard
from sscc.passes.split_layers import SplitLayers
from sscc.passes.thread_cache import ThreadCache
from sscc.passes.tile_stages import TileStages
from sscc.passes.upstream import ANCHORS, NESTABLE, UPSTREAM, Nested
from sscc.passes.user_passes import UserPassErrors, load_passes, placed

Step = TypeVar("Step", bound=Pass)


class PassPipelineErrors(ErrorKind):
    UNKNOWN_PASS = UsageError, "there is no pass {name!r}; the passes are {passes}{similar_hint}"
    STORED_WEIGHTS = (
        UsageError,
        "the weights of this module are stored as {stored} and cannot become {weights}: compile from level import",
    )
    PLAIN_WEIGHTS = (
        UsageError,
        "the weights of this module can no longer be stored as {weights}: compile from level import",
    )
    OTHER_RANKS = (
        UsageError,
        "this module is sharded over {ranks} ranks, which cannot become {other_ranks}: compile from level import",
    )
    OTHER_SUMS = (
        UsageError,
        "the ranks of this module exchange partial sums in dtype {sums}, which cannot become {other_sums}: compile "
        "from level import",
    )
    OTHER_LEVEL = (
        UsageError,
        "the passes {done} have run on the module, which -O{opt_level} does not run: continue with {fitting}",
    )
    NO_LEVEL = (
        UsageError,
        "the passes {done} have run on the module, which no -O level runs: continue with `sscc opt`, not with "
        "-O{opt_level}",
    )
    UNREADABLE = UsageError, "cannot parse the pass pipeline at {text!r}"
    UNKNOWN_OPTION = (
        UsageError,
        "the pass {name} has no option {option!r}; its options are {options}{similar_hint}",
    )
    NO_OPTIONS = UsageError, "the pass {name} has no option {option!r}; it has no options"
    NO_ANCHOR = UsageError, "passes cannot be nested on {anchor}, only on {known}"
    NOT_NESTED = (
        UsageError,
        "the pass {name} works on a module and cannot be nested on {anchor}; passes that can be nested: {known}",
    )
    BAD_VALUE = UsageError, "the option {option} of the pass {name} must be of type {type}, got {value!r}"


_CAPTURED: tuple[Pass, ...] = (
    *(LowerTorch(), SplitLayers(), RepeatLayers()),
    *(AbsorbLatent(), ThreadCache(), BuildEntries()),
)
_LAYERS: tuple[Pass, ...] = (OutlineKernels(granularity="layer"), MergeEqualKernels())

PIPELINES: dict[int, tuple[Pass, ...]] = {
    0: (*_CAPTURED, OutlineKernels(), MergeEqualKernels(), FormStages(fuse=False)),
    1: (*_CAPTURED, *_LAYERS, FuseCompressedAttention(), FormStages(), TileStages(), PlaceStages()),
    2: (*_CAPTURED, *_LAYERS, KernelLooping(), FuseCompressedAttention(), FormStages(), TileStages(), PlaceStages()),
}
"""Passes of -O0, -O1 and -O2: one kernel per operation, one per layer, one per run of equal layers."""

PIPELINE = PIPELINES[2]

WHOLE = Shard()
"""Sharding of a program of one rank."""

_ALL = [item for opt in (2, 1, 0) for item in PIPELINES[opt]]
_ALL.insert(_ALL.index(BuildEntries()), QuantizeWeights())
_ALL.insert(_ALL.index(RepeatLayers()), Shard())
REGISTRY: dict[str, type[Pass]] = {type(item).name: type(item) for item in _ALL}
"""Every pass by its name on the command line, in dumps and in tests."""


LOADED: dict[str, type[Pass]] = {}
"""User passes by name (`load`)."""


def load(sources: Sequence[str]) -> tuple[Pass, ...]:
    """Load user passes (`load_passes`), so that pipelines may name them, and return an instance of each.

    Raises:
        UsageError: as `load_passes`; or a pass has the name of another one.
        InputError: as `load_passes`.
    """
    kinds = [(source, kind) for source in sources for kind in load_passes(source)]
    new: dict[str, type[Pass]] = {}
    for source, kind in kinds:
        if kind.name in {*REGISTRY, *UPSTREAM, *new}:
            raise UserPassErrors.NAME_TAKEN(source=source, name=kind.name)
        new[kind.name] = kind
    LOADED.update(new)
    return tuple(kind() for kind in new.values())


def pass_by_name(name: str) -> type[Pass]:
    """Return the class of the pass `name`: of sscc, of MLIR, or loaded. Raises UsageError if there is none."""
    known: dict[str, type[Pass]] = {**REGISTRY, **UPSTREAM, **LOADED}
    if name not in known:
        raise PassPipelineErrors.UNKNOWN_PASS(name=name, passes=sorted(known), similar_hint=did_you_mean(name, known))
    return known[name]


def pipeline_of(opt_level: int, weights: Weights | None = None, shard: Shard = WHOLE) -> tuple[Pass, ...]:
    """Return the passes of -O`opt_level`.

    Args:
        weights: storage of weights; None for no change.
        shard: sharding over ranks.
    """
    steps = list(PIPELINES[opt_level])
    if weights is not None:
        steps.insert(steps.index(BuildEntries()), QuantizeWeights.of(weights))
    if shard.ranks > 1:
        steps.insert(steps.index(RepeatLayers()), shard)
    return tuple(steps)


def weights_of(done: Sequence[str]) -> Weights | None:
    """Return the storage of weights of a module on which the passes `done` have run; None if they are unchanged."""
    step = _step_of(QuantizeWeights, done)
    return None if step is None else step.chosen


def takes_weights(done: Sequence[str]) -> bool:
    """Return True if a pass may still decide how the weights of a module are stored that has been through `done`."""
    return weights_of(done) is None and BuildEntries.name not in done


def shard_of(done: Sequence[str]) -> Shard:
    """Return the sharding of a module on which the passes `done` have run."""
    return _step_of(Shard, done) or WHOLE


def _step_of(kind: type[Step], done: Sequence[str]) -> Step | None:
    """Return the pass of a kind, with its options, that has run on a module; None if it has not."""
    steps = (parse_pipeline(text)[0] for text in done if text.startswith(kind.name))
    return next((step for step in steps if isinstance(step, kind)), None)


def passes_between(
    done: tuple[str, ...],
    level: str,
    opt_level: int,
    weights: Weights | None = None,
    shard: Shard | None = None,
    *,
    loaded: Sequence[Pass] = (),
    from_level: str | None = None,
) -> tuple[Pass, ...]:
    """Return the passes of -O`opt_level` still to run, up to and including `level`, on a module on which the passes
    `done` (in the form of `step_text`) have run.

    Args:
        weights: requested storage of weights; None for no change, or that of `done`.
        shard: requested sharding; None for none, or that of `done`.
        loaded: user passes to run too (`placed`).
        from_level: level of a module whose history is ignored: compilation continues behind the last pass that has run,
            with whatever options, or behind this level if none has.

    Raises:
        UsageError: the module was compiled at another optimisation level, or can no longer be sharded or its weights
            stored as requested; or a loaded pass has no place.
    """
    stored = weights_of(done)
    if weights is not None and stored != weights and (stored is not None or BuildEntries.name in done):
        if stored is None:
            raise PassPipelineErrors.PLAIN_WEIGHTS(weights=weights)
        raise PassPipelineErrors.STORED_WEIGHTS(stored=stored, weights=weights)
    cut = shard_of(done)
    if shard is not None and shard != cut and RepeatLayers.name in done:
        if shard.ranks != cut.ranks:
            raise PassPipelineErrors.OTHER_RANKS(ranks=cut.ranks, other_ranks=shard.ranks)
        raise PassPipelineErrors.OTHER_SUMS(sums=cut.sums, other_sums=shard.sums)
    plain = pipeline_of(opt_level, weights or stored, shard or cut)
    steps = placed(plain, loaded)
    if from_level is not None:
        return _up_to(level, steps, _first_after(done, from_level, steps))
    histories = (
        [number for number, item in enumerate(steps) if item.level],  # of a module that loaded passes have been at
        [number for number, item in enumerate(steps) if item in plain],
    )
    for numbers in histories:
        if tuple(step_text(steps[number]) for number in numbers[: len(done)]) == done:
            return _up_to(level, steps, numbers[len(done) - 1] + 1 if done else 0)
    plans = {other: tuple(map(step_text, pipeline_of(other, stored, cut))) for other in OPT_LEVELS}
    fitting = [f"-O{other}" for other, plan in plans.items() if plan[: len(done)] == done]
    if fitting:
        raise PassPipelineErrors.OTHER_LEVEL(done=done, opt_level=opt_level, fitting=fitting)
    raise PassPipelineErrors.NO_LEVEL(done=done, opt_level=opt_level)


def _first_after(done: Sequence[str], level: str, steps: Sequence[Pass]) -> int:
    """Return the number of the first of `steps` that a module is still to go through."""
    names = {text.partition("{")[0] for text in done}
    run_passes = [number for number, item in enumerate(steps) if item.name in names]
    if not run_passes:
        run_passes = [number for number, item in enumerate(steps) if item.level == level]
    return run_passes[-1] + 1 if run_passes else 0


def _up_to(level: str, steps: Sequence[Pass], first: int) -> tuple[Pass, ...]:
    """Return the steps from number `first` on that lead to `level`, and those at that level."""
    last, result = LEVELS.index(level), []
    for item in steps[first:]:
        if item.level and LEVELS.index(item.level) > last:
            break
        result.append(item)
    return tuple(result)


_INTEGER = re.compile(r"-?[0-9]{1,18}")
_STEP = re.compile(r"\s*([a-z0-9-]+)\s*(?:\{([^{}]*)\})?\s*(?:,|$)")
_ANCHOR = re.compile(r"\s*([a-z_]+\.[a-z_]+)\s*\(")
_COMMA = re.compile(r"\s*(?:,|$)")
_MODULE = "builtin.module"


def parse_pipeline(text: str) -> tuple[Pass, ...]:
    """Return the passes of ``name,name{option=value other=value},func.func(name,..)``, in MLIR's pipeline syntax.

    ``builtin.module(..)`` around passes is accepted. Passes of MLIR may be nested on functions; passes of sscc work on
    the module.

    Raises:
        UsageError: unknown pass or option, a value of the wrong type, or a pass that cannot be nested.
    """
    passes: list[Pass] = []
    position = 0
    while position < len(text):
        anchor = _ANCHOR.match(text, position)
        if anchor is not None:
            inside, position = _nested(text, anchor.end())
            passes += parse_pipeline(inside) if anchor[1] == _MODULE else [_on(anchor[1], inside)]
            continue
        match = _STEP.match(text, position)
        if match is None:
            raise PassPipelineErrors.UNREADABLE(text=text[position:])
        kind = pass_by_name(match.group(1))
        passes.append(kind(**_options(kind, match.group(2) or "")))
        position = match.end()
    return tuple(passes)


def _nested(text: str, start: int) -> tuple[str, int]:
    """Return the text up to the bracket that closes the one before `start`, and the position behind that bracket."""
    depth = 1
    for position in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        if depth == 0:
            rest = _COMMA.match(text, position + 1)
            if rest is None:
                raise PassPipelineErrors.UNREADABLE(text=text[position + 1 :])
            return text[start:position], rest.end()
    raise PassPipelineErrors.UNREADABLE(text=text[start:])


def _on(anchor: str, text: str) -> Pass:
    """Return the pass that runs a pipeline of MLIR's passes on each operation of a kind."""
    if anchor not in ANCHORS:
        raise PassPipelineErrors.NO_ANCHOR(anchor=anchor, known=(_MODULE, *ANCHORS))
    for name in filter(None, (word.strip() for word in text.split(","))):
        if name not in NESTABLE:
            pass_by_name(name.partition("{")[0])
            raise PassPipelineErrors.NOT_NESTED(name=name, anchor=anchor, known=NESTABLE)
    return Nested(f"{anchor}({','.join(word.strip() for word in text.split(','))})")


def _options(kind: type[Pass], text: str) -> dict[str, object]:
    known = options_of(kind)
    values: dict[str, object] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if name not in known or not equals:
            if not known:
                raise PassPipelineErrors.NO_OPTIONS(name=kind.name, option=word)
            likely = did_you_mean(name, known)
            raise PassPipelineErrors.UNKNOWN_OPTION(
                name=kind.name, option=word, options=list(known), similar_hint=likely
            )
        values[name.replace("-", "_")] = _value(kind, name, known[name][0], value)
    return values


def _value(step: type[Pass], option: str, kind: type, text: str) -> object:
    if kind is bool and text in ("true", "false"):
        return text == "true"
    if kind is int and _INTEGER.fullmatch(text):
        return int(text)
    if kind is str:
        return text
    raise PassPipelineErrors.BAD_VALUE(name=step.name, option=option, value=text, type=kind.__name__)


def pipeline_text(passes: Sequence[Pass]) -> str:
    """Return the text that `parse_pipeline` reads back, without options at their default."""
    return ",".join(map(step_text, passes))
